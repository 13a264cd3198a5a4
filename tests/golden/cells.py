"""The tiny runs whose numbers are stored: every task, training objective and kind of input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TINY: dict[str, Any] = {
    "model.n_layers": 1, "model.d_model": 32, "model.n_heads": 2, "model.d_ff": 48,
    "model.dropout": 0.0, "data.valid_size": 12,
}  # fmt: skip
TRAINING: dict[str, Any] = {
    "train.batch_tokens": 192, "train.micro_tokens": 128, "train.precision": "fp32",
    "train.threads": 1, "train.steps": 20, "train.eval_every": 20, "train.optimizer": "adamw",
    "train.schedule": "linear", "train.lr": 2e-3, "train.warmup": 4, "train.clip": 1.0,
    # Some gradients are zero except for rounding, as that of a key's bias. A large epsilon keeps
    # Adam from turning the rounding error into a step.
    "train.eps": 1e-3,
}  # fmt: skip
NO_CROP: dict[str, Any] = {"augment.crop": 0}
WRITES: dict[str, Any] = {"decode.max_len": 12, "decode.beam": 2}
AUDIO: dict[str, Any] = {"model.audio.bands": 20, "augment.bands": 0, "augment.spans": 0}


@dataclass(frozen=True)
class Cell:
    task: str
    data: str
    """A key of `inputs.WRITERS`."""

    settings: dict[str, Any] = field(default_factory=dict)
    teacher: str = ""
    """Name of the cell whose run is the teacher (knowledge distillation)."""

    without: tuple[str, ...] = ()
    """Settings of `TINY` and `TRAINING` that have no effect on this run."""

    answers: bool = True
    """Whether `predict` supports the run."""


OF_TEACHER = ("model.n_layers", "model.d_model", "model.n_heads", "model.d_ff", "model.dropout")

CELLS: dict[str, Cell] = {
    "translate": Cell("translate", "pairs", WRITES),
    "complete": Cell("complete", "texts", {"decode.sample": False, "decode.max_len": 12}),
    "fill": Cell("fill", "texts", {"tokenizer.kind": "wordpiece"}),
    # Masked patches of images are reconstructed.
    "fill-images": Cell("fill", "image", {"model.image.patch": 4, **NO_CROP},
                          answers=False),
    "classify": Cell("classify", "labelled"),
    "tag": Cell("tag", "tagged"),
    "tag-crf": Cell("tag", "tagged", {"tag.crf": True, "train.optimizer": "muon"}),
    "embed": Cell("embed", "two columns", without=("train.micro_tokens",)),
    "see": Cell("classify", "image", {"classify.modality": "image", **NO_CROP}),
    "watch": Cell("classify", "video", {
        "classify.modality": "video", "model.image.frames": 4, "model.image.patch": 4,
        **NO_CROP}),
    "caption": Cell("caption", "scenes", {
        "model.image.patch": 4, "model.decoder.n_layers": 1, "tokenizer.kind": "words",
        **NO_CROP, **WRITES}),
    "transcribe-ctc": Cell("transcribe", "speech", {
        "transcribe.ctc": 1.0, "augment.speed": 0.0, **AUDIO, **WRITES}),
    "identify": Cell("identify", "speakers", AUDIO),
    "distil-classify": Cell("classify", "labelled", {"distil.layers": 1}, teacher="classify",
                            without=OF_TEACHER),
}  # fmt: skip


def settings_of(cell: Cell, data: dict[str, Any], teacher: str) -> dict[str, Any]:
    """All settings that the run of a cell is started with, by dotted keys."""
    given = {**TINY, **TRAINING, "task": cell.task, **data, **cell.settings}
    if teacher:
        given["distil.teacher"] = teacher
    return {key: value for key, value in given.items() if key not in cell.without}
