"""Attribution maps that are plain attention weights of a single head, or the mean or maximum over
the heads of a layer."""

from __future__ import annotations

from torch import Tensor

from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.map import Map, readout_RT
from headway.tasks.loaded_run import LoadedRun


def head_maps(run: LoadedRun | None, trace: Trace) -> list[Map]:
    """Return a map for each attention head whose queries are in the output stream, such as
    `cross.2.5`."""
    return [
        Map.of(f"{name}.{head}", {columns: weights_HRS[head]})
        for name, columns, weights_HRS in _layers(run, trace)
        for head in range(len(weights_HRS))
    ]


def layer_maps(run: LoadedRun | None, trace: Trace, how: str) -> list[Map]:
    """Return a map of the `mean` or `max` over the heads of each layer, such as `cross.2.mean`."""
    made = []
    for name, columns, weights_HRS in _layers(run, trace):
        over_RS = weights_HRS.mean(0) if how == "mean" else weights_HRS.amax(0)
        made.append(Map.of(f"{name}.{how}", {columns: over_RS}))
    return made


def _layers(run: LoadedRun | None, trace: Trace) -> list[tuple[str, str, Tensor]]:
    """Return the name of each attention layer, the stream of its keys, and its weights for each
    output."""
    reads_RT = readout_RT(run, trace.reading)
    return [
        (f"{kind}.{layer}", trace.reading.sides(kind)[1], reads_RT @ weights_HTS.float())
        for kind, layers in trace.attention.items()
        if trace.reading.sides(kind)[0] == trace.reading.last.name
        for layer, weights_HTS in enumerate(layers)
    ]
