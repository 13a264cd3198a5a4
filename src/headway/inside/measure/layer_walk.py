"""Walkthrough of one token through one layer with all numbers, on your own model.

A walkthrough is a list of steps with input vectors, an output vector and the weights between them,
so that a reader or a page can recompute each step. The block layouts of `nn/block.py` are repeated
here, because each needs its own explanations and a norm that is fused with a sum has no tap. The
result is checked against the trace, so that the two cannot diverge.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.errors import UserError
from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.capture.trace import Trace
from headway.inside.measure.layer_steps import WalkBuilder, WalkStep
from headway.inside.measure.layer_sublayers import (
    NEURONS,
    HeadAtToken,
    attention_steps,
    feed_forward_steps,
)
from headway.nn.block import Block, Parallel, PostNorm
from headway.tasks.loaded_run import LoadedRun

WEIGHTS = 48_000
"""Weights that a walkthrough stores: about 100 kB of a page."""

WalkRequest = tuple[str, int | None, int | None, int | None]
"""Kind of attention, layer, head and row, counted from 0; None: select one."""


@dataclass(frozen=True)
class WalkPosition:
    kind: str
    layer: int
    head: int
    row: int


@dataclass(frozen=True)
class LayerWalk:
    at: WalkPosition
    stack: str
    heads: dict[str, int]
    """Head that is followed, for each kind of attention in the layer."""

    focus: dict[str, int]
    """Column with the largest attention weight, by kind."""

    vectors: dict[str, Tensor]
    """Vectors by name, as the model computed them."""

    labels: dict[str, str]
    """Symbols of the vectors in formulas."""

    steps: list[WalkStep]


@torch.no_grad()
def walk(run: LoadedRun, found: Trace, at: WalkRequest | None = None) -> LayerWalk:
    """Walk one token through one layer.

    By default it is the last output token, the middle layer, and the head with the largest weight
    on another word.
    """
    anatomy = Anatomy.of(run.model)
    place = _place(anatomy, found, at)
    part = next(p for p in anatomy.stacks if p.stream == anatomy.kind(place.kind).rows)
    block = part.blocks[place.layer]
    kinds = [part.name] if block.cross is None else [part.name, "cross"]
    heads = {
        kind: place.head if kind == place.kind else _sharpest(anatomy, found, kind, place)
        for kind in kinds
    }
    brought = NEURONS * (3 if block.feed_forward.is_gated else 2) * run.shape.d_model
    tour = _LayerTour(
        WalkBuilder((WEIGHTS - brought) // (4 * len(kinds))), found, place, part, heads
    )
    tour.whole(block, _memory(anatomy, found, block))
    story = tour.story
    true_D = found.states[part.name][place.layer + 1][place.row]
    error = (story.vectors["end"] - true_D).abs().max()
    assert error <= 1e-4 * true_D.abs().max().clamp(min=1), "the walkthrough differs from the trace"
    return LayerWalk(place, part.name, heads, tour.focus, story.vectors, story.labels, story.steps)


def _place(anatomy: Anatomy, found: Trace, at: WalkRequest | None) -> WalkPosition:
    name, layer, head, row = (anatomy.kinds[-1].name, None, None, None) if at is None else at
    kind = anatomy.kind(name)
    layer = len(kind.layers) // 2 if layer is None else layer
    anatomy.head(name, layer, head or 0)
    rows = found.reading.streams[kind.rows]
    if row is None:
        row = _last_word(found) if kind.rows == found.reading.last.name else len(rows) // 2
    if not 0 <= row < len(rows):
        raise UserError(f"the {rows.name} has {len(rows)} tokens, so there is no token {row + 1}.")
    first = WalkPosition(name, layer, 0, row)
    return WalkPosition(
        name, layer, _sharpest(anatomy, found, name, first) if head is None else head, row
    )


def _last_word(found: Trace) -> int:
    """Row of the last output token before the end token; otherwise the last word of the text."""
    reading = found.reading
    rows = [output.row for output in reading.outputs if output.row is not None]
    if rows:
        ends = reading.writes and reading.finished and len(rows) > 1
        return rows[-2] if ends else rows[-1]
    plain = [row for row, apart in enumerate(reading.last.special) if not apart]
    return plain[-1] if plain else 0


def _sharpest(anatomy: Anatomy, found: Trace, kind: str, place: WalkPosition) -> int:
    """Head with the largest weight on a word other than the token itself."""
    columns = anatomy.kind(kind).columns
    weights_HS = found.attention[kind][place.layer][:, place.row].clone()
    weights_HS[:, list(found.reading.streams[columns].special)] = 0
    if kind != "cross":
        weights_HS[:, place.row] = 0
    return int(weights_HS.amax(1).argmax())


def _memory(anatomy: Anatomy, found: Trace, block: Block) -> Tensor | None:
    if block.cross is None:
        return None
    norm, last_SD = anatomy.stack("encoder").stack.final_norm, found.states["encoder"][-1]
    return last_SD if norm is None else norm(last_SD)


class _LayerTour:
    """The three block layouts of a layer, step by step."""

    def __init__(
        self,
        story: WalkBuilder,
        found: Trace,
        place: WalkPosition,
        part: StackPart,
        heads: dict[str, int],
    ) -> None:
        self.story, self.found, self.place, self.part, self.heads = story, found, place, part, heads
        self.x_TD = found.states[part.name][place.layer]
        self.focus: dict[str, int] = {}

    def whole(self, block: Block, memory_SD: Tensor | None) -> None:
        x = self.story.vector(("x", "x"), self.x_TD[self.place.row])
        came = "output of the previous layer" if self.place.layer else "embedding and position"
        words = f"The hidden state of the token before this layer: {came}."
        self.story.add(WalkStep("start", "Input of the layer", words, (), x))
        methods = {Parallel: self._parallel, PostNorm: self._post}
        methods.get(type(block), self._pre)(block, memory_SD)

    def _pre(self, block: Block, memory_SD: Tensor | None) -> None:
        words = "A norm precedes each part of the layer, so that its inputs have a fixed scale."
        n = self.story.norm(block.norm_attention, "x", ("n", "n"), words)
        x = self._add("x", self._own(block, n, block.norm_attention(self.x_TD)), ("x1", "x′"))
        if memory_SD is not None and block.norm_cross is not None:
            n = self.story.norm(block.norm_cross, x, ("n1", "n′"), words)
            x = self._add(x, self._cross(block, n, memory_SD), ("x2", "x″"))
        assert block.norm_feed_forward is not None
        n = self.story.norm(block.norm_feed_forward, x, ("n2", "m"), words)
        self._add(x, feed_forward_steps(self.story, block.feed_forward, n), ("end", "y"))

    def _post(self, block: Block, memory_SD: Tensor | None) -> None:
        words = "A norm follows each part of the layer, so that its outputs have a fixed scale."
        s = self._add("x", self._own(block, "x", self.x_TD), ("s1", "s"))
        x = self.story.norm(block.norm_attention, s, ("x1", "x′"), words)
        if memory_SD is not None and block.norm_cross is not None:
            s = self._add(x, self._cross(block, x, memory_SD), ("s2", "s′"))
            x = self.story.norm(block.norm_cross, s, ("x2", "x″"), words)
        f = feed_forward_steps(self.story, block.feed_forward, x)
        assert block.norm_feed_forward is not None
        self.story.norm(block.norm_feed_forward, self._add(x, f, ("s3", "t")), ("end", "y"), words)

    def _parallel(self, block: Block, memory_SD: Tensor | None) -> None:
        words = "The parts of this layer work in parallel on the output of one norm."
        n = self.story.norm(block.norm_attention, "x", ("n", "n"), words)
        parts = ["x", self._own(block, n, block.norm_attention(self.x_TD))]
        if memory_SD is not None:
            parts.append(self._cross(block, n, memory_SD))
        parts.append(feed_forward_steps(self.story, block.feed_forward, n))
        words = "Residual connection: the results of all parts are added to the input."
        self.story.plus(tuple(parts), ("end", "y"), "Add all parts to x", words)

    def _add(self, x: str, added: str, out: tuple[str, str]) -> str:
        words = "Residual connection: the result is added to the token's previous state."
        return self.story.plus((x, added), out, f"Add to {self.story.labels[x]}", words)

    def _own(self, block: Block, source: str, x_TD: Tensor) -> str:
        return self._attention(self.part.name, block, source, x_TD)

    def _cross(self, block: Block, source: str, memory_SD: Tensor) -> str:
        return self._attention("cross", block, source, memory_SD)

    def _attention(self, kind: str, block: Block, source: str, read_SD: Tensor) -> str:
        attention = block.cross if kind == "cross" else block.attention
        assert attention is not None
        layer, row = self.place.layer, self.place.row
        off = (name.split(".") for name in self.found.meta.get("off", ()))
        at = HeadAtToken(
            kind=kind,
            attention=attention,
            head=self.heads[kind],
            row=row,
            read_SD=read_SD,
            weights_HS=self.found.attention[kind][layer][:, row],
            values_SGK=self.found.values[kind][layer],
            off=frozenset(int(head) for name, at, head in off if (name, int(at)) == (kind, layer)),
        )
        self.focus[kind] = at.focus
        return attention_steps(self.story, at, source)
