"""Attribution maps: the weight of each input token for each output.

`make(run, trace, ["rollout", "norm"])` makes maps by method; `METHODS` lists all methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headway.errors import UserError, suggest
from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.agreement import agreement, spearman
from headway.inside.measure.maps.attention import head_maps, layer_maps
from headway.inside.measure.maps.flow import flow
from headway.inside.measure.maps.gradients import gradient_maps
from headway.inside.measure.maps.integrated import baseline_TD, integrated_gradients
from headway.inside.measure.maps.map import CAUTION, Map, readout_RT, written_words
from headway.inside.measure.maps.norms import norm_maps
from headway.inside.measure.maps.occlusion import occlusion
from headway.inside.measure.maps.rollout import rollout
from headway.settings.listed import ensure_list
from headway.tasks.loaded_run import LoadedRun

__all__ = [
    "CAUTION",
    "COSTLY",
    "METHODS",
    "Map",
    "agreement",
    "baseline_TD",
    "check_methods",
    "flow",
    "gradient_maps",
    "head_maps",
    "integrated_gradients",
    "layer_maps",
    "make",
    "norm_maps",
    "occlusion",
    "readout_RT",
    "rollout",
    "spearman",
    "written_words",
]

STEPS = 64
"""Maximum number of steps of integrated gradients when many maps are made. The `facts` of the map
contain the remaining error."""

METHODS: dict[str, Callable[[LoadedRun, Trace], list[Map]]] = {
    "heads": head_maps,
    "mean": lambda run, trace: layer_maps(run, trace, "mean"),
    "max": lambda run, trace: layer_maps(run, trace, "max"),
    "rollout": lambda run, trace: [rollout(run, trace)],
    "norm": norm_maps,
    "flow": lambda run, trace: [flow(run, trace)],
    "gradients": gradient_maps,
    "integrated": lambda run, trace: [integrated_gradients(run, trace, most=STEPS)],
    "occlusion": lambda run, trace: [occlusion(run, trace)],
}
"""Attribution methods by name, fastest first. A method may make several maps: `gradients` makes
`gradxattention` and `gradxinput`, and `heads` makes one map per head."""

COSTLY = ("flow", "gradients", "integrated", "occlusion")
"""Names of slow methods, most of which run the model repeatedly."""


def make(run: LoadedRun, trace: Trace, names: Iterable[str] = METHODS) -> list[Map]:
    """Make attribution maps of one trace.

    Args:
        run: Run that was traced.
        trace: Trace of an input.
        names: Names of methods in `maps.METHODS`.

    Returns:
        The maps in the order of the methods; some methods make several.

    Example:
        >>> from headway.inside import load, maps, trace
        >>> run = load("tatoeba-de-en")
        >>> [found] = maps.make(run, trace(run, "Guten Morgen."), ["rollout"])
        >>> found.streams, found.weights_RS.shape
        (('source', 'target'), torch.Size([5, 10]))
    """
    return [map_ for name in check_methods(names) for map_ in METHODS[name](run, trace)]


def check_methods(names: Iterable[str]) -> list[str]:
    """Return the names as a list. Raise an error if one is not the name of an attribution
    method."""
    found = list(ensure_list(names))
    for name in found:
        if name not in METHODS:
            raise UserError(f"unknown map {name!r}.{suggest(name, METHODS)}")
    return found
