"""Ground truth for images, videos and recordings: bounding boxes of objects, and word timestamps.

A map is correct if its strongest patch or audio frame is in the box of the object or in the
interval of the word. This is the pointing game of Zhang et al. (2016). Word timestamps of each
method are compared with evenly spaced words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from headway.data.files import open_lines
from headway.data.media.open_item import ItemFormat
from headway.data.readers.jsonl import parse_object
from headway.data.sniff import is_table_file
from headway.data.source import Example, media_examples
from headway.decode.speech.word_times import WordTiming
from headway.errors import DataError, UserError
from headway.inside.capture.media import MediaInput
from headway.inside.capture.reading import GenerationOptions, Reading, TracedOutput, read
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
from headway.inside.measure.maps.map import written_words
from headway.inside.measure.media_maps import head_weights
from headway.inside.measure.truth.cases import Case, GroundTruthLink, MapFunction, word_groups
from headway.settings.run import media_settings
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.media_inputs import what_of
from headway.tasks.preprocess.preprocessor import media_settings_of

RelativeBox = tuple[float, float, float, float]
"""Bounding box: left, top, right and bottom, as fractions of the width or height of the image that
the model reads."""


@dataclass(frozen=True)
class SpokenCase:
    """Test case of a recording, with the start and end of each word in seconds."""

    case: Case
    times: tuple[tuple[float, float], ...]


def scene_cases(run: LoadedRun, manifest: Path, most: int) -> list[Case]:
    """Return cases from images and videos with bounding boxes.

    Each line of the manifest has `objects`. The `words` of an object are the indices (from 0) of
    the words in the text that name it. Its `box` is the bounding box; a video has `boxes`, one per
    frame.
    """
    found = []
    for item, facts, where in _lines(run, manifest, most):
        case = _scene(run, item, facts, where)
        if case is not None:
            found.append(case)
    return found


def _scene(run: LoadedRun, item: Example, facts: dict[str, Any], where: str) -> Case | None:
    settings = media_settings_of(run.settings)
    seen = item.medium.read(ItemFormat.of(what_of(settings), settings))
    media = MediaInput.of(item.place, seen.values, settings)
    things = facts.get("objects")
    if not isinstance(things, list):
        raise DataError(
            f"{where} has no `objects` with boxes. See examples/make_shapes.py for the format."
        )
    size = (seen.height, seen.width)
    patches = [right_patches(media, boxes_of(thing, media, size, where)) for thing in things]
    if run.spec.writes:
        return _caption_case(run, media, facts, things, patches, where)
    return _label_case(run, media, facts, things, patches)


def _caption_case(
    run: LoadedRun, media: MediaInput, facts: dict[str, Any], things: list[Any],
    patches: list[frozenset[int]], where: str,
) -> Case | None:  # fmt: skip
    reading = read(run, media, GenerationOptions(output=str(facts.get("text", ""))))
    written = word_groups(written_words(reading))
    links = []
    for thing, right in zip(things, patches, strict=True):
        numbers = thing.get("words")
        if not isinstance(numbers, list) or not all(isinstance(n, int) for n in numbers):
            raise DataError(f"{where}: an object needs `words`, a list of word numbers (from 0).")
        rows = [written[number] for number in numbers if number in written]
        if right and len(rows) == len(numbers):
            links += [GroundTruthLink(of_word, right, right) for of_word in rows]
    return _case(reading, "source", media, links) if links else None


def _label_case(
    run: LoadedRun, media: MediaInput, facts: dict[str, Any], things: list[Any],
    patches: list[frozenset[int]],
) -> Case | None:  # fmt: skip
    """Return a case from an image whose label names an object, or that has a single object."""
    label = facts.get("label")
    named = [right for thing, right in zip(things, patches, strict=True)
             if thing.get("name") == label or len(things) == 1]  # fmt: skip
    if label not in run.settings.labels or len(named) != 1 or not named[0]:
        return None
    reading = read(run, media)
    output = TracedOutput(None, run.settings.labels.index(label), str(label))
    link = GroundTruthLink((0,), named[0], named[0])
    return _case(replace(reading, outputs=(output,)), reading.last.name, media, [link])


def _case(reading: Reading, stream: str, media: MediaInput, links: list[GroundTruthLink]) -> Case:
    columns = tuple((place,) for place in range(media.extra, media.n_rows))
    return Case(reading, stream, columns, tuple(links))


def boxes_of(
    thing: dict[str, Any], media: MediaInput, size: tuple[int, int], where: str
) -> list[RelativeBox | None]:
    """Return the bounding box of an object at each time step of the patches; None where it is not
    visible.

    `size`: height and width of the image file.
    """
    every = thing.get("boxes") or [thing.get("box")]
    n_times = media.grid[0]
    found = []
    for time in range(n_times):
        first, last = time * len(every) // n_times, (time + 1) * len(every) // n_times
        # A patch of a video spans several frames, so the box of the middle frame is used.
        box = every[min((first + max(first, last - 1)) // 2, len(every) - 1)]
        found.append(None if box is None else _bring(box, size, media.item.shape[-2:], where))
    return found


def _bring(box: Any, size: tuple[int, int], now: tuple[int, ...], where: str) -> RelativeBox:
    """Convert a box to fractions of the centre crop that the model reads."""
    if not isinstance(box, list) or len(box) != 4:
        raise DataError(f"{where}: a box must be four numbers: left, top, right, bottom.")
    factor = max(now[0] / size[0], now[1] / size[1])
    kept = [min(old, round(new / factor)) for old, new in zip(size, now, strict=True)]
    top, left = ((old - part) // 2 for old, part in zip(size, kept, strict=True))
    x0, y0, x1, y1 = (float(x) for x in box)
    return (x0 - left) / kept[1], (y0 - top) / kept[0], (x1 - left) / kept[1], (y1 - top) / kept[0]


def right_patches(media: MediaInput, boxes: list[RelativeBox | None]) -> frozenset[int]:
    """Return the indices of patches whose centre is in the box; for a small object, the patch that
    contains the object's centre.

    Indices do not count the special tokens before the patches.
    """
    _, lines, columns = media.grid
    found = set()
    for time, box in enumerate(boxes):
        if box is None:
            continue
        x0, y0, x1, y1 = box
        inside = {
            (y, x)
            for y in range(lines)
            for x in range(columns)
            if x0 <= (x + 0.5) / columns < x1 and y0 <= (y + 0.5) / lines < y1
        }
        if not inside:
            middle = (y0 + y1) / 2, (x0 + x1) / 2
            inside = {(int(middle[0] * lines), int(middle[1] * columns))}
        found |= {
            (time * lines + y) * columns + x
            for y, x in inside
            if 0 <= y < lines and 0 <= x < columns
        }
    return frozenset(found)


def recording_cases(run: LoadedRun, manifest: Path, most: int) -> list[SpokenCase]:
    """Return cases from recordings with word timestamps.

    Each line of the manifest has `words`, each with `word`, `start` and `end`. The model reads the
    given text.
    """
    settings = media_settings_of(run.settings)
    form = ItemFormat.of(what_of(settings), settings)
    found = []
    for item, facts, where in _lines(run, manifest, most):
        words = facts.get("words")
        if not isinstance(words, list) or not words:
            raise DataError(
                f"{where} has no `words` with times. See examples/make_digits.py for the format."
            )
        times = tuple(_time(word, where) for word in words)
        media = MediaInput.of(item.place, item.medium.read(form).values, settings)
        text = " ".join(str(word.get("word", "")) for word in words)
        reading = read(run, media, GenerationOptions(output=text))
        written = word_groups(written_words(reading))
        if len(written) != len(words):
            continue  # the tokenizer splits words differently
        links = []
        for of_word, (start, end) in zip(written.values(), times, strict=True):
            right = right_rows(media, start, end)
            if right:
                links.append(GroundTruthLink(of_word, right, right))
        columns = tuple((row,) for row in range(media.n_unpadded_rows))
        found.append(SpokenCase(Case(reading, "source", columns, tuple(links)), times))
    return found


def right_rows(media: MediaInput, start: float, end: float) -> frozenset[int]:
    """Return the audio frames whose middle is within the interval of a word, given in seconds."""
    rows = range(media.n_unpadded_rows)
    return frozenset(row for row in rows if start <= (row + 0.5) * media.row_s < end)


def _time(word: Any, where: str) -> tuple[float, float]:
    try:
        start, end = float(word["start"]), float(word["end"])
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{where}: a word needs `word`, `start` and `end` (in seconds).") from error
    return start, end


def _lines(
    run: LoadedRun, manifest: Path, most: int
) -> Iterator[tuple[Example, dict[str, Any], str]]:
    """Yield the first `most` items of a manifest, each with the JSON values of its line and its
    location for messages."""
    settings = media_settings(run.settings)
    if settings is None:
        raise UserError(f"{run.folder.name} reads text, not a media manifest.")
    if not is_table_file(manifest) or manifest.suffix not in (".jsonl", ".ndjson"):
        raise UserError(f"{manifest} must be a JSONL manifest (.jsonl) with boxes or times.")
    items = media_examples([str(manifest)], run.settings.data, what_of(settings))
    for number, line in enumerate(open_lines(str(manifest)), 1):
        if most < 1:
            return
        if line.strip():
            most -= 1
            where = f"{manifest}, line {number:,}"
            yield next(items), parse_object(line, where), where


Times = Sequence[tuple[float, float]]


def boundary_errors(found: Times, known: Times) -> list[float]:
    """Return the absolute differences in seconds between found and known word boundaries."""
    pairs = zip(found, known, strict=True)
    return [abs(a - b) for mine, right in pairs for a, b in zip(mine, right, strict=True)]


def even_times(media: MediaInput, n_words: int) -> Times:
    """Return baseline word timestamps: words of equal length, whose boundaries are moved to pauses.

    The baseline uses the audio, but does not know the words.
    """
    return _ends(at_pauses(media, _even_words(media, n_words)))


def _even_words(media: MediaInput, n_words: int) -> list[WordTiming]:
    step = media.seconds / n_words
    return [WordTiming("", n * step, (n + 1) * step, 1.0) for n in range(n_words)]


def _ends(words: Sequence[WordTiming]) -> Times:
    return [(word.start, word.end) for word in words]


def measure_times(run: LoadedRun, cases: Sequence[SpokenCase]) -> dict[str, Any]:
    """Return the median error of word boundaries in milliseconds, by method.

    The key `own_ms` has the errors of each method's own boundaries, and `median_ms` the errors
    after boundaries are moved to pauses. The method `attention` uses heads that are selected in
    each recording alone. The method `best head` is a single head, selected on one half of the
    recordings and evaluated on the other.
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
    """Return a function that makes the maps of a case for `measure_accuracy`.

    It makes the maps of the methods, and the map `aligning`, which is the mean of the heads that
    follow the audio.
    """
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
    """Return the boundary errors of the method's words, and of the same words after they are moved
    to pauses."""
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
