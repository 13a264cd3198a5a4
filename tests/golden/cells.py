"""The tiny runs: every task with every front and every body that it can have."""

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
    # What is zero but for rounding, as the gradient of a key's bias, must not become a step.
    "train.eps": 1e-3,
}  # fmt: skip
DECODER: dict[str, Any] = {"model.family": "decoder", "model.attention_dropout": 0.0}
STILL: dict[str, Any] = {"augment.crop": 0}
QUIET: dict[str, Any] = {"augment.bands": 0, "augment.spans": 0}
LISTENS: dict[str, Any] = {"model.sound.bands": 20, **QUIET}
WRITES: dict[str, Any] = {"decode.max_len": 12, "decode.beam": 2}
BOTH: dict[str, Any] = {"model.n_decoder_layers": 1, "tokenizer.kind": "words", **WRITES}
SPEAKS: dict[str, Any] = {**LISTENS, "augment.speed": 0.0, **WRITES, "model.n_decoder_layers": 1}


@dataclass(frozen=True)
class Cell:
    task: str
    data: str
    """A name of `inputs.WRITERS`."""

    given: dict[str, Any] = field(default_factory=dict)
    teacher: str = ""
    """Another cell that this one learns from."""

    key: str = "distil.teacher"
    """Where the teacher is named."""

    without: tuple[str, ...] = ()
    """Settings of `TINY` and `TRAINING` that have no effect here."""

    predict: tuple[str, ...] = ()
    """Options of the command, besides."""

    exports: tuple[str, ...] = ()
    """What the run is written for, where that takes no long time."""

    slow_exports: tuple[str, ...] = ()
    answers: bool = True
    page: bool = True
    """Whether `look` shows it; the fast tests look at one of each kind."""


WHOLE = ("train.micro_tokens",)
OF_TEACHER = ("model.n_layers", "model.d_model", "model.n_heads", "model.d_ff", "model.dropout")
STUDENT: dict[str, Any] = {"distil.layers": 1}

CELLS: dict[str, Cell] = {
    "translate": Cell("translate", "pairs", WRITES, exports=("ctranslate2",),
                      slow_exports=("onnx",)),
    "translate-rdrop": Cell("translate", "pairs", {
        "train.rdrop": 1.0, "train.optimizer": "muon",
        "train.smoothing": 0.2, "model.n_layers": 2, **WRITES}, page=False),
    "complete": Cell("complete", "texts", {"decode.sample": False, "decode.max_len": 12},
                     exports=("hf",), slow_exports=("onnx",)),
    "complete-fields": Cell("complete", "documents", {
        "decode.sample": False, "decode.max_len": 12, "complete.context": 24},
        predict=("--field", "body"), page=False),
    "fill": Cell("fill", "texts", {"tokenizer.kind": "wordpiece"}, slow_exports=("torch",)),
    "fill-pictures": Cell("fill", "pictures", {"model.picture.patch": 4, **STILL}, page=False,
                          answers=False),
    "fill-sounds": Cell("fill", "speakers", {"model.sound.bands": 20}, page=False,
                        answers=False),
    "classify": Cell("classify", "labelled", slow_exports=("torch", "onnx")),
    "classify-decoder": Cell("classify", "labelled", DECODER, page=False),
    "classify-pairs": Cell("classify", "labelled pairs", {
        "train.rdrop": 1.0, "classify.balance": True}, page=False),
    "classify-fields": Cell("classify", "labelled documents", page=False),
    "tag": Cell("tag", "tagged"),
    "tag-crf": Cell("tag", "tagged", {"tag.crf": True, "train.optimizer": "muon"}, page=False),
    "tag-decoder": Cell("tag", "tagged", DECODER, page=False),
    "embed": Cell("embed", "two columns", without=WHOLE, slow_exports=("torch", "onnx")),
    "embed-alone": Cell("embed", "texts", without=WHOLE, page=False),
    "embed-decoder": Cell("embed", "two columns", DECODER, without=WHOLE, page=False),
    "see": Cell("see", "pictures", STILL, exports=("torch",)),
    "see-patches": Cell("see", "pictures", {
        "model.picture.patch": 4, "train.optimizer": "muon", **STILL}, page=False),
    "see-grid": Cell("see", "large pictures", {"model.picture.stem": "grid",
                     "model.picture.stem_width": 4, **STILL}, page=False),
    "see-taught": Cell("see", "pictures", {
        "model.picture.distil_token": True, "model.picture.patch": 4, **STILL},
        teacher="see", key="see.teacher", page=False),
    "watch": Cell("watch", "videos", {
        "model.picture.frames": 4, "model.picture.patch": 4, **STILL}),
    "caption": Cell("caption", "scenes", {"model.picture.patch": 4, **STILL, **BOTH},
                    slow_exports=("onnx",)),
    "caption-videos": Cell("caption", "told videos", {
        "caption.what": "videos", "model.picture.patch": 4, "model.picture.frames": 4,
        **STILL, **BOTH}, page=False),
    "transcribe": Cell("transcribe", "speech", SPEAKS),
    "transcribe-ctc": Cell("transcribe", "speech", {
        key: value for key, value in {**SPEAKS, "transcribe.ctc": 1.0}.items()
        if key != "model.n_decoder_layers"}, page=False),
    "transcribe-decoder": Cell("transcribe", "speech", {
        **SPEAKS, "transcribe.ctc": 0.0, "decode.min_len": 2}, page=False),
    "identify": Cell("identify", "speakers", LISTENS),
    "identify-margin": Cell("identify", "speakers", {"identify.margin": 0.2, **LISTENS},
                            page=False),
    "distil-translate": Cell("translate", "pairs", {**STUDENT, **WRITES}, without=OF_TEACHER,
                             teacher="translate-rdrop", page=False),
    "distil-classify": Cell("classify", "labelled", STUDENT, without=OF_TEACHER,
                            teacher="classify", page=False),
    "distil-fill": Cell("fill", "texts", STUDENT, without=OF_TEACHER, teacher="fill",
                        page=False),
    "distil-complete": Cell("complete", "texts", {
        **STUDENT, "decode.sample": False, "decode.max_len": 12}, without=OF_TEACHER,
        teacher="complete", page=False),
}  # fmt: skip


def given_of(cell: Cell, data: dict[str, Any], teacher: str) -> dict[str, Any]:
    """All settings that a cell asks for."""
    asked = {**TINY, **TRAINING, "task": cell.task, **data, **cell.given}
    if teacher:
        asked[cell.key] = teacher
    return {key: value for key, value in asked.items() if key not in cell.without}
