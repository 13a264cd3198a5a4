"""Accuracy of attribution maps: how often they point at the correct position, compared with
chance."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.errors import DataError, FolderError, UserError
from headway.inside.capture.trace import trace
from headway.inside.measure.maps import COSTLY, METHODS, Map, make
from headway.inside.measure.maps.flow import LONGEST
from headway.inside.measure.truth.cases import (
    TEXTS,
    Case,
    GroundTruthLink,
    MapFunction,
    alignment_cases,
    atom_cases,
    copied_word_cases,
    read_aligned_pairs,
    repeat_cases,
)
from headway.inside.measure.truth.media import (
    SpokenCase,
    measure_times,
    recording_cases,
    scene_cases,
    with_aligning,
)
from headway.models.build import build_model
from headway.models.seq2seq import Seq2Seq
from headway.progress import SILENT, Progress
from headway.storage import read_json, replace_text, seal_json
from headway.tasks.loaded_run import LoadedRun

FEW = 40
"""Default maximum number of cases for slow maps."""

ENOUGH = 50
"""Minimum number of judged links for a reliable score. The standard error of a score of one half is
then 0.07."""

BASELINES = ("random", "diagonal", "centre")
"""Names of baseline maps, which do not depend on the content of the input."""


@dataclass(frozen=True)
class MapScore:
    p1: float
    """Precision at 1: fraction of links for which the candidate with the largest weight is
    correct."""

    aer: float
    """Alignment error rate, if each link is aligned with the candidate of the largest weight; from
    0 (perfect) to 1."""

    n: int
    """Number of judged links."""

    random: float
    """Expected precision at 1 of a random choice."""


@dataclass(frozen=True)
class BestHead:
    """Best attention head, selected on one half of the cases and evaluated on the other half."""

    name: str
    p1_chosen: float
    p1: float
    aer: float
    n: int


@dataclass(frozen=True)
class MapAccuracy:
    task: str
    """Description of the ground truth for display, such as copied words or manual alignments."""

    n: int
    maps: dict[str, MapScore]
    best: BestHead | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    unit: str = "words"
    """Unit of the judged links: words, tokens or atoms."""

    @property
    def is_conclusive(self) -> bool:
        return self.n >= ENOUGH

    @property
    def chance(self) -> float:
        """Expected precision at 1 of a random choice."""
        return self.maps["random"].random

    @property
    def items(self) -> str:
        """Plural name of the inputs for display: texts, images or recordings."""
        if "times" in self.facts:
            return "recordings"
        return "images" if "centre" in self.maps else "texts"

    @property
    def heads(self) -> list[str]:
        """Names of the measured attention heads, best first."""
        return [name for name in self._ranked() if is_head(name)]

    def leading(self, n_heads: int) -> list[str]:
        """Return the names of the maps, best first, with at most `n_heads` single heads. Baselines
        come last."""
        left_out = {*self.heads[n_heads:], *BASELINES}
        chosen = [name for name in self._ranked() if name not in left_out]
        return chosen + [name for name in BASELINES if name in self.maps]

    def _ranked(self) -> list[str]:
        return sorted(self.maps, key=lambda name: -self.maps[name].p1)

    def save(self, path: Path) -> None:
        try:
            replace_text(path, seal_json(json.dumps(_short(asdict(self)), indent=1)))
        except OSError as error:
            raise FolderError(f"cannot write {path}: {error.strerror}.") from error

    @classmethod
    def load(cls, path: Path) -> MapAccuracy:
        try:
            facts = read_json(path)
            maps = {name: MapScore(**score) for name, score in facts["maps"].items()}
            best = facts.get("best")
            return cls(
                facts["task"],
                facts["n"],
                maps,
                None if best is None else BestHead(**best),
                facts.get("facts", {}),
                facts.get("unit", "words"),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is damaged or was not written by `headway truth` ({type(error).__name__}: "
                f"{error})."
            ) from error


def measure_accuracy(
    run: LoadedRun,
    cases: Sequence[Case],
    methods: Sequence[str] = tuple(METHODS),
    *,
    task: str = "",
    few: int = FEW,
    maker: MapFunction | None = None,
    note: Callable[[int], None] = lambda done: None,
) -> MapAccuracy:
    """Measure the accuracy of every map on every case; slow maps only on the first `few` cases.

    All cases must have one unit. `maker`: function that makes the maps of a case, instead of the
    methods. `note`: function that receives the number of finished cases.
    """
    if not cases:
        raise UserError(
            "nothing to measure: headway truth needs at least one input for which the correct "
            "positions (aligned words, regions or times) are known."
        )
    hits: dict[str, list[_Judgement]] = {}
    for number, case in enumerate(case.with_judged_outputs() for case in cases):
        wanted = [m for m in methods if m not in COSTLY or number < few]
        made = maker(run, case) if maker else _make(run, case, wanted)
        for map_ in [*made, random_map(case, number), plain_map(case)]:
            if case.stream in map_.streams:
                hits.setdefault(map_.name, []).extend(_judge(map_, case, number))
        note(number + 1)
    maps = {name: _score(found) for name, found in hits.items()}
    return MapAccuracy(
        task, sum(len(case.links) for case in cases), maps, _best(hits), unit=cases[0].unit
    )


def _make(run: LoadedRun, case: Case, methods: Sequence[str]) -> list[Map]:
    n_tokens = sum(len(stream) for stream in case.reading.streams.values())
    fits = [name for name in methods if name != "flow" or n_tokens <= LONGEST]
    return make(run, trace(run, case.reading), fits)


@dataclass(frozen=True)
class _Judgement:
    case: int
    is_right: bool
    is_sure: bool
    n_sure: int
    chance: float


def _judge(map_: Map, case: Case, number: int) -> Iterator[_Judgement]:
    weights_RS = map_.parts()[case.stream].abs()
    for link in case.links:
        place = heaviest(weights_RS, case, link)
        yield _Judgement(
            number, place in link.correct, place in link.sure, len(link.sure), case.chance(link)
        )


def heaviest(weights_RS: Tensor, case: Case, link: GroundTruthLink) -> int:
    """Return the index of the candidate with the largest weight for a link; if several are equal,
    the first."""
    row_S = weights_RS[list(link.rows)].sum(0)
    among = case.candidates(link)
    sums = torch.stack([row_S[list(case.columns[number])].sum() for number in among])
    return among[int(sums.argmax())]


def _score(found: Sequence[_Judgement]) -> MapScore:
    n = len(found)
    rights, sure = sum(hit.is_right for hit in found), sum(hit.is_sure for hit in found)
    error = 1 - (sure + rights) / (n + sum(hit.n_sure for hit in found))
    return MapScore(rights / n, error, n, sum(hit.chance for hit in found) / n)


def _best(hits: dict[str, list[_Judgement]]) -> BestHead | None:
    """Return the best head, selected on even cases and evaluated on odd ones, because the best of
    many heads is partly luck.

    None if there are no heads or too few cases.
    """
    heads = {name: found for name, found in hits.items() if is_head(name)}
    halves = {
        name: tuple([hit for hit in found if hit.case % 2 == odd] for odd in (0, 1))
        for name, found in heads.items()
    }
    if not halves or not all(even and odd for even, odd in halves.values()):
        return None
    chosen = {name: _score(even).p1 for name, (even, _) in halves.items()}
    name = max(chosen, key=lambda head: chosen[head])
    judged = _score(halves[name][1])
    return BestHead(name, chosen[name], judged.p1, judged.aer, judged.n)


def is_head(name: str) -> bool:
    """Whether a map is of a single head: `cross.2.5` is, `cross.2.mean` is not."""
    return name.count(".") == 2 and name.rpartition(".")[2].isdecimal()


def random_map(case: Case, seed: int) -> Map:
    """Return a baseline map with random weights, in which every candidate has the same chance."""
    shape = len(case.reading.outputs), len(case.reading.streams[case.stream])
    weights_RS = torch.from_numpy(np.random.default_rng(seed).random(shape))
    return Map.of("random", {case.stream: _level(weights_RS, case)})


def _level(weights_RS: Tensor, case: Case) -> Tensor:
    """Set the weights to zero except at the first token of each candidate and of each link.
    Otherwise long words would have better chances in a random map."""
    first = [places[0] for places in case.columns]
    others_S = torch.ones(weights_RS.shape[1], dtype=torch.bool)
    others_S[first] = False
    rows = [row for link in case.links for row in link.rows[1:]]
    weights_RS[:, others_S] = 0.0
    weights_RS[rows] = 0.0
    return weights_RS


def plain_map(case: Case) -> Map:
    """Return the baseline map that ignores the content: `centre` for an image, otherwise
    `diagonal`."""
    media = case.reading.media
    is_image = media is not None and media.kind == "image"
    return centre_map(case) if is_image else diagonal_map(case)


def centre_map(case: Case) -> Map:
    """Return a baseline map that points at the centre of an image, where objects often are."""
    media = case.reading.media
    assert media is not None
    at = [torch.linspace(-1, 1, n) if n > 1 else torch.zeros(1) for n in media.grid]
    time_T, line_Y, column_X = at
    far_TYX = time_T[:, None, None] ** 2 + line_Y[:, None] ** 2 + column_X**2
    row_S = torch.cat([torch.zeros(media.extra), 4 - far_TYX.flatten()])
    return Map.of("centre", {case.stream: row_S.expand(len(case.reading.outputs), -1)})


def diagonal_map(case: Case) -> Map:
    """Return a diagonal baseline map: each output points at the input position at the same fraction
    of the sequence length."""
    n_rows, n_columns = len(case.reading.last), len(case.reading.streams[case.stream])
    rows = [output.row or 0 for output in case.reading.outputs]
    at_R1 = torch.tensor(rows)[:, None] / max(n_rows - 1, 1)
    at_S = torch.arange(n_columns) / max(n_columns - 1, 1)
    return Map.of("diagonal", {case.stream: 1 - (at_R1 - at_S).abs()})


def _short(value: Any) -> Any:
    """Round floats to four decimal places, which is more precise than the number of cases can
    justify."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Cases:
    kind: str
    """Description of the ground truth for display."""

    cases: list[Case]
    spoken: tuple[SpokenCase, ...] = ()
    """Recordings with word timestamps; empty if the cases are not recordings."""


