"""Maps from each output to the patches of an image or the frames of a recording, per attention head
or over all layers.

Rows of a map are outputs; columns are patches or audio frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headway.errors import Option, UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.streams import Reading
from headway.inside.capture.trace import Trace
from headway.inside.measure.maps.gradients import gradient_maps
from headway.inside.measure.maps.integrated import integrated_gradients
from headway.inside.measure.maps.map import Map, readout_RT, written_words
from headway.inside.measure.maps.norms import norm_maps
from headway.inside.measure.maps.occlusion import occlusion
from headway.inside.measure.maps.rollout import rollout
from headway.tasks.loaded_run import LoadedRun

SLOPE_WORK, HIDE_WORK, PATH_WORK = 6_000, 3_000, 400
"""Cost limits for gradients, occlusion and integrated gradients, as outputs × input positions.
Larger maps are made only with `slow`."""

STEPS = 64
"""Maximum number of steps of integrated gradients. Images have many positions, so each step is
slow."""


@dataclass(frozen=True)
class MediaMapMethod:
    key: str
    label: str
    how: str
    """Explanation of the method for the user, in one sentence."""


METHODS = {
    method.key: method
    for method in (
        MediaMapMethod(
            "rollout", "Rollout", "Attention multiplied through all layers down to the input."
        ),
        MediaMapMethod(
            "norm", "Norm", "Norms of the vectors that attention adds, mean over layers."
        ),
        MediaMapMethod(
            "gradxattention", "Gradient × attention", "Attention weights times gradients."
        ),
        MediaMapMethod(
            "gradxinput", "Gradient × input", "Size of gradient × input of the log-probability."
        ),
        MediaMapMethod(
            "integrated",
            "Integrated gradients",
            "Gradients along the path from a uniform image, or from silence.",
        ),
        MediaMapMethod(
            "occlusion", "Occlusion", "Loss of log-probability when this part is hidden."
        ),
    )
}


def input_attention_kind(reading: Reading) -> str:
    """Return the kind of attention that reads the input: `cross`, or `self` in a model with a
    single stack."""
    return "cross" if "target" in reading.streams else "self"


def head_weights(run: LoadedRun | None, trace: Trace) -> list[Tensor]:
    """Return the attention weights from each output to each input position (heads, outputs,
    positions), for each layer.

    The list is empty for a model without attention.
    """
    reads_RT = readout_RT(run, trace.reading)
    layers = trace.attention.get(input_attention_kind(trace.reading), [])
    return [reads_RT @ layer.float() for layer in layers]


def all_layer_maps(
    run: LoadedRun | None, trace: Trace, change: Intervention, *, slow: bool
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the maps that cover all layers (outputs, positions) by key, and the reason for each
    omitted map by its label.

    `slow`: also make slow maps of large inputs.
    """
    source = trace.reading.sides(input_attention_kind(trace.reading))[1]
    by_attention = run is None or Anatomy.of(run.model).by_attention
    made = {"rollout": rollout(run, trace).parts()[source]} if by_attention else {}
    work = len(trace.reading.outputs) * len(trace.reading.streams[source])
    makers: dict[str, tuple[bool, Callable[[LoadedRun], list[Map]]]] = {
        "norm": (True, lambda run: norm_maps(run, trace)[:1]),
        "gradxinput": (work <= SLOPE_WORK, lambda run: gradient_maps(run, trace, change=change)),
        "integrated": (
            work <= PATH_WORK,
            lambda run: [integrated_gradients(run, trace, change=change, most=STEPS)],
        ),
        "occlusion": (work <= HIDE_WORK, lambda run: [occlusion(run, trace, change)]),
    }
    if not by_attention:
        del makers["norm"]
    skipped: dict[str, str] = {}
    for key, (is_quick, maker) in makers.items():
        label = METHODS[key].label
        if run is None:
            skipped[label] = "needs the model, not only a trace"
        elif not (is_quick or slow):
            skipped[label] = f"slow to compute: use {Option('slow', True)}"
        else:
            try:
                made |= {map_.name: map_.parts()[source] for map_ in maker(run)}
            except UserError as error:
                skipped[label] = str(error).rstrip(".")
    return {key: made[key] for key in METHODS if key in made}, skipped


def word_groups(reading: Reading) -> list[dict[str, Any]]:
    """Return the words of the output, each with the indices of its outputs.

    A label is one word, and each special token is a separate word.
    """
    numbers = written_words(reading)
    groups: list[dict[str, Any]] = []
    for row, (number, output) in enumerate(zip(numbers, reading.outputs, strict=True)):
        if groups and number >= 0 and groups[-1]["word"] == number:
            groups[-1]["name"] += output.name
            groups[-1]["rows"].append(row)
        else:
            groups.append({"name": output.name, "rows": [row], "word": number})
    return groups
