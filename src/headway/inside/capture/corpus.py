"""Corpora of texts, images, videos or audio recordings on which models are studied.

The examples come from files, from memory, or from the validation data stored with a run. They have
reference outputs or labels if these are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.files import display_name, open_lines
from headway.data.media.open_item import UNITS
from headway.data.pairs import read_pairs
from headway.data.predict_input import questions
from headway.data.prepare import evaluation_media
from headway.data.schema import MediaSpec, text_schema
from headway.data.sniff import is_delimited, is_json_lines
from headway.data.source import DataSource
from headway.data.store import Columns, load_prepared
from headway.errors import Argument, DataError, FolderError
from headway.inside.capture.media import MediaInput
from headway.settings.data import DataSettings
from headway.settings.listed import ensure_list
from headway.settings.run import media_settings, with_files
from headway.specs.needs import WRITTEN, Need
from headway.specs.tasks import Reads
from headway.tasks.label_data import labelled_examples
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.media_inputs import check_kind, found_file, what_of
from headway.tasks.preprocess.preprocessor import media_settings_of
from headway.tasks.preprocess.text import texts_of

MAX_CHARACTERS = 8_000_000
"""Maximum number of characters in a corpus. Later lines are left out, and `Corpus.cut` is set. The
limit bounds memory."""

MAX_BYTES = 256_000_000
"""Maximum size in bytes of the pixels or audio samples in a corpus. The limit bounds memory."""

MAX_LINES = 50_000
"""Maximum number of lines that are read from a run's validation data. The limit bounds time."""


