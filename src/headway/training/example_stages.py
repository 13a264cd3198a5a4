"""Display of one example after each stage from its file to a batch (`headway check --steps`).

It is the first example of the validation set, because nothing about validation examples is random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.data.binding_table import media_target
from headway.data.media.open_item import ItemFormat, MediaRef
from headway.data.schema import MediaSpec
from headway.data.source import sources
from headway.data.store import PreparedData
from headway.data.table import Table, shown_value
from headway.data.token_store import TokenStore
from headway.errors import DataError
from headway.nn.layout import Layout
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.specs.tasks import Spec
from headway.tasks.dataset import PositionInfo, TaskDataset
from headway.tasks.objective import Objective
from headway.tasks.task import make_task
from headway.tokens.tokenizer import Tokenizer
from headway.training.resolve import resolve_run

CLIPPED = 60
"""Maximum length in characters of a printed value, so that a line fits into a terminal."""

MOST_UNITS = 24
"""Maximum number of positions (tokens, patches and so on) that are printed individually."""

TOGETHER = 3
"""Number of examples in the batch that is printed."""

CPU = torch.device("cpu")


def steps_of(settings: RunSettings, prepared: PreparedData) -> list[str]:
    """Return the lines that show the first validation example at each stage, for the model that
    would be trained."""
    objective = make_task(spec_of(settings)).objective(
        resolve_run(settings, prepared, CPU), prepared
    )
    return stages_of(settings, prepared, objective)


def stages_of(
    settings: RunSettings, prepared: PreparedData, objective: Objective[Any]
) -> list[str]:
    """Return the lines that show an example at each stage: raw, opened, stored, item and batch."""
    raw, opened = _read(settings, spec_of(settings), prepared)
    items: TaskDataset[object] = objective.valid_dataset
    first = int(np.flatnonzero(items.example_index == 0)[0])
    some = np.flatnonzero(items.example_index < TOGETHER)[:TOGETHER]
    stages = {
        "raw": raw,
        "opened": opened,
        "stored": list(_stored(prepared)),
        "item": [line for stream in items.describe_positions(first) for line in _units(stream)],
        "batch": [_count(len(some), "item"), *_tensors(items.batch(some, CPU))],
    }
    return [
        f"{name if not number else '':8}{line}"
        for name, lines in stages.items()
        for number, line in enumerate(lines)
    ]


def _read(settings: RunSettings, row: Spec, prepared: PreparedData) -> tuple[list[str], list[str]]:
    """Return the lines that show the example as written in its file, and those that show it as read
    into columns."""
    wanted = prepared.valid_examples[0]
    if row.media is not None:
        media = MediaSpec(ItemFormat(row.media), media_target(settings, row))
        return _media(settings, media, str(wanted["place"]))
    both = sources(settings)
    for source in both[::-1]:
        for bound in source.tables():
            for example in bound:
                made = source.schema.shown(source.as_read(example))
                if made == wanted or _is_part(wanted, made):
                    return _raw(bound.table, example.place), [_values(example.values)]
    raise DataError("the data files changed while they were being read. Run the command again.")


def _is_part(wanted: Mapping[str, object], made: Mapping[str, object]) -> bool:
    """Return whether the validation example is a part of this document."""
    text, whole = wanted.get("text"), made.get("text")
    return len(wanted) == len(made) == 1 and isinstance(whole, str) and str(text)[:200] in whole


def _raw(table: Table, place: str) -> list[str]:
    for raw in table.read(table.columns):
        if table.place(raw.line) == place and raw.values is not None:
            row = dict(zip(table.columns, raw.values, strict=True))
            return [f"{place}   {_values(row)}"]
    return [place]


def _media(settings: RunSettings, media: MediaSpec, place: str) -> tuple[list[str], list[str]]:
    for source in sources(settings, media)[::-1]:
        for one in source:
            if one.place == place:
                known = {name: value for name, value in one.values.items()
                         if not isinstance(value, MediaRef) and value}  # fmt: skip
                opened = [_array(value.read(media.form).values) for value in one.values.values()
                          if isinstance(value, MediaRef)]  # fmt: skip
                tables = (bound.table for bound in source.tables() if not bound.table.named)
                raw = next((_raw(t, place) for t in tables if place.startswith(f"{t.file}:")), None)
                return raw or [place], [f"{opened[0]}   {_values(known)}".rstrip(), *opened[1:]]
    raise DataError("the data files changed while they were being read. Run the command again.")


def _stored(prepared: PreparedData) -> Iterator[str]:
    """Yield lines that describe the example as it is stored on disk."""
    for name, store in prepared.valid.items():
        if isinstance(store, TokenStore):
            tokenizer = _tokenizer(prepared, name)
            ids = store[0].tolist()
            shown = " ".join(map(str, ids[:MOST_UNITS])) + " …" * (len(ids) > MOST_UNITS)
            words = ""
            if tokenizer is not None:
                words = "   " + " ".join(map(_line, tokenizer.tokens(ids[:MOST_UNITS])))
            yield f"{name}: {_count(len(ids), 'number')}: {shown}{words}"
        elif name == "label":
            number = int(store[0])
            yield f"label: {number} ({prepared.labels[number]})"
        else:
            yield f"{name}: {_array(np.asarray(store[0]))}"


def _tokenizer(prepared: PreparedData, name: str) -> Tokenizer | None:
    vocab = prepared.vocab
    if vocab is None or name in ("tags", "pieces", "shapes", "labels"):
        return None
    return vocab.source if name == "source" else vocab.target


def _units(units: Iterable[PositionInfo]) -> Iterator[str]:
    """Yield lines that list the tokens or other positions that the model reads, including special
    tokens."""
    units = list(units)
    shown = " ".join(_unit(one) for one in islice(units, MOST_UNITS))
    yield f"{_count(len(units), 'position')}: {shown}{' …' * (len(units) > MOST_UNITS)}"


def _unit(unit: PositionInfo) -> str:
    if unit.box is not None:
        return "[" + ",".join(map(str, unit.box)) + "]"
    if unit.time is not None and not unit.text:
        return f"[{unit.time[0]:g}–{unit.time[1]:g}]"
    return _line(unit.text) or "·"


def _line(token: str) -> str:
    """Return the text of a token on one line, with escaped line ends."""
    return token.replace("\r", "\\r").replace("\n", "\\n")


def _count(n: int, unit: str) -> str:
    return f"{n:,} {unit}{'s' * (n != 1)}"


def _tensors(value: object, name: str = "") -> Iterator[str]:
    """Yield lines that list the arrays of a batch with their names, types and shapes."""
    if isinstance(value, Tensor | np.ndarray):
        yield f"{name}: {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    elif isinstance(value, Layout):
        lengths = value.lengths_B.tolist()
        yield (
            f"{name}: {_count(len(lengths), 'sequence')} of {' '.join(map(str, lengths))} positions"
        )
    elif is_dataclass(value):
        for one in fields(value):
            yield from _tensors(getattr(value, one.name), f"{name}.{one.name}".lstrip("."))
    elif isinstance(value, tuple | list):
        for number, one in enumerate(value):
            yield from _tensors(one, f"{name}[{number}]")


def _values(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {_value(one)}" for name, one in values.items())


def _value(value: object) -> str:
    if isinstance(value, str):
        line = " ".join(value.split())
        return f'"{line}"' if len(line) <= CLIPPED else f'"{line[: CLIPPED - 1]}…"'
    if isinstance(value, list | tuple):
        line = " ".join(map(str, value))
        return f"[{line}]" if len(line) <= CLIPPED else f"[{line[: CLIPPED - 1]}…]"
    return shown_value(value)


def _array(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    least, most = (values.min(), values.max()) if values.size else (0, 0)
    return f"{values.dtype} {tuple(values.shape)}, {least:.4g} to {most:.4g}"
