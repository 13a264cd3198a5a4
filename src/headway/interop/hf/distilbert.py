"""Conversion of DistilBERT from and to `transformers`. It has no segment embeddings, and a pooler
with ReLU before the classifier."""

from __future__ import annotations

from typing import Any

from headway.interop.convertible import their_activation
from headway.interop.families import Architecture
from headway.interop.foreign_config import ForeignConfig
from headway.interop.hf.encoders import COUNTED, DetectedNames, EncoderFamily, refuse_variants
from headway.interop.name_pairs import NamePair, stacked, weight_and_bias
from headway.settings.model import EncoderSettings

EPS = 1e-12
"""Epsilon of all norms. DistilBERT's configuration has no key for it."""


class Distilbert(EncoderFamily):
    class_name = "DistilBert"
    body = "distilbert"
    words = "vocab_"

    def architecture(self, given: ForeignConfig, seen: DetectedNames) -> Architecture:
        refuse_variants(given)
        reading = self.head_plan(given, seen)
        heads = tuple(head for head in reading.heads if head != "pooled")
        heads = (*heads, "pooled") if "classes" in heads else heads
        tied = given.flag("tie_word_embeddings", True)
        model = _settings(given, seen, heads, reading.n_labels, tied)
        pairs = _body(model, seen)
        if "words" in heads:
            pairs += weight_and_bias("vocab_transform", "heads.words.dense")
            pairs += weight_and_bias("vocab_layer_norm", "heads.words.norm")
            ours = "front.tokens" if tied else "heads.words.words.linear"
            pairs.append(NamePair("vocab_projector.weight", f"{ours}.weight", tied=tied))
            pairs.append(NamePair("vocab_projector.bias", "heads.words.words.linear.bias"))
        if "classes" in heads:
            pairs += weight_and_bias("pre_classifier", "heads.pooled.dense")
        for head in {"classes", "tags"} & set(heads):
            pairs += weight_and_bias("classifier", f"heads.{head}.linear")
        return Architecture(
            task=reading.task,
            model=model,
            labels=reading.labels,
            answer=reading.answer,
            pairs=pairs,
            ignored=dict(COUNTED),
        )

    def config(self, model: EncoderSettings) -> dict[str, Any]:
        return {
            "model_type": "distilbert",
            "vocab_size": model.vocab_size,
            "dim": model.d_model,
            "n_layers": model.n_layers,
            "n_heads": model.n_heads,
            "hidden_dim": model.d_ff,
            "max_position_embeddings": model.max_len,
            "activation": their_activation(model.activation),
            "dropout": model.dropout,
            "attention_dropout": model.attention_dropout,
            "tie_word_embeddings": model.tie,
            "pad_token_id": 0,
        }


DISTILBERT = Distilbert()


def _settings(
    given: ForeignConfig, seen: DetectedNames, heads: tuple[str, ...], n_labels: int, tied: bool
) -> EncoderSettings:
    values: dict[str, Any] = {"heads": heads, "n_labels": n_labels, "tie": tied}
    if "pooled" in heads:
        values["pooler"] = "relu"
    return EncoderSettings(
        vocab_size=given.integer("vocab_size"),
        d_model=given.integer("dim"),
        n_layers=given.layers("n_layers", seen.names),
        n_heads=given.integer("n_heads"),
        d_ff=given.integer("hidden_dim"),
        max_len=given.integer("max_position_embeddings"),
        activation=given.activation("activation", "gelu"),
        norm_eps=EPS,
        dropout=given.fraction("dropout", 0.1),
        attention_dropout=given.fraction("attention_dropout", 0.1),
        n_segments=0,
        **values,
    )


def _body(model: EncoderSettings, seen: DetectedNames) -> list[NamePair]:
    front = f"{seen.prefix}embeddings"
    pairs = [
        NamePair(f"{front}.word_embeddings.weight", "front.tokens.weight"),
        NamePair(f"{front}.position_embeddings.weight", "front.positions.table.weight"),
        *weight_and_bias(f"{front}.LayerNorm", "front.norm"),
    ]
    for number in range(model.n_layers):
        layer, block = f"{seen.prefix}transformer.layer.{number}", f"stack.blocks.{number}"
        own = [f"{layer}.attention.{name}_lin" for name in "qkv"]
        pairs += stacked(own, f"{block}.attention.to_qkv", [model.d_model] * 3)
        pairs += weight_and_bias(f"{layer}.attention.out_lin", f"{block}.attention.to_out")
        pairs += weight_and_bias(f"{layer}.sa_layer_norm", f"{block}.norm_attention")
        pairs += weight_and_bias(f"{layer}.ffn.lin1", f"{block}.feed_forward.to_hidden")
        pairs += weight_and_bias(f"{layer}.ffn.lin2", f"{block}.feed_forward.to_out")
        pairs += weight_and_bias(f"{layer}.output_layer_norm", f"{block}.norm_feed_forward")
    return pairs
