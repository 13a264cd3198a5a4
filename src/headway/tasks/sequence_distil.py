"""Sequence-level distillation (Kim and Rush 2016): a student learns to translate from its teacher's
translations of the training sources. These are simpler than human translations.

The teacher's translations are stored with the prepared data, in `data/train.taught.*`. They are
made once. After an interruption, translation resumes after the last complete block.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from headway.data.prepare import prepare
from headway.data.store import DATA, PreparedData
from headway.data.token_store import TokenStore, lengths_file, tokens_file
from headway.errors import FolderError
from headway.nn.devices import pick_device
from headway.nn.positions import max_positions
from headway.progress import Progress
from headway.settings.folder import TOKENIZER, file_in, run_folder
from headway.settings.run import RunSettings
from headway.storage import (
    check_identity,
    read_json,
    replace_file,
    replace_text,
    seal_json,
)
from headway.tasks.loaded_run import open_run
from headway.tasks.seq2seq_answers import writer_of

NAME = "train.taught"
BLOCK = 2048
"""Number of sentences per block. Each block is written to disk when it is complete, so an
interruption loses at most one."""


def prepare_distilled(
    settings: RunSettings, folder: Path, progress: Progress, device: torch.device | str = "auto"
) -> PreparedData:
    """Prepare the data with the teacher's vocabulary, and with the teacher's translations as
    targets."""
    where = pick_device(str(device))
    prepared = prepare(with_teachers_words(settings), folder, progress)
    return make_distilled(prepared, settings, folder, where, progress)


def with_teachers_words(settings: RunSettings) -> RunSettings:
    """Return the settings, changed so that the data is tokenized with the teacher's vocabulary."""
    path = file_in(run_folder(settings.distil.teacher), TOKENIZER)
    return replace(settings, tokenizer=replace(settings.tokenizer, file=str(path)))


def make_distilled(
    prepared: PreparedData,
    settings: RunSettings,
    folder: Path,
    device: torch.device,
    progress: Progress,
) -> PreparedData:
    """Return the data with the teacher's translations as targets of the training pairs. They are
    made if they do not exist. Validation pairs keep their own targets."""
    name = folder / DATA / NAME
    try:
        made = _check(name)
    except FolderError as error:
        progress.note(f"{error} The teacher translates the training sources again.")
        made = False
    if not made:
        targets = list(_translated(prepared, settings, name.with_suffix(".part"), device, progress))
        _write(name, targets, str(prepared.train["target"].tokens.dtype.str))
        name.with_suffix(".part").unlink(missing_ok=True)
    return with_distilled(prepared, folder)


def _check(name: Path) -> bool:
    """Return whether the teacher's translations exist. Raise FolderError if they are damaged."""
    if not lengths_file(name).exists():
        return False
    sums = name.with_suffix(".json")
    try:
        for file, promised in read_json(sums).items():
            check_identity(name.with_name(file), promised)
    except (OSError, ValueError) as error:
        raise FolderError(f"{sums} is damaged: {error}.") from error
    return True


def with_distilled(prepared: PreparedData, folder: Path) -> PreparedData:
    """Return the data with the teacher's translations as targets of the training pairs; unchanged
    if there are none."""
    name = folder / DATA / NAME
    if not _check(name):
        return prepared
    store = TokenStore.open(name, str(prepared.train["target"].tokens.dtype.str))
    return replace(prepared, train=prepared.train.with_stores({"target": store}))


def _translated(
    prepared: PreparedData,
    settings: RunSettings,
    part: Path,
    device: torch.device,
    progress: Progress,
) -> Iterator[list[int]]:
    """Yield the teacher's translation of each training source, as token ids. Blocks from an
    interrupted process are reused."""
    source, target = prepared.vocabularies.source, prepared.vocabularies.target
    rows = prepared.train["source"]
    done = _blocks(part)
    yield from (ids for block in done for ids in block)
    first = sum(map(len, done))
    if first == len(rows):
        return
    teacher = writer_of(open_run(settings.distil.teacher, device=str(device)), on_long="cut")
    # Truncate the translation: encoding a decoded text again may give more tokens than it had, and
    # more than the student can read.
    reach = max_positions(teacher.models[0].target_front)
    room = None if reach is None else reach - 1 - (target.target_begin is not None)
    stage = progress.stage("translating with the teacher", len(rows), done=first)
    with part.open("a", encoding="utf-8") as file, stage:
        for begin in range(first, len(rows), BLOCK):
            numbers = range(begin, min(begin + BLOCK, len(rows)))
            lines = [source.decode(rows[number].tolist()) for number in numbers]
            block = target.encode_batch([found.text for found in teacher.write(lines)])
            block = [ids[:room] for ids in block]
            file.write(_line(block))
            file.flush()
            yield from block
            stage.update(numbers.stop)


def _blocks(part: Path) -> list[list[list[int]]]:
    """Return the complete blocks in the file. The file is truncated at the first line with a wrong
    checksum, because an interrupted process may have written an incomplete line."""
    if not part.exists():
        return []
    blocks = []
    with part.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            try:
                block = json.loads(line.partition(" ")[2])
            except ValueError:
                break
            if _line(block) != line:
                break
            blocks.append(block)
    part.write_text("".join(map(_line, blocks)), encoding="utf-8")
    return blocks


def _line(block: list[list[int]]) -> str:
    text = json.dumps(block)
    return f"{hashlib.sha256(text.encode()).hexdigest()} {text}\n"


def _write(name: Path, targets: Sequence[Sequence[int]], dtype: str) -> None:
    """Write the checksums, the tokens and, last, the lengths. The file of lengths marks the
    translations as complete."""
    tokens = np.array([token for ids in targets for token in ids], dtype)
    lengths = np.array([len(ids) for ids in targets], "<i4")
    files = {tokens_file(name): tokens.tobytes(), lengths_file(name): lengths.tobytes()}
    sums = {
        path.name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for path, data in files.items()
    }
    lengths_file(name).unlink(missing_ok=True)
    replace_text(name.with_suffix(".json"), seal_json(json.dumps(sums)))
    for path, data in files.items():
        replace_file(path, partial(Path.write_bytes, data=data))
