"""Search tree of a beam search: every hypothesis that was considered, and its fate."""

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
"""Fates of nodes that entered the beam or the list of finished hypotheses."""


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
    """Id of the parent node; -1 for the root."""

    tokens: tuple[int, ...]
    """All tokens of the hypothesis, including the end token if it has ended; empty for the root."""

    piece: str
    token_log_prob: float
    log_prob: float
    """Log-probability of the whole hypothesis, summed over its tokens."""

    score: float
    """Score that ranks finished hypotheses: log P divided by the length penalty, plus any coverage
    bonus."""

    step: int
    """Number of tokens in the hypothesis."""

    rank: int
    """Rank among all continuations of the same step and beam group; 1 is the best."""

    group: int
    fate: str
    why: str
    """Reason for the fate of the node, with the ranks or scores that led to it."""

    place: int | None = None
    """Final rank among the finished hypotheses of the beam group, from 1; None if the hypothesis is
    not one of them."""

    next: tuple[TokenCandidate, ...] = ()
    """Most probable next tokens, best first; empty if the node was never expanded."""

    @property
    def token(self) -> int:
        return self.tokens[-1]


@dataclass(frozen=True)
class StepCounts:
    """Counts of continuations in one step of one beam group.

    A continuation is an open hypothesis followed by any token of the vocabulary. `scored` =
    `ruled_out` + `listed` + `rest`.
    """

    step: int
    group: int
    alive: int
    """Number of open hypotheses before the step."""

    scored: int
    """Number of scored continuations: `alive` times the vocabulary size."""

    ruled_out: int
    """Number of continuations with probability 0 because of decoding rules, such as an early end, a
    repeated n-gram, a forced prefix, or a token that no output may contain."""

    listed: int
    """Number of continuations that became nodes of the tree."""

    rest: int
    """Number of allowed continuations that were not among the best of the step."""

    rest_best: float | None
    """Log-probability of the most probable continuation counted in `rest`, summed over all of its
    tokens; None if `rest` is 0."""


@dataclass(frozen=True)
class BeamTree:
    nodes: tuple[Node, ...]
    """Nodes in the order of creation, so that parents precede their children."""

    counts: tuple[StepCounts, ...]
    outputs: tuple[int, ...]
    """Ids of the nodes that the search returned, best first."""

    beam: int
    groups: int
    penalty: str
    alpha: float
    limit: int
    """Maximum number of tokens in an output, including the end token."""

    stopped: str
    """Reason why the search stopped, as a clause such as "the end token was generated"."""

    kind: str = "source"
    """`source` if the search generated an output for a source, or `prompt` if it continued a
    text."""

    given: tuple[int, ...] = ()
    """Token ids of the source or prompt, as the model reads them."""

    @property
    def best(self) -> Node:
        return self.nodes[self.outputs[0]]

    @property
    def scored(self) -> int:
        """Number of continuations whose probability was computed, in all steps."""
        return sum(count.scored for count in self.counts)

    @property
    def expanded(self) -> int:
        """Number of nodes, not counting the root."""
        return len(self.nodes) - 1

    @property
    def kept(self) -> int:
        return sum(node.fate in PLACED for node in self.nodes[1:])

    @property
    def cut(self) -> int:
        return self.expanded - self.kept

    @property
    def summary(self) -> str:
        """Short summary for display, such as `k=4 α=0.6 · 212 expanded · 61 kept · 151 cut`."""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        alpha = "" if self.penalty == "none" else f" α={self.alpha:g}"
        return (
            f"k={self.beam}{groups}{alpha} · {self.expanded:,} expanded · {self.kept:,} kept · "
            f"{self.cut:,} cut"
        )

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Ids of each node's children, indexed by node id and sorted by beam group and rank."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes[1:]:
            found[node.parent].append(node.id)
        return tuple(tuple(of_one) for of_one in found)

    def path(self, node: Node | int) -> list[Node]:
        """Return the nodes on the path from the root (excluded) to a node (included)."""
        number = node if isinstance(node, int) else node.id
        found = []
        while number > 0:
            found.append(self.nodes[number])
            number = self.nodes[number].parent
        return found[::-1]

    def text(self, node: Node | int) -> str:
        """Return the text of a node's hypothesis, without the end token."""
        path = self.path(node)
        if path and path[-1].fate in ("ended", "lost"):
            path = path[:-1]
        return "".join(node.piece for node in path).replace(SPACE_MARK, " ").strip()

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as JSON values. Each node stores only its last token, because its
        ancestors store the others."""
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
    """Return tokens as a chart displays them, with a space in place of `▁`."""
    return [piece.replace(SPACE_MARK, " ").strip() or piece for piece in pieces]
