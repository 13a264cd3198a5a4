"""Conversion of RoBERTa, XLM-RoBERTa and CamemBERT from and to `transformers`. They have the layers
of BERT, a position table with two unused positions, and other heads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headway.interop.families import Architecture
from headway.interop.foreign_config import ForeignConfig
from headway.interop.hf.bert import bert_body, bert_config, bert_settings
from headway.interop.hf.encoders import (
    COUNTED,
    DetectedNames,
    EncoderFamily,
    refuse_variants,
    word_pairs,
)
from headway.interop.name_pairs import NamePair, weight_and_bias
from headway.settings.model import EncoderSettings

PADDING = 1
"""Id of the padding token. Positions are counted from this id plus one."""


class Roberta(EncoderFamily):
    model_type = "roberta"
    class_name = "Roberta"
    body = "roberta"
    words = "lm_head."

    def architecture(self, given: ForeignConfig, seen: DetectedNames) -> Architecture:
        refuse_variants(given)
        reading = self.head_plan(given, seen)
        heads, ignored = reading.heads, dict(COUNTED)
        if "classes" in heads:
            # The classification head has its own dense layer instead of the pooler.
            heads = ("classes", "pooled")
            ignored[r"roberta\.pooler\.dense\.\w+"] = "unused by the classification head"
        tied = given.flag("tie_word_embeddings", True)
        offset = given.integer("pad_token_id", PADDING, least=0) + 1
        n_labels = reading.n_labels
        model = bert_settings(given, seen, heads, n_labels, tied=tied, offset=offset)
        if "words" in heads:
            given.require(
                "hidden_act",
                ("gelu", "gelu_python"),
                "the masked language model head always uses gelu",
            )
        named, unused = roberta_heads(heads, seen.prefix, tied=tied, names=seen.names)
        return Architecture(
            task=reading.task,
            model=model,
            labels=reading.labels,
            answer=reading.answer,
            pairs=bert_body(model, seen, offset) + named,
            ignored=ignored | unused,
        )

    def config(self, model: EncoderSettings) -> dict[str, Any]:
        return bert_config(model) | {
            "model_type": self.model_type,
            "max_position_embeddings": model.max_len + PADDING + 1,
            "pad_token_id": PADDING,
            "bos_token_id": 0,
            "eos_token_id": 2,
        }


def roberta_heads(
    heads: Collection[str], prefix: str, *, tied: bool, names: Collection[str]
) -> tuple[list[NamePair], dict[str, str]]:
    """Return the name pairs of the heads, and the names of ignored tensors with reasons. ESM has
    the same heads."""
    pairs: list[NamePair] = []
    ignored: dict[str, str] = {}
    if "classes" in heads:
        pairs += weight_and_bias("classifier.dense", "heads.pooled.dense")
        pairs += weight_and_bias("classifier.out_proj", "heads.classes.linear")
    elif "pooled" in heads:
        pairs += weight_and_bias(f"{prefix}pooler.dense", "heads.pooled.dense")
    if "tags" in heads:
        pairs += weight_and_bias("classifier", "heads.tags.linear")
    if "words" in heads:
        pairs += weight_and_bias("lm_head.dense", "heads.words.dense")
        pairs += weight_and_bias("lm_head.layer_norm", "heads.words.norm")
        words, ignored = word_pairs("lm_head", tied=tied, names=names)
        pairs += words
    return pairs, ignored


class XlmRoberta(Roberta):
    model_type = "xlm-roberta"
    class_name = "XLMRoberta"


class Camembert(Roberta):
    model_type = "camembert"
    class_name = "Camembert"


ROBERTA = Roberta()
CAMEMBERT = Camembert()
XLM_ROBERTA = XlmRoberta()
