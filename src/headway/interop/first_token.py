"""Convert classifiers to the form of `transformers`, which uses the first token and a pooler.

headway's classifiers use the mean of all tokens, or the first token without a pooler (a dense layer
and tanh). The converted model computes the same logits as follows:

- For the mean, an additional attention layer is appended. With zero queries and keys its weights
  are uniform, so it adds a linear map of the mean to the first token. The map is the classifier
  head times `LOUD`, so large that the first token's own values vanish.
- The norm of that layer would divide by the standard deviation of the logits. Two large constants
  (`LOUDEST`) in the same vector make the standard deviation constant.
- The tanh of the pooler is almost the identity for small values (`QUIET`).

In fp32 the error of a logit is about 1e-6 of the largest logit. fp16 cannot represent these
constants.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from headway.models.build import build_model
from headway.models.encoder import Encoder
from headway.settings.model import EncoderSettings
from headway.settings.run import RunSettings

LOUD = 1e7
"""Scale of the logits. Compared with them, the first token's own values are as small as fp32
rounding errors (6e-8)."""

LOUDEST = 1e13
"""Size of the two constants that determine the standard deviation in the norm: a million times the
scaled logits."""

QUIET = 1e-4
"""Scale of the inputs of tanh, small enough that the relative error x²/3 is below fp32
precision."""


def can_be_read_at_first(settings: RunSettings) -> bool:
    """Return whether a classifier without a pooler can be converted to one with a pooler."""
    model = settings.model
    if not isinstance(model, EncoderSettings) or model.heads != ("classes",):
        return False
    if model.pooling == "first":
        return model.n_labels <= model.d_model
    return (
        model.pooling == "mean"
        and model.body == "transformer"
        and model.block_layout in ("pre", "post")
        and model.norm == "layer"
        and not model.share_layers
        and model.n_kv_heads in (None, model.n_heads)
        and model.d_head in (None, model.d_model // model.n_heads)
        and 2 * model.n_labels + 2 <= model.d_model
    )


@torch.no_grad()
def read_at_first(model: Encoder, settings: EncoderSettings) -> tuple[nn.Module, EncoderSettings]:
    """Return a classifier with a pooler that computes the same logits, and its settings.

    If the model averages all tokens, an attention layer is added.
    """
    if settings.pooling == "first":
        return _with_pooler(model, settings)
    bias = "".join(letter for letter in "qkvo" if letter in {*settings.attention_bias, "o"})
    new = replace(
        settings,
        n_layers=settings.n_layers + 1,
        heads=("classes", "pooled"),
        pooling="first",
        pooler="tanh",
        attention_bias=bias,
        ngrams=0,
    )
    made = build_model(new)
    old = model.state_dict()
    state = {
        name: old[name].float() if name in old else torch.zeros_like(tensor)
        for name, tensor in made.state_dict().items()
    }
    made.load_state_dict(state | _layer(state, old, new) | _heads(old, new))
    return made.eval(), new


def _with_pooler(model: Encoder, settings: EncoderSettings) -> tuple[nn.Module, EncoderSettings]:
    new = replace(settings, heads=("classes", "pooled"), pooler="tanh", ngrams=0)
    made = build_model(new)
    old = model.state_dict()
    head_CD = old["heads.classes.linear.weight"].float()
    pooler = torch.zeros(new.d_model, new.d_model)
    pooler[: new.n_labels] = QUIET * head_CD
    state = {name: old[name].float() for name in made.state_dict() if name in old}
    state["heads.pooled.dense.weight"] = pooler
    state["heads.pooled.dense.bias"] = torch.zeros(new.d_model)
    state["heads.classes.linear.weight"] = torch.eye(new.n_labels, new.d_model) / QUIET
    made.load_state_dict(state)
    return made.eval(), new


def _layer(
    state: dict[str, Tensor], old: dict[str, Tensor], new: EncoderSettings
) -> dict[str, Tensor]:
    width, block = new.d_model, f"stack.blocks.{new.n_layers - 1}"
    head_CD = old["heads.classes.linear.weight"].float() * LOUD
    qkv = torch.zeros(3 * width, width)
    qkv[2 * width :] = torch.eye(width)
    out, constants_D = torch.zeros(width, width), torch.zeros(width)
    # Each logit is stored with both signs, so that the mean is zero and the norm does not shift it.
    out[0 : 2 * len(head_CD) : 2] = head_CD
    out[1 : 2 * len(head_CD) : 2] = -head_CD
    constants_D[-2], constants_D[-1] = LOUDEST, -LOUDEST
    found = {
        f"{block}.attention.to_qkv.weight": qkv,
        f"{block}.attention.to_out.weight": out,
        f"{block}.attention.to_out.bias": constants_D,
        f"{block}.norm_attention.weight": torch.ones(width),
        f"{block}.norm_feed_forward.weight": torch.ones(width),
    }
    if new.block_layout == "pre":  # the new layer takes over the final norm, whose output it needs
        for kind in ("weight", "bias"):
            found[f"{block}.norm_attention.{kind}"] = state[f"stack.final_norm.{kind}"]
        found["stack.final_norm.weight"] = torch.ones(width)
        found["stack.final_norm.bias"] = torch.zeros(width)
    return found


def _heads(old: dict[str, Tensor], new: EncoderSettings) -> dict[str, Tensor]:
    width, n_labels = new.d_model, new.n_labels
    spread = LOUDEST * (2.0 / width) ** 0.5
    pooler, classes = torch.zeros(width, width), torch.zeros(n_labels, width)
    for label in range(n_labels):
        pooler[label, 2 * label] = 0.5 * QUIET * spread / LOUD
        pooler[label, 2 * label + 1] = -0.5 * QUIET * spread / LOUD
        classes[label, label] = 1.0 / QUIET
    return {
        "heads.pooled.dense.weight": pooler,
        "heads.classes.linear.weight": classes,
        "heads.classes.linear.bias": old["heads.classes.linear.bias"].float(),
    }
