"""Run an ONNX file in onnxruntime, after checking that it belongs to the run.

Without the check, a graph of another model would return wrong outputs without an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from headway.errors import FolderError, needs
from headway.interop.graphs.graphs import CROSS_HEADS, LOGITS, STATES, TRANSITIONS, Graph, graphs_of
from headway.interop.graphs.padded_batches import GraphArray
from headway.models.build import build_model
from headway.settings.model import Seq2SeqSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of


class Session:
    """Loaded ONNX graph. It maps named input arrays to named output arrays."""

    def __init__(self, path: Path) -> None:
        runtime = needs("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self.session = runtime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime has its own class for each kind of error
            raise FolderError(
                f"{path} is damaged or not an ONNX file ({error}). Export the model again."
            ) from error
        self.inputs = {value.name: value.shape for value in self.session.get_inputs()}
        self.outputs = {value.name: value.shape for value in self.session.get_outputs()}

    def call(self, inputs: Mapping[str, GraphArray]) -> dict[str, GraphArray]:
        """Run the graph, and return all outputs by name.

        Inputs that the graph does not have are ignored, because no output depends on them.
        """
        known = {name: x for name, x in inputs.items() if name in self.inputs}
        return dict(zip(self.outputs, self.session.run(list(self.outputs), known), strict=True))

    @property
    def facts(self) -> dict[str, str]:
        found: dict[str, str] = self.session.get_modelmeta().custom_metadata_map
        return found

    @property
    def heads(self) -> dict[str, tuple[int, int]]:
        """Number and width of the attention heads, by the names of the cache inputs."""
        return {
            name: (shape[1], shape[3])
            for name, shape in self.inputs.items()
            if name.startswith("past.")
        }

    @property
    def n_positions(self) -> int | None:
        """Maximum number of positions of a text; None means no limit."""
        end = self.facts.get("max_positions")
        return None if end is None else int(end)


SPARE = (STATES, TRANSITIONS, CROSS_HEADS)
"""Names of optional outputs, which an exported graph may lack."""


def expected_graphs(settings: RunSettings) -> dict[str, Graph]:
    """Return the graphs that an export of the run would have, by name. They are built without
    weights."""
    assert settings.model is not None
    model = build_model(settings.model, device="meta")
    with torch.device("meta"):
        return {graph.name: graph for graph in graphs_of(model, settings)}


def check_graph(path: Path, wanted: Graph, graph: Session, settings: RunSettings) -> None:
    """Raise an error if a file belongs to another task or model, or is another graph of the same
    model."""
    task = graph.facts.get("task")
    if task != settings.task:
        raise _other(path, f"its task is {task}, but the task in config.toml is {settings.task}")
    inputs = list(wanted.example)
    if set(graph.inputs) != set(inputs):
        raise _other(path, f"its inputs are {_listed(graph.inputs)}, not {_listed(inputs)}")
    missing = [name for name in wanted.outputs if name not in (*graph.outputs, *SPARE)]
    if missing:
        raise _other(path, f"it has no output {_listed(missing)}")
    columns = _columns(graph)
    if columns is not None and columns != (scores := _n_scores(settings)):
        raise _other(path, f"it scores {columns:,} words or labels, but config.toml has {scores:,}")


def _columns(graph: Session) -> int | None:
    shape: Sequence[int | str] = graph.outputs.get(LOGITS, ())
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def _n_scores(settings: RunSettings) -> int:
    shape: Any = settings.model
    if spec_of(settings).labelled or "classes" in spec_of(settings).heads:
        return int(shape.n_labels)
    blank = spec_of(settings).is_audio and not isinstance(shape, Seq2SeqSettings)
    return int(shape.vocab_size) + blank


def _listed(names: Sequence[str] | dict[str, Any], limit: int = 6) -> str:
    some = list(names)
    return ", ".join(some[:limit]) + (f" and {len(some) - limit} more" * (len(some) > limit))


def _other(path: Path, reason: str) -> FolderError:
    return FolderError(f"{path} belongs to another model: {reason}. Export the model again.")
