"""Check whether a foreign format can represent a model, and convert its weights for that format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import UserError
from headway.interop.foreign_config import THEIR_ACTIVATIONS
from headway.models.build import build_model
from headway.settings.model import ModelSettings, family_of
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of

GATES = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu_pytorch_tanh"}
"""Activation function of the gate in `transformers`, for each of our gated activations."""

STACK_SIZES = {"n_layers": "n_layers", "n_heads": "n_heads", "kv_heads": "n_kv_heads",
        "head_width": "d_head", "d_ff": "d_ff", "activation": "activation",
        "norm_eps": "norm_eps"}  # fmt: skip
"""Attributes of each stack of layers that `check_round_trip` compares, mapped to the settings that
determine them."""

UNCHECKED_SETTINGS = {"init", "embeddings", "tune_embeddings", "dropout", "attention_dropout",
"ff_dropout",
        "source_vocab_size", "heads", "decoder", *STACK_SIZES.values()}  # fmt: skip
"""Settings that `check_round_trip` does not compare, because they do not affect what a model
computes or because attributes derived from them are compared instead."""

DERIVED = "source_vocab"
BIASES = ("attention_bias", "ff_bias", "head_bias")
"""Settings that add biases.

If a foreign format requires biases that the model lacks, they are exported as zeros.
"""


PROBLEMS = {"labels": "multi_label_classification", "number": "regression"}
"""Value of `problem_type` in the `transformers` configuration for each kind of answer. Single
labels are its default."""


def their_activation(ours: str) -> str:
    if ours not in THEIR_ACTIVATIONS:
        raise UserError(
            f"model.activation={ours!r} is not supported by this format, whose feed-forward "
            f"layers have no gate. Supported: {', '.join(THEIR_ACTIVATIONS)}."
        )
    return THEIR_ACTIVATIONS[ours]


def check_kind(ours: ModelSettings | None, kind: type[ModelSettings], name: str) -> None:
    if not isinstance(ours, kind):
        what = "no model" if ours is None else f"a model of the family {family_of(ours)}"
        raise UserError(f"{name} does not support this run, which has {what}.")


def check_round_trip(
    ours: ModelSettings,
    said: ModelSettings,
    name: str,
    *,
    wider: Collection[str] = (),
    free: Collection[str] = (),
) -> None:
    """Raise an error if a round trip through a foreign format changes the settings of a model.

    Args:
        ours: Settings of the model.
        said: Settings after the round trip.
        name: Name of the foreign format, for the message.
        wider: Settings that may include more after the round trip, namely biases, which are
            exported as zeros.
        free: Settings that are not compared because the caller checks them.
    """
    names = [field.name for field in fields(ours) if field.name not in UNCHECKED_SETTINGS]
    names += [DERIVED] * hasattr(ours, DERIVED)
    values = [(key, key, getattr(ours, key), getattr(said, key)) for key in names]
    for kind, stack in ours.stacks.items():
        there = said.stack(kind)
        values += [
            (f"{stack.section}{base}", base, getattr(stack, value), getattr(there, value))
            for value, base in STACK_SIZES.items()
        ]
    for key, base, here, there in values:
        if here == there or base in free or (base in wider and _within(here, there)):
            continue
        raise UserError(
            f"{name} does not support model.{key} = {_shown(here)}, only {_shown(there)}."
        )


def _within(here: Any, there: Any) -> bool:
    return set(here) <= set(there) if isinstance(here, str) else there and not here


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def label_config(settings: RunSettings) -> dict[str, Any]:
    """Return the keys of `config.json` for the labels of a run: `id2label`, `label2id`, and
    `problem_type` unless each input has exactly one label.

    `threshold` is a key of headway, which `transformers` keeps but does not apply.
    """
    row = spec_of(settings)
    names = ("LABEL_0",) if row.is_regression else settings.labels
    if not names:
        return {}
    facts: dict[str, Any] = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    if row.answers in PROBLEMS:
        facts["problem_type"] = PROBLEMS[row.answers]
    if row.is_multi_label and settings.classify.threshold is not None:
        facts["threshold"] = settings.classify.threshold
    return facts


def in_answer_units(weights: Mapping[str, Tensor], settings: RunSettings) -> Mapping[str, Tensor]:
    """Return the weights with the output head of a regression model rescaled, so that it predicts
    values in their original unit instead of standardized ones."""
    if not spec_of(settings).is_regression:
        return weights
    mean, std = settings.classify.mean or 0.0, settings.classify.std or 1.0
    name = "heads.classes.linear"
    own = {f"{name}.weight": weights[f"{name}.weight"] * std}
    if f"{name}.bias" in weights:
        own[f"{name}.bias"] = weights[f"{name}.bias"] * std + mean
    return {**weights, **own}


def widened(model: nn.Module, settings: ModelSettings) -> dict[str, Tensor]:
    """Return the weights of a model for settings that have more biases. The additional biases are
    zero."""
    have = dict(model.state_dict())
    found: dict[str, Tensor] = {}
    for name, shape in build_model(settings, device="meta").state_dict().items():
        zeros = torch.zeros(shape.shape)
        found[name] = have[name] if name in have else _biases(have, name, zeros)
    lost = [name for name in have if name not in found and ".some_bias." not in name]
    return found | {name: have[name] for name in lost}


def _biases(have: Mapping[str, Tensor], name: str, zeros: Tensor) -> Tensor:
    """Return the joint bias of q, k and v, which is zero for the projections without a bias. Other
    biases are all zero."""
    place, found, what = name.rpartition(".to_qkv.")
    if not found or what != "bias":
        return zeros
    n_q = have[f"{place}.to_out.weight"].shape[1]
    n_kv = (len(zeros) - n_q) // 2
    parts = zip("qkv", zeros.split([n_q, n_kv, n_kv]), strict=True)
    return torch.cat([have.get(f"{place}.some_bias.{letter}", part) for letter, part in parts])
