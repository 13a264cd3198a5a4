"""Attribution maps from gradients of each output with respect to attention weights and
embeddings."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.inside.capture.anatomy import Anatomy, RecordedTaps
from headway.inside.capture.forward import NO_INTERVENTION, Intervention, run_reading
from headway.inside.capture.ngrams import NGRAMS, ngram_table, token_contributions
from headway.inside.capture.streams import Reading
from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.map import Map, readout_RT
from headway.inside.measure.maps.rollout import roll
from headway.nn.tap import record
from headway.tasks.loaded_run import LoadedRun

SEVERAL = 4
"""Minimum number of outputs whose gradients are computed in one batch; for fewer, a batch is not
faster."""

FrontOutputs = Mapping[str, Tensor]
"""Embeddings by name of the stack, one row per token."""


@dataclass(frozen=True)
class OutputGradients:
    """Gradients of one output's log-probability."""

    fronts: dict[str, Tensor]
    attention: dict[str, list[Tensor]]
    """Gradients with respect to the attention weights, by kind of attention and layer (heads,
    queries, keys)."""


def front_outputs(
    run: LoadedRun, trace: Trace, change: Intervention = NO_INTERVENTION
) -> dict[str, Tensor]:
    """Return the inputs for gradients, one row per token: embeddings by stack, and the
    contributions of tokens to the n-gram scores."""
    found = {name: states[0] for name, states in trace.states.items()}
    table = ngram_table(run.model)
    if table is not None:
        found[NGRAMS] = token_contributions(table, trace.reading, change).flatten(1)
    return found


def streams_of(run: LoadedRun) -> dict[str, str]:
    """Return the name of the token stream for each key of the inputs (`front_outputs`)."""
    parts = Anatomy.of(run.model).stacks
    return {**{part.name: part.stream for part in parts}, NGRAMS: parts[-1].stream}


def by_stream(run: LoadedRun, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sum the weights of all inputs by token stream, because several inputs may belong to one
    stream.

    The last axis of the weights is tokens.
    """
    streams, found = streams_of(run), dict[str, Tensor]()
    for name, part in weights.items():
        stream = streams[name]
        found[stream] = found[stream] + part if stream in found else part
    return found


def gradient_maps(
    run: LoadedRun,
    trace: Trace,
    fronts: FrontOutputs | None = None,
    change: Intervention = NO_INTERVENTION,
) -> list[Map]:
    """Return the maps `gradxattention` and `gradxinput`, made from the same backward passes.

    Models that mix tokens by means other than attention have only `gradxinput`. N-grams contribute
    only to `gradxinput`. `fronts`: replacement embeddings by stack; zeros remove a stream.
    """
    given = front_outputs(run, trace, change) | dict(fronts or {})
    reads_RT = readout_RT(run, trace.reading)
    anatomy = Anatomy.of(run.model)
    weighed: dict[str, list[Tensor]] = {part.stream: [] for part in anatomy.stacks}
    touched: dict[str, list[Tensor]] = {part.stream: [] for part in anatomy.stacks}
    for row, (slopes, weights) in enumerate(_each(run, trace.reading, given, change)):
        by_front = {name: (slope_TD * given[name]).sum(1)
                    for name, slope_TD in slopes.fronts.items()}  # fmt: skip
        for stream, touched_T in by_stream(run, by_front).items():
            touched[stream].append(touched_T)
        if not anatomy.by_attention:  # attention is then not the only path to an output
            continue
        helps = {
            kind: [(slope * w).relu().mean(0) for slope, w in zip(of, weights[kind], strict=True)]
            for kind, of in slopes.attention.items()
        }
        for stream, x_TS in roll(helps, 1.0, 1.0, trace.reading.last.name).items():
            own = torch.eye(len(x_TS)) if stream == trace.reading.last.name else 0.0
            weighed[stream].append(reads_RT[row] @ (x_TS - own))
    maps = {"gradxattention": weighed, "gradxinput": touched}
    if not anatomy.by_attention:
        del maps["gradxattention"]
    return [
        Map.of(key, {name: torch.stack(rows) for name, rows in found.items()})
        for key, found in maps.items()
    ]


def _each(
    run: LoadedRun, reading: Reading, fronts: FrontOutputs, change: Intervention
) -> Iterator[tuple[OutputGradients, dict[str, list[Tensor]]]]:
    """Yield the gradients of each output, with the attention weights of the forward pass."""
    inputs = {name: x_TD.detach().clone().requires_grad_() for name, x_TD in fronts.items()}
    anatomy = Anatomy.of(run.model)
    got: dict[str, list[Any]] = {}
    with torch.enable_grad(), contextlib.ExitStack() as stack:
        if anatomy.kinds:
            got = stack.enter_context(record(run.model, ".weights", gradients=True))
        worth_R = run_reading(run, reading, change, fronts=inputs).log_probs_R
    weights = RecordedTaps(run.model, got).weights(anatomy)
    leaves = [*inputs.values(), *(w for layers in weights.values() for w in layers)]
    held = {kind: [w.detach() for w in layers] for kind, layers in weights.items()}
    for row in range(len(worth_R)):
        slopes = iter(gradients_of(worth_R[row : row + 1], leaves))
        yield (
            OutputGradients(
                {name: next(slopes)[0] for name in inputs},
                {kind: [next(slopes)[0] for _ in layers] for kind, layers in weights.items()},
            ),
            held,
        )


def gradients_of(worth_R: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of several scalars with respect to each leaf tensor, stacked along a new
    first axis."""
    if len(worth_R) >= SEVERAL:
        with contextlib.suppress(RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns where it cannot batch
            return list(
                torch.autograd.grad(
                    worth_R,
                    leaves,
                    torch.eye(len(worth_R)),
                    retain_graph=True,
                    is_grads_batched=True,
                    materialize_grads=True,
                )
            )
    rows = [
        torch.autograd.grad(one, leaves, retain_graph=True, materialize_grads=True)
        for one in worth_R
    ]
    return [torch.stack(of_leaf) for of_leaf in zip(*rows, strict=True)]
