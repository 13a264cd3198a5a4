"""Choice of the pretrained encoder that a text task starts from by default: the shipped encoder of
the language, if its vocabulary covers the texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from headway.data.files import is_stream, parts
from headway.data.fingerprint import FIELDS
from headway.data.schema import text_schema
from headway.data.source import DataSource, Example, files_of, sources
from headway.errors import UserError
from headway.settings.folder import TOKENIZER, file_in, run_folder, shipped_names
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.settings.warm_start import MAY_DIFFER
from headway.tokens.tokenizer import Tokenizer, Vocabularies

MIN_COVERAGE = 0.65
"""Minimum fraction of words that must be single tokens of the vocabulary; below it, the text counts
as another language. Measured for English: prose 86 to 98 %, lists of names 69 %. Other languages
have at most 59 % (docs/models/base-en.md)."""

ROWS, EVERY = 4000, 4
"""Number of data rows from which texts are sampled, and step of the sample: every fourth of the
first 4,000 rows."""

LEAST = 50
"""Minimum number of words for detecting the language; fewer words are not reliable."""

WORD = re.compile(r"[^\W\d_]+")


def with_pretrained(settings: RunSettings) -> RunSettings:
    """Return the settings with the shipped encoder of the language as parent run. They are
    unchanged if the task has no such default, or if the user chose another start."""
    name = pretrained_for(settings)
    return replace(settings, start=replace(settings.start, run=name)) if name else settings


def pretrained_for(settings: RunSettings) -> str:
    """Return the name of the shipped run to start from. It is empty if the settings choose another
    start, if the task has no pretrained encoder, or if the texts are in another language."""
    name = spec_of(settings).pretrained
    if not name or name not in shipped_names() or settings.data.fields:
        return ""
    if settings.parent or any(map(_overrides_pretrained, settings.asked)):
        return ""
    tokenizer = Vocabularies.load(file_in(run_folder(name), TOKENIZER)).target
    try:
        return name if covers(tokenizer, texts_of(settings)) else ""
    except UserError:  # reported in full when the data is prepared
        return ""


def _overrides_pretrained(key: str) -> bool:
    section, _, name = key.partition(".")
    if section == "model":
        return name not in MAY_DIFFER
    return key == "start.run" or section in ("distil", "tokenizer")


def covers(tokenizer: Tokenizer, texts: Iterable[str]) -> bool:
    """Return whether most words of these texts are single tokens of the vocabulary."""
    words = [word for text in texts for word in WORD.findall(text)]
    whole = {word: len(tokenizer.encode(word)) == 1 for word in set(words)}
    return len(words) >= LEAST and sum(whole[word] for word in words) >= MIN_COVERAGE * len(words)


def texts_of(settings: RunSettings) -> Iterator[str]:
    """Yield a sample of the training texts. It is empty if the data comes from a pipe, which can be
    read only once."""
    known = files_of(settings)
    paths: dict[str, Any] = {
        name: tuple(parts(getattr(settings.data, name), files=known)) for name in FIELDS
    }
    if any(is_stream(path) for side in paths.values() for path in side):
        return
    settings = replace(settings, data=replace(settings.data, **paths))
    row = spec_of(settings)
    if row.reads_sentences:  # detecting the tagging scheme would read all files
        source = DataSource(text_schema(row.reads, settings), settings, paths["text"])
    else:
        source, _ = sources(settings)
    for one in islice(source, 0, ROWS, EVERY):
        yield from _texts(one)


def _texts(one: Example) -> list[str]:
    return [one.text("text"), one.text("other"), " ".join(one.strings("words"))]
