"""Conversion of ESM from and to `transformers`: the variant with RoPE, pre-norm, LayerNorm, GELU
and no gate.

headway's default encoders have this architecture, so they are exported as ESM.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.errors import UserError
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import LONGEST, ForeignConfig
from headway.interop.hf.encoders import COUNTED, DetectedNames, EncoderFamily
from headway.interop.hf.roberta import roberta_heads
from headway.interop.name_pairs import NamePair, stacked, weight_and_bias
from headway.nn.positions import rope_rates
from headway.settings.model import EncoderSettings, RopeSettings

IGNORED = COUNTED | {
    r"(esm\.)?contact_head\.regression\.\w+": "predicts contacts in a protein, which headway "
    "does not support",
    r"(esm\.)?embeddings\.position_embeddings\.weight": "unused: positions are rotary",
    r"(.*\.)?rotary_embeddings\.inv_freq": "the frequencies of rotary positions, which headway "
    "computes",
}


class Esm(EncoderFamily):
    class_name = "Esm"
    body = "esm"
    words = "lm_head."

    def architecture(self, given: ForeignConfig, seen: DetectedNames) -> Architecture:
        given.require("is_folding_model", False, "headway does not predict protein structures")
        given.require("is_decoder", False, "an encoder has no causal attention")
        if given.string("position_embedding_type", "absolute") != "rotary":
            raise given.error("position_embedding_type", "is not supported; it must be rotary")
        reading = self.head_plan(given, seen)
        heads = ("classes", "pooled") if "classes" in reading.heads else reading.heads
        tied = given.flag("tie_word_embeddings", True)
        values: dict[str, Any] = {"heads": heads, "n_labels": reading.n_labels, "tie": tied}
        model = EncoderSettings(
            vocab_size=given.integer("vocab_size"),
            d_model=given.integer("hidden_size"),
            n_layers=given.layers("num_hidden_layers", seen.names),
            n_heads=given.integer("num_attention_heads"),
            d_ff=given.integer("intermediate_size"),
            max_len=given.integer("max_position_embeddings", 1026, most=LONGEST),
            norm_eps=given.number("layer_norm_eps", 1e-12, least=1e-30),
            block_layout="pre",
            positions="rotary",
            rope=RopeSettings(base=given.number("rope_theta", 10_000.0, least=1e-9)),
            embedding_norm=given.flag("emb_layer_norm_before", False),
            token_dropout_mask=_dropped(given),
            n_segments=0,
            dropout=given.fraction("hidden_dropout_prob", 0.1),
            attention_dropout=given.fraction("attention_probs_dropout_prob", 0.1),
            **values,
        )
        named, unused = roberta_heads(heads, seen.prefix, tied=tied, names=["lm_head.bias"])
        named = [
            pair for pair in named if pair.theirs != "lm_head.decoder.bias"
        ]  # ESM has no such tensor
        return Architecture(
            task=reading.task,
            model=model,
            labels=reading.labels,
            answer=reading.answer,
            pairs=_body(model, seen.prefix) + named,
            ignored=IGNORED | unused,
        )

    def config(self, model: EncoderSettings) -> dict[str, Any]:
        if model.activation != "gelu":
            raise UserError(
                "ESM supports only model.activation='gelu', but this model has "
                f"model.activation={model.activation!r}."
            )
        return {
            "model_type": "esm",
            "vocab_size": model.vocab_size,
            "hidden_size": model.d_model,
            "num_hidden_layers": model.n_layers,
            "num_attention_heads": model.n_heads,
            "intermediate_size": model.d_ff,
            "max_position_embeddings": model.max_len,
            "layer_norm_eps": model.norm_eps,
            "position_embedding_type": "rotary",
            "rope_theta": model.rope.base,
            "emb_layer_norm_before": model.embedding_norm,
            "token_dropout": model.token_dropout_mask is not None,
            "mask_token_id": model.token_dropout_mask,
            "hidden_dropout_prob": model.dropout,
            "attention_probs_dropout_prob": model.attention_dropout,
            "tie_word_embeddings": model.tie,
        }


def _dropped(given: ForeignConfig) -> int | None:
    """Return the id of the mask token if the model uses token dropout, otherwise None.

    Token dropout sets the embeddings of mask tokens to zero and rescales the others.
    """
    if not given.flag("token_dropout", False):
        return None
    return given.integer("mask_token_id", least=0, most=given.integer("vocab_size") - 1)


def _body(model: EncoderSettings, prefix: str) -> list[NamePair]:
    pairs = [NamePair(f"{prefix}embeddings.word_embeddings.weight", "front.tokens.weight")]
    if model.embedding_norm:
        pairs += weight_and_bias(f"{prefix}embeddings.layer_norm", "front.norm")
    for number in range(model.n_layers):
        layer, block = f"{prefix}encoder.layer.{number}", f"stack.blocks.{number}"
        own = [f"{layer}.attention.self.{name}" for name in ("query", "key", "value")]
        pairs += weight_and_bias(f"{layer}.attention.LayerNorm", f"{block}.norm_attention")
        pairs += stacked(own, f"{block}.attention.to_qkv", [model.d_model] * 3)
        pairs += weight_and_bias(f"{layer}.attention.output.dense", f"{block}.attention.to_out")
        pairs += weight_and_bias(f"{layer}.LayerNorm", f"{block}.norm_feed_forward")
        pairs += weight_and_bias(f"{layer}.intermediate.dense", f"{block}.feed_forward.to_hidden")
        pairs += weight_and_bias(f"{layer}.output.dense", f"{block}.feed_forward.to_out")
    return [*pairs, *weight_and_bias(f"{prefix}encoder.emb_layer_norm_after", "stack.final_norm")]


def unused(config: Config) -> dict[str, Tensor]:
    """Return tensors that ESM's classes expect in a file but headway's model does not have.

    They are a head for protein contacts, rotary frequencies and, for a model without other heads, a
    pooler.
    """
    width, n_heads = config["hidden_size"], config["num_attention_heads"]
    alone = config["architectures"] == ["EsmModel"]
    prefix = "" if alone else "esm."
    rates_I = rope_rates(width // n_heads, config["rope_theta"]).float()
    found = {
        f"{prefix}contact_head.regression.weight": torch.zeros(
            1, config["num_hidden_layers"] * n_heads
        ),
        f"{prefix}contact_head.regression.bias": torch.zeros(1),
        f"{prefix}rotary_embeddings.inv_freq": rates_I,
    }
    if alone:
        found |= {
            "pooler.dense.weight": torch.zeros(width, width),
            "pooler.dense.bias": torch.zeros(width),
        }
    return found


ESM = Esm()
