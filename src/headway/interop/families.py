"""The foreign architectures, in a table you can see. A new one is a file beside this and a line."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headway.errors import UserError
from headway.interop.foreign_config import Answer
from headway.interop.name_pairs import Pair
from headway.settings.model import ModelSettings
from headway.settings.run import RunSettings

FAMILIES = {
    "albert": "hf.albert:ALBERT",
    "bart": "hf.bart:BART",
    "bert": "hf.bert:BERT",
    "camembert": "hf.roberta:CAMEMBERT",
    "deit": "hf.vit:DEIT",
    "distilbert": "hf.distilbert:DISTILBERT",
    "esm": "hf.esm:ESM",
    "gpt2": "hf.gpt:GPT2",
    "gpt_neox": "hf.neox:NEOX",
    "llama": "hf.llama:LLAMA",
    "marian": "hf.bart:MARIAN",
    "mistral": "hf.llama:MISTRAL",
    "mt5": "hf.t5:MT5",
    "openai-gpt": "hf.gpt:GPT",
    "pegasus": "hf.bart:PEGASUS",
    "qwen2": "hf.llama:QWEN2",
    "qwen3": "hf.llama:QWEN3",
    "roberta": "hf.roberta:ROBERTA",
    "t5": "hf.t5:T5",
    "vision-encoder-decoder": "hf.vision_encoder_decoder:VISION_ENCODER_DECODER",
    "vit": "hf.vit:VIT",
    "whisper": "hf.whisper:WHISPER",
    "xlm-roberta": "hf.roberta:XLM_ROBERTA",
}
"""By the `model_type` of their configuration: a file here and the object in it."""


Config = Mapping[str, Any]
"""A `config.json`, or another table of JSON."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a foreign configuration comes to."""

    task: str
    """What it can do as it comes: translate, complete, fill, classify, tag, embed, caption or
    transcribe."""

    model: ModelSettings
    pairs: list[Pair]
    ignored: dict[str, str] = field(default_factory=dict)
    """Regular expressions of whole names of tensors that have no place, and why."""

    zeros: tuple[str, ...] = ()
    """Tensors of ours that the file has nothing for and that are zero (the bias of GPT-2's
    classes); an export refuses others there."""

    labels: tuple[str, ...] = ()
    answer: Answer = "label"
    """Type of the answers of a classification head (`classify.answer`)."""

    data: dict[str, Any] = field(default_factory=dict)
    """`data.*` settings."""

    decode: dict[str, Any] = field(default_factory=dict)
    """`decode.*` settings, as `generation_config.json` has them."""

    embed: dict[str, Any] = field(default_factory=dict)
    """`embed.*` settings."""

    notes: tuple[str, ...] = ()
    """What a user should know: a thing that differs, or that was left out."""


class Family(Protocol):
    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        """From `config.json`, the names of the tensors (which tell prefixes and heads), and
        `generation_config.json`. Refuses what is not supported by key, value and reason."""
        ...

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        """A `config.json` and the table for a run of ours; refuses what the format cannot say."""
        ...


def family_named(model_type: str) -> Family:
    if model_type not in FAMILIES:
        raise UserError(
            f"model_type {model_type!r} is not an architecture that headway knows. It knows "
            f"{', '.join(FAMILIES)}."
        )
    module, name = FAMILIES[model_type].split(":")
    found: Family = getattr(importlib.import_module(f"headway.interop.{module}"), name)
    return found
