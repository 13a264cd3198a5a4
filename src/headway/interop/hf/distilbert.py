"""DistilBERT of transformers: no segments, and a pooler with ReLU before the classifier."""

from __future__ import annotations

from typing import Any

from headway.interop.convertible import their_activation
from headway.interop.families import Architecture
from headway.interop.foreign_config import Given
from headway.interop.hf.encoders import COUNTED, EncoderFamily, Seen, refuse_variants
from headway.interop.name_pairs import Pair, both, stacked
from headway.settings.model import EncoderSettings

EPS = 1e-12
"""Epsilon of all norms; it cannot be configured."""


class Distilbert(EncoderFamily):
    class_name = "DistilBert"
    body = "distilbert"
    words = "vocab_"

    def architecture(self, given: Given, seen: Seen) -> Architecture:
        refuse_variants(given)
        reading = self.reading(given, seen)
        heads = tuple(head for head in reading.heads if head != "pooled")
        heads = (*heads, "pooled") if "classes" in heads else heads
        tied = given.flag("tie_word_embeddings", True)
        model = _settings(given, seen, heads, reading.n_labels, tied)
        pairs = _body(model, seen)
        if "words" in heads:
            pairs += both("vocab_transform", "heads.words.dense")
            pairs += both("vocab_layer_norm", "heads.words.norm")
            ours = "front.tokens" if tied else "heads.words.words.linear"
            pairs.append(Pair("vocab_projector.weight", f"{ours}.weight", tied=tied))
            pairs.append(Pair("vocab_projector.bias", "heads.words.words.linear.bias"))
        if "classes" in heads:
            pairs += both("pre_classifier", "heads.pooled.dense")
        for head in {"classes", "tags"} & set(heads):
            pairs += both("classifier", f"heads.{head}.linear")
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
    given: Given, seen: Seen, heads: tuple[str, ...], n_labels: int, tied: bool
) -> EncoderSettings:
    values: dict[str, Any] = {"heads": heads, "n_labels": n_labels, "tie": tied}
    if "pooled" in heads:
        values["pooler"] = "relu"
    return EncoderSettings(
        vocab_size=given.whole("vocab_size"),
        d_model=given.whole("dim"),
        n_layers=given.layers("n_layers", seen.names),
        n_heads=given.whole("n_heads"),
        d_ff=given.whole("hidden_dim"),
        max_len=given.whole("max_position_embeddings"),
        activation=given.activation("activation", "gelu"),
        norm_eps=EPS,
        dropout=given.share("dropout", 0.1),
        attention_dropout=given.share("attention_dropout", 0.1),
        n_segments=0,
        **values,
    )


def _body(model: EncoderSettings, seen: Seen) -> list[Pair]:
    front = f"{seen.prefix}embeddings"
    pairs = [
        Pair(f"{front}.word_embeddings.weight", "front.tokens.weight"),
        Pair(f"{front}.position_embeddings.weight", "front.positions.table.weight"),
        *both(f"{front}.LayerNorm", "front.norm"),
    ]
    for number in range(model.n_layers):
        layer, block = f"{seen.prefix}transformer.layer.{number}", f"stack.blocks.{number}"
        own = [f"{layer}.attention.{name}_lin" for name in "qkv"]
        pairs += stacked(own, f"{block}.attention.to_qkv", [model.d_model] * 3)
        pairs += both(f"{layer}.attention.out_lin", f"{block}.attention.to_out")
        pairs += both(f"{layer}.sa_layer_norm", f"{block}.norm_attention")
        pairs += both(f"{layer}.ffn.lin1", f"{block}.feed_forward.to_hidden")
        pairs += both(f"{layer}.ffn.lin2", f"{block}.feed_forward.to_out")
        pairs += both(f"{layer}.output_layer_norm", f"{block}.norm_feed_forward")
    return pairs
