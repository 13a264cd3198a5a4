"""What was found out about the heads of a model, as plain facts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headway.inside.measure.pruning import Head


@dataclass(frozen=True)
class HeadFacts:
    kind: str
    layer: int
    head: int
    """Counted from 0, among those that the model has."""

    number: int
    """In the whole model, where some heads are gone."""

    importance: float
    """E|dL/dg|, in nats."""

    entropy: float
    """Of its attention, in nats, mean over rows."""

    evenness: float
    """Entropy by that of even attention: 1 sees all tokens alike, 0 sees one."""

    distance: float
    """Mean distance of what it attends to, in tokens; across texts of different length, from the
    diagonal."""

    scores: dict[str, float]
    """Of every role that can be measured for it."""

    roles: tuple[str, ...]
    """Those it has, the clearest first."""

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.layer}.{self.head}"


@dataclass(frozen=True)
class Heads:
    heads: tuple[HeadFacts, ...]
    n_texts: int
    n_outputs: int
    loss: float
    """Mean over texts of the loss that importance is of, in nats."""

    source: str = ""
    """Where the texts come from."""

    unit: str = "texts"
    """What they are, for people."""

    def __getitem__(self, name: str) -> HeadFacts:
        return next(head for head in self.heads if head.name == name)

    def kinds(self) -> list[str]:
        return list(dict.fromkeys(head.kind for head in self.heads))

    def grid(self, kind: str) -> list[list[float]]:
        """Importance by layer and head; layers may have different numbers of heads."""
        rows: dict[int, list[float]] = {}
        for head in self.heads:
            if head.kind == kind:
                rows.setdefault(head.layer, []).append(head.importance)
        return list(rows.values())

    def importance(self, *, normalised: bool = False) -> dict[Head, float]:
        """By head; `normalised`: divided by the length of its layer's, as Michel et al. do."""
        found = {(h.kind, h.layer, h.head): h.importance for h in self.heads}
        if not normalised:
            return found
        squares: dict[tuple[str, int], float] = {}
        for (kind, layer, _), value in found.items():
            squares[kind, layer] = squares.get((kind, layer), 0.0) + value**2
        return {h: value / max(squares[h[:2]] ** 0.5, 1e-30) for h, value in found.items()}

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Heads:
        heads = tuple(
            HeadFacts(**{**head, "roles": tuple(head["roles"])}) for head in facts["heads"]
        )
        return cls(**{**facts, "heads": heads})
