"""Attention rollout: attention multiplied through all layers down to the tokens (Abnar and Zuidema,
2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.map import Map, readout_RT
from headway.tasks.loaded_run import LoadedRun


def rollout(run: LoadedRun | None, trace: Trace) -> Map:
    """Return the attention rollout, in which every layer keeps half of a token's state and adds
    half by attention."""
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
    """Propagate attention through all layers, and return the fraction of each input token in each
    position of the last stream.

    Attention has one matrix (queries, keys) per layer. A layer multiplies the state of a token by
    `keep` and adds the states that it attends to, multiplied by `take`. If `keep` and `take` sum to
    1, the fractions of each position sum to 1.

    A decoder attends first to itself and then to the encoder's output. `only`: name of the stream
    of a model with a single stream.
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
