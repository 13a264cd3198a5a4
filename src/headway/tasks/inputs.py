"""Conversion of the inputs of Python calls: texts, mappings, and media in memory or in files.

The modality of the run determines the meaning of an input: a string is a text for a text model, and
a file name for a model of images or audio. An invalid input is converted to an error with the
reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headway.data.bind import Binding
from headway.data.columns.column import class_of, parse_field, to_python
from headway.data.media.arrays import npy_frames
from headway.data.media.audio import one_channel
from headway.data.media.image import sampled
from headway.data.media.in_memory import MediaWriter
from headway.data.media.open_item import (
    ItemFormat,
    MediaRef,
    MediaRegion,
    is_file,
    read_media,
    resize_to_format,
)
from headway.data.media.resample import resample
from headway.data.predict_input import bind_inputs
from headway.data.readers.array_stack import CHANNELS
from headway.data.table import (
    Table,
    has_columns,
    is_missing,
    shown_value,
    table_of,
    value_in,
)
from headway.errors import DataError, suggest
from headway.settings.run import RunSettings, media_settings
from headway.settings.task_rows import spec_of
from headway.specs.needs import Modality
from headway.storage import work_folder
from headway.tasks.media_inputs import LoadedInput, check_kind, found_file, what_of

AnyArray = NDArray[np.generic]

PATHS = ("path", "file")


@dataclass(frozen=True)
class ParsedInput:
    """One input, in the form that predictors take."""

    value: Any
    id: object = None
    row: Mapping[str, object] | None = None
    """Row of the input table, without its media columns; None if the input was not a table row."""

    error: DataError | None = None
    """Error that explains why the input is invalid; None if it is valid."""


def is_several(x: object, settings: RunSettings) -> bool:
    """Return whether `x` is several inputs (a list, tuple, array or table) rather than one. Raise a
    `TypeError` for iterators, which need `stream`."""
    kind = spec_of(settings).modality
    if has_columns(x):
        return True
    if isinstance(x, str | bytes | bytearray | memoryview | PathLike | Mapping):
        return False
    if isinstance(x, tuple) and spec_of(settings).is_audio and _is_audio(x):
        return False
    if isinstance(x, list | tuple):
        return True
    if hasattr(x, "getbands") or hasattr(x, "get_all_samples"):  # Pillow image, torchcodec decoder
        return False
    if hasattr(x, "__array__"):
        return _several_in(_array(x), kind)
    if x is None or not hasattr(x, "__iter__"):
        raise TypeError(
            f"{shown_value(x)} is not a valid input. This run takes {expected_input(settings)}."
        )
    if isinstance(x, Sequence):
        return True
    if not spec_of(settings).is_text and hasattr(x, "read"):
        raise TypeError(
            f"the input is an open file ({type(x).__name__}). Pass its path, or its content as "
            "bytes: x.read()."
        )
    raise TypeError(
        f"the input is an iterable ({type(x).__name__}), not a list. Use run.stream(…) to predict "
        "its items one after another, or convert it to a list."
    )


def _is_audio(x: tuple[object, ...]) -> bool:
    return len(x) == 2 and isinstance(x[1], int | float | np.number) and not np.isscalar(x[0])


def _array(x: object) -> AnyArray:
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)


def _several_in(values: AnyArray, kind: Modality) -> bool:
    """Return whether an array holds several inputs, judged by its number of axes."""
    if values.dtype.kind in "OUT":
        return values.ndim > 0
    most = class_of(kind).item_axes  # (N, H, W) looks like (C, H, W)
    return most is not None and values.ndim > most


def expected_input(settings: RunSettings) -> str:
    """Return a description of the inputs that a run takes, for error messages."""
    front = media_settings(settings)
    if front is not None:
        made = class_of(what_of(front))
        rate = ", or (samples, rate)" if made.is_audio else ", an array or a Pillow image"
        return f"{made.noun}: the path of a file, bytes{rate}"
    if settings.data.fields:
        example = ", ".join(f"{name!r}: …" for name in settings.data.fields[:3])
        return f"a mapping with its fields: {{{example}}}"
    if settings.data.other_field:
        return "a mapping with two texts: {'text': …, 'other': …}"
    return "a text" + (", or {'words': [...]}" if spec_of(settings).reads_sentences else "")


def is_rows(xs: object) -> bool:
    """Return whether `xs` has rows with named columns: a table of any package, or a list of
    mappings."""
    if has_columns(xs):
        return True
    several = isinstance(xs, Sequence) and not isinstance(xs, str | bytes)
    return several and bool(xs) and all(isinstance(x, Mapping) for x in cast(Any, xs))


def _is_plain(table: Table, name: str) -> bool:
    """Return whether a column holds only texts, numbers or lists of them. These are small enough to
    keep with the answers."""
    values = (to_python(row.get(name)) for row in table.sample)
    return all(
        is_missing(one) or isinstance(one, str | int | float)
        or (isinstance(one, list) and all(isinstance(part, str | int | float) for part in one))
        for one in values
    )  # fmt: skip


class Inputs:
    """Converts user inputs for the predictors of one run."""

    def __init__(self, settings: RunSettings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.spec = spec_of(settings)
        front = media_settings(settings)
        self.form = None if front is None else ItemFormat.of(what_of(front), front)
        self.n = 0
        self.strict = True
        """Whether unknown keys raise an error. They do not in tables, whose rows may have
        additional columns."""

    def parse_all(
        self, xs: Iterable[object], needs: Mapping[str, str] | None = None
    ) -> Iterator[ParsedInput]:
        """Convert inputs in order. An invalid input yields its error.

        Columns of a table or of a list of mappings are assigned to inputs as in training, or as
        `needs` defines. Other columns are not read.
        """
        self.strict = False
        if is_rows(xs):
            table = table_of(xs)
            assert table is not None
            yield from self._rows(table, needs)
            return
        for x in cast(Any, xs).to_pylist() if hasattr(xs, "to_pylist") else xs:
            yield self.parse(x)

    def parse(self, x: object, name: str = "") -> ParsedInput:
        """Convert one input, or return its error. `name`: name of the input in messages; empty: its
        number."""
        try:
            return self.parse_or_raise(x, name)
        except DataError as error:
            return ParsedInput(None, x.get("id") if isinstance(x, Mapping) else None, error=error)

    def parse_or_raise(self, x: object, name: str = "") -> ParsedInput:
        self.n += 1
        where = name or f"input {self.n:,}"
        own = None
        if isinstance(x, Mapping):
            own = x.get("id")
            x = {key: value for key, value in x.items() if key != "id"}
        question = self._text(x, where) if self.form is None else self._media(x, self.form, where)
        return ParsedInput(question, own)

    # -- inputs from tables

    def _rows(self, table: Table, needs: Mapping[str, str] | None) -> Iterator[ParsedInput]:
        binding = bind_inputs(table, self.settings, needs)
        parts = [
            name for name in MediaRegion._fields if name in table.columns and name not in binding
        ]
        kept = [name for name in table.columns if _is_plain(table, name)]
        names = list(dict.fromkeys([*binding, *(parts if self.form else ()), *kept]))
        tops = {name.partition(".")[0] for name in binding} | set(binding)
        for raw in table.read(names):
            assert raw.values is not None
            row = dict(zip(names, raw.values, strict=True))
            shown = {name: to_python(row[name]) for name in kept}
            if raw.row is not None and not tops & raw.row.keys():
                asked = self.parse(raw.row)  # a row with other columns than the first rows
            else:
                asked = self._row(row, binding)
            yield replace(asked, id=shown.get("id", asked.id), row=shown)

    def _row(self, row: Mapping[str, object], binding: Binding) -> ParsedInput:
        self.n += 1
        where = f"input {self.n:,}"
        try:
            if self.form is not None:
                [kind] = [name for name, one in binding.items() if one.is_media]
                item = {self.form.modality: row[kind]} | {
                    name: row[name] for name in MediaRegion._fields
                    if name in row and name not in binding and not is_missing(row[name])
                }  # fmt: skip
                return ParsedInput(self._media(item, self.form, where))
            values = {one.name: to_python(row[name]) for name, one in binding.items()}
            if self.settings.data.fields:
                there = {name: one for name, one in values.items() if not is_missing(one)}
                return ParsedInput(self._fields(there, where))
            found = tuple(values.values())
            empty = [name for name in binding if is_missing(row[name])]
            if empty:
                raise DataError(f"{where} has no value in the column {empty[0]!r}.")
            return ParsedInput(self._text(found if len(found) > 1 else found[0], where))
        except DataError as error:
            return ParsedInput(None, error=error)

    # -- inputs for text models

    def _text(self, x: object, where: str) -> object:
        data, is_tuple = self.settings.data, self.spec.reads_labelled_texts
        if data.fields:
            return self._fields(x, where)
        if isinstance(x, Mapping):
            x = self._named(x, where)
        if self.spec.reads_sentences:
            return self._words(x, where)
        if data.other_field and is_tuple:
            if not isinstance(x, tuple):
                raise DataError(
                    f"{where} is {shown_value(x)}, but this run compares two texts. Pass "
                    f"{expected_input(self.settings)}."
                )
            return tuple(self._string(text, where) for text in x)
        if isinstance(x, tuple) and len(x) == 1:
            [x] = x
        text = self._string(x, where)
        return (text,) if is_tuple else text

    def _string(self, x: object, where: str) -> str:
        if not is_missing(x):
            with suppress(DataError):
                text = str(class_of("text")("text").parse(x, where))
                return text.removesuffix("\n").removesuffix("\r")
        more = ""
        if isinstance(x, PathLike):
            more = f" To predict for the lines of a file: run.stream(open({fspath(x)!r}))."
        elif isinstance(x, bytes):
            more = " Convert bytes to text with .decode()."
        raise DataError(
            f"{where} is {shown_value(x)}, but this run takes "
            f"{expected_input(self.settings)}.{more}"
        )

    def _named(self, x: Mapping[str, object], where: str) -> object:
        """Return the inputs in a mapping, in the order that the task defines."""
        data = self.settings.data
        found, known = [], set[str]()
        for need in self.spec.needs:
            field = str(getattr(data, f"{need.name}_field", "") or "")
            names = [need.name, *need.also, *([field] if field else [])]
            if need.role == "target":
                known |= set(names)  # allowed, but not used as an input
                continue
            names += ["text"] * (need.name == "source")
            if need.optional and not field:
                continue
            known |= set(names)
            given = [name for name in names if name in x or value_in(x, name) is not None]
            known |= {name.partition(".")[0] for name in given}
            if given:
                found.append(value_in(x, given[0]))
            elif not need.optional or field:
                raise DataError(
                    f"{where} has no key {names[0]!r}. Its keys: "
                    f"{', '.join(map(repr, x)) or 'none'}. "
                    f"This run takes {expected_input(self.settings)}."
                )
            if self.spec.reads_views:  # the partner is only used in training
                break
        for name in x:
            if name not in known and self.strict:
                raise DataError(
                    f"{where} has an unknown key {name!r}.{suggest(str(name), sorted(known))}"
                )
        return tuple(found) if len(found) != 1 else found[0]

    def _fields(self, x: object, where: str) -> object:
        names = self.settings.data.fields
        if not isinstance(x, Mapping):
            raise DataError(
                f"{where} is {shown_value(x)}, but this run takes {expected_input(self.settings)}."
            )
        targets = (
            []
            if self.spec.continues
            else [n for need in self.spec.needs if need.role == "target" for n in need.names]
        )
        for name in x:
            if name not in (*names, *targets) and self.strict:
                raise DataError(
                    f"{where} has an unknown field {name!r}.{suggest(str(name), names)}"
                )
        if self.spec.continues:
            some = {key: one for key, one in x.items() if key in names or self.strict}
            return json.dumps({key: parse_field(one, str(key), where) for key, one in some.items()})
        return tuple(parse_field(x.get(name), name, where) for name in names)

    def _words(self, x: object, where: str) -> str | tuple[str, ...]:
        if isinstance(x, str):
            return x.replace("\t", " ")  # a tab would mark input with one word per line
        with suppress(DataError):
            return tuple(class_of("words")("words").parse(x, where))
        raise DataError(
            f"{where} is {shown_value(x)}, but this run takes {expected_input(self.settings)}."
        )

    # -- inputs for models of images, videos and audio

    def _media(self, x: object, form: ItemFormat, where: str) -> object:
        part, rate = MediaRegion(), None
        if isinstance(x, Mapping):
            x, part, rate = self._part(x, form, where)
        if rate is not None:  # of a mapping, whose samples may be a mapping as in datasets
            x = {**x, "sampling_rate": rate} if isinstance(x, Mapping) else (x, rate)
        found = class_of(form.modality)(form.modality).parse(x, where)
        if isinstance(found, MediaRef):
            return self._file(found.path, form, part)
        if isinstance(found.content, bytes):
            return _from_bytes(found.content, form, where, part)
        if part != MediaRegion():
            raise DataError(
                f"{where}: `box`, `start` and `end` apply only to files. Slice the array instead."
            )
        if found.rate is not None:
            return LoadedInput(where, _samples(found.content, found.rate, form, where))
        return LoadedInput(where, _pixels(found.content, form, where))

    def _part(
        self, x: Mapping[str, object], form: ItemFormat, where: str
    ) -> tuple[object, MediaRegion, object]:
        """Return the media value in a mapping, the region of it to use, and its sampling rate."""
        own = form.modality
        targets = {name for need in self.spec.needs if need.role == "target" for name in need.names}
        inputs = [need.name for need in self.spec.needs if need.role == "input"]
        # Prefer the data itself to a path: datasets that contain the data may give paths that do
        # not exist locally.
        every = dict.fromkeys((own, "array", "bytes", *PATHS, *inputs))
        keys = [key for key in every if key not in targets]
        times = ["rate", "sampling_rate", "start", "end"]
        more = times if form.is_audio else ["box"]
        values = [x[key] for key in keys if x.get(key) is not None]
        if not values:
            raise DataError(
                f"{where} has no key {own!r}. Its keys: {', '.join(map(repr, x)) or 'none'}."
            )
        for key in x:
            if key not in (*targets, *keys, *more) and self.strict:
                near = suggest(str(key), [*keys, *more])
                raise DataError(f"{where} has an unknown key {key!r}.{near}")
        region = class_of("region")
        part: dict[str, Any] = {
            name: region(name).parse(x.get(name), f"{where}: `{name}`")
            for name in ("box", "start", "end")
        }
        return values[0], MediaRegion(**part), x.get("rate", x.get("sampling_rate"))

    def _file(self, name: str, form: ItemFormat, part: MediaRegion) -> object:
        """Read one media file. Raise an error for folders and lists, which hold several inputs."""
        path = found_file(name, self.folder)
        check_kind(path, form.modality)
        if path.is_dir() and not form.is_moving:
            raise DataError(
                f"{name} is a folder, but an input must be one file. Pass a list of its files: "
                f"run(sorted(pathlib.Path({name!r}).iterdir()))"
            )
        if not is_file(path) and not path.is_dir():
            raise DataError(f"file not found: {name}.")
        if self.spec.writes and form.is_audio and part == MediaRegion():
            return name  # may be of any length, so it is read during transcription
        return LoadedInput(name, read_media(str(path), form, part).values)


def _from_bytes(value: bytes, form: ItemFormat, name: str, part: MediaRegion) -> LoadedInput:
    if not value:
        raise DataError(f"{name} is empty (0 bytes).")
    with work_folder() as folder:
        said = MediaWriter(folder).put(value, None, "path")
        path = str(folder.parent / said["path"])
        try:
            return LoadedInput(name, read_media(path, form, part).values)
        except DataError as error:
            raise DataError(str(error).replace(path, name)) from error


def _samples(samples: AnyArray, rate: int, form: ItemFormat, where: str) -> NDArray[np.float32]:
    if samples.ndim not in (1, 2):
        raise DataError(
            f"{where} has the shape {samples.shape}; audio must have the shape (samples,) or "
            "(samples, channels)."
        )
    if samples.dtype.kind not in "if" or samples.dtype.itemsize == 1:
        raise DataError(
            f"{where} has samples of type {samples.dtype}. Audio samples must be int16, or "
            "floats from −1 to 1."
        )
    values = samples.astype(np.float32)
    if samples.dtype.kind == "i":
        values /= 2.0 ** (8 * samples.dtype.itemsize - 1)
    mono = one_channel(values if values.ndim == 2 else values[:, None], where)
    return resample(mono, rate, form.rate)


def _pixels(values: AnyArray, form: ItemFormat, where: str) -> NDArray[np.uint8]:
    moving = form.is_moving
    if values.ndim == 3 + moving and values.shape[-1] not in CHANNELS:
        raise DataError(
            f"{where} has the shape {values.shape}, but the colour channels must come last, as in "
            f"{'(T, H, W, 3)' if moving else '(H, W, 3)'}. To pass several inputs, use a list."
        )
    frames = npy_frames(values, moving, form.channels, where)
    if moving and len(frames) != form.frames:
        frames = frames[sampled(len(frames), form.frames)]
    return resize_to_format(frames, form).values
