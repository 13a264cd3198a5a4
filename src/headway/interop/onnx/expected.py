"""Checks that an ONNX graph belongs to a run. Another model's graph would return wrong outputs
without an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headway.errors import FolderError
from headway.interop.graphs.graphs import CROSS_HEADS, LOGITS, STATES, TRANSITIONS, Graph, graphs_of
from headway.interop.onnx.session import Session
from headway.models.build import build_model
from headway.settings.model import Seq2SeqSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of

SPARE = (STATES, TRANSITIONS, CROSS_HEADS)
"""Optional outputs, which not all exported folders have."""


def expected_graphs(settings: RunSettings) -> dict[str, Graph]:
    """Graphs that an export of the run would have, by name, from a model without weights."""
    assert settings.model is not None
    model = build_model(settings.model, device="meta")
    with torch.device("meta"):
        return {graph.name: graph for graph in graphs_of(model, settings)}


def check_graph(path: Path, wanted: Graph, graph: Session, settings: RunSettings) -> None:
    """Raise an error if a file belongs to another task, to another model or to another graph of
    it."""
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
