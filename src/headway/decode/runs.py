"""Run folders as the models and the vocabulary of a translator, or of a completer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from headway.config.folder import TOKENIZER, Names, file_in, load_run, run_folders
from headway.config.model import DecoderSettings, Seq2SeqSettings, family_of
from headway.config.run import RunSettings
from headway.errors import FolderError
from headway.models.decoder import Decoder
from headway.models.folder import load_model
from headway.models.seq2seq import Seq2Seq
from headway.text.tokenizer import Tokenizer, Vocabularies


@dataclass(frozen=True)
class Runs:
    settings: list[RunSettings]
    models: list[Seq2Seq]
    vocab: Vocabularies


def load_runs(names: Names, device: torch.device | str, *, models: bool = True) -> Runs:
    """Everything is checked before the first model is loaded. `models`: whether they are needed."""
    folders = run_folders(names)
    settings = [load_run(folder) for folder in folders]
    vocabs = [Vocabularies.load(file_in(folder, TOKENIZER)) for folder in folders]
    for folder, run, vocab in zip(folders, settings, vocabs, strict=True):
        _check_fits(folder, run, vocab)
        if not _same(vocab, vocabs[0]):
            raise FolderError(
                f"{folder / TOKENIZER} is not the vocabulary of {folders[0]}. Models translate "
                "together only if they were trained with the same one."
            )
    found = []
    for folder in folders if models else ():
        model = load_model(folder, device)
        assert isinstance(model, Seq2Seq)
        found.append(model.eval())
    return Runs(settings, found, vocabs[0])


@dataclass(frozen=True)
class Language:
    """Language models that share a vocabulary."""

    settings: list[RunSettings]
    models: list[Decoder]
    tokenizer: Tokenizer
    context: int
    """Tokens that all of them read."""


def load_language(names: Names, device: torch.device | str, *, models: bool = True) -> Language:
    """Everything is checked before the first model is loaded. `models`: whether they are needed."""
    folders = run_folders(names)
    runs = [load_run(folder) for folder in folders]
    tokenizers = [Vocabularies.load(file_in(folder, TOKENIZER)).target for folder in folders]
    for folder, run, tokenizer in zip(folders, runs, tokenizers, strict=True):
        if not isinstance(run.model, DecoderSettings) or "words" not in run.model.heads:
            kind = run.task if run.model is None else f"{family_of(run.model)} model"
            raise FolderError(
                f"{folder} holds no model that continues text; what it holds: {kind}."
            )
        if tokenizer.vocab_size != run.model.vocab_size:
            raise FolderError(
                f"{folder / TOKENIZER} does not fit the model beside it: it has "
                f"{tokenizer.vocab_size:,} tokens and the model {run.model.vocab_size:,}. Use the "
                "tokenizer it was trained with."
            )
        if tokenizer.to_json() != tokenizers[0].to_json():
            raise FolderError(
                f"{folder / TOKENIZER} is not the vocabulary of {folders[0]}. Models write "
                "together only if they were trained with the same one."
            )
    found = []
    for folder in folders if models else ():
        model = load_model(folder, device)
        assert isinstance(model, Decoder)
        found.append(model.eval())
    return Language(runs, found, tokenizers[0], min(map(context_of, runs)))


def context_of(run: RunSettings) -> int:
    """The tokens that a language model was trained to read."""
    assert run.model is not None
    return min(run.complete.context or run.model.max_len, run.model.max_len)


def _check_fits(folder: Path, run: RunSettings, vocab: Vocabularies) -> None:
    if run.task != "translate" or not isinstance(run.model, Seq2SeqSettings):
        kind = run.task if run.model is None else f"{family_of(run.model)} model"
        raise FolderError(f"{folder} holds no translator but a {kind}.")
    sides = {
        "source": (vocab.source.vocab_size, run.model.source_vocab),
        "target": (vocab.target.vocab_size, run.model.vocab_size),
    }
    for side, (theirs, ours) in sides.items():
        if theirs != ours:
            raise FolderError(
                f"{folder / TOKENIZER} does not fit the model beside it: it has {theirs:,} "
                f"{side} tokens and the model {ours:,}. Use the tokenizer it was trained with."
            )


def _same(one: Vocabularies, other: Vocabularies) -> bool:
    if one is other:
        return True
    return (one.source.to_json(), one.target.to_json()) == (
        other.source.to_json(),
        other.target.to_json(),
    )
