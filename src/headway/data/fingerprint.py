"""The input files of a run: what identifies them, and a copy of what can be read only once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headway.data.files import STDIN, check_readable, is_stream, parts, spool
from headway.errors import ConfigError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.storage import identity
from headway.tokens.files import tokenizer_files

FIELDS = ("source", "target", "pairs", "valid_source", "valid_target", "valid_pairs",
          "text", "valid_text")  # fmt: skip
COPIES = "input.tmp"


@contextmanager
def rereadable(settings: RunSettings, folder: Path) -> Iterator[RunSettings]:
    """The settings with the files that patterns and folders stand for, and standard input and pipes
    replaced by copies, which are gone afterwards."""
    paths = {name: parts(getattr(settings.data, name)) for name in FIELDS}
    if sum(side.count(STDIN) for side in paths.values()) > 1:
        raise ConfigError("standard input (-) can be given for one file only.")
    copies = folder / COPIES
    shutil.rmtree(copies, ignore_errors=True)
    try:
        changed: dict[str, Any] = {
            name: tuple(
                _readable(path, copies / _copy_name(path, f"{name}-{i}"))
                for i, path in enumerate(side)
            )
            for name, side in paths.items()
        }
        yield replace(settings, data=replace(settings.data, **changed))
    finally:
        shutil.rmtree(copies, ignore_errors=True)


def _copy_name(path: str, name: str) -> str:
    """The end of the name stays: it tells what is in the file."""
    return "standard-input" if path == STDIN else name + "".join(Path(path).suffixes)


def _readable(path: str, copy: Path) -> str:
    if not is_stream(path):
        return path
    copy.parent.mkdir(exist_ok=True)
    spool(path, copy)
    return str(copy)


def wanted_inputs(settings: RunSettings) -> dict[str, Any]:
    """What the prepared data follows from: the content of the files, wherever they lie, and the
    settings that say what becomes of it."""
    data, tokenizer = asdict(settings.data), asdict(settings.tokenizer)
    files = {name: [_identity(path) for path in data.pop(name)] for name in FIELDS}
    data.pop("long")  # what a task makes of long texts, which the store keeps whole
    usual = asdict(DataSettings())
    for name in ("bad", "words_field", "tags_field", "label_separator"):
        if data[name] == usual[name]:
            data.pop(name)  # runs that are older than this setting go on with the data they have
    if tokenizer["file"] is not None:
        tokenizer["file"] = [
            _identity(str(path)) for path in tokenizer_files(Path(tokenizer["file"]))
        ]
    values = {"files": files, "data": data, "tokenizer": tokenizer}
    return json.loads(json.dumps(values))  # as it comes back from a file


def are_those(inputs: Mapping[str, object], data: DataSettings) -> bool:
    """Whether prepared data was made from texts with the contents of these files."""
    files = {name: parts(getattr(data, name)) for name in FIELDS}
    if any(is_stream(path) for side in files.values() for path in side):
        return False
    found = {name: [_identity(path) for path in side] for name, side in files.items()}
    return bool(inputs.get("files") == json.loads(json.dumps(found)))


def _identity(path: str) -> dict[str, Any]:
    check_readable(path)
    return identity(Path(path))
