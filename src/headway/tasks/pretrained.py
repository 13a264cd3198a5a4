"""The encoder that a task on text begins with where nobody names another: the shipped one of the
language, if it knows the words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from headway.data.example import Example, Source, sources
from headway.data.files import is_stream, parts
from headway.data.fingerprint import FIELDS
from headway.errors import UserError
from headway.settings.folder import TOKENIZER, file_in, run_folder, shipped_names
from headway.settings.from_parent import MAY_DIFFER
from headway.settings.run import RunSettings
from headway.tasks.specs import spec_of
from headway.tokens.tokenizer import Tokenizer, Vocabularies

KNOWN = 0.65
"""Share of words that must be whole pieces of the vocabulary for a text to be in its language.
Measured for English: prose 86 to 98 %, lists of names 69 %. Other languages have at most 59 %
(docs/models/base-en.md)."""

ROWS, EVERY = 4000, 4
"""How many of the first rows are looked at, and every which of them."""

LEAST = 50
"""Words that a language can be told by."""

WORD = re.compile(r"[^\W\d_]+")


def with_pretrained(settings: RunSettings) -> RunSettings:
    """Starting from the shipped encoder of the language, where that is usual and nobody said
    otherwise."""
    name = pretrained_for(settings)
    return replace(settings, start=replace(settings.start, run=name)) if name else settings


def pretrained_for(settings: RunSettings) -> str:
    """The shipped run to start from, or nothing: another beginning is asked for, the task does
    without, or the texts are in another language."""
    name = spec_of(settings).pretrained
    if not name or name not in shipped_names() or settings.data.fields:
        return ""
    if settings.origin or any(map(_says_otherwise, settings.asked)):
        return ""
    tokenizer = Vocabularies.load(file_in(run_folder(name), TOKENIZER)).target
    try:
        return name if knows(tokenizer, texts_of(settings)) else ""
    except UserError:  # said in full when the data is prepared
        return ""


def _says_otherwise(key: str) -> bool:
    section, _, name = key.partition(".")
    if section == "model":
        return name not in MAY_DIFFER
    return key == "start.run" or section in ("distil", "tokenizer")


def knows(tokenizer: Tokenizer, texts: Iterable[str]) -> bool:
    """Whether most words of these texts are pieces of the vocabulary."""
    words = [word for text in texts for word in WORD.findall(text)]
    whole = {word: len(tokenizer.encode(word)) == 1 for word in set(words)}
    return len(words) >= LEAST and sum(whole[word] for word in words) >= KNOWN * len(words)


def texts_of(settings: RunSettings) -> Iterator[str]:
    """Some of those to train on. What can be read only once is left for training."""
    paths: dict[str, Any] = {name: tuple(parts(getattr(settings.data, name))) for name in FIELDS}
    if any(is_stream(path) for side in paths.values() for path in side):
        return
    settings = replace(settings, data=replace(settings.data, **paths))
    reads = spec_of(settings).reads
    if reads == "tagged":  # which scheme of tags it is would have to be looked for in all of them
        source = Source(reads, settings, paths["text"])
    else:
        source, _ = sources(reads, settings)
    for one in islice(source, 0, ROWS, EVERY):
        yield from _texts(one)


def _texts(one: Example) -> list[str]:
    return [one.text("text"), one.text("other"), " ".join(one.several("words"))]
