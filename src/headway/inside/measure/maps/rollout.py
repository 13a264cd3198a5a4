"""Attention followed through all layers down to the tokens (Abnar and Zuidema, 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.map import Map, readout_RT
from headway.tasks.opened import Opened


def rollout(run: Opened | None, trace: Trace) -> Map:
    """Every layer hands on half of what a token was and half of what it attends to."""
    means = {
        kind: [weights_HTS.float().mean(0) for weights_HTS in layers]
        for kind, layers in trace.attention.items()
    }
    reads_RT = readout_RT(run, trace.reading)
    found = roll(means, 0.5, 0.5, trace.reading.last.name)
    return Map.of("rollout", {name: reads_RT @ x for name, x in found.items()})


def roll(
    attention: Mapping[str, Sequence[Tensor]], keep: float, take: float, only: str = "text"
) -> dict[str, Tensor]:
    """What each row of the last stream holds of every token of every stream, after all layers.

    Attention has one matrix (T S) a layer. A layer keeps `keep` of a row and adds `take` of the
    rows it attends to; if the two sum to 1, so does every row. The decoder of a translator attends
    to itself first and then to what the encoder made of the source. `only`: the name of the stream
    of a model that has but one.
    """
    if "cross" not in attention:
        return {only: _through(attention["self"], keep, take)}
    encoder_SS = _through(attention["encoder"], keep, take)
    n_rows, n_source = attention["cross"][0].shape
    source_TS = torch.zeros(n_rows, n_source)
    target_TT = torch.eye(n_rows)
    for own_TT, cross_TS in zip(attention["decoder"], attention["cross"], strict=True):
        source_TS = keep * source_TS + take * own_TT @ source_TS
        target_TT = keep * target_TT + take * own_TT @ target_TT
        source_TS = keep * source_TS + take * cross_TS @ encoder_SS
        target_TT = keep * target_TT
    return {"source": source_TS, "target": target_TT}


def _through(layers: Sequence[Tensor], keep: float, take: float) -> Tensor:
    x_TT = torch.eye(len(layers[0]))
    for own_TT in layers:
        x_TT = keep * x_TT + take * own_TT @ x_TT
    return x_TT
