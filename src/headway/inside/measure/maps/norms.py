"""Norm-based attention: norms of attention-weighted value vectors (Kobayashi et al., 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.map import Map, readout_RT
from headway.nn.attention.attention import Attention
from headway.tasks.loaded_run import LoadedRun


def norm_maps(run: LoadedRun, trace: Trace) -> list[Map]:
    """Return the map `norm` and one map per layer, such as `cross.2.norm`.

    The weight of a token is the norm of the vector that the token adds to a query's output, summed
    over all heads. `norm` is the mean over layers and has the tokens of all streams as columns.
    """
    reads_RT = readout_RT(run, trace.reading)
    layers: dict[str, list[Tensor]] = {}
    single = []
    for kind in Anatomy.of(run.model).kinds:
        if kind.rows != trace.reading.last.name:
            continue
        for number, attention in enumerate(kind.layers):
            weights_HTS = trace.attention[kind.name][number].float()
            moved_SHD = contributions(attention, trace.values[kind.name][number])
            added_TS = added_norms(weights_HTS, moved_SHD)
            layers.setdefault(kind.columns, []).append(reads_RT @ added_TS)
            single.append(
                Map.of(f"{kind.name}.{number}.norm", {kind.columns: layers[kind.columns][-1]})
            )
    streams = [name for name in trace.reading.streams if name in layers]
    whole = {name: torch.stack(layers[name]).mean(0) for name in streams}
    return [Map.of("norm", whole), *single]


@torch.no_grad()
def contributions(attention: Attention, values_SGK: Tensor) -> Tensor:
    """Return the vector that each head adds for each token at attention weight 1 (tokens, heads,
    width). It is the token's value after the projection `to_out`."""
    values_SHK = values_SGK.float().repeat_interleave(attention.n_heads // values_SGK.shape[1], 1)
    out_DHK = attention.to_out.weight.float().unflatten(1, values_SHK.shape[1:])
    moved_SHD = torch.einsum("shk,dhk->shd", values_SHK, out_DHK)
    gate_H = attention.gate_H
    return moved_SHD if gate_H is None else moved_SHD * gate_H[:, None]


def added_norms(weights_HTS: Tensor, moved_SHD: Tensor) -> Tensor:
    """Return the norms of the vectors that keys add to queries. They are computed one query at a
    time to save memory."""
    return torch.stack(
        [
            torch.einsum("hs,shd->sd", weights_HS, moved_SHD).norm(dim=-1)
            for weights_HS in weights_HTS.unbind(1)
        ]
    )
