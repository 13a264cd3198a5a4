"""Check whether CTranslate2's format supports a model, before any file is written."""

from __future__ import annotations

from operator import attrgetter

from headway.errors import ConfigError, Option
from headway.settings.kept_heads import ALL_HEADS
from headway.settings.model import (
    DecoderSettings,
    EncoderSettings,
    ModelSettings,
    Seq2SeqSettings,
    TextSettings,
)
from headway.settings.task_rows import spec_of

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu-tanh": "GELUTanh",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELU",
    "geglu-tanh": "GELUTanh",
}
"""CTranslate2's name for each of headway's activation functions."""

POSITIONS = 1024
"""Minimum number of positions in an exported table of sinusoids. headway computes sinusoids for any
length, but CTranslate2 needs a table of fixed size."""


def check_exportable(model: ModelSettings, task: str) -> None:
    """Raise an error if CTranslate2 cannot compute this model or task."""
    if isinstance(model, DecoderSettings) and not spec_of(task).continues:
        raise ConfigError(
            f"a decoder with task={task!r} cannot be exported to CTranslate2: language models in "
            f"CTranslate2 output only tokens, not vectors. Use {Option('to', 'onnx')}, or predict "
            f"with {Option('engine', 'torch')}."
        )
    if model.kept_heads != ALL_HEADS:
        raise ConfigError(
            "a model with removed attention heads cannot be exported to CTranslate2, which needs "
            f"the same number of heads in all layers. Use {Option('to', 'onnx')}, or export the "
            "original run."
        )
    for refused, key, reason in _unsupported(model):
        if refused:
            value = attrgetter(key)(model)
            raise ConfigError(
                f"model.{key}={value!r} cannot be exported to CTranslate2: "
                f"{reason}. Use {Option('to', 'onnx')}, or predict with "
                f"{Option('engine', 'torch')}."
            )


def _unsupported(model: ModelSettings) -> list[tuple[bool, str, str]]:
    """Return a table of unsupported settings. Each entry tells whether the model uses the setting,
    its name, and why it is not supported."""
    decoder, seq2seq = isinstance(model, DecoderSettings), isinstance(model, Seq2SeqSettings)
    narrow = isinstance(model, EncoderSettings) and model.d_embedding is not None
    other_heads = isinstance(model, DecoderSettings) and model.heads != ("words",)
    parallel, alibi = model.block_layout == "parallel", model.positions == "alibi"
    stacks = list(model.stacks.values())
    unknown = [stack.activation not in ACTIVATIONS for stack in stacks]
    return [
        (model.parts is not None, "parts", "custom parts are not supported"),
        (unknown[0], "activation", "this activation is not supported"),
        (unknown[-1], stacks[-1].key("activation"), "this activation is not supported"),
        (
            stacks[0].norm_eps != stacks[-1].norm_eps,
            "decoder.norm_eps",
            "encoder and decoder must have the same value",
        ),
        (model.window is not None, "window", "CTranslate2 defines the sliding window differently"),
        (
            parallel and not decoder,
            "block_layout",
            "only language models support parallel sub-layers",
        ),
        (parallel and model.norm != "layer", "norm", "parallel sub-layers need norm=layer"),
        (alibi and not decoder, "positions", "only language models support ALiBi"),
        (
            model.qk_norm and seq2seq,
            "qk_norm",
            "cross-attention in CTranslate2 does not support qk_norm",
        ),
        (
            getattr(model, "token_dropout_mask", None) is not None,
            "token_dropout_mask",
            "scaling embeddings by the share of masked tokens is not supported",
        ),
        (narrow, "d_embedding", "encoders have no projection after the embedding"),
        (
            other_heads,
            "heads",
            "language models in CTranslate2 output only tokens, not vectors for other heads",
        ),
    ]


def positions_of(settings: TextSettings) -> int | None:
    """Return the maximum number of positions of the exported model; None means no limit."""
    if settings.positions == "learned":
        return settings.max_len
    if settings.positions in ("sinusoidal", "sinusoidal-halves", "none"):
        return max(POSITIONS, settings.max_len)
    return None
