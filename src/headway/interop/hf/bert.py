"""Conversion of BERT from and to `transformers`, with the code that RoBERTa shares."""

from __future__ import annotations

from typing import Any

from headway.errors import UserError
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

NEXT_SENTENCE = {
    r"cls\.seq_relationship\.\w+": "classifies whether two sentences follow each "
    "other, which headway does not support"
}


class Bert(EncoderFamily):
    class_name = "Bert"
    body = "bert"
    words = "cls.predictions."

    def architecture(self, given: ForeignConfig, seen: DetectedNames) -> Architecture:
        refuse_variants(given)
        reading = self.head_plan(given, seen)
        tied = given.flag("tie_word_embeddings", True)
        model = bert_settings(given, seen, reading.heads, reading.n_labels, tied=tied)
        named = HeadNames("pooler.dense", "cls.predictions", "cls.predictions.transform.")
        heads, unused = head_pairs(reading.heads, seen, named, tied=tied)
        return Architecture(
            task=reading.task,
            model=model,
            labels=reading.labels,
            answer=reading.answer,
            pairs=bert_body(model, seen) + heads,
            ignored=COUNTED | unused | (NEXT_SENTENCE if "words" in reading.heads else {}),
        )

    def config(self, model: EncoderSettings) -> dict[str, Any]:
        return bert_config(model) | {
            "model_type": "bert",
            "max_position_embeddings": model.max_len,
            "pad_token_id": 0,
        }


BERT = Bert()


def bert_settings(
    given: ForeignConfig,
    seen: DetectedNames,
    heads: tuple[str, ...],
    n_labels: int,
    *,
    tied: bool,
    offset: int = 0,
) -> EncoderSettings:
    """Return the model settings of a BERT-like encoder. `offset`: number of unused positions at the
    start of the position table."""
    values: dict[str, Any] = {"heads": heads, "n_labels": n_labels, "tie": tied}
    return EncoderSettings(
        vocab_size=given.integer("vocab_size"),
        d_model=given.integer("hidden_size"),
        n_layers=given.layers("num_hidden_layers", seen.names),
        n_heads=given.integer("num_attention_heads"),
        d_ff=given.integer("intermediate_size"),
        max_len=given.integer("max_position_embeddings", least=offset + 1) - offset,
        activation=given.activation("hidden_act", "gelu"),
        norm_eps=given.number("layer_norm_eps", 1e-12, least=1e-30),
        dropout=given.fraction("hidden_dropout_prob", 0.1),
        attention_dropout=given.fraction("attention_probs_dropout_prob", 0.1),
        n_segments=given.integer("type_vocab_size", 2),
        **values,
    )


def bert_body(model: EncoderSettings, seen: DetectedNames, offset: int = 0) -> list[NamePair]:
    """Return the name pairs of BERT's embeddings and layers."""
    front = f"{seen.prefix}embeddings"
    rows = slice(offset, None) if offset else None
    pairs = [
        NamePair(f"{front}.word_embeddings.weight", "front.tokens.weight"),
        NamePair(f"{front}.position_embeddings.weight", "front.positions.table.weight",
             their_rows=rows),
        NamePair(f"{front}.token_type_embeddings.weight", "front.segments.weight"),
        *weight_and_bias(f"{front}.LayerNorm", "front.norm"),
    ]  # fmt: skip
    for number in range(model.n_layers):
        layer, block = f"{seen.prefix}encoder.layer.{number}", f"stack.blocks.{number}"
        own = [f"{layer}.attention.self.{name}" for name in ("query", "key", "value")]
        pairs += stacked(own, f"{block}.attention.to_qkv", [model.d_model] * 3)
        pairs += weight_and_bias(f"{layer}.attention.output.dense", f"{block}.attention.to_out")
        pairs += weight_and_bias(f"{layer}.attention.output.LayerNorm", f"{block}.norm_attention")
        pairs += weight_and_bias(f"{layer}.intermediate.dense", f"{block}.feed_forward.to_hidden")
        pairs += weight_and_bias(f"{layer}.output.dense", f"{block}.feed_forward.to_out")
        pairs += weight_and_bias(f"{layer}.output.LayerNorm", f"{block}.norm_feed_forward")
    return pairs


def bert_config(model: EncoderSettings) -> dict[str, Any]:
    if not model.n_segments:
        raise UserError(
            "this format needs segment embeddings, but this model has none (model.n_segments = 0)."
        )
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads,
        "intermediate_size": model.d_ff,
        "hidden_act": their_activation(model.activation),
        "layer_norm_eps": model.norm_eps,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
        "type_vocab_size": model.n_segments,
        "tie_word_embeddings": model.tie,
    }
