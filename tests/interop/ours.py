"""Small random runs of our own, as folders."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch

from headway.interop.proof import Proof
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.settings.data import TokenizerSettings
from headway.settings.folder import CONFIG, TOKENIZER
from headway.settings.model import FAMILY_SETTINGS, ModelSettings, Seq2SeqSettings
from headway.settings.run import RunSettings, resolved_toml
from headway.storage import replace_text
from headway.tokens.tokenizer import MASK, Vocabularies
from headway.tokens.trainer import train_vocabularies

SOURCE_LINES = ["a dog runs across the wet grass", "the price rose by 3", "is this good or bad ?"]
TARGET_LINES = ["ein Hund rennt", "das ist gut", "und das nicht"]
SMALL: dict[str, Any] = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 40, "max_len": 64}


def tokenizer_agrees(proof: Proof) -> bool:
    """Whether a note counts the same token ids on both sides for all 16 sentences."""
    return any(re.search(r"\b16\b\D+\b16\b", note) for note in proof.notes)


def tensors_named(proof: Proof) -> list[str]:
    """Tensors that the notes name, because one side has them and the other does not."""
    return re.findall(r"\w+(?:\.\w+)*\.(?:weight|bias)\b", "\n".join(proof.notes))


@cache
def vocabularies(joint: bool = True) -> Vocabularies:
    """A word is a token; everything else is unknown."""
    settings = TokenizerSettings(kind="words", joint=joint)
    found = train_vocabularies(SOURCE_LINES * 2, TARGET_LINES * 2, settings, 2)
    if not joint:
        return found
    both = found.source.with_specials([MASK])
    return Vocabularies(both, both)


def settings_of(family: str, task: str, **changes: Any) -> RunSettings:
    labels = ("no", "yes", "maybe") if {"classes", "tags"} & set(changes.get("heads", ())) else ()
    joint = changes.get("tie", "all") in ("all", "source-target", "source-softmax", True, False)
    vocab = vocabularies(joint)
    sizes = {**SMALL, "vocab_size": vocab.target.vocab_size, **changes}
    if family == "seq2seq":
        sizes["source_vocab_size"] = vocab.source.vocab_size
    if labels:
        sizes["n_labels"] = len(labels)
    model: ModelSettings = FAMILY_SETTINGS[family](**sizes)
    return RunSettings(task=task, model=model, labels=labels)


@torch.no_grad()
def save_run(folder: Path, settings: RunSettings) -> Path:
    """A run with weights that all matter."""
    assert settings.model is not None
    model = build_model(settings.model)
    torch.manual_seed(3)
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            weight.normal_(0.0, 0.5 if "tokens" in name else 1.2 * weight.shape[1] ** -0.5)
        else:
            weight.normal_(float("norm" in name and name.endswith("weight")), 0.3)
    save_weights(folder, model_weights(model))
    joint = not isinstance(settings.model, Seq2SeqSettings) or (
        settings.model.tie in ("all", "source-target", "source-softmax")
    )
    vocabularies(joint).save(folder / TOKENIZER)
    replace_text(folder / CONFIG, resolved_toml(settings))
    return folder
