"""Integrated gradients (Sundararajan et al., 2017): gradients along the path from a neutral
baseline to the input.

For each output, they sum to the difference between the outputs of the input and of the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from headway.errors import UserError, suggest
from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.capture.forward import (
    NO_INTERVENTION,
    TOGETHER,
    Intervention,
    run_interventions,
)
from headway.inside.capture.ngrams import NGRAMS
from headway.inside.capture.streams import Reading
from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.gradients import (
    FrontOutputs,
    by_stream,
    front_outputs,
    gradients_of,
)
from headway.inside.measure.maps.map import Map
from headway.models.parts.text import TextFront
from headway.nn.layout import Layout
from headway.tasks.loaded_run import LoadedRun

ENOUGH = 0.01
"""Relative error at which no more steps are taken: 1 % of the effect of the text."""

NODES = 4
"""Number of nodes of the Gauss–Legendre quadrature in one segment of the path."""

MOST_STEPS = 256
"""Maximum number of steps per output, each a forward and a backward pass. The map reports the
remaining error."""

LEAST_EFFECT = 0.1
"""Minimum divisor of relative errors, in nats. The divisor is otherwise the effect of the text.
Without a minimum, texts with almost no effect would never converge."""

SAMPLE = 256
"""Number of tokens whose mean embedding is the baseline. They are spread evenly over the
vocabulary."""


@dataclass(frozen=True)
class _PathSegment:
    """Segment of the integration path, for some of the outputs.

    The sum of a segment's gradients should be equal to the difference of the outputs at its ends,
    so the error of each segment is known.
    """

    start: float
    end: float
    rows_Q: Tensor
    sums_QX: Tensor
    """Integrated gradients of each output (rows) for each token of all streams (columns)."""

    off_Q: Tensor

    def only(self, chosen_Q: Tensor) -> _PathSegment:
        parts = (x[chosen_Q] for x in (self.rows_Q, self.sums_QX, self.off_Q))
        return _PathSegment(self.start, self.end, *parts)


def integrated_gradients(
    run: LoadedRun,
    trace: Trace,
    baseline: str = "mean",
    fronts: FrontOutputs | None = None,
    change: Intervention = NO_INTERVENTION,
    most: int = MOST_STEPS,
) -> Map:
    """Compute integrated gradients adaptively, by halving the segments of the path with a large
    error.

    The computation stops when the sum over tokens is within 1 % of the effect of the text for each
    output, or after `most` steps. The `facts` of the map are the largest number of steps and the
    largest error of any output.

    `baseline`: `mean` for the mean of tokens at each position (see `baseline_TD`), or `zero` for
    the zero vector.
    """
    given = front_outputs(run, trace, change) | dict(fronts or {})
    nothing = {
        name: torch.zeros_like(x_TD) if name == NGRAMS  # the baseline has no n-grams
        else baseline_TD(run, trace.reading, name, baseline)
        for name, x_TD in given.items()
    }  # fmt: skip
    way = _IntegrationPath(run, trace.reading, change, given, nothing)
    effect_R = (way.outputs_R(1.0) - way.outputs_R(0.0)).abs().clamp(min=LEAST_EFFECT)
    sums_RX, error_R, steps_R = _walk(way, effect_R, most)
    parts = sums_RX.split([len(x_TD) for x_TD in given.values()], 1)
    facts = {"steps": int(steps_R.max()), "error": float(error_R.max())}
    return Map.of("integrated", by_stream(run, dict(zip(given, parts, strict=True))), facts)


def _walk(way: _IntegrationPath, effect_R: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the integrated gradients, remaining relative error and number of steps of each
    output."""
    everyone_R = torch.arange(len(effect_R))
    pieces = way.pieces((0.0, 0.5, 1.0), everyone_R)
    steps_R = torch.full_like(everyone_R, 2 * NODES)
    while True:
        off_R = torch.zeros_like(effect_R)
        for piece in pieces:
            off_R[piece.rows_Q] += piece.off_Q
        error_R = off_R.abs() / effect_R
        open_R = (error_R > ENOUGH) & (steps_R + 2 * NODES <= most)
        if not open_R.any():
            break
        # Select the segment in which an unfinished output has the largest error, and all outputs
        # with large errors there.
        wrong = [(p.off_Q.abs() / effect_R[p.rows_Q]) * open_R[p.rows_Q] for p in pieces]
        worst = max(range(len(pieces)), key=lambda number: float(wrong[number].max()))
        piece, halve_Q = pieces.pop(worst), wrong[worst] > ENOUGH / 10
        if not halve_Q.any():
            halve_Q = wrong[worst] == wrong[worst].max()
        pieces += [piece.only(~halve_Q)] if not halve_Q.all() else []
        rows_Q, middle = piece.rows_Q[halve_Q], (piece.start + piece.end) / 2
        pieces += way.pieces((piece.start, middle, piece.end), rows_Q)
        steps_R[rows_Q] += 2 * NODES
    sums_RX = torch.zeros(len(effect_R), pieces[0].sums_QX.shape[1])
    for piece in pieces:
        sums_RX[piece.rows_Q] += piece.sums_QX
    return sums_RX, error_R, steps_R


