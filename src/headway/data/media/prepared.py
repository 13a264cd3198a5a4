"""Pictures, videos and recordings from files to what training reads: read, checked, split, kept.

As for texts, the result lies in `data/` of the run folder and is used again exactly when nothing
has changed. Preparing goes on where it was killed, and takes the memory of a few items and of some
hundred bytes an item, whatever the size of the files.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.check import listed
from headway.data.files import parts
from headway.data.media.build import MediaBuild, Wanted, write_labels, write_texts
from headway.data.media.decoding import Decoder
from headway.data.media.items import MOST_NAMED, MediaItems
from headway.data.media.manifest import is_manifest
from headway.data.media.open_item import UNITS, Form, Shape, What
from headway.data.media.source import Target, names_in
from headway.data.media.survey import Surveyed, survey
from headway.data.sealed import read_sealed, seal
from headway.data.store import DATA, Columns, Prepared, load_prepared, open_media
from headway.data.token_store import side, token_dtype
from headway.data.workplace import tidy, workplace
from headway.errors import DataError
from headway.progress import SILENT, Progress
from headway.settings.run import RunSettings
from headway.storage import identity
from headway.tokens.files import tokenizer_files
from headway.tokens.tokenizer import Tokenizer


def prepare_media(
    what: What,
    settings: RunSettings,
    folder: Path,
    progress: Progress = SILENT,
    *,
    target: Target,
    shape: Shape,
    tokenizer: Tokenizer | None = None,
    specials: Sequence[str] = (),
) -> Prepared:
    """Read, check, split, make tokens of texts; or find all that done.

    Pictures are brought to the size of `shape`, videos also to its number of frames, recordings to
    its rate. `specials` are tokens that no text becomes.
    """
    if not settings.data.media:
        raise DataError("there is nothing to train on. Give --media FOLDER or --media FILE.")
    folder.mkdir(parents=True, exist_ok=True)
    asked = Wanted(settings, Form.of(what, shape), target, tokenizer, specials)
    training, validation = asked.items()
    inputs = _inputs(asked, training, validation)
    made = read_sealed(folder / DATA, progress.note)
    if made is None or made.get("inputs") != inputs:
        with workplace(folder / DATA, inputs, progress.note) as place:
            facts = MediaBuild(asked, place, progress).run(training, validation)
            seal(place.results, {"inputs": inputs, **facts})
    tidy(folder / DATA)
    return load_prepared(folder)


@dataclass(frozen=True)
class EvaluationMedia:
    """A test set."""

    items: Columns
    places: list[str]
    targets: list[str]
    """Labels or texts as they stand in the files; empty where none were asked for."""


def evaluation_media(
    what: What,
    settings: RunSettings,
    shape: Shape,
    *,
    target: Target,
    labels: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    progress: Progress = SILENT,
) -> EvaluationMedia:
    """Everything in `data.media`, for scoring. What cannot be read, has no target or a label that
    is not among `labels` is an error that says where: scores would not be of the same things.

    Texts become tokens if there is a tokenizer.
    """
    asked = Wanted(settings, Form.of(what, shape), target, tokenizer)
    if not settings.data.media:
        raise DataError("there is nothing to score. Give --media FOLDER or --media FILE.")
    items, _ = asked.items()
    with tempfile.TemporaryDirectory(prefix="headway-media-") as name:
        folder = Path(name)
        Decoder(items, asked.form, folder).run(lambda done, files: None, progress)
        seen, _ = survey((items, MediaItems([])), folder, asked.form, target, settings)
        _check_scorable(seen, labels)
        step = 2 if target == "other" else 1
        np.arange(0, len(items), step, dtype="<i8").tofile(folder / "train.rows")
        if target == "other":
            np.arange(1, len(items), step, dtype="<i8").tofile(folder / "train.other.rows")
        targets = [one for one in seen.targets if one is not None]
        dtype = "<u2"
        if target == "label":
            write_labels(targets, seen.answer, labels, folder / "train")
        elif target == "text" and tokenizer is not None:
            dtype = token_dtype(tokenizer.vocab_size)
            write_texts(targets, tokenizer, side(folder / "train", "texts"), dtype)
        # The files stay mapped when their folder is gone.
        opened = open_media(folder, "train", asked.form, dtype)
    return EvaluationMedia(opened, [items[i].place for i in range(len(items))], targets)


def _check_scorable(seen: Surveyed, labels: Sequence[str]) -> None:
    unit = UNITS[seen.form.what]
    if not len(seen):
        raise DataError(f"there are no {unit} to score.")
    bad = sorted(seen.problems)
    if bad:
        shown = " ".join(seen.problems[row] for row in bad[:MOST_NAMED])
        more = f" And {len(bad) - MOST_NAMED:,} more." * (len(bad) > MOST_NAMED)
        raise DataError(f"{len(bad):,} of {len(seen):,} {unit} cannot be read: {shown}{more}")
    if seen.target in ("none", "other"):
        return
    known = set(labels)
    for row, target in enumerate(seen.targets):
        names = names_in(target or "") if seen.target == "label" else []
        unknown = [name for name in names if name not in known and seen.answer != "number"]
        strange = bool(unknown)
        if target is None or strange:
            what = (
                f"the label {unknown[0]!r}" if strange else f"a {unit[:-1]} without a {seen.target}"
            )
            end = f"; this run knows the classes {listed(labels, 20)}" * strange
            raise DataError(f"{seen.items[row].place}: {what} cannot be scored{end}.")


def _inputs(asked: Wanted, training: MediaItems, validation: MediaItems) -> dict[str, Any]:
    """What the prepared data follows from. Media files are known by their names, sizes and times:
    reading them all again to see whether they are the same would take as long as preparing."""
    data = asked.settings.data
    tokenizer = asdict(asked.settings.tokenizer) if asked.target == "text" else None
    if tokenizer and tokenizer["file"] is not None:
        files = tokenizer_files(Path(tokenizer["file"]))
        tokenizer["file"] = [identity(path) for path in files]
    given = asked.tokenizer and hashlib.sha256(asked.tokenizer.to_json().encode()).hexdigest()
    names = ["path_field", "label_field", "text_field", "valid_size", "encoding"]
    names += ["other_field"] if asked.target == "other" else []
    own = getattr(asked.settings, asked.settings.task, None)
    answer = getattr(own, "answer", "label")
    values = {
        "form": asdict(asked.form),
        "settings": {
            "target": asked.target,
            "data": {name: getattr(data, name) for name in names},
            "tokenizer": tokenizer,
            "given": given,
            "specials": list(asked.specials),
            **({"answer": answer} if answer in ("labels", "number") else {}),
            **({"label_separator": data.label_separator} if answer == "labels" else {}),
        },
        "manifests": [
            identity(Path(path))
            for path in (
                *parts(data.media, folders=False),
                *parts(data.valid_media, folders=False),
            )
            if is_manifest(Path(path)) and Path(path).is_file()
        ],
        "files": [_digest(training), _digest(validation)],
    }
    return json.loads(json.dumps(values))  # as it comes back from a file


def _digest(items: MediaItems) -> str:
    digest = hashlib.sha256()
    for path, _ in items.files():
        if not path.exists():  # it is left out (`data.bad`)
            digest.update(repr((path.parent.name, path.name)).encode())
            continue
        for one in sorted(path.iterdir()) if path.is_dir() else [path]:
            state = one.stat()
            said = (path.parent.name, path.name, one.name, state.st_size, state.st_mtime_ns)
            digest.update(repr(said).encode())
    return digest.hexdigest()