@dataclass(frozen=True)
class Corpus:
    """Examples of text or media, with reference outputs or labels if these are known."""

    name: str
    examples: tuple[str | MediaInput, ...]
    targets: tuple[str, ...] | None = None
    """Reference outputs for a model that generates text; None if they are unknown."""

    labels: tuple[int, ...] | None = None
    """Class index of each example; None if the classes are unknown."""

    cut: bool = False
    """Whether examples were left out because the corpus exceeds a limit."""

    @classmethod
    def of(cls, paths: str | Path | Sequence[str | Path], run: LoadedRun) -> Corpus:
        """Read a corpus from files: text files with one text per line, JSONL, or labelled tables.

        For a translator, a line may be `source<TAB>target`. A run that reads media accepts folders,
        manifests and media files, with their labels or texts if they have any.
        """
        names = [str(path) for path in ensure_list(paths)]
        if media_settings(run.settings) is not None:
            return _of_media_files(run, names)
        lines, cut = _take_bounded(line for path in names for line in _lines_of(path, run))
        where = ", ".join(map(display_name, names))
        if not lines:
            raise DataError(f"{where} contains no text. Give a file with one text per line.")
        if not run.spec.reads_pairs or not any("\t" in line for line in lines):
            return cls(where, tuple(lines), cut=cut)
        pairs = [line.split("\t") for line in lines]
        for number, cells in enumerate(pairs, 1):
            if len(cells) < 2 or not cells[0].strip() or not cells[1].strip():
                raise DataError(
                    f"{where}, text {number:,} lacks a source or a target (separated by a tab), "
                    "but other lines have both. Give pairs on all lines, or only sources."
                )
        return cls(where, tuple(c[0] for c in pairs), tuple(c[1] for c in pairs), cut=cut)

    @classmethod
    def of_lines(cls, lines: Iterable[str], targets: Iterable[str] | None = None) -> Corpus:
        """Make a corpus from texts in memory, with one reference output per text if `targets` is
        given.

        Empty texts are left out.
        """
        given = [line.strip() for line in ensure_list(lines)]
        pairs = list(zip(given, given if targets is None else ensure_list(targets), strict=True))
        kept = [pair for pair in pairs if pair[0] and pair[1].strip()]
        if not kept:
            raise DataError("the corpus contains no text. Give at least one non-empty text.")
        others = None if targets is None else tuple(pair[1] for pair in kept)
        return cls("the given text", tuple(pair[0] for pair in kept), others)

    @classmethod
    def of_test_set(cls, files: DataSettings, run: LoadedRun) -> Corpus:
        """Read test data from the arguments that `headway evaluate` accepts."""
        spec, name = run.spec, "the test set"
        if spec.is_media:
            return _of_media(run, files, _target(run), name)
        if spec.reads_pairs:
            return _of_pairs(list(read_pairs(files.source, files.target, files.pairs, files)), name)
        if spec.is_single_label:
            texts, labels = labelled_examples(run.settings, files)
            lines = tuple("\t".join(part for part in text if part) for text in texts)
            return cls(name, lines, labels=tuple(labels.tolist()))
        if not files.pairs and not (spec.reads_sentences or spec.reads_documents):
            return cls.of(files.text, run)
        found, cut = _take_bounded(_texts_in(files, run))
        return replace(cls.of_lines(found), cut=cut)

    @classmethod
    def own(cls, run: LoadedRun) -> Corpus:
        """Return the validation data that is stored in the run's folder."""
        name = "the validation data of the run"
        if not keeps_data(run):
            raise FolderError(
                f"{run.folder.name} contains no validation data. Give the files of a corpus "
                f"({Argument('FILES', 'corpus')})."
            )
        prepared = load_prepared(run.folder)
        if run.spec.is_media:
            texts = None
            if "text" in prepared.valid:
                ids = (prepared.valid["text"][row] for row in range(prepared.valid.n))
                texts = [prepared.tokenizer.decode(row.tolist()) for row in ids]
            places = [str(example["place"]) for example in prepared.valid_examples]
            labels = _labels(prepared.valid, prepared.labels, run)
            return _of_set(run, prepared.valid, name, places, texts, labels)
        if run.spec.reads_pairs:
            return _of_pairs(prepared.valid_pairs[:MAX_LINES], name)
        found = texts_of(prepared.valid, prepared.tokenizer, MAX_LINES)
        lines = ["\t".join(part for part in text if part) for text in found]
        kept = [number for number, line in enumerate(lines) if line.strip()]
        labels = _labels(prepared.valid, prepared.labels, run)
        return cls(
            name,
            tuple(lines[number].strip() for number in kept),
            labels=None if labels is None else tuple(labels[number] for number in kept),
        )

    @property
    def unit(self) -> str:
        """Plural name of the examples, for messages."""
        first = self.examples[0]
        return "texts" if isinstance(first, str) else first.unit

    @property
    def lines(self) -> list[str]:
        """Examples that are texts; empty for a corpus of media."""
        return [example for example in self.examples if isinstance(example, str)]

    def __len__(self) -> int:
        return len(self.examples)

    def part(self, start: int, end: int) -> Corpus:
        """Return the examples from `start` up to, but not including, `end`."""
        return replace(
            self,
            examples=self.examples[start:end],
            targets=None if self.targets is None else self.targets[start:end],
            labels=None if self.labels is None else self.labels[start:end],
        )

    def first(self, n: int) -> Corpus:
        """Return the first `n` examples."""
        return replace(self.part(0, n), cut=self.cut or len(self) > n)


def keeps_data(run: LoadedRun) -> bool:
    return (run.folder / "data").is_dir()


def _texts_in(files: DataSettings, run: LoadedRun) -> Iterator[str]:
    """Yield the text of each example. For text pairs it is the first text."""
    if files.pairs:
        yield from (first for first, _ in read_pairs((), (), files.pairs, files))
        return
    settings = with_files(run.settings, files)
    plain: Reads = "fields" if files.fields else "documents"
    schema = text_schema("tagged" if run.spec.reads_sentences else plain, settings)
    for item in DataSource(schema, settings, files.text):
        yield " ".join(filter(None, map(item.text, schema.text_names)))


def _of_pairs(pairs: Sequence[tuple[str, str]], name: str) -> Corpus:
    if not pairs:
        raise DataError(f"{name} contains no pairs.")
    sources, targets = zip(*pairs, strict=True)
    return Corpus(name, sources, targets)


def _labels(columns: Columns, names: Sequence[str], run: LoadedRun) -> tuple[int, ...] | None:
    """Return the class index of each example, in the class order of the model; None for data
    without labels."""
    if "label" not in columns:
        return None
    numbers = {name: number for number, name in enumerate(run.settings.labels)}
    return tuple(numbers[names[label]] for label in columns["label"].tolist())


