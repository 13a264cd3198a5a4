"""From files to what training reads: checked, split, tokenised, and kept in the run folder.

The result lies in `data/`. It is made beside it and moved there when complete, so a process may be
killed at any moment; it carries checksums of itself and of what it was made from, so it is used
again exactly when nothing has changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, compress, tee
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.config.run import RunSettings
from headway.data.check import check_pairs
from headway.data.inputs import rereadable, wanted_inputs
from headway.data.pairs import Pair, PairFile, in_blocks, training_files, validation_files
from headway.data.report import Finding, Report
from headway.data.scan import EMPTY, Scan
from headway.data.sealed import read_sealed, seal
from headway.data.split import SOME, choose_rows
from headway.data.store import DATA, ImpossibleData, Prepared, load_prepared
from headway.data.tally import Tally
from headway.data.tokens import PairWriter, token_dtype
from headway.errors import DataError
from headway.progress import SILENT, Progress
from headway.text.tokenizer import Vocabularies
from headway.text.train import train_vocabularies


def prepare(settings: RunSettings, folder: Path, progress: Progress = SILENT) -> Prepared:
    """Check, split, train the tokenizer, tokenise; or find all that done before.

    Memory stays bounded: about 130 bytes a pair and a block of text.
    """
    if not settings.data.source and not settings.data.pairs:
        raise DataError("there is nothing to train on. Give --source and --target, or --pairs.")
    folder.mkdir(parents=True, exist_ok=True)
    with rereadable(settings, folder) as settings:
        wanted = wanted_inputs(settings)
        made = read_sealed(folder / DATA, progress.note)
        if made is None or made["inputs"] != wanted:
            with _beside(folder / DATA) as building:
                facts = _build(settings, building, progress)
                seal(building, {"inputs": wanted, **facts})
    return load_prepared(folder)


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of the old one in the end, or goes away."""
    building = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    try:
        yield building
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _build(settings: RunSettings, folder: Path, progress: Progress) -> dict[str, Any]:
    """Make all files of the folder but the seal. Returns what the seal should say."""
    training, validation = training_files(settings.data), validation_files(settings.data)
    with progress.stage("checking the data", unit="pairs") as stage:
        report, pairs = check_pairs(training, validation, stage.advance)
    if report.impossible:
        raise ImpossibleData(report)
    filled = pairs.marks & EMPTY == 0
    if validation:
        held_out = np.zeros(len(pairs), np.bool_)
    else:
        held_out = _split(pairs, filled, settings.data.valid_size, report)
    kept = filled & ~held_out
    one, other = tee(_chosen(training, kept))
    reads = settings.tokenizer.file is not None
    with progress.stage("reading the tokenizer" if reads else "training the tokenizer"):
        vocab = train_vocabularies(
            (source for source, _ in one),
            (target for _, target in other),
            settings.tokenizer,
            int(kept.sum()),
        )
    vocab.save(folder / "tokenizer.json")
    with progress.stage("tokenising", report.n_pairs + (report.n_valid or 0), "pairs") as stage:
        files = (training, validation)
        tally = _tokenise(settings, folder, vocab, files, held_out, stage.advance)
    tally.add_to(report)
    if report.impossible:
        raise ImpossibleData(report)
    (folder / "report.json").write_text(json.dumps(report.to_dict()), encoding="utf-8")
    return {"dtypes": _dtypes(vocab), "dropped": tally.dropped}


def _split(pairs: Scan, filled: NDArray[np.bool_], size: int, report: Report) -> NDArray[np.bool_]:
    """Which pairs are for validation. What cannot be had goes into the report."""
    held_out = np.zeros(len(pairs), np.bool_)
    # A slice makes no copy, and nearly always there is text everywhere.
    rows = slice(None) if filled.all() else filled
    try:
        chosen = choose_rows(pairs.source[rows], pairs.target[rows], size)
    except DataError as error:
        report.findings.append(Finding("error", "no-split", 0, str(error)))
        raise ImpossibleData(report) from error
    held_out[np.flatnonzero(filled)[chosen]] = True
    few, kept = pairs.target[held_out], filled & ~held_out
    shared = np.zeros(len(few), np.bool_)
    for row in range(0, len(pairs), SOME):  # of all at once a sorted copy would be made
        block = slice(row, row + SOME)
        shared |= np.isin(few, pairs.target[block][kept[block]])
    if n := int(shared.sum()):
        text = (
            f"{n:,} of {int(held_out.sum()):,} pairs split off for validation share their target "
            "with training pairs: the groups of pairs that share a side are too large to set aside."
        )
        report.findings.append(Finding("warning", "shared-split", n, text))
    return held_out


def _tokenise(
    settings: RunSettings,
    folder: Path,
    vocab: Vocabularies,
    files: tuple[list[PairFile], list[PairFile]],
    held_out: NDArray[np.bool_],
    advance: Callable[[int], None],
) -> Tally:
    """Write the token arrays of both sets, and the text of the validation pairs."""
    training, validation = files
    tally = Tally(vocab, settings.data)
    dtypes = _dtypes(vocab)
    with (
        PairWriter(folder / "train", dtypes) as train,
        PairWriter(folder / "valid", dtypes) as valid,
        (folder / "valid.jsonl").open("w", encoding="utf-8") as texts,
    ):
        row = 0
        for block in in_blocks(chain.from_iterable(training)):
            held = held_out[row : row + len(block)]
            if len(held) < len(block):
                raise DataError("the training files have grown while they were read. Start again.")
            row += len(block)
            _, *tokens = tally.encode(list(compress(block, ~held)))
            train.add(*tokens)
            if held.any():
                _add_valid(valid, texts, tally, list(compress(block, held)))
            advance(len(block))
        for block in in_blocks(chain.from_iterable(validation)):
            _add_valid(valid, texts, tally, block)
            advance(len(block))
    return tally


def _add_valid(valid: PairWriter, texts: Any, tally: Tally, pairs: list[Pair]) -> None:
    kept, *tokens = tally.encode(pairs, validation=True)
    valid.add(*tokens)
    texts.writelines(json.dumps(pair) + "\n" for pair in kept)


def _dtypes(vocab: Vocabularies) -> list[str]:
    return [token_dtype(side.vocab_size) for side in (vocab.source, vocab.target)]


def _chosen(files: Iterable[PairFile], wanted: NDArray[np.bool_]) -> Iterator[Pair]:
    return compress(chain.from_iterable(files), wanted)
