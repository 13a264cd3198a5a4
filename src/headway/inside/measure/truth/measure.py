"""How often maps point at the right place, beside a map that is made of chance."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.errors import DataError, FolderError, UserError
from headway.inside.capture.trace import trace
from headway.inside.measure.maps import COSTLY, METHODS, Map, make
from headway.inside.measure.maps.flow import LONGEST
from headway.inside.measure.truth.case import Case, Link
from headway.storage import read_json, replace_text, seal_json
from headway.tasks.opened import Opened

FEW = 40
"""Cases that costly maps are measured on, unless asked."""

ENOUGH = 50
"""Judged cases below which a score is mostly luck: a share of a half is then known to 0.14."""

BASELINES = ("random", "diagonal", "centre")
"""Maps that know nothing of what was read."""

Maker = Callable[[Opened, Case], list[Map]]


@dataclass(frozen=True)
class Score:
    p1: float
    """Precision at 1: how often the heaviest candidate is right."""

    aer: float
    """Alignment error rate, each thing written being linked to its heaviest candidate."""

    n: int
    """Things written that were judged."""

    random: float
    """Precision at 1 that chance has on the same, computed."""


@dataclass(frozen=True)
class Best:
    """A head chosen on one half of the cases and judged on the other."""

    name: str
    p1_chosen: float
    p1: float
    aer: float
    n: int


@dataclass(frozen=True)
class Truth:
    task: str
    """What the truth is: copied words, a grammar, atoms of reactions …"""

    n: int
    maps: dict[str, Score]
    best: Best | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    unit: str = "words"
    """What the things are that were judged: words, tokens or atoms."""

    @property
    def is_telling(self) -> bool:
        return self.n >= ENOUGH

    @property
    def chance(self) -> float:
        """How often it is right, computed."""
        return self.maps["random"].random

    @property
    def items(self) -> str:
        """What was read."""
        if "times" in self.facts:
            return "recordings"
        return "pictures" if "centre" in self.maps else "texts"

    @property
    def heads(self) -> list[str]:
        """The best first."""
        return [name for name in self._ranked() if is_head(name)]

    def leading(self, n_heads: int) -> list[str]:
        """All maps, the best first, but of the heads only so many; last what knows nothing."""
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
    def load(cls, path: Path) -> Truth:
        try:
            facts = read_json(path)
            maps = {name: Score(**score) for name, score in facts["maps"].items()}
            best = facts.get("best")
            return cls(
                facts["task"],
                facts["n"],
                maps,
                None if best is None else Best(**best),
                facts.get("facts", {}),
                facts.get("unit", "words"),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is not a file of `headway truth` ({type(error).__name__}: {error})."
            ) from error


def measure(
    run: Opened,
    cases: Sequence[Case],
    methods: Sequence[str] = tuple(METHODS),
    *,
    task: str = "",
    few: int = FEW,
    maker: Maker | None = None,
    note: Callable[[int], None] = lambda done: None,
) -> Truth:
    """Every map of these methods on every case; costly ones on the first `few`.

    All cases are of one kind: their `unit` is that of the first.

    `maker` makes the maps of a case instead. `note` is told how many cases are done.
    """
    if not cases:
        raise UserError("there is nothing to measure: the truth is known for none of the texts.")
    hits: dict[str, list[_Hit]] = {}
    for number, case in enumerate(case.narrow() for case in cases):
        wanted = [m for m in methods if m not in COSTLY or number < few]
        made = maker(run, case) if maker else _make(run, case, wanted)
        for map_ in [*made, random_map(case, number), plain_map(case)]:
            if case.stream in map_.streams:
                hits.setdefault(map_.name, []).extend(_judge(map_, case, number))
        note(number + 1)
    maps = {name: _score(found) for name, found in hits.items()}
    return Truth(
        task, sum(len(case.links) for case in cases), maps, _best(hits), unit=cases[0].unit
    )


def _make(run: Opened, case: Case, methods: Sequence[str]) -> list[Map]:
    n_tokens = sum(len(stream) for stream in case.reading.streams.values())
    fits = [name for name in methods if name != "flow" or n_tokens <= LONGEST]
    return make(run, trace(run, case.reading), fits)


@dataclass(frozen=True)
class _Hit:
    case: int
    is_right: bool
    is_sure: bool
    n_sure: int
    chance: float


def _judge(map_: Map, case: Case, number: int) -> Iterator[_Hit]:
    weights_RS = map_.parts()[case.stream].abs()
    for link in case.links:
        place = heaviest(weights_RS, case, link)
        yield _Hit(
            number, place in link.right, place in link.sure, len(link.sure), case.chance(link)
        )


def heaviest(weights_RS: Tensor, case: Case, link: Link) -> int:
    """The candidate with the most weight; of several alike the first."""
    row_S = weights_RS[list(link.rows)].sum(0)
    among = case.candidates(link)
    sums = torch.stack([row_S[list(case.columns[number])].sum() for number in among])
    return among[int(sums.argmax())]


def _score(found: Sequence[_Hit]) -> Score:
    n = len(found)
    rights, sure = sum(hit.is_right for hit in found), sum(hit.is_sure for hit in found)
    error = 1 - (sure + rights) / (n + sum(hit.n_sure for hit in found))
    return Score(rights / n, error, n, sum(hit.chance for hit in found) / n)


def _best(hits: dict[str, list[_Hit]]) -> Best | None:
    """Chosen on the even cases, judged on the odd ones: the best of many is lucky, too."""
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
    return Best(name, chosen[name], judged.p1, judged.aer, judged.n)


def is_head(name: str) -> bool:
    """`cross.2.5`; not `cross.2.mean`."""
    return name.count(".") == 2 and name.rpartition(".")[2].isdecimal()


def random_map(case: Case, seed: int) -> Map:
    """Weights of chance, the same at every candidate: what any map must beat."""
    shape = len(case.reading.outputs), len(case.reading.streams[case.stream])
    weights_RS = torch.from_numpy(np.random.default_rng(seed).random(shape))
    return Map.of("random", {case.stream: _level(weights_RS, case)})


def _level(weights_RS: Tensor, case: Case) -> Tensor:
    """A word of several pieces has no more chances than others: its first piece stands for it, and
    so does the first row of a link."""
    first = [places[0] for places in case.columns]
    others_S = torch.ones(weights_RS.shape[1], dtype=torch.bool)
    others_S[first] = False
    rows = [row for link in case.links for row in link.rows[1:]]
    weights_RS[:, others_S] = 0.0
    weights_RS[rows] = 0.0
    return weights_RS


def plain_map(case: Case) -> Map:
    """What knows nothing of what was read: the diagonal, and of a picture its middle."""
    media = case.reading.media
    is_picture = media is not None and media.kind == "picture"
    return centre_map(case) if is_picture else diagonal_map(case)


def centre_map(case: Case) -> Map:
    """Points at the middle of a picture, where things often are."""
    media = case.reading.media
    assert media is not None
    at = [torch.linspace(-1, 1, n) if n > 1 else torch.zeros(1) for n in media.grid]
    time_T, line_Y, column_X = at
    far_TYX = time_T[:, None, None] ** 2 + line_Y[:, None] ** 2 + column_X**2
    row_S = torch.cat([torch.zeros(media.extra), 4 - far_TYX.flatten()])
    return Map.of("centre", {case.stream: row_S.expand(len(case.reading.outputs), -1)})


def diagonal_map(case: Case) -> Map:
    """Points at the same relative place: what knows nothing of the words but their order."""
    n_rows, n_columns = len(case.reading.last), len(case.reading.streams[case.stream])
    rows = [output.row or 0 for output in case.reading.outputs]
    at_R1 = torch.tensor(rows)[:, None] / max(n_rows - 1, 1)
    at_S = torch.arange(n_columns) / max(n_columns - 1, 1)
    return Map.of("diagonal", {case.stream: 1 - (at_R1 - at_S).abs()})


def _short(value: Any) -> Any:
    """Four digits are more than such counts can tell."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value
