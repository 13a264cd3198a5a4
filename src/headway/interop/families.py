"""Table of foreign model architectures.

To add an architecture, write a module in `hf` and add an entry here.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headway.errors import UserError
from headway.interop.foreign_config import ClassifyAnswer
from headway.interop.name_pairs import NamePair
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
"""Module and object that implement each architecture, by the `model_type` in `config.json`."""


Config = Mapping[str, Any]
"""Parsed `config.json` or another JSON object."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Foreign model, described by headway's settings and a table of tensor names."""

    task: str
    """Task of the published model, such as translate or classify."""

    model: ModelSettings
    pairs: list[NamePair]
    ignored: dict[str, str] = field(default_factory=dict)
    """Regular expressions for the full names of unused tensors, mapped to the reason why each is
    not used."""

    zeros: tuple[str, ...] = ()
    """headway's tensors that the file lacks and that must be zero, such as the bias of GPT-2's
    classifier.

    If they are not zero, an export raises an error.
    """

    labels: tuple[str, ...] = ()
    answer: ClassifyAnswer = "label"
    """Kind of output of a classification head (`classify.answer`)."""

    data: dict[str, Any] = field(default_factory=dict)
    """Values for the `data.*` settings of the run."""

    decode: dict[str, Any] = field(default_factory=dict)
    """Values for the `decode.*` settings of the run, from `generation_config.json`."""

    embed: dict[str, Any] = field(default_factory=dict)
    """Values for the `embed.*` settings of the run."""

    notes: tuple[str, ...] = ()
    """Notes for the user about features of the model that differ in headway or are omitted."""


class Family(Protocol):
    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        """Return the architecture that `config.json` describes.

        Errors name the key, the value and the reason.

        Args:
            config: Contents of `config.json`.
            names: Names of the tensors, which show prefixes and heads.
            generation: Contents of `generation_config.json`.
        """
        ...

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        """Return the `config.json` and the architecture of a run. Raise an error if the format
        cannot represent it."""
        ...


def family_named(model_type: str) -> Family:
    if model_type not in FAMILIES:
        raise UserError(
            f"unsupported model_type {model_type!r}. Supported values: {', '.join(FAMILIES)}."
        )
    module, name = FAMILIES[model_type].split(":")
    found: Family = getattr(importlib.import_module(f"headway.interop.{module}"), name)
    return found
