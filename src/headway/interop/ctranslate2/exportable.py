"""What CTranslate2's format cannot say of our models: refused by name before it is written."""

from __future__ import annotations

from headway.errors import ConfigError
from headway.settings.kept_heads import ALL_HEADS
from headway.settings.model import (
    DecoderSettings,
    EncoderSettings,
    ModelSettings,
    Seq2SeqSettings,
    TextSettings,
)
from headway.tasks.specs import spec_of

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu-tanh": "GELUTanh",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELU",
    "geglu-tanh": "GELUTanh",
}
"""Ours and theirs."""

POSITIONS = 1024
"""Rows of a table of sinusoids, which have no end with us, at least."""


def check_exportable(model: ModelSettings, task: str) -> None:
    """Refuse what CTranslate2 cannot compute."""
    if isinstance(model, DecoderSettings) and not spec_of(task).continues:
        raise ConfigError(
            f"a decoder with task={task!r} cannot be exported to CTranslate2: its language models "
            "give words and no vectors. Use --to onnx, or predict with --engine torch."
        )
    if model.kept_heads != ALL_HEADS:
        raise ConfigError(
            "a model without some of its heads cannot be exported to CTranslate2: all its layers "
            "have the same number. Use --to onnx, or export the whole run."
        )
    for refused, key, reason in _refusals(model):
        if refused:
            raise ConfigError(
                f"model.{key}={getattr(model, key)!r} cannot be exported to CTranslate2: {reason}. "
                "Use --to onnx, or predict with --engine torch."
            )


def _refusals(model: ModelSettings) -> list[tuple[bool, str, str]]:
    """Whether, which setting, why."""
    decoder, seq2seq = isinstance(model, DecoderSettings), isinstance(model, Seq2SeqSettings)
    narrow = isinstance(model, EncoderSettings) and model.d_embedding is not None
    other_heads = isinstance(model, DecoderSettings) and model.heads != ("words",)
    parallel, alibi = model.wiring == "parallel", model.positions == "alibi"
    sides = [model.side(side) for side in model.sides]
    unknown = [side.activation not in ACTIVATIONS for side in sides]
    return [
        (model.parts is not None, "parts", "it does not know them"),
        (unknown[0], "activation", "it has no such activation"),
        (unknown[-1], model.key(model.sides[-1], "activation"), "it has no such activation"),
        (sides[0].norm_eps != sides[-1].norm_eps, "decoder_norm_eps", "it has one for both sides"),
        (model.window is not None, "window", "its sliding window means something else"),
        (parallel and not decoder, "wiring", "only its language models have parallel sub-layers"),
        (parallel and model.norm != "layer", "norm", "its parallel sub-layers need norm=layer"),
        (alibi and not decoder, "positions", "only its language models have ALiBi"),
        (model.qk_norm and seq2seq, "qk_norm", "its cross attention cannot normalise"),
        (
            getattr(model, "token_dropout_mask", None) is not None,
            "token_dropout_mask",
            "its embeddings are not scaled by the share of masked tokens",
        ),
        (narrow, "d_embedding", "its encoders have nothing between embedding and stream"),
        (other_heads, "heads", "its language models give words, and no vectors for other heads"),
    ]


def positions_of(settings: TextSettings) -> int | None:
    """How many positions an exported model knows; None: there is no end to them."""
    if settings.positions == "learned":
        return settings.max_len
    if settings.positions in ("sinusoidal", "sinusoidal-halves", "none"):
        return max(POSITIONS, settings.max_len)
    return None
