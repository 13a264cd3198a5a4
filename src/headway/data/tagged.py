"""Sentences with a tag for each word: CoNLL columns, or JSONL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from headway.config.data import DataSettings
from headway.config.listed import listed
from headway.data.bad import is_bad, refused
from headway.data.files import open_lines, shown
from headway.data.jsonl import is_json, parse_object, sound, value_text
from headway.data.schemes import Detection, Scheme, to_bio
from headway.errors import DataError, one_line
from headway.tasks.specs import TAGS, WORDS, Need

DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True, slots=True)
class Sentence:
    words: list[str]
    tags: list[str]
    """As BIO, or as they stand where they mark no spans."""

    place: str
    """File and line of the first word."""

    misfits: int = 0
    """Tags that did not fit the scheme and were read as they best could."""

    problem: str = ""
    """Why it could not be read, where that is left out; then it has no words."""


def read_tagged(
    paths: Sequence[str],
    settings: DataSettings,
    scheme: Literal["auto"] | Scheme = "auto",
    prefix_strip: str = "",
) -> Iterator[Sentence]:
    """All sentences in the order of the files. With `auto` the files are read twice."""
    known: Scheme = detect_scheme(paths, settings) if scheme == "auto" else scheme
    for path in listed(paths):
        for sentence in read_raw(path, settings):
            words = [_stripped(word, prefix_strip) for word in sentence.words]
            tags, misfits = to_bio(sentence.tags, known)
            yield Sentence(words, tags, sentence.place, misfits, sentence.problem)


def detect_scheme(paths: Sequence[str], settings: DataSettings) -> Scheme:
    """The scheme of all files together; mixed ones are an error that says where."""
    detection = Detection()
    for path in listed(paths):
        for sentence in read_raw(path, settings):
            detection.look(sentence.tags, sentence.place)
    return detection.scheme()


def read_raw(path: str, settings: DataSettings) -> Iterator[Sentence]:
    """The sentences of a file as they stand in it."""
    first = next(open_lines(path, settings.encoding), "")
    lines = open_lines(path, settings.encoding)
    skip = settings.bad == "skip"
    return (_json_sentences if is_json(path, first, *WORDS.names) else _conll)(path, lines, skip)


def _stripped(word: str, prefix: str) -> str:
    """A word that is nothing but the prefix stays."""
    return word.removeprefix(prefix) or word


def _conll(path: str, lines: Iterator[str], skip: bool) -> Iterator[Sentence]:
    """A word a line, its tag in the last column; an empty line ends a sentence. With `skip` one
    that has a bad line comes without its words."""
    name = Path(shown(path)).name
    words: list[str] = []
    tags: list[str] = []
    width, start, problem = 0, 0, ""
    for number, line in enumerate(chain(lines, [""]), 1):
        if _is_between(line):
            if problem:
                yield Sentence([], [], f"{name}:{start}", problem=problem)
            elif words:
                yield Sentence(words, tags, f"{name}:{start}")
            words, tags, problem = [], [], ""
            continue
        cells = _cells(line)
        start = start if words or problem else number
        wrong = _wrong_cells(cells, width or len(cells), line, f"{shown(path)}:{number}")
        if wrong and not skip:
            others = (bool(_wrong_cells(_cells(one), width, one, "")) for one in lines
                      if not _is_between(one))  # fmt: skip
            raise refused(wrong, others if width else (), "sentences")
        if wrong:
            problem = problem or wrong
            continue
        width = width or len(cells)
        words.append(cells[0])
        tags.append(cells[-1])


def _is_between(line: str) -> bool:
    return not line.strip() or line.startswith(DOCUMENT)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()


def _wrong_cells(cells: list[str], width: int, line: str, where: str) -> str:
    """What is wrong with a line, if anything is."""
    if len(cells) < 2:
        return (
            f"{where}: a word and its tag are needed, with a tab or blanks between them, and an "
            f"empty line between sentences: {line[:60]!r}."
        )
    if len(cells) != width:
        return f"{where} has {len(cells)} columns but the first line has {width}: {line[:60]!r}."
    if not cells[0] or not cells[-1]:
        return f"{where} has no {'word' if not cells[0] else 'tag'}: {line[:60]!r}."
    return ""


def _json_sentences(path: str, lines: Iterator[str], skip: bool) -> Iterator[Sentence]:
    name = Path(shown(path)).name
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            words, tags = _json_words(line, f"{shown(path)}:{number}")
        except DataError as error:
            if not skip:
                others = (is_bad(partial(_json_words, one, "")) for one in lines if one.strip())
                raise refused(str(error), others if number > 1 else (), "sentences") from error
            yield Sentence([], [], f"{name}:{number}", problem=str(error))
        else:
            yield Sentence(words, tags, f"{name}:{number}")


def _json_words(line: str, where: str) -> tuple[list[str], list[str]]:
    values = parse_object(line, where)
    words = words_of(values, where)
    given = [value_text(tag, "tags", where) for tag in _list(values, TAGS, where)]
    tags = [one_line(tag, where) for tag in given]
    if len(words) != len(tags):
        raise DataError(f"{where} has {len(words)} words but {len(tags)} tags.")
    if not all(map(str.strip, words)) or not all(tags):
        raise DataError(f"{where} has an empty word or tag.")
    return words, tags


def words_of(values: dict[str, Any], where: str) -> list[str]:
    return [sound(word, "words", where) for word in _list(values, WORDS, where)]


def _list(values: dict[str, Any], need: Need, where: str) -> list[Any]:
    found = next((values[name] for name in need.names if name in values), None)
    if not isinstance(found, list):
        there = ", ".join(map(repr, values)) or "none"
        raise DataError(f"{where} needs a list {need.name!r}; its fields are {there}.")
    if need is WORDS and not all(isinstance(word, str) for word in found):
        raise DataError(f"{where}: {need.name} must be texts: {str(found)[:40]}.")
    return found
