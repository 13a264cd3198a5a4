"""Tiny models of every family in a dozen settings, and how to run them on a list of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from headway.models.build import build_model
from headway.models.encoder import Encoder
from headway.models.seq2seq import Seq2Seq
from headway.nn.layout import Layout
from headway.nn.loss import LabelSmoothing
from headway.settings.body import with_body
from headway.settings.model import (
    DecoderSettings,
    EncoderSettings,
    ModelSettings,
    RelativeSettings,
    RopeSettings,
    Seq2SeqSettings,
    StackSettings,
)

VOCAB = 41
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4}
SIZES |= {"d_ff": 48, "max_len": 32, "dropout": 0.0, "attention_dropout": 0.0}

FAMILIES: dict[str, ModelSettings] = {
    "seq2seq": Seq2SeqSettings(**SIZES),
    "encoder": EncoderSettings(**SIZES),
    "decoder": DecoderSettings(**SIZES),
}

SMALL_BUCKETS = RelativeSettings(buckets=8, max_distance=7)
LLAMA3 = RopeSettings(scaling="llama3", factor=4.0, trained_len=12)

VARIANTS: dict[str, dict[str, Any]] = {
    "as-published": {},
    "post-sinusoidal-relu": {
        "block_layout": "post",
        "positions": "sinusoidal",
        "activation": "relu",
    },
    "pre-learned-all-biases": {
        "block_layout": "pre",
        "positions": "learned",
        "attention_bias": "qkvo",
        "head_bias": True,
        "embedding_norm": True,
    },
    "llama-like": {
        "block_layout": "pre",
        "norm": "rms",
        "positions": "rotary",
        "activation": "swiglu",
        "n_kv_heads": 2,
        "attention_bias": "",
        "ff_bias": False,
    },
    "parallel-one-key-head": {"block_layout": "parallel", "positions": "rotary", "n_kv_heads": 1},
    "alibi-three-heads": {
        "positions": "alibi",
        "d_model": 33,
        "n_heads": 3,
        "embedding_scale": True,
        "block_layout": "pre",
    },
    "relative-grouped": {
        "positions": "relative",
        "relative": SMALL_BUCKETS,
        "n_kv_heads": 2,
        "activation": "relu2",
    },
    "no-positions-parallel": {"positions": "none", "block_layout": "parallel", "norm": "rms"},
    "window": {"window": 3, "positions": "sinusoidal-halves", "activation": "silu"},
    "window-and-alibi": {"window": 2, "positions": "alibi", "block_layout": "pre", "n_kv_heads": 2},
    "qk-norm-scaled-rotary": {"qk_norm": True, "positions": "rotary", "rope": LLAMA3},
    "some-biases-wide-heads": {"attention_bias": "qv", "d_head": 12, "activation": "geglu"},
    "t5-like": {
        "positions": "relative",
        "relative": SMALL_BUCKETS,
        "block_layout": "pre",
        "norm": "rms",
        "activation": "geglu-tanh",
        "attention_bias": "",
        "ff_bias": False,
        "scale_attention": False,
        "scale_head": True,
    },
    "albert-like": {"d_embedding": 12, "share_layers": True, "activation": "gelu-tanh"},
    "other-sides-relative": {
        "decoder": StackSettings(
            n_heads=6, n_kv_heads=2, d_head=10, d_ff=40, activation="gelu-tanh"
        ),
        "positions": "relative",
        "relative": SMALL_BUCKETS,
        "block_layout": "pre",
        "activation": "silu",
    },
    "untied-odd-width": {"tie": False, "d_model": 35, "n_heads": 5, "positions": "learned"},
}

BODIES: dict[str, dict[str, Any]] = {
    "lstm-additive": {"body": "lstm", "source_attention": "additive", "block_layout": "pre"},
    "lstm-last-one-way": {"body": "lstm", "source_attention": "last", "bidirectional": False,
                          "block_layout": "post", "positions": "sinusoidal"},
    "gru-dot": {"body": "gru", "source_attention": "dot", "block_layout": "pre", "norm": "rms"},
    "convolution": {"body": "convolution", "kernel": 3, "block_layout": "post"},
    "convolution-dilated": {"body": "convolution", "kernel": 3, "dilation": 2,
    "block_layout": "pre",
                            "source_attention": "additive"},
    "sha-rnn": {"body": "sha-rnn", "d_ff": 64, "window": 4},
    "sha-rnn-one-head": {"body": "sha-rnn", "d_ff": 64, "single_head": "second-last"},
}  # fmt: skip
"""Other bodies; a decoder alone has no memory and reads one way."""

EVERY = VARIANTS | BODIES


@dataclass(frozen=True)
class Sample:
    """Only an encoder-decoder reads the source; the others read the target alone."""

    source: tuple[int, ...]
    target: tuple[int, ...]


def settings_of(family: str, variant: str, **more: Any) -> ModelSettings:
    known = {field.name for field in fields(FAMILIES[family])}
    changes = {key: value for key, value in EVERY[variant].items() if key in known} | more
    base = FAMILIES[family]
    if "body" in changes:
        if family == "decoder":
            changes.pop("bidirectional", None)
        if changes["body"] == "sha-rnn" and family != "decoder":  # it only goes on with texts
            changes = {"body": "lstm"} | more
        base = with_body(base if "d_ff" not in changes else replace(base, d_ff=32), changes["body"])
    if "tie" in changes and family == "seq2seq":
        changes = changes | {"tie": "all" if changes["tie"] else "none"}
    return replace(base, **changes)


def tiny(
    family: str, variant: str = "as-published", *, device: torch.device | str = "cpu", **more: Any
) -> nn.Module:
    """In evaluation mode, with weights large enough that everything matters."""
    return stirred(build_model(settings_of(family, variant, **more))).to(device)


def stirred(model: nn.Module) -> nn.Module:
    """With weights large enough that everything matters, to be evaluated."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                noise = torch.randn(weight.shape, generator=random)
                weight.copy_(noise * (0.5 if "tokens" in name else weight.shape[1] ** -0.5))
            else:
                weight.add_(torch.randn(weight.shape, generator=random), alpha=0.2)
    return model.eval()


