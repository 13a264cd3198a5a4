"""The run that another starts from or learns from: its model, its words, where it came from."""

from __future__ import annotations

from headway.settings.facts import Origin
from headway.settings.folder import IMPORTED, TOKENIZER, file_in, load_run, run_folder
from headway.settings.from_parent import n_words
from headway.settings.model import ModelSettings
from headway.settings.run import RunSettings
from headway.tokens.tokenizer import Tokenizer, Vocabularies


def origin_of(settings: RunSettings) -> Origin | None:
    name = settings.origin
    if not name:
        return None
    folder = run_folder(name)
    run = load_run(folder)
    imported = (folder / IMPORTED).is_file()
    return Origin(name=name, task=run.task, model=run.model, imported=imported)


def model_named(settings: RunSettings) -> ModelSettings | None:
    """That of the run which this one begins with, or one that someone named."""
    begun = origin_of(settings)
    return settings.model if begun is None else begun.model


def tokenizer_of(settings: RunSettings) -> Tokenizer | None:
    """That of the run which this one starts from or learns from, if there is one that has words."""
    if not settings.origin:
        return None
    folder = run_folder(settings.origin)
    if not (folder / TOKENIZER).is_file() and not n_words(load_run(folder).model):
        return None
    return Vocabularies.load(file_in(folder, TOKENIZER)).target
