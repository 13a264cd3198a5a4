"""Page section for the beam search: its tree, why each hypothesis was kept or pruned, and the
attention of hypotheses."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import torch

from headway.inside.capture.beam import cross_rows
from headway.inside.capture.beam_tree import BeamTree, Node, readable_pieces
from headway.inside.capture.interventions import disable_heads
from headway.inside.measure.alignments import aligning_layer
from headway.inside.page.sections import PageSection
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

PLACES = "①②③④⑤⑥⑦⑧⑨"
COLUMNS = [
    "step", "group", "hypotheses", "scored", "ruled out", "expanded", "not selected",
    "best not selected",
]  # fmt: skip
HINT = (
    "Tokens from left to right: ★ won, ✗ was cut (hover over a node for the reason). Thick lines "
    "are probable tokens. Click a node, or use the arrow keys."
)
SEEN = (
    "Attention of each token to the source: mean over the heads of {layer}, from a second pass "
    "with this text as output."
)
NOTE = "The other tabs show an output that does not come from this search."
FACTS = ["parent", "step", "group", "rank", "piece", "log_prob", "score", "fate", "why"]
"""Columns of the node table that a page exports."""

LONGEST = 11
"""Maximum number of characters of a token that the tree shows in full."""

MOST_CELLS = 60_000
"""Maximum size in bytes of the attention in a page. A larger tree has only the attention of
finished hypotheses."""


def section(looked: LookInputs) -> PageSection | None:
    tree = looked.trace.beam
    if tree is None:
        return None
    nodes, lasting = tree.nodes, _lasting(tree)
    rows = _rows(tree, lasting)
    totals = {
        "scored": tree.scored,
        "ruled_out": sum(count.ruled_out for count in tree.counts),
        "expanded": tree.expanded,
        "kept": tree.kept,
        "cut": tree.cut,
        "rest": sum(count.rest for count in tree.counts),
    }
    return {
        "summary": tree.summary,
        "stopped": f"The search stopped because {tree.stopped}.",
        "hint": HINT,
        "about": "The node that is selected in the tree. Colours are probabilities.",
        "facts": FACTS,
        "note": "" if _shown(looked, tree) else NOTE,
        "seen": SEEN.format(layer=_layer(looked)[1]),
        "settings": {
            "beam": tree.beam,
            "groups": tree.groups,
            "alpha": tree.alpha,
            "penalty": tree.penalty,
            "limit": tree.limit,
            "kind": tree.kind,
        },
        "totals": totals,
        "tally": (
            f"{totals['scored']:,} continuations were scored: {totals['expanded']:,} expanded, "
            f"{totals['ruled_out']:,} ruled out, {totals['rest']:,} not among the best of "
            "their step."
        ),
        "outputs": list(tree.outputs),
        "label": [_label(tree, node) for node in nodes],
        "row": PackedArray(_whole(rows), "u16"),
        "live": PackedArray(_whole(lasting), "u16"),
        "parent": PackedArray(_whole(node.parent for node in nodes), "i32"),
        "piece": [node.piece for node in nodes],
        "token_log_prob": PackedArray(torch.tensor([node.token_log_prob for node in nodes]), "f32"),
        "log_prob": PackedArray(torch.tensor([node.log_prob for node in nodes]), "f32"),
        "score": PackedArray(torch.tensor([node.score for node in nodes]), "f32"),
        "step": PackedArray(_whole(node.step for node in nodes), "u16"),
        "rank": PackedArray(_whole(node.rank for node in nodes), "u16"),
        "group": PackedArray(_whole(node.group for node in nodes), "u16"),
        "fate": [node.fate for node in nodes],
        "why": [node.why for node in nodes],
        "place": PackedArray(_whole(node.place or 0 for node in nodes), "u16"),
        "next": {str(node.id): _next(tree, node) for node in nodes if node.next},
        "columns": COLUMNS,
        "counts": [
            [c.step, c.group + 1, c.alive, c.scored, c.ruled_out, c.listed, c.rest, c.rest_best]
            for c in tree.counts
        ],
        "attention": _attention(looked, tree),
    }


def _whole(values: Any) -> Any:
    return torch.tensor(list(values), dtype=torch.int32)


def _label(tree: BeamTree, node: Node) -> str:
    """Return the label of a node in the tree. The label of a finished hypothesis is its rank and
    score."""
    if node.id == tree.outputs[0]:
        return f"★ {_score(node)}"
    if node.place:
        return (
            f"{PLACES[node.place - 1] if node.place <= len(PLACES) else node.place} {_score(node)}"
        )
    [text] = readable_pieces(["end" if node.fate == "lost" else node.piece])
    short = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f"{short} ✗" if node.fate in ("cut", "lost") else short


def _score(node: Node) -> str:
    return f"{node.score:.2f}".replace("-", "−")


def _lasting(tree: BeamTree) -> list[int]:
    """Return the importance of each node: 2 on the best path, 1 on a path to another finished or
    open hypothesis, otherwise 0."""
    lasting = [int(node.fate in ("ended", "limit", "overtaken")) for node in tree.nodes]
    for node in reversed(tree.nodes[1:]):
        lasting[node.parent] = max(lasting[node.parent], lasting[node.id])
    for node in (tree.nodes[0], *tree.path(tree.best)):
        lasting[node.id] = 2
    return lasting


def _rows(tree: BeamTree, lasting: list[int]) -> list[int]:
    """Return the vertical position of each node below the best path, which is at 0.

    A line of the drawing is a node followed by its best descendants. Important lines are placed
    before others, and long lines before short ones. Each takes the first free position below the
    line from which it branches.
    """
    nodes = tree.nodes

    def line(number: int) -> list[int]:
        found = [number]
        while tree.children[found[-1]]:
            best = max(tree.children[found[-1]], key=lambda c: (lasting[c], -nodes[c].rank))
            found.append(best)
        return found

    def turn(number: int) -> tuple[int, int, int, list[int]]:
        found = line(number)
        return -lasting[number], -len(found), -number, found

    rows, taken = [0] * len(nodes), set[tuple[int, int]]()
    waiting = [turn(0)]
    while waiting:
        *_, found = heappop(waiting)
        row = rows[nodes[found[0]].parent] + 1 if found[0] else 0
        while any((row, nodes[number].step) in taken for number in found):
            row += 1
        for number, after in zip(found, [*found[1:], -1], strict=True):
            rows[number] = row
            taken.add((row, nodes[number].step))
            for child in tree.children[number]:
                if child != after:
                    heappush(waiting, turn(child))
    return rows


def _next(tree: BeamTree, node: Node) -> list[list[Any]]:
    """Return each of the most probable next tokens with its log-probability and its node id, or -1
    if it is not in the tree."""
    children = {tree.nodes[child].token: child for child in tree.children[node.id]}
    return [[o.piece, round(o.log_prob, 5), children.get(o.token, -1)] for o in node.next]


def _shown(looked: LookInputs, tree: BeamTree) -> bool:
    """Whether the output on the page is the best hypothesis of this search. The output of a
    language model may differ, because it is decoded greedily."""
    reading = looked.trace.reading
    if tree.kind == "source":
        return [output.id for output in reading.outputs] == list(tree.best.tokens)
    written = tree.best.tokens[:-1] if tree.best.fate == "ended" else tree.best.tokens
    return reading.last.ids[len(tree.given) :] == written


def _layer(looked: LookInputs) -> tuple[int, str]:
    return aligning_layer(len(looked.trace.attention.get("cross", ())), looked.truth)


def _attention(looked: LookInputs, tree: BeamTree) -> PageSection | None:
    """Return the attention at each expanded node, and the index of each node's attention (-1 if it
    has none).

    None for images and recordings, because the section of the input shows their attention.
    """
    if looked.run is None or tree.kind != "source" or not tree.given:
        return None
    if "cross" not in looked.trace.attention:  # the decoder has no cross attention
        return None
    wanted = None
    if sum(bool(node.next) for node in tree.nodes) * len(tree.given) > MOST_CELLS:
        ends = [node for node in tree.nodes if node.fate in ("ended", "limit")]
        wanted = {0} | {one.id for end in ends for one in tree.path(end)}
    with disable_heads(looked.run.model, looked.change):
        rows = cross_rows(looked.run, tree, wanted, _layer(looked)[0])
    place = {number: place for place, number in enumerate(rows)}
    return {
        "rows": PackedArray(torch.stack(list(rows.values())), "u8"),
        "row": PackedArray(_whole(place.get(node.id, -1) for node in tree.nodes), "i32"),
    }