def find_cases(
    run: LoadedRun, most: int, *, pairs: Path | None = None, reactions: Path | None = None,
    media: Path | None = None,
) -> Cases:  # fmt: skip
    """Return at most `most` cases from a file, or from repeated random tokens if there is no
    file."""
    if media is not None:
        return _media_cases(run, media, most)
    if reactions is not None:
        return Cases("atoms of reactions", atom_cases(run, reactions)[:most])
    if pairs is None:
        return Cases("tokens copied from random text", repeat_cases(run, min(most, TEXTS)))
    known = read_aligned_pairs(pairs)
    if any(pair.links for pair in known):
        return Cases("words with a known alignment", alignment_cases(run, known[:most]))
    copied = copied_word_cases(run, [(pair.source, pair.target) for pair in known])
    return Cases("names and numbers copied", copied[:most])


def _media_cases(run: LoadedRun, manifest: Path, most: int) -> Cases:
    if run.spec.truth != "digits":
        return Cases("things with known boxes", scene_cases(run, manifest, most))
    if not isinstance(run.model, Seq2Seq):
        raise UserError("a CTC model without a decoder has no attention per word to measure.")
    spoken = recording_cases(run, manifest, most)
    cases = [each.case for each in spoken if each.case.links]
    return Cases("words with known times", cases, tuple(spoken))


def validate(
    run: LoadedRun, found: Cases, methods: Sequence[str] = tuple(METHODS), *, few: int = FEW,
    progress: Progress = SILENT,
) -> MapAccuracy:  # fmt: skip
    """Measure the accuracy of every map and, for recordings, the errors of word timestamps."""
    maker = with_aligning(methods, few) if found.spoken else None
    with progress.stage("measuring", len(found.cases), "texts") as stage:
        truth = measure_accuracy(
            run, found.cases, methods, task=found.kind, few=few, maker=maker, note=stage.update
        )
    if not found.spoken:
        return truth
    with progress.stage("measuring word times"):
        times = measure_times(run, found.spoken)
    return replace(truth, facts={**truth.facts, "times": times})


def with_fresh_weights(run: LoadedRun) -> LoadedRun:
    """Return the run with newly initialized weights, which shows what a map owes to the
    architecture alone."""
    torch.manual_seed(1)
    return run.with_model(build_model(run.shape, device=run.device).eval())
