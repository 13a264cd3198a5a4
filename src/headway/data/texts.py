"""Texts in one language from files to what training reads: checked, split, tokenised, kept.

As for pairs, the result lies in `data/` of the run folder and is used again exactly when nothing
has changed. Preparing goes on where it was killed, and takes the memory of a block of text and of
about 130 bytes an example, whatever the size of the files.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.config.run import RunSettings
from headway.data import example
from headway.data.example import TextKind, sources
from headway.data.inputs import rereadable, wanted_inputs
from headway.data.readers import lines
from headway.data.sealed import read_sealed, seal
from headway.data.store import DATA, Columns, Prepared, load_prepared, open_texts
from headway.data.textbuild import TextBuild, all_for_validation
from headway.data.textcheck import UNITS
from headway.data.tokenise import Count, Tokeniser
from headway.data.workplace import tidy, workplace
from headway.errors import DataError
from headway.progress import SILENT, Progress
from headway.text.tokenizer import Tokenizer


def prepare_text(
    kind: TextKind,
    settings: RunSettings,
    folder: Path,
    progress: Progress = SILENT,
    *,
    tokenizer: Tokenizer | None = None,
    specials: Sequence[str] = (),
) -> Prepared:
    """Check, split, train the tokenizer unless one is given, tokenise; or find all that done.

    `specials` are tokens that no text becomes, such as `<mask>`. Where the given tokenizer lacks
    them they get new ids behind all others.
    """
    _check_asked(kind, settings)
    folder.mkdir(parents=True, exist_ok=True)
    with rereadable(settings, folder) as settings:
        wanted = wanted_inputs(settings) | {
            "kind": kind,
            "specials": list(specials),
            "given": tokenizer and hashlib.sha256(tokenizer.to_json().encode()).hexdigest(),
        }
        if kind == "tagged":
            tag = settings.tag
            wanted["tag"] = {"scheme": tag.scheme, "prefix_strip": tag.prefix_strip}
        made = read_sealed(folder / DATA, progress.note)
        if made is None or made["inputs"] != wanted:
            # Work goes on behind whole blocks, so that it must be cut into the same ones.
            blocks = [example.BLOCK, example.BLOCK_CHARACTERS, lines.PIECE]
            with workplace(folder / DATA, {**wanted, "blocks": blocks}, progress.note) as place:
                build = TextBuild(kind, settings, place, progress)
                facts = build.run(tokenizer, specials)
                seal(place.results, {"inputs": wanted, **facts})
        tidy(folder / DATA)
    return load_prepared(folder)


def _check_asked(kind: TextKind, settings: RunSettings) -> None:
    data = settings.data
    if not data.text and not (kind == "texts" and data.pairs):
        raise DataError("there is nothing to train on. Give --text FILE.")
    if kind == "fields" and not data.fields:
        raise DataError("data.fields=… must name the fields of the records; the last is the body.")


def evaluation_set(
    kind: TextKind, settings: RunSettings, tokenizer: Tokenizer, labels: Sequence[str]
) -> tuple[Columns, list[dict[str, Any]]]:
    """The files of `data.text` (or `data.pairs`) for scoring, in memory, and the examples as they
    stand in the files. A label that is not among `labels` is an error that says where."""
    _check_asked(kind, settings)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with rereadable(settings, folder) as readable:
            source, _ = sources(kind, replace(readable, data=replace(readable.data, valid_text=())))
            numbers = {name: i for i, name in enumerate(labels)}
            with Tokeniser(source, tokenizer, numbers, folder, Count()) as tokeniser:
                for routed in all_for_validation(source):
                    tokeniser.add(routed)
        facts = {"kind": kind, "columns": list(source.columns), "dtype": tokeniser.dtype,
                 "n_bytes": tokeniser.count.n_bytes}  # fmt: skip
        opened = open_texts(folder, 1, facts)
        examples = (folder / "valid.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        if not opened.n:
            raise DataError(f"there are no {UNITS[kind]} in {', '.join(source.paths)}.")
        return opened.in_memory(), [json.loads(line) for line in examples]
