"""What changes when a token is hidden: the plainest map, and one that asks the model itself."""

from __future__ import annotations

from dataclasses import replace

import torch

from headway.inside.forward import NO_CHANGE, Change, say
from headway.inside.maps.map import Map
from headway.inside.trace import Trace
from headway.interop.run import LoadedRun


@torch.no_grad()
def occlusion(run: LoadedRun, trace: Trace, change: Change = NO_CHANGE) -> Map:
    """By how much the log-probability of each output falls when no other token may attend to a
    token, for all tokens in turn; of a vector, how much less far it goes in its direction.

    A token still sees itself. So the weight of the very token that an output is read from is what
    it does through others, not what it does for itself.
    """
    before_R = say(run, trace.reading, change).log_probs_R
    parts = {}
    for name, stream in trace.reading.streams.items():
        falls = []
        for place in range(len(stream)):
            without = replace(change, hidden=change.hidden | {(name, place)})
            falls.append(before_R - say(run, trace.reading, without).log_probs_R)
        parts[name] = torch.stack(falls, 1)
    return Map.of("occlusion", parts)
