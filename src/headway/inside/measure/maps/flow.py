"""Attention flow (Abnar and Zuidema, 2020): the maximum flow from each output to each token, in a
network whose capacities are attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.errors import UserError
from headway.inside.capture.streams import Reading
from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.map import Map, readout_RT
from headway.tasks.loaded_run import LoadedRun

LONGEST = 64
"""Maximum number of tokens in all streams together. The computing time grows faster than the cube
of this number."""

AT_ONCE = LONGEST**3
"""Maximum number of edges of one layer that are processed together, over all flow problems. The
limit bounds memory."""

TINY = 1e-6
"""Capacity below which an edge counts as closed, which is above the rounding errors of fp32."""


@dataclass(frozen=True)
class LevelEdges:
    """Capacities of the edges from each node of one level to each node of a lower level."""

    above: int
    below: int
    widths_IJ: Tensor


@dataclass(frozen=True)
class FlowNetwork:
    levels: tuple[int, ...]
    """Number of nodes at each level, from the tokens to the outputs."""

    pipes: tuple[LevelEdges, ...]
    """Edges between levels, in order from the tokens to the outputs."""

    ends: dict[str, int]
    """Level of the token nodes of each stream."""


def flow(run: LoadedRun | None, trace: Trace) -> Map:
    """Return the maximum flow from each output to each token. A text of more than `LONGEST` tokens
    is an error."""
    check_length(trace.reading)
    network = _network(trace)
    reads_RT = readout_RT(run, trace.reading).float()
    parts = {
        stream: _from_outputs(network, reads_RT, level) for stream, level in network.ends.items()
    }
    return Map.of("flow", parts)


def check_length(reading: Reading) -> None:
    n_tokens = sum(len(stream) for stream in reading.streams.values())
    if n_tokens > LONGEST:
        raise UserError(
            f"the flow map supports at most {LONGEST} tokens, but this text has {n_tokens}. "
            "Use a shorter text or the rollout map."
        )


def _from_outputs(network: FlowNetwork, reads_RT: Tensor, level: int) -> Tensor:
    """Return the maximum flow from each output to each token of a level.

    The inflow at the top is the weight with which the output is read from each position.
    """
    n_outputs, n_ends = len(reads_RT), network.levels[level]
    output_B = torch.arange(n_outputs).repeat_interleave(n_ends)
    end_B = torch.arange(n_ends).repeat(n_outputs)
    size = max(1, AT_ONCE // max(network.levels) ** 2)
    found = [
        max_flow(network, reads_RT[outputs], level, ends)
        for outputs, ends in zip(output_B.split(size), end_B.split(size), strict=True)
    ]
    return torch.cat(found).view(n_outputs, n_ends)


def _network(trace: Trace) -> FlowNetwork:
    """Return the flow network of a trace. Half of each token's capacity is its own residual
    connection, as in attention rollout."""
    halves = {
        kind: [weights_HTS.float().mean(0) / 2 for weights_HTS in layers]
        for kind, layers in trace.attention.items()
    }
    if "cross" not in halves:
        n_tokens = len(halves["self"][0])
        pipes = [LevelEdges(n + 1, n, _with_own(half)) for n, half in enumerate(halves["self"])]
        return FlowNetwork(
            (n_tokens,) * (len(pipes) + 1), tuple(pipes), {trace.reading.last.name: 0}
        )
    n_target, n_source = halves["cross"][0].shape
    pipes = [LevelEdges(n + 1, n, _with_own(half)) for n, half in enumerate(halves["encoder"])]
    memory = len(pipes)
    levels = [n_source] * (memory + 1) + [n_target]
    own = torch.eye(n_target, dtype=torch.float) / 2
    for self_TT, cross_TS in zip(halves["decoder"], halves["cross"], strict=True):
        top = len(levels)
        pipes.append(LevelEdges(top, top - 1, _with_own(self_TT)))
        pipes += [LevelEdges(top + 1, memory, cross_TS), LevelEdges(top + 1, top, own)]
        levels += [n_target, n_target]
    return FlowNetwork(tuple(levels), tuple(pipes), {"source": 0, "target": memory + 1})


def _with_own(half_TT: Tensor) -> Tensor:
    return half_TT + torch.eye(len(half_TT), dtype=half_TT.dtype) / 2


def max_flow(network: FlowNetwork, given_BT: Tensor, level: int, ends_B: Tensor) -> Tensor:
    """Return the maximum flow from the last level to the end node of each problem, limited by the
    inflow.

    It is computed by push–relabel (Goldberg and Tarjan, 1988) on all problems in parallel. The
    excess of a node moves along the shortest open path to the end, including backwards along used
    edges. Distances are recomputed after each pass over the levels, until no remaining excess can
    reach its end.

    `ends_B`: end node of each problem at `level`.
    """
    n = len(given_BT)
    open_B = torch.arange(n)  # the problems that are not done
    down = [pipe.widths_IJ.expand(n, -1, -1).clone() for pipe in network.pipes]
    back = [torch.zeros_like(open_BIJ) for open_BIJ in down]
    stands = [given_BT.new_zeros(n, size) for size in network.levels]
    stands[-1] = given_BT.clone()
    found_B = given_BT.new_zeros(n)
    while True:
        far = _distances(network, down, back, (level, ends_B))
        moves_B = torch.zeros(len(ends_B), dtype=torch.bool)
        for x, far_BI in zip(stands, far, strict=True):
            moves_B |= ((x > TINY) & far_BI.isfinite() & (far_BI > 0)).any(1)
        found_B[open_B] = stands[level].gather(1, ends_B[:, None]).squeeze(1)
        if not moves_B.any():
            return found_B
        if not moves_B.all():
            open_B, ends_B = open_B[moves_B], ends_B[moves_B]
            down, back, stands, far = (
                [x[moves_B] for x in tensors] for tensors in (down, back, stands, far)
            )
        for i, pipe in reversed(list(enumerate(network.pipes))):
            _push(down[i], back[i], stands, far, (pipe.above, pipe.below))
        for i, pipe in enumerate(network.pipes):
            turned = down[i].transpose(1, 2), back[i].transpose(1, 2)
            _push(turned[1], turned[0], stands, far, (pipe.below, pipe.above))


def _push(
    open_BIJ: Tensor,
    back_BIJ: Tensor,
    stands: list[Tensor],
    far: Sequence[Tensor],
    way: tuple[int, int],
) -> None:
    """Push excess flow from one level to another, in place, along edges that are one step closer to
    the end node."""
    start, stop = way
    nearer = far[start][:, :, None] == far[stop][:, None] + 1
    room_BIJ = open_BIJ * (nearer & (open_BIJ > TINY) & far[start][:, :, None].isfinite())
    before_BIJ = room_BIJ.cumsum(2) - room_BIJ
    moves_BIJ = (stands[start][:, :, None] - before_BIJ).clamp(min=0).minimum(room_BIJ)
    open_BIJ -= moves_BIJ
    back_BIJ += moves_BIJ
    stands[start] -= moves_BIJ.sum(2)
    stands[stop] += moves_BIJ.sum(1)


def _distances(
    network: FlowNetwork,
    down: Sequence[Tensor],
    back: Sequence[Tensor],
    ends: tuple[int, Tensor],
) -> list[Tensor]:
    """Return the number of open edges on the shortest path from each node to the end node of its
    problem; infinite if there is no path."""
    level, ends_B = ends
    far = [down[0].new_full((len(ends_B), size), torch.inf) for size in network.levels]
    far[level].scatter_(1, ends_B[:, None], 0)
    shut = [torch.where(x > TINY, 1.0, torch.inf) for x in (*down, *back)]
    ways = list(zip(network.pipes, shut[: len(down)], shut[len(down) :], strict=True))
    while True:
        before = [far_BI.clone() for far_BI in far]
        for pipe, step_BIJ, _ in ways:
            new_BI = (far[pipe.below][:, None] + step_BIJ).amin(2)
            far[pipe.above] = far[pipe.above].minimum(new_BI)
        for pipe, _, step_BIJ in reversed(ways):
            new_BJ = (far[pipe.above][:, :, None] + step_BIJ).amin(1)
            far[pipe.below] = far[pipe.below].minimum(new_BJ)
        if all(torch.equal(x, y) for x, y in zip(before, far, strict=True)):
            return far
