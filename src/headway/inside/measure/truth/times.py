"""Errors of word times by each method, compared with evenly spaced words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from headway.decode.speech.word_times import WordTiming
from headway.inside.capture.media import MediaInput
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure.audio_alignment import (
    RowRanges,
    at_pauses,
    by_ctc,
    by_heads,
    ctc_log_probs,
    find_word_timings,
)
from headway.inside.measure.maps import COSTLY, Map, make
from headway.inside.measure.media_maps import head_weights
from headway.inside.measure.truth.accuracy import MapFunction
from headway.inside.measure.truth.case import Case
from headway.inside.measure.truth.pointing import SpokenCase
from headway.tasks.loaded_run import LoadedRun

Times = Sequence[tuple[float, float]]


def boundary_errors(found: Times, known: Times) -> list[float]:
    """Absolute differences in seconds between found and known word boundaries."""
    pairs = zip(found, known, strict=True)
    return [abs(a - b) for mine, right in pairs for a, b in zip(mine, right, strict=True)]


def even_times(media: MediaInput, n_words: int) -> Times:
    """Words of equal length without pauses: a baseline that detects pauses but knows no words."""
    return _ends(at_pauses(media, _even_words(media, n_words)))


def _even_words(media: MediaInput, n_words: int) -> list[WordTiming]:
    step = media.seconds / n_words
    return [WordTiming("", n * step, (n + 1) * step, 1.0) for n in range(n_words)]


def _ends(words: Sequence[WordTiming]) -> Times:
    return [(word.start, word.end) for word in words]


def measure_times(run: LoadedRun, cases: Sequence[SpokenCase]) -> dict[str, Any]:
    """Median error of word boundaries in milliseconds, by method.

    `own_ms` has the boundaries of the method, `median_ms` those moved to pauses. The method
    `attention` uses the heads found in each recording alone. `best head` is a single head that was
    selected on one half of the recordings and evaluated on the other.
    """
    errors: dict[str, list[float]] = {}
    own: dict[str, list[float]] = {}
    of_heads: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
    for number, spoken in enumerate(cases):
        seen = trace(run, spoken.case.reading)
        media = seen.reading.media
        assert media is not None
        ways: dict[str, RowRanges | None] = {}
        aligned = by_heads(seen)
        if aligned is not None:
            ways["attention"] = aligned.rows
            for layer, shares in enumerate(aligned.shares):
                for head in range(len(shares)):
                    one = by_heads(seen, [(layer, head)])
                    assert one is not None
                    _, found = _errors(seen, one.rows, spoken)
                    of_heads.setdefault((layer, head), ([], []))[number % 2].extend(found)
        logs_SV = ctc_log_probs(run, seen)
        if logs_SV is not None:
            ways["CTC"] = by_ctc(logs_SV, seen.reading)
        for name, rows in ways.items():
            if rows is not None:
                before, behind = _errors(seen, rows, spoken)
                own.setdefault(name, []).extend(before)
                errors.setdefault(name, []).extend(behind)
        plain = _ends(_even_words(media, len(spoken.times)))
        own.setdefault("evenly", []).extend(boundary_errors(plain, spoken.times))
        even = even_times(media, len(spoken.times))
        errors.setdefault("evenly", []).extend(boundary_errors(even, spoken.times))
    return {
        "own_ms": _medians(own),
        "median_ms": _medians(errors) | _best_head(of_heads),
        "words": sum(len(case.times) for case in cases),
    }


def with_aligning(methods: Sequence[str], few: int) -> MapFunction:
    """Make a function that makes maps for `measure_accuracy`: those of the methods, and
    `aligning`, the mean of the heads that follow the audio."""
    count = iter(range(1 << 30))

    def make_maps(run: LoadedRun, case: Case) -> list[Map]:
        number = next(count)
        wanted = [m for m in methods if m not in COSTLY or number < few]
        seen = trace(run, case.reading)
        aligned = by_heads(seen)
        made = make(run, seen, [name for name in wanted if name != "flow"])
        if aligned is None:
            return made
        layers = head_weights(run, seen)
        mean_RS = torch.stack([layers[layer][head] for layer, head in aligned.heads]).mean(0)
        return [*made, Map.of("aligning", {case.stream: mean_RS})]

    return make_maps


def _errors(seen: Trace, rows: RowRanges, spoken: SpokenCase) -> tuple[list[float], list[float]]:
    """Boundary errors of the method's words, and of the words moved to pauses."""
    media = seen.reading.media
    assert media is not None
    words = find_word_timings(seen.reading, rows, None)
    before, behind = (
        boundary_errors(_ends(found), spoken.times) for found in (words, at_pauses(media, words))
    )
    return before, behind


def _medians(errors: dict[str, list[float]]) -> dict[str, float]:
    return {name: _ms(found) for name, found in errors.items() if found}


def _best_head(
    of_heads: dict[tuple[int, int], tuple[list[float], list[float]]],
) -> dict[str, float]:
    chosen = {place: median(first) for place, (first, last) in of_heads.items() if first and last}
    if not chosen:
        return {}
    layer, head = min(chosen, key=lambda place: chosen[place])
    return {f"head cross.{layer}.{head}": _ms(of_heads[layer, head][1])}


def _ms(found: list[float]) -> float:
    return round(1000 * median(found), 1)