def _target(run: LoadedRun) -> Need | None:
    """Return the kind of reference (label or text) that media examples need for this run; None if
    they need none."""
    return run.spec.target if run.spec.is_single_label or run.spec.writes else None


def _of_media_files(run: LoadedRun, paths: Sequence[str]) -> Corpus:
    settings = media_settings_of(run.settings)
    places = [found_file(path, run.folder) for path in paths]
    for place in places:
        check_kind(place, what_of(settings))
    data = replace(run.settings.data, media=tuple(map(str, places)), valid_media=())
    where = ", ".join(map(display_name, paths))
    try:
        return _of_media(run, data, _target(run), where)
    except DataError:  # files without targets: the model's own answers are used
        return _of_media(run, data, None, where)


def _of_media(run: LoadedRun, data: DataSettings, target: Need | None, name: str) -> Corpus:
    """Read media files in the same way as the test set of `headway evaluate`."""
    settings = media_settings_of(run.settings)
    media = MediaSpec.of(what_of(settings), settings, target)
    asked = replace(run.settings, data=data)
    found = evaluation_media(media, asked, labels=run.settings.labels)
    texts = [" ".join(text.split()) for text in found.targets] if target is WRITTEN else None
    labels = _labels(found.items, run.settings.labels, run)
    return _of_set(run, found.items, name, found.places, texts, labels)


def _of_set(
    run: LoadedRun,
    items: Columns,
    name: str,
    places: Sequence[str],
    texts: Sequence[str] | None,
    labels: tuple[int, ...] | None,
) -> Corpus:
    settings = media_settings_of(run.settings)
    examples: list[MediaInput] = []
    size = 0
    for row in range(items.n):
        values: NDArray[Any] = items.media[row]
        size += values.nbytes
        if examples and size > MAX_BYTES:
            break
        if values.dtype == np.int16:  # the format in which audio is stored
            values = values.astype(np.float32) / 32768.0
        place = places[row] if row < len(places) else f"example {row + 1:,}"
        examples.append(MediaInput.of(place, values, settings))
    if not examples:
        raise DataError(f"{name} contains no {UNITS[what_of(settings)]}.")
    n = len(examples)
    return Corpus(
        name,
        tuple(examples),
        None if texts is None else tuple(texts[:n]),
        None if labels is None else labels[:n],
        cut=n < items.n,
    )


def _take_bounded(lines: Iterator[str]) -> tuple[list[str], bool]:
    found: list[str] = []
    size = 0
    for line in lines:
        if not line.strip():
            continue
        size += len(line)
        if size > MAX_CHARACTERS:
            return found, True
        found.append(line.strip())
    return found, False


def _lines_of(path: str, run: LoadedRun) -> Iterator[str]:
    settings, spec = run.settings.data, run.spec
    lines = open_lines(path, settings.encoding)
    head = list(islice(lines, 20))
    if head and is_json_lines(path, head[0], settings.text_field):
        if spec.reads_pairs:
            return (_join(pair) for pair in read_pairs((), (), (path,), settings) if any(pair))
        return (_join(ensure_list(one)) for one in questions(path, run.settings) if one)
    if spec.reads_labelled_texts and is_delimited(path):
        asked = questions(path, run.settings)
        return (_join(ensure_list(one)) for one in asked)
    if not spec.reads_pairs and not (spec.reads_labelled_texts and settings.other_field):
        _refuse_tables(path, head)
    return chain(head, lines)


def _join(texts: Sequence[str]) -> str:
    return "\t".join(" ".join(text.split()) for text in texts).strip()


def _refuse_tables(path: str, head: list[str]) -> None:
    """Raise an error for a table given as plain text, because its tabs and labels would be read as
    words."""
    full = [line for line in head if line.strip()]
    if full and all("\t" in line for line in full):
        raise DataError(
            f"{display_name(path)} has a tab in every line, as in files of pairs, labelled text or "
            "tagged text, but this run reads plain text. Give one text per line, for example "
            "with `cut -f1`."
        )
