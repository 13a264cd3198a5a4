"""Conversion of ALBERT from and to `transformers`. All layers share their weights, or each has its
own. The embeddings may be narrower than the model width."""

from __future__ import annotations

from typing import Any

from headway.interop.convertible import their_activation
from headway.interop.families import Architecture
from headway.interop.foreign_config import ForeignConfig
from headway.interop.hf.encoders import (
    COUNTED,
    DetectedNames,
    EncoderFamily,
    HeadNames,
    head_pairs,
    refuse_variants,
)
from headway.interop.name_pairs import NamePair, stacked, weight_and_bias
from headway.settings.model import EncoderSettings

SENTENCE_ORDER = {
    r"sop_classifier\.classifier\.\w+": "classifies whether two sentences are in order, which "
    "headway does not support",
}

MOST_SHARED = 1000
"""Maximum number of layers. The file does not limit it, because all layers share their weights."""


class Albert(EncoderFamily):
    class_name = "Albert"
    body = "albert"
    words = "predictions."

    def architecture(self, given: ForeignConfig, seen: DetectedNames) -> Architecture:
        refuse_variants(given)
        given.require("inner_group_num", 1, "it must be 1 (one inner layer per group)")
        given.require("net_structure_type", 0, "it must be 0 (the standard architecture)")
        given.require("num_memory_blocks", 0, "it must be 0 (the standard architecture)")
        reading = self.head_plan(given, seen)
        tied = given.flag("tie_word_embeddings", True)
        model = _settings(given, seen, reading.heads, reading.n_labels, tied)
        named = HeadNames("pooler", "predictions", "predictions.")
        heads, unused = head_pairs(reading.heads, seen, named, tied=tied)
        return Architecture(
            task=reading.task,
            model=model,
            labels=reading.labels,
            answer=reading.answer,
            pairs=_body(model, seen) + heads,
            ignored=COUNTED | unused | (SENTENCE_ORDER if "words" in reading.heads else {}),
        )

    def config(self, model: EncoderSettings) -> dict[str, Any]:
        return {
            "model_type": "albert",
            "vocab_size": model.vocab_size,
            "embedding_size": model.embedding_width,
            "hidden_size": model.d_model,
            "num_hidden_layers": model.n_layers,
            "num_hidden_groups": 1 if model.share_layers else model.n_layers,
            "num_attention_heads": model.n_heads,
            "intermediate_size": model.d_ff,
            "max_position_embeddings": model.max_len,
            "hidden_act": their_activation(model.activation),
            "layer_norm_eps": model.norm_eps,
            "hidden_dropout_prob": model.dropout,
            "attention_probs_dropout_prob": model.attention_dropout,
            "type_vocab_size": model.n_segments,
            "tie_word_embeddings": model.tie,
            "pad_token_id": 0,
        }


ALBERT = Albert()


def _settings(
    given: ForeignConfig, seen: DetectedNames, heads: tuple[str, ...], n_labels: int, tied: bool
) -> EncoderSettings:
    groups, n_layers = given.integer("num_hidden_groups", 1), given.integer("num_hidden_layers")
    if groups not in (1, n_layers):
        raise given.error("num_hidden_groups", f"is not supported; it must be 1 or {n_layers}")
    shared = groups == 1
    values: dict[str, Any] = {"heads": heads, "n_labels": n_labels, "tie": tied}
    return EncoderSettings(
        vocab_size=given.integer("vocab_size"),
        d_embedding=given.integer("embedding_size", 128),
        d_model=given.integer("hidden_size"),
        n_layers=given.integer("num_hidden_layers", most=MOST_SHARED)
        if shared
        else given.layers("num_hidden_layers", seen.names),
        share_layers=shared,
        n_heads=given.integer("num_attention_heads"),
        d_ff=given.integer("intermediate_size"),
        max_len=given.integer("max_position_embeddings", 512),
        activation=given.activation("hidden_act", "gelu_new"),
        norm_eps=given.number("layer_norm_eps", 1e-12, least=1e-30),
        dropout=given.fraction("hidden_dropout_prob", 0.0),
        attention_dropout=given.fraction("attention_probs_dropout_prob", 0.0),
        n_segments=given.integer("type_vocab_size", 2),
        **values,
    )


def _body(model: EncoderSettings, seen: DetectedNames) -> list[NamePair]:
    front = f"{seen.prefix}embeddings"
    pairs = [
        NamePair(f"{front}.word_embeddings.weight", "front.tokens.weight"),
        NamePair(f"{front}.position_embeddings.weight", "front.positions.table.weight"),
        NamePair(f"{front}.token_type_embeddings.weight", "front.segments.weight"),
        *weight_and_bias(f"{front}.LayerNorm", "front.norm"),
        *weight_and_bias(f"{seen.prefix}encoder.embedding_hidden_mapping_in", "front.to_stream"),
    ]
    for number in range(1 if model.share_layers else model.n_layers):
        layer = f"{seen.prefix}encoder.albert_layer_groups.{number}.albert_layers.0"
        block = f"stack.blocks.{number}"
        own = [f"{layer}.attention.{name}" for name in ("query", "key", "value")]
        pairs += stacked(own, f"{block}.attention.to_qkv", [model.d_model] * 3)
        pairs += weight_and_bias(f"{layer}.attention.dense", f"{block}.attention.to_out")
        pairs += weight_and_bias(f"{layer}.attention.LayerNorm", f"{block}.norm_attention")
        pairs += weight_and_bias(f"{layer}.ffn", f"{block}.feed_forward.to_hidden")
        pairs += weight_and_bias(f"{layer}.ffn_output", f"{block}.feed_forward.to_out")
        pairs += weight_and_bias(f"{layer}.full_layer_layer_norm", f"{block}.norm_feed_forward")
    return pairs
