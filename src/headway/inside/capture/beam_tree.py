"""Tree of a beam search: every continuation that was considered, and its fate."""

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
"""Possible fates of a node, each with an explanation for the user."""

PLACED = frozenset({"kept", "starved", "ended", "overtaken", "limit"})
"""Fates of the nodes that entered the beam or the finished hypotheses."""


@dataclass(frozen=True)
class TokenCandidate:
    """A possible next token with its log-probability."""

    token: int
    piece: str
    log_prob: float


@dataclass(frozen=True)
class Node:
    """Node of a search tree: the hypothesis up to one token. Node 0 is the root."""

    id: int
    parent: int
    """Number of the parent node; -1 for node 0."""

    tokens: tuple[int, ...]
    """All tokens of the hypothesis, with its end token if it has one; empty for node 0."""

    piece: str
    token_log_prob: float
    log_prob: float
    """Log-probability of all its tokens together."""

    score: float
    """Score that ranks finished hypotheses: log P divided by the length penalty, plus any coverage
    bonus."""

    step: int
    """Number of tokens in the hypothesis."""

    rank: int
    """Rank among all continuations of the same step and beam group, from 1."""

    group: int
    fate: str
    why: str
    """Reason for the fate of the node, with the numbers that decided."""

    place: int | None = None
    """Final place among the finished hypotheses of its beam group, from 1."""

    next: tuple[TokenCandidate, ...] = ()
    """Most probable next tokens, the best first; empty if the node was never expanded."""

    @property
    def token(self) -> int:
        return self.tokens[-1]


@dataclass(frozen=True)
class StepCounts:
    """Numbers of continuations in one step of one beam group.

    A continuation is a hypothesis with any token of the vocabulary added. `scored` = `ruled_out` +
    `listed` + `rest`.
    """

    step: int
    group: int
    alive: int
    """Open hypotheses before the step."""

    scored: int
    """Number of scored continuations: `alive` times the vocabulary size."""

    ruled_out: int
    """Continuations with probability 0 because of decoding rules: an early end, a repeated n-gram,
    a forced prefix, or tokens that no output can contain."""

    listed: int
    """Continuations that became nodes of the tree."""

    rest: int
    """Allowed continuations that were not among the best of the step."""

    rest_best: float | None
    """Log-probability of the most probable continuation in `rest`, summed over its tokens."""


@dataclass(frozen=True)
class BeamTree:
    nodes: tuple[Node, ...]
    """Nodes in the order of creation, parents before children."""

    counts: tuple[StepCounts, ...]
    outputs: tuple[int, ...]
    """Numbers of the nodes that the search returned, best first."""

    beam: int
    groups: int
    penalty: str
    alpha: float
    limit: int
    """Largest number of tokens in an output, including the end token."""

    stopped: str
    """Reason why the search stopped, as a clause such as "the end token was generated"."""

    kind: str = "source"
    """`source`: the search generated an output for a source; `prompt`: it continued a text."""

    given: tuple[int, ...] = ()
    """Tokens of the source, or of the prompt, as the model reads them."""

    @property
    def best(self) -> Node:
        return self.nodes[self.outputs[0]]

    @property
    def scored(self) -> int:
        """Number of continuations whose probability was computed."""
        return sum(count.scored for count in self.counts)

    @property
    def expanded(self) -> int:
        """Number of nodes without the root."""
        return len(self.nodes) - 1

    @property
    def kept(self) -> int:
        return sum(node.fate in PLACED for node in self.nodes[1:])

    @property
    def cut(self) -> int:
        return self.expanded - self.kept

    @property
    def summary(self) -> str:
        """Short summary such as `k=4 α=0.6 · 212 expanded · 61 kept · 151 cut`."""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        alpha = "" if self.penalty == "none" else f" α={self.alpha:g}"
        return (
            f"k={self.beam}{groups}{alpha} · {self.expanded:,} expanded · {self.kept:,} kept · "
            f"{self.cut:,} cut"
        )

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the children of each node, sorted by beam group and rank."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes[1:]:
            found[node.parent].append(node.id)
        return tuple(tuple(of_one) for of_one in found)

    def path(self, node: Node | int) -> list[Node]:
        """Nodes on the path from the first token to this node, without the root."""
        number = node if isinstance(node, int) else node.id
        found = []
        while number > 0:
            found.append(self.nodes[number])
            number = self.nodes[number].parent
        return found[::-1]

    def text(self, node: Node | int) -> str:
        """Text of the hypothesis of a node, without its end token."""
        path = self.path(node)
        if path and path[-1].fate in ("ended", "lost"):
            path = path[:-1]
        return "".join(node.piece for node in path).replace(SPACE_MARK, " ").strip()

    def to_dict(self) -> dict[str, Any]:
        """JSON values of the tree. Each node stores only its last token, because its ancestors have
        the others."""
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
            options = tuple(TokenCandidate(**option) for option in facts["next"])
            nodes.append(Node(**more, tokens=(*before, *facts["token"]), next=options))
        return cls(
            nodes=tuple(nodes),
            counts=tuple(StepCounts(**count) for count in values["counts"]),
            outputs=tuple(values["outputs"]),
            given=tuple(values["given"]),
            **{name: values[name] for name in names},
        )


def readable_pieces(pieces: Sequence[str]) -> list[str]:
    """Tokens as a chart displays them: with a space in place of the mark `▁`."""
    return [piece.replace(SPACE_MARK, " ").strip() or piece for piece in pieces]
