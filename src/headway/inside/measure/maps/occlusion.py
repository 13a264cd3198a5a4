"""Occlusion: the change of each output when a token is hidden, measured with one run of the model
per token."""

from __future__ import annotations

from dataclasses import replace

import torch

from headway.inside.capture.forward import (
    NO_INTERVENTION,
    TOGETHER,
    Intervention,
    run_interventions,
)
from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.map import Map
from headway.tasks.loaded_run import LoadedRun


@torch.no_grad()
def occlusion(run: LoadedRun, trace: Trace, change: Intervention = NO_INTERVENTION) -> Map:
    """Return the decrease of each output's log-probability when one token is hidden, for each token
    in turn.

    No other token can attend to a hidden token, but it still attends to itself. If an output is
    read at a token, the weight of that token therefore includes only its effect through other
    tokens. For an embedding, the decrease along its direction replaces the log-probability.
    """
    reading = trace.reading
    sizes = {name: len(stream) for name, stream in reading.streams.items()}
    hiding = [
        replace(change, hidden=change.hidden | {(name, place)})
        for name, size in sizes.items()
        for place in range(size)
    ]
    changes = list(dict.fromkeys([change, *hiding]))  # each change once
    at_once = max(1, TOGETHER // sum(sizes.values()))
    said = [
        each.log_probs_R
        for start in range(0, len(changes), at_once)
        for each in run_interventions(run, reading, changes[start : start + at_once])
    ]
    said_with = dict(zip(changes, said, strict=True))
    falls = [said_with[change] - said_with[without] for without in hiding]
    return Map("occlusion", tuple(sizes.items()), torch.stack(falls, 1))
