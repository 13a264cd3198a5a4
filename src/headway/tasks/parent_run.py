"""Parent run: the run that training starts from, or from which a student is distilled."""

from __future__ import annotations

from headway.settings.facts import ParentRun
from headway.settings.folder import IMPORTED, TOKENIZER, file_in, load_run, run_folder
from headway.settings.model import ModelSettings
from headway.settings.run import RunSettings
from headway.settings.warm_start import vocab_size_of
from headway.tokens.tokenizer import Tokenizer, Vocabularies


def parent_of(settings: RunSettings) -> ParentRun | None:
    name = settings.parent
    if not name:
        return None
    folder = run_folder(name)
    run = load_run(folder)
    imported = (folder / IMPORTED).is_file()
    return ParentRun(name=name, task=run.task, model=run.model, imported=imported)


def model_named(settings: RunSettings) -> ModelSettings | None:
    """Return the model settings of the parent run; without a parent, those of this run."""
    begun = parent_of(settings)
    return settings.model if begun is None else begun.model


def tokenizer_of(settings: RunSettings) -> Tokenizer | None:
    """Return the tokenizer of the parent run; None without a parent, or if the parent has none."""
    if not settings.parent:
        return None
    folder = run_folder(settings.parent)
    if not (folder / TOKENIZER).is_file() and not vocab_size_of(load_run(folder).model):
        return None
    return Vocabularies.load(file_in(folder, TOKENIZER)).target