class _IntegrationPath:
    """Straight integration path from a baseline to the embeddings of the input."""

    def __init__(
        self,
        run: LoadedRun,
        reading: Reading,
        change: Intervention,
        given: FrontOutputs,
        nothing: FrontOutputs,
    ) -> None:
        self.run, self.reading, self.change = run, reading, change
        self.given, self.nothing = given, nothing
        self.said: dict[float, Tensor] = {}

    def outputs_R(self, place: float) -> Tensor:
        if place not in self.said:
            with torch.no_grad():
                [self.said[place]] = self._say_PR(self._at([place]), 1)
        return self.said[place]

    def pieces(self, ends: Sequence[float], rows_Q: Tensor) -> list[_PathSegment]:
        """Integrate the segments between consecutive points of the path.

        `ends`: points from 0 (baseline) to 1 (input).
        """
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        halves = [(start + end, end - start) for start, end in pairwise(ends)]
        places = [(both + wide * float(node)) / 2 for both, wide in halves for node in nodes]
        slopes = iter(self._slopes_PQX(places, rows_Q).split(NODES))
        weights_P = torch.from_numpy(weights).float()
        found = []
        for start, end in pairwise(ends):
            sums_QX = torch.einsum("p,pqx->qx", weights_P * (end - start) / 2, next(slopes))
            said_Q = (self.outputs_R(end) - self.outputs_R(start))[rows_Q]
            found.append(_PathSegment(start, end, rows_Q, sums_QX, sums_QX.sum(1) - said_Q))
        return found

    def _slopes_PQX(self, places: Sequence[float], rows_Q: Tensor) -> Tensor:
        """Return gradient × (input − baseline) at points of the path, for each output and token."""
        n_tokens = sum(map(len, self.given.values()))
        at_once = max(1, TOGETHER // (len(rows_Q) * n_tokens))
        parts = [places[start : start + at_once] for start in range(0, len(places), at_once)]
        return torch.cat([self._slopes_together(part, rows_Q) for part in parts])

    def _slopes_together(self, places: Sequence[float], rows_Q: Tensor) -> Tensor:
        n = len(places)
        inputs = {name: x_ND.requires_grad_() for name, x_ND in self._at(places).items()}
        with torch.enable_grad():
            # Each copy depends only on its own input, so the gradient of the sum contains the
            # gradients of all copies.
            said_Q = self._say_PR(inputs, n)[:, rows_Q].sum(0)
            slopes = gradients_of(said_Q, list(inputs.values()))
        ways = [self.given[name] - self.nothing[name] for name in inputs]
        touched = [
            (slope_QND.unflatten(1, (n, -1)) * way_TD).sum(3)
            for slope_QND, way_TD in zip(slopes, ways, strict=True)
        ]
        return torch.cat(touched, 2).transpose(0, 1)

    def _at(self, places: Sequence[float]) -> dict[str, Tensor]:
        """Return the embeddings at these points of the path, concatenated."""
        return {
            name: torch.cat([torch.lerp(self.nothing[name], x_TD, place) for place in places])
            for name, x_TD in self.given.items()
        }

    def _say_PR(self, inputs: FrontOutputs, n: int) -> Tensor:
        said = run_interventions(self.run, self.reading, [self.change] * n, fronts=inputs)
        return torch.stack([each.log_probs_R for each in said])


def baseline_TD(run: LoadedRun, reading: Reading, stack: str, kind: str) -> Tensor:
    """Return the baseline embeddings of a stack.

    `kind`: `mean` or `zero`. For text, the mean is that of `SAMPLE` tokens at each position. For
    media it is an image of the mean colour, or silence.
    """
    part = Anatomy.of(run.model).stack(stack)
    stream = reading.streams[part.stream]
    if kind == "mean" and reading.media is not None and part.stream != "target":
        return _empty_TD(part, reading)
    if kind == "mean":
        return _mean_TD(part, reading, len(stream))
    if kind != "zero":
        raise UserError(f"unknown baseline {kind!r}.{suggest(kind, ['mean', 'zero'])}")
    return torch.zeros_like(baseline_TD(run, reading, stack, "mean"))


@torch.no_grad()
def _empty_TD(part: StackPart, reading: Reading) -> Tensor:
    assert reading.media is not None
    item = reading.media.item
    nothing = np.zeros_like(item)
    if reading.media.kind == "image":
        nothing[:] = item.mean((0, 2, 3), keepdims=True).round()
    return part.front(*part.front.collate([nothing]))


@torch.no_grad()
def _mean_TD(part: StackPart, reading: Reading, length: int) -> Tensor:
    """Return the mean embedding, at each position, of tokens that are spread over the
    vocabulary."""
    assert isinstance(part.front, TextFront)
    size = part.front.tokens.num_embeddings
    ids_B = torch.linspace(0, size - 1, min(size, SAMPLE)).long()
    layout = Layout.of([length] * len(ids_B))
    ids_N = ids_B.repeat_interleave(length)
    if part.stream == "text" and reading.segments:
        segments_N = torch.tensor(reading.segments).repeat(len(ids_B))
        return part.front(ids_N, layout, segments_N).unflatten(0, (-1, length)).mean(0)
    return part.front(ids_N, layout).unflatten(0, (-1, length)).mean(0)
