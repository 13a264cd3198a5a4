"""Fingerprints of a run's input files, and copies of inputs that can be read only once.

A fingerprint depends on the contents of a file, not on its folder or name.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headway.data.files import (
    STDIN,
    DataFiles,
    class_files,
    is_stream,
    parts,
    spool,
)
from headway.data.media.open_item import MediaRef
from headway.data.source import Example, files_of, media_examples
from headway.data.workers import cores
from headway.errors import ConfigError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.specs.needs import LABEL, OTHER, WRITTEN
from headway.tokens.files import tokenizer_files

FIELDS = ("source", "target", "pairs", "valid_source", "valid_target", "valid_pairs",
          "text", "valid_text")  # fmt: skip
MEDIA_FIELDS = ("media", "valid_media")
SEEN = "seen.json"
"""Name of the file that records the names, sizes and modification times of the media files from
which data was prepared."""

COPIES = "input.tmp"


@contextmanager
def rereadable(settings: RunSettings, folder: Path) -> Iterator[RunSettings]:
    """Yield settings whose inputs can be read several times. Glob patterns and folders are replaced
    by their files, and standard input and pipes by temporary copies."""
    files = files_of(settings)
    paths = {name: parts(getattr(settings.data, name), files=files) for name in FIELDS}
    if sum(side.count(STDIN) for side in paths.values()) > 1:
        raise ConfigError(
            "standard input (-) can be used for only one file. Give paths for the others."
        )
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
    """Return a name for the copy of a stream. It keeps the file extensions, which indicate the
    format."""
    return "standard-input" if path == STDIN else name + "".join(Path(path).suffixes)


def _readable(path: str, copy: Path) -> str:
    if not is_stream(path):
        return path
    copy.parent.mkdir(exist_ok=True)
    spool(path, copy)
    return str(copy)


def data_inputs(settings: RunSettings) -> dict[str, Any]:
    """Return everything that determines the prepared data of texts: the contents of the files, and
    the settings that affect the result. The paths of the files have no influence."""
    data = asdict(settings.data)
    known = files_of(settings)
    encoding = settings.data.encoding
    files = {name: [_identity(path, known, encoding) for path in data.pop(name)] for name in FIELDS}
    data.pop("on_long")  # applied by the task: the store keeps long texts whole
    usual = asdict(DataSettings())
    for name in ("on_bad_row", "words_field", "tags_field", "label_separator"):
        if data[name] == usual[name]:
            data.pop(name)  # data prepared before this setting existed stays usable
    values = {"files": files, "data": data, "tokenizer": tokenizer_inputs(settings)}
    return json.loads(json.dumps(values))  # as it comes back from a file


def tokenizer_inputs(settings: RunSettings) -> dict[str, Any]:
    found = asdict(settings.tokenizer)
    if found["file"] is not None:
        found["file"] = [
            _identity(str(path), DataFiles()) for path in tokenizer_files(Path(found["file"]))
        ]
    return found


def inputs_match(inputs: Mapping[str, object], data: DataSettings) -> bool:
    """Whether the files in the settings have the same contents as those from which data was
    prepared. `inputs`: the record in the manifest of the prepared data."""
    if inputs.get("kind") == "media":
        return bool(inputs["files"] == _contents_of(inputs, data))
    known = DataFiles()
    files = {name: parts(getattr(data, name), files=known) for name in FIELDS}
    if any(is_stream(path) for side in files.values() for path in side):
        return False
    found = {name: [_identity(path, known) for path in side] for name, side in files.items()}
    return bool(inputs.get("files") == json.loads(json.dumps(found)))


MEDIA_TARGETS = {one.name: one for one in (LABEL, WRITTEN, OTHER)}
"""Targets of tasks on media, by their name in the manifest."""


def _contents_of(inputs: Mapping[str, Any], data: DataSettings) -> list[str]:
    target = MEDIA_TARGETS.get(inputs["target"])
    asked = inputs["form"]["modality"], target, inputs["answer"]
    return content_checksums(
        [list(media_examples(getattr(data, name), data, *asked)) for name in MEDIA_FIELDS]
    )


def content_checksums(splits: Sequence[Sequence[Example]]) -> list[str]:
    """Return for each split a checksum of the contents of its media files, and of their labels or
    texts."""
    files = _files(splits)
    with ThreadPoolExecutor(cores(), thread_name_prefix="contents") as pool:
        sums = dict(zip(files, pool.map(_sum_of, files), strict=True))
    return [_examples_checksum(examples, sums) for examples in splits]


def file_states(splits: Sequence[Sequence[Example]]) -> list[str]:
    """Return for each split a checksum of the names, sizes and modification times of its media
    files. While this checksum is unchanged, the contents are assumed to be the same and are not
    read."""
    sums = {path: str(_state(Path(path))) for path in _files(splits)}
    return [_examples_checksum(examples, sums) for examples in splits]


def _files(splits: Iterable[Sequence[Example]]) -> list[str]:
    return list(dict.fromkeys(
        value.path for examples in splits for one in examples for value in one.values.values()
        if isinstance(value, MediaRef)
    ))  # fmt: skip


def _examples_checksum(examples: Iterable[Example], sums: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for one in examples:
        said = [
            (name, (sums[value.path], value.part.values) if isinstance(value, MediaRef) else value)
            for name, value in one.values.items()
        ]
        digest.update(repr((said, bool(one.problem))).encode())
    return digest.hexdigest()


def _state(path: Path) -> list[tuple[str, int, int]]:
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [(str(one), (state := one.stat()).st_size, state.st_mtime_ns) for one in files]
    except (OSError, ValueError):  # it is not there, and left out (`data.on_bad_row`)
        return []


def _sum_of(name: str) -> str:
    digest = hashlib.sha256()
    path = Path(name)
    try:
        for one in sorted(path.iterdir()) if path.is_dir() else [path]:
            with one.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    except (OSError, ValueError):
        return ""
    return digest.hexdigest()


def _identity(path: str, known: DataFiles, encoding: str = "utf-8") -> dict[str, Any]:
    if Path(path).is_dir():  # a folder for each class: names are labels
        files = [file for file, _ in class_files(path, known)]
        sums = [known.file(str(file), encoding).identity["sha256"] for file in files]
        said = [
            (str(file.relative_to(path)), hashlib.sha256(bytes.fromhex(one)).hexdigest())
            for file, one in zip(files, sums, strict=True)
        ]
        digest = hashlib.sha256(repr(said).encode()).hexdigest()
        return {"size": sum(file.stat().st_size for file in files), "sha256": digest}
    return known.file(path, encoding).identity
