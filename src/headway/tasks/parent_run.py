"""The parent run, which a run starts from or is distilled from: its model and its vocabulary."""

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
    """The model settings of the parent run, or those given in the settings."""
    begun = origin_of(settings)
    return settings.model if begun is None else begun.model


def tokenizer_of(settings: RunSettings) -> Tokenizer | None:
    """The tokenizer of the parent run, or None without a parent or if the parent has none."""
    if not settings.origin:
        return None
    folder = run_folder(settings.origin)
    if not (folder / TOKENIZER).is_file() and not n_words(load_run(folder).model):
        return None
    return Vocabularies.load(file_in(folder, TOKENIZER)).target
