"""What a search looked at, as a tree: every continuation it weighed, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from headway.tokens.pieces import SPACE_MARK

FATES = {
    "kept": "continued",
    "starved": "continued, but none of its continuations was kept",
    "cut": "not good enough to be continued",
    "ended": "finished and kept among the finished hypotheses",
    "lost": "finished, but replaced by better finished hypotheses",
    "overtaken": "open when the search stopped: it could not beat a finished hypothesis",
    "limit": "not finished at the length limit",
}
"""Every node has one of these, in plain words."""

PLACED = frozenset({"kept", "starved", "ended", "overtaken", "limit"})
"""Fates of nodes that got a place, in the beam or among the finished."""


@dataclass(frozen=True)
class Option:
    """A token that may come next, as the model sees it."""

    token: int
    piece: str
    log_prob: float


@dataclass(frozen=True)
class Node:
    """A hypothesis: the text up to one token. Node 0 is what all of them begin with."""

    id: int
    parent: int
    """-1 for node 0."""

    tokens: tuple[int, ...]
    """All of its own, the end token too where it ended; none for node 0."""

    piece: str
    token_log_prob: float
    log_prob: float
    """Of all its tokens together."""

    score: float
    """What finished ones are ranked by: log P by the length penalty, with what coverage adds."""

    step: int
    """The number of its tokens."""

    rank: int
    """Among all continuations of its step and group, from 1."""

    group: int
    fate: str
    why: str
    """Its fate in words, with the numbers that decided."""

    place: int | None = None
    """Among the finished ones of its group in the end, from 1."""

    next: tuple[Option, ...] = ()
    """The model's best next tokens, the best first; none where it never asked."""

    @property
    def token(self) -> int:
        return self.tokens[-1]


@dataclass(frozen=True)
class Count:
    """One step of one group: every token behind every hypothesis, accounted for.

    `scored` = `ruled_out` + `listed` + `rest`.
    """

    step: int
    group: int
    alive: int
    """Hypotheses that were asked for a next token."""

    scored: int
    """`alive` times the vocabulary."""

    ruled_out: int
    """By rules: an end too early, a sequence that came before, a prefix, tokens no output has."""

    listed: int
    """Nodes of the tree."""

    rest: int
    """Possible, but not among the best that a step takes up."""

    rest_best: float | None
    """The log-probability of the best of the rest, as a whole hypothesis."""


@dataclass(frozen=True)
class BeamTree:
    nodes: tuple[Node, ...]
    """In the order in which they came: parents first."""

    counts: tuple[Count, ...]
    outputs: tuple[int, ...]
    """The nodes that the search gave back, the best first."""

    beam: int
    groups: int
    penalty: str
    alpha: float
    limit: int
    """Most tokens of an output, the end token counted."""

    stopped: str
    """Why the search came to an end."""

    kind: str = "source"
    """`source`: made for a source text; `prompt`: goes on with a text."""

    given: tuple[int, ...] = ()
    """The tokens of the source, or of the prompt, as the model reads them."""

    @property
    def best(self) -> Node:
        return self.nodes[self.outputs[0]]

    @property
    def scored(self) -> int:
        """Continuations whose probability was computed."""
        return sum(count.scored for count in self.counts)

    @property
    def expanded(self) -> int:
        """Nodes, without node 0."""
        return len(self.nodes) - 1

    @property
    def kept(self) -> int:
        return sum(node.fate in PLACED for node in self.nodes[1:])

    @property
    def cut(self) -> int:
        return self.expanded - self.kept

    @property
    def summary(self) -> str:
        """`k=4 α=0.6 · 212 expanded · 61 kept · 151 cut`."""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        alpha = "" if self.penalty == "none" else f" α={self.alpha:g}"
        return (
            f"k={self.beam}{groups}{alpha} · {self.expanded:,} expanded · {self.kept:,} kept · "
            f"{self.cut:,} cut"
        )

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Of each node, by group and rank."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes[1:]:
            found[node.parent].append(node.id)
        return tuple(tuple(of_one) for of_one in found)

    def path(self, node: Node | int) -> list[Node]:
        """From the first token to this node, without node 0."""
        number = node if isinstance(node, int) else node.id
        found = []
        while number > 0:
            found.append(self.nodes[number])
            number = self.nodes[number].parent
        return found[::-1]

    def text(self, node: Node | int) -> str:
        """What the hypothesis says so far; an end token is not written."""
        path = self.path(node)
        if path and path[-1].fate in ("ended", "lost"):
            path = path[:-1]
        return "".join(node.piece for node in path).replace(SPACE_MARK, " ").strip()

    def to_dict(self) -> dict[str, Any]:
        """JSON values. A node names its last token; the others are those of its parents."""
        values = asdict(self)
        for node in values["nodes"]:
            node["token"] = node.pop("tokens")[-1:]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> BeamTree:
        names = {one.name for one in fields(cls)} - {"nodes", "counts", "outputs", "given"}
        nodes: list[Node] = []
        for facts in values["nodes"]:
            before = nodes[facts["parent"]].tokens if nodes else ()
            more = {name: value for name, value in facts.items() if name not in ("token", "next")}
            options = tuple(Option(**option) for option in facts["next"])
            nodes.append(Node(**more, tokens=(*before, *facts["token"]), next=options))
        return cls(
            nodes=tuple(nodes),
            counts=tuple(Count(**count) for count in values["counts"]),
            outputs=tuple(values["outputs"]),
            given=tuple(values["given"]),
            **{name: values[name] for name in names},
        )


def readable_pieces(pieces: Sequence[str]) -> list[str]:
    """Pieces as people read them in a chart: the mark of a space is a space."""
    return [piece.replace(SPACE_MARK, " ").strip() or piece for piece in pieces]