def samples(lengths: Sequence[int], seed: int = 0) -> list[Sample]:
    """Targets of these lengths; sources of other ones."""
    random = torch.Generator().manual_seed(seed)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, VOCAB, (length,), generator=random).tolist())

    return [Sample(draw(length * 5 % 7 + 1), draw(length)) for length in lengths]


def flat(sequences: Sequence[Sequence[int]], device: torch.device | str) -> tuple[Tensor, Layout]:
    tokens_N = torch.tensor([token for sequence in sequences for token in sequence], device=device)
    return tokens_N, Layout.of([len(sequence) for sequence in sequences], device)


def inputs_of(model: nn.Module, batch: Sequence[Sample]) -> tuple[Tensor | Layout, ...]:
    device = next(model.parameters()).device
    target = flat([sample.target for sample in batch], device)
    if isinstance(model, Seq2Seq):
        return (*flat([sample.source for sample in batch], device), *target)
    return target


def vectors(model: nn.Module, batch: Sequence[Sample]) -> list[Tensor]:
    """What the stack gives for each sample's target."""
    inputs = inputs_of(model, batch)
    return inputs[-1].split(model(*inputs))


def scores(model: nn.Module, batch: Sequence[Sample]) -> list[Tensor]:
    inputs = inputs_of(model, batch)
    return inputs[-1].split(model.scores(model(*inputs)))


def word_loss(model: nn.Module, batch: Sequence[Sample], weights_N: Tensor | None = None) -> Tensor:
    """The summed loss of guessing, from every row, the token that stands there plus one."""
    inputs = inputs_of(model, batch)
    return loss_of(model, model(*inputs), inputs[-2], weights_N)


def loss_of(
    model: nn.Module, x_ND: Tensor, tokens_N: Tensor, weights_N: Tensor | None = None
) -> Tensor:
    head = model.heads["words"] if isinstance(model, Encoder) else model.head
    if isinstance(model, Encoder):
        x_ND, head = head.transform(x_ND), head.words
    targets_N = (tokens_N + 1) % VOCAB
    return head.loss(x_ND, targets_N, LabelSmoothing.of(0.1, VOCAB), weights_N).sum
