"""A finished run, loaded whole, as every export needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from headway.config.durable import read_json
from headway.config.folder import TOKENIZER, file_in, load_run, run_folder
from headway.config.model import (
    ModelSettings,
    PictureEncoderSettings,
    PictureSettings,
    Seq2SeqSettings,
    SoundEncoderSettings,
    SoundSettings,
)
from headway.config.run import RunSettings
from headway.errors import FolderError
from headway.models.folder import load_model
from headway.text.tokenizer import Vocabularies

IMPORT = "import.json"
"""What `headway import` notes of the files that a run came from."""


@dataclass(frozen=True)
class LoadedRun:
    folder: Path
    settings: RunSettings
    model: nn.Module
    """In fp32 on the CPU, without dropout."""

    words: Vocabularies | None
    """None where the model has none: it looks at pictures."""

    imported: dict[str, Any] | None = None
    """`import.json`, where the run was imported."""

    @property
    def vocab(self) -> Vocabularies:
        """The words of a model that has some."""
        assert self.words is not None
        return self.words

    @property
    def shape(self) -> ModelSettings:
        """The settings of the model, which a finished run always has."""
        assert self.settings.model is not None
        return self.settings.model


def media_front(settings: RunSettings) -> PictureSettings | SoundSettings | None:
    """How images or recordings are read, of a model that looks or listens."""
    found = getattr(settings.model, "picture", None) or getattr(settings.model, "sound", None)
    return found if isinstance(found, PictureSettings | SoundSettings) else None


def load_run_for_export(name: str | Path) -> LoadedRun:
    """A run folder, or a shipped model by its name; everything in it is checked."""
    folder = run_folder(name)
    settings = load_run(folder)
    assert settings.model is not None
    words = None
    looks = isinstance(settings.model, PictureEncoderSettings | SoundEncoderSettings)
    if not looks or (folder / TOKENIZER).is_file():
        words = Vocabularies.load(file_in(folder, TOKENIZER))
        _check_fits(folder, settings.model, words)
    return LoadedRun(folder, settings, load_model(folder).eval(), words, _imported(folder))


def _check_fits(folder: Path, model: ModelSettings, vocab: Vocabularies) -> None:
    if isinstance(model, PictureEncoderSettings):
        return
    source = model.source_vocab if isinstance(model, Seq2SeqSettings) else model.vocab_size
    for side, tokenizer, rows in (
        ("source", vocab.source, source),
        ("target", vocab.target, model.vocab_size),
    ):
        if tokenizer.vocab_size != rows:
            raise FolderError(
                f"{folder / TOKENIZER} does not fit the model beside it: it has "
                f"{tokenizer.vocab_size:,} {side} tokens and the model {rows:,}. Use the tokenizer "
                "it was trained with."
            )


def _imported(folder: Path) -> dict[str, Any] | None:
    path = folder / IMPORT
    if not path.is_file():
        return None
    try:
        facts = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"cannot read {path}: {error}.") from error
    kinds = {
        "model_type": str,
        "config": dict,
        "generation": dict,
        "tensors": dict,
        "ignored": dict,
    }
    if not isinstance(facts, dict) or any(
        not isinstance(facts.get(key), kind) for key, kind in kinds.items()
    ):
        raise FolderError(f"{path} is not what `headway import` writes. Import the model again.")
    return facts
