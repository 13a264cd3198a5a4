"""What a graph must be to stand in for a run: another model's would answer nonsense in silence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.errors import FolderError
from headway.interop.graphs.graphs import (
    ALONE,
    CROSS,
    CTC,
    EMBEDDING,
    LOGITS,
    PLACES,
    READER,
    REBUILT,
    SENTENCE,
    SOURCE_MASK,
    STATES,
    layer_names,
)
from headway.interop.graphs.inputs import (
    HIDDEN_ROWS,
    IDS,
    LENGTHS,
    MASK,
    PIXELS,
    SEGMENTS,
    WAVEFORM,
)
from headway.interop.onnx.session import Session
from headway.settings.model import PictureSettings, Seq2SeqSettings, SoundSettings
from headway.settings.run import RunSettings, media_front
from headway.tasks.specs import spec_of


def check_graph(path: Path, name: str, graph: Session, settings: RunSettings) -> None:
    """Refuse a file that was made for another task, another model, or in another place."""
    task = graph.facts.get("task")
    if task != settings.task:
        raise _other(path, f"its task is {task}, and that of config.toml is {settings.task}")
    inputs, outputs = _names(name, settings)
    if set(graph.inputs) != set(inputs):
        raise _other(path, f"its inputs are {_listed(graph.inputs)}, not {_listed(inputs)}")
    missing = [output for output in outputs if output not in graph.outputs]
    if missing:
        raise _other(path, f"it has no output {_listed(missing)}")
    columns = _columns(graph)
    if columns is not None and columns != (wanted := _n_scores(settings)):
        raise _other(path, f"it scores {columns:,} words or labels, and config.toml has {wanted:,}")


def _names(name: str, settings: RunSettings) -> tuple[list[str], list[str]]:
    """Inputs, all of them, and outputs that are needed."""
    shape: Any = settings.model
    layers = shape.side(shape.sides[-1]).n_layers
    past, present, cross = (layer_names(kind, layers) for kind in ("past", "present", "cross"))
    front = media_front(settings)
    given = [IDS, MASK] if front is None else _media(front)
    if name == READER:
        mask = [] if front is None else [SOURCE_MASK]
        ctc = [CTC] if getattr(shape, "ctc", False) else []
        return given, [STATES, *mask, *ctc, *cross]
    if name == ALONE and front is not None:
        return _media_answers(given, settings)
    if name == ALONE and spec_of(settings).continues:
        return [IDS, MASK, PLACES, *past], [LOGITS, *present]
    if name == ALONE:
        segments = [SEGMENTS] if getattr(shape, "n_segments", 0) else []
        return [IDS, MASK, *segments], [
            SENTENCE if spec_of(settings).answers == "vector" else LOGITS
        ]
    return [IDS, MASK, PLACES, SOURCE_MASK, *past, *cross], [LOGITS, CROSS, *present]


def _media(front: PictureSettings | SoundSettings) -> list[str]:
    return [PIXELS] if isinstance(front, PictureSettings) else [WAVEFORM, LENGTHS]


def _media_answers(given: list[str], settings: RunSettings) -> tuple[list[str], list[str]]:
    heads: tuple[str, ...] = settings.model.heads  # type: ignore[union-attr]
    if "rebuild" in heads:
        return [*given, HIDDEN_ROWS], [REBUILT]
    spec = spec_of(settings)
    if spec.writes:
        return given, [LOGITS, MASK]
    more = [EMBEDDING] if spec.compares or "classes" not in heads else []
    return given, [LOGITS, *more] if "classes" in heads else more


def _columns(graph: Session) -> int | None:
    shape: Sequence[int | str] = graph.outputs.get(LOGITS, ())
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def _n_scores(settings: RunSettings) -> int:
    shape: Any = settings.model
    if spec_of(settings).labelled or "classes" in spec_of(settings).heads:
        return int(shape.n_labels)
    blank = spec_of(settings).modality == "sounds" and not isinstance(shape, Seq2SeqSettings)
    return int(shape.vocab_size) + blank


def _listed(names: Sequence[str] | dict[str, Any], limit: int = 6) -> str:
    some = list(names)
    return ", ".join(some[:limit]) + (f" and {len(some) - limit} more" * (len(some) > limit))


def _other(path: Path, reason: str) -> FolderError:
    return FolderError(f"{path} is a graph of another model: {reason}. Export the model again.")
