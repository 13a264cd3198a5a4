"""Prepare data files for training: check, split, tokenize and store them in the run folder.

The result is the folder `data/`. It is built under a temporary name and renamed when it is
complete. If the process is killed at any moment, the next one resumes the work. The folder stores
checksums of its files and of its inputs, and is reused only if nothing has changed.

All cores are used. Memory holds a few blocks of text and about 100 bytes per example. Texts are
read twice: once for the check and the checksum, once for the tokens. Training a tokenizer reads
them once more, from memory if they are small. Media are read once, and the check uses the
properties that are stored with them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import compress, tee
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data import source
from headway.data.check import (
    PROBLEMS,
    check,
    missing_label_warning,
)
from headway.data.check_report import Report, listed, sorted_labels
from headway.data.encode import DatasetWriter, RoutedBlock, Router, all_for_validation
from headway.data.fingerprint import (
    SEEN,
    content_checksums,
    data_inputs,
    file_states,
    rereadable,
    tokenizer_inputs,
)
from headway.data.language_id import Profiles
from headway.data.manifest import DataManifest, verified_manifest, write_manifest
from headway.data.media.decoding import UNREADABLE, MediaDecoder, read_media_records
from headway.data.readers import lines
from headway.data.scan import EMPTY, DatasetScan, scan_examples, scan_media
from headway.data.schema import MediaSpec, Schema, schema_of
from headway.data.source import (
    MOST_NAMED,
    DataSource,
    Example,
    check_files_exist,
    in_example_blocks,
    sources,
)
from headway.data.split import split_off
from headway.data.store import (
    DATA,
    Columns,
    ImpossibleData,
    PreparedData,
    load_prepared,
    open_columns,
)
from headway.data.workdir import WorkDir, open_workdir, remove_leftovers
from headway.errors import DATA_ARGUMENT, DataError, Option
from headway.progress import SILENT, Progress
from headway.settings.run import RunSettings
from headway.settings.text import WordShape
from headway.storage import work_folder
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import train_on_texts, train_vocabularies

FEW_DOCUMENTS = 20
"""Minimum number of documents of which whole documents are held out. With fewer, the last tenth of
the characters is held out instead, because a few documents would be a poor sample."""

MIXED = 6
"""Seed for the order of validation media. Folders are read class by class, but evaluations during
training use the first examples, so they must be a fair sample. The value is arbitrary."""

RECORD_SECONDS = 2.0
"""Number of seconds between records of progress. An interruption loses at most this much work."""


def prepare(
    settings: RunSettings,
    folder: Path,
    progress: Progress = SILENT,
    *,
    tokenizer: Tokenizer | None = None,
    specials: Sequence[str] = (),
    media: MediaSpec | None = None,
) -> PreparedData:
    """Check, split and tokenize the data, or reuse the prepared data if it is up to date.

    Args:
        settings: Settings of the run.
        folder: Run folder that gets the prepared data.
        progress: Progress reporter.
        tokenizer: Tokenizer to use; None: a tokenizer is trained or read as the settings say.
        specials: Special tokens that no text produces, such as `<mask>`. If the given tokenizer
            lacks them, they get new ids after all others.
        media: Format of the images, videos or audio, and the column that accompanies them; None for
            texts.
    """
    _check_data_given(schema_of(settings, media), settings)
    folder.mkdir(parents=True, exist_ok=True)
    with rereadable(source.with_files(settings), folder) as settings:
        settings = source.resolve_answer(settings, media)
        schema = schema_of(settings, media)
        both = None if media is None else sources(settings, media)
        media_inputs = None if both is None else _media_inputs(both, folder)

        @cache
        def wanted() -> DataManifest:
            found = data_inputs(settings) if media_inputs is None else dict(media_inputs)
            return found | _other_inputs(schema, settings, tokenizer, specials)

        made = verified_manifest(folder / DATA, progress.note)
        if made is None or made["inputs"] != wanted():
            # Work resumes after whole blocks, so blocks and columns must be the same as before the
            # interruption.
            blocks = [source.BLOCK, source.BLOCK_CHARACTERS, lines.PIECE]
            cut = {"blocks": blocks, **({"shapes": len(WordShape)} if schema.is_tagged else {})}
            # If there was no earlier attempt, the scan of the files also computes their checksums.
            with open_workdir(folder / DATA, lambda: wanted() | cut, progress.note) as place:
                build = DataBuilder(both or sources(settings), place, progress)
                facts = build.run(tokenizer, specials)
                if both is not None:
                    seen = {
                        "states": file_states([list(one) for one in both]),
                        "files": wanted()["files"],
                    }
                    (place.results / SEEN).write_text(json.dumps(seen), encoding="utf-8")
                write_manifest(place.results, {"inputs": wanted(), **facts})
        remove_leftovers(folder / DATA)
    return load_prepared(folder)


def _other_inputs(
    schema: Schema, settings: RunSettings, tokenizer: Tokenizer | None, specials: Sequence[str]
) -> DataManifest:
    """Return everything that determines the prepared data apart from the contents of the files and
    the settings of `data`."""
    given = tokenizer and hashlib.sha256(tokenizer.to_json().encode()).hexdigest()
    found: DataManifest = {"kind": schema.name, "specials": list(specials), "given": given}
    if schema.is_tagged:
        tag = settings.tag
        found["tag"] = {"scheme": tag.scheme, "prefix_strip": tag.prefix_strip}
    if (target := schema.target) is not None and not schema.has_single_class:
        found["answer"] = target.kind
    return found


def _media_inputs(both: tuple[DataSource, DataSource], folder: Path) -> DataManifest:
    """Return everything that determines the prepared data of media. Contents are read again only if
    names, sizes or modification times of the files have changed."""
    settings, media = both[0].settings, both[0].schema.media
    assert media is not None
    if settings.data.on_bad_row == "error":
        check_files_exist(*(one for one in both if not one.in_arrays))
    splits = [list(one) for one in both]
    try:
        seen = json.loads((folder / DATA / SEEN).read_text(encoding="utf-8"))
        files = (
            seen["files"] if seen["states"] == file_states(splits) else content_checksums(splits)
        )
    except (OSError, ValueError, KeyError, TypeError):
        files = content_checksums(splits)
    values = {
        "files": files, "form": asdict(media.form), "target": media.target_name,
        "valid_size": settings.data.valid_size, "answer": "label",
        "tokenizer": tokenizer_inputs(settings) if both[0].schema.text_names else None,
    }  # fmt: skip
    return json.loads(json.dumps(values))  # as it comes back from a file


def _check_data_given(schema: Schema, settings: RunSettings) -> None:
    data = settings.data
    if getattr(data, schema.files) or (schema.is_translation and data.source):
        return
    if schema.is_translation:
        raise DataError(
            f"no training data was given. Give a table of pairs, or {Option('source')} and "
            f"{Option('target')}."
        )
    raise DataError(f"no training data was given. Give {DATA_ARGUMENT} after the task.")


class DataBuilder:
    """Builds all files of the prepared data except the manifest. Each completed stage is recorded,
    so that it runs only once."""

    def __init__(
        self, both: tuple[DataSource, DataSource], place: WorkDir, progress: Progress
    ) -> None:
        self.training, self.validation = both
        self.schema = self.training.schema
        self.settings = self.training.settings
        self.media = self.schema.media
        self.place = place
        self.progress = progress

    def run(self, given: Tokenizer | None, specials: Sequence[str]) -> DataManifest:
        """Run all stages, and return the entries for the manifest."""
        split = self.place.state / "held_out.npy"
        if self.media is not None:
            examples = [*self.training, *self.validation]
            names = self.schema.media_names
            decoder = MediaDecoder(examples, names, self.media.form, self.place.results, self.place)
            decoder.run(self.progress)
        plan = self.place.stage("plan", lambda: self._plan(split), split)
        held_out, blank = np.load(split)
        words = self.place.results / "tokenizer.json"

        def make() -> None:
            left_out = held_out if self.schema.counts_characters else held_out | blank
            texts = _for_training(self.training, Router(left_out, plan["cut"]))
            self._vocabularies(plan, texts, given, specials).save(words)

        if self.schema.text_names:
            self.place.stage("tokenizer", make, words)
        with DatasetWriter(
            self.training, words, plan["labels"], self.place.results, self.place.recorded()
        ) as encoder:
            if self.media is not None:
                blocks = self._media_blocks(held_out, ~blank)
            else:
                blocks = self._blocks(Router(held_out, plan["cut"], blank))
            self._encode(encoder, blocks, plan["size"])
        report = Report.from_dict(plan["report"])
        encoder.add_to(report)
        if report.impossible:
            raise ImpossibleData(report)
        text = json.dumps(report.to_dict())
        (self.place.results / "report.json").write_text(text, encoding="utf-8")
        if bad := plan["problems"]:
            lines = (json.dumps({"place": place, "why": why}) + "\n" for place, why in bad.items())
            (self.place.results / PROBLEMS).write_text("".join(lines), encoding="utf-8")
        return {
            **({} if self.media is None else {"form": asdict(self.media.form)}),
            "columns": encoder.stores,
            "fields": list(self.schema.text_names) if self.schema.has_fields else [],
            "labels": plan["labels"],
            "dropped": encoder.count.dropped,
            "n_bytes": encoder.count.n_bytes,
        }

    @property
    def _unit(self) -> str:
        return "characters" if self.schema.counts_characters else self.schema.unit

    def _surveys(self) -> tuple[DatasetScan, DatasetScan | None]:
        """Scan the training data, and the validation data if there is any."""
        if self.media is not None:
            seen, held = scan_media(self.training, self.place.results), None
            if self.validation.is_given:
                held = scan_media(self.validation, self.place.results, len(seen))
            return seen, held
        with self.progress.stage("checking the data", unit=self._unit) as stage:
            profiles, held = Profiles(), None
            seen = scan_examples(self.training, stage.advance, profiles)
            if self.validation.is_given:
                held = scan_examples(self.validation, stage.advance, profiles, learn=False)
        return seen, held

    def _plan(self, split: Path) -> DataManifest:
        """Check and split the data, and return the results for later stages. `split`: file that
        stores which examples are held out or have no text."""
        seen, held = self._surveys()
        report = check(seen, held)
        if report.impossible:
            raise ImpossibleData(report)
        cut, labels = None, sorted_labels(seen.labels.counts)
        surveys = [seen] if held is None else [seen, held]
        characters = sum(one.n_characters for one in surveys)
        size = characters if self.schema.counts_characters else sum(map(len, surveys))
        problems = {k: v for one in surveys for k, v in one.labels.problems.items()}
        held_out = np.zeros(len(seen), np.bool_)
        if held is None and self.schema.in_pieces and seen.filled.sum() < FEW_DOCUMENTS:
            cut = int(0.9 * int(seen.lengths[0][seen.filled].sum()))
        elif held is None:
            # Splitting needs the most memory, so drop first what only the check needs.
            surveys.clear()
            seen = replace(seen, exact=seen.exact[:0].copy(), lengths=())
            held_out = split_off(seen, self.settings.data.valid_size, report)
        if self.media is not None:
            some = [list(compress(self.training, rows)) for rows in (seen.filled, held_out)]
            if held is None:
                named = [{name for one in part for name in one.labels} for part in some]
                report.findings += missing_label_warning(named[1], named[0])
            characters = sum(len(one.text("text")) for one in some[0])
            characters -= sum(len(one.text("text")) for one in some[1])
        np.save(split, np.stack([held_out, ~seen.filled]))
        return {
            "report": report.to_dict(),
            "cut": cut,
            "labels": labels,
            "characters": characters,
            "size": size,
            "n": int((seen.filled & ~held_out).sum()),
            "problems": problems,
        }

    def _vocabularies(
        self, plan: DataManifest, examples: Iterator[source.Example],
        given: Tokenizer | None, specials: Sequence[str],
    ) -> Vocabularies:  # fmt: skip
        """Return vocabularies for the texts: the given tokenizer, the one in a file, or new ones
        that are trained on the training examples."""
        if given is not None:
            tokenizer = given.with_specials(specials)
            return Vocabularies(tokenizer, tokenizer)
        wanted = self.settings.tokenizer
        with self.progress.stage(
            "training the tokenizer" if wanted.file is None else "reading the tokenizer"
        ):
            if self.schema.is_translation:
                one, other = tee(examples)
                sides = (e.text("source") for e in one), (e.text("target") for e in other)
                return train_vocabularies(*sides, wanted, plan["n"])
            columns = self.schema.text_names
            texts = (text for one in examples for name in columns if (text := one.text(name)))
            tokenizer = train_on_texts(texts, wanted, plan["characters"], specials)
            return Vocabularies(tokenizer, tokenizer)

    def _encode(self, encoder: DatasetWriter, blocks: Iterator[RoutedBlock], size: int) -> None:
        """Encode all remaining blocks, and record the progress regularly."""
        kept = time.monotonic()
        columns = self.schema.text_names
        progress = self.progress if columns else SILENT
        with progress.stage("tokenising", size, self._unit) as stage:

            def done(routed: RoutedBlock) -> None:
                nonlocal kept
                if time.monotonic() - kept >= RECORD_SECONDS:
                    self.place.record(encoder.count.to_dict(), encoder.files.sync())
                    kept = time.monotonic()
                if not self.schema.counts_characters:
                    stage.advance(len(routed.examples))
                else:
                    stage.advance(sum(len(one.text(n)) for one in routed.examples for n in columns))

            encoder.run(blocks, done)
        encoder.files.sync()

    def _blocks(self, router: Router) -> Iterator[RoutedBlock]:
        for block in in_example_blocks(self.training, self.schema.text_names):
            yield router.route(block)
        yield from all_for_validation(self.validation)

    def _media_blocks(
        self, held_out: NDArray[np.bool_], usable: NDArray[np.bool_]
    ) -> Iterator[RoutedBlock]:
        """Yield blocks of training examples in order, then of validation examples in random order.
        In the examples, media are replaced by the numbers under which they are stored."""
        folder, n = self.place.results, len(usable)
        training = stored_examples(self.training, folder)
        validation = list(compress(training, held_out))
        if self.validation.is_given:
            found = stored_examples(self.validation, folder, n)
            validation = list(compress(found, scan_media(self.validation, folder, n).filled))
        mixed = np.random.default_rng(MIXED).permutation(len(validation)).tolist()
        both = compress(training, usable & ~held_out), [validation[row] for row in mixed]
        for is_valid, examples in enumerate(both):
            for block in in_example_blocks(examples, self.schema.text_names):
                each = np.ones(len(block), np.bool_)
                yield RoutedBlock(block, each & bool(is_valid), each)


def stored_examples(source: DataSource, folder: Path, first: int = 0) -> list[Example]:
    """Return examples in which media are replaced by the numbers under which they are stored.

    The number of an unreadable item is that of another item and must not be used. `first`: number
    of examples of other sources that are stored before these.
    """
    names = source.schema.media_names
    stored = np.cumsum(read_media_records(folder)["marks"] & UNREADABLE == 0) - 1
    rows = stored.reshape(-1, len(names))[first:].tolist()
    return [
        Example({**one.values, **dict(zip(names, row, strict=True))}, *one[1:])
        for one, row in zip(source, rows, strict=False)
    ]


def _for_training(source: DataSource, router: Router) -> Iterator[source.Example]:
    for block in in_example_blocks(source, source.schema.text_names):
        routed = router.route(block)
        yield from compress(routed.examples, ~routed.valid)


def evaluation_set(
    settings: RunSettings, tokenizer: Tokenizer, labels: Sequence[str]
) -> tuple[Columns, list[dict[str, Any]]]:
    """Load the files of `data.text` (or `data.pairs`) for evaluation.

    A label that is not in `labels` raises an error with its file and line.

    Returns:
        The encoded columns in memory, and the examples as written in the files, by column name.
    """
    _check_data_given(schema_of(settings), settings)
    with work_folder() as folder:
        words = folder / "tokenizer.json"
        Vocabularies(tokenizer, tokenizer).save(words)
        with rereadable(settings, folder) as readable:
            source, _ = sources(replace(readable, data=replace(readable.data, valid_text=())))
            with DatasetWriter(source, words, labels, folder) as encoder:
                encoder.run(all_for_validation(source), lambda routed: None)
        fields = source.schema.text_names if source.schema.has_fields else ()
        facts = {"columns": encoder.stores, "fields": fields, "n_bytes": encoder.count.n_bytes}
        opened = open_columns(folder, "valid", facts)
        examples = (folder / "valid.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        if not opened.n:
            raise DataError(f"no {source.schema.unit} to evaluate in {', '.join(source.paths)}.")
        return opened.in_memory(), [json.loads(line) for line in examples]


@dataclass(frozen=True)
class EvaluationMedia:
    """Test set of images, videos or audio."""

    items: Columns
    """Decoded media and encoded targets."""

    places: list[str]
    """File and line of each example."""

    targets: list[str]
    """Labels or texts as they are in the files; empty if the task has neither."""


def evaluation_media(
    media: MediaSpec,
    settings: RunSettings,
    *,
    labels: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    progress: Progress = SILENT,
) -> EvaluationMedia:
    """Load all media of `data.media` for evaluation.

    An item raises an error with its file and line if it cannot be read, has no target, or has a
    label that is not in `labels`. Leaving it out would change the score. Texts are tokenized if a
    tokenizer is given.
    """
    if not settings.data.media:
        raise DataError(f"no data to evaluate was given. Give {DATA_ARGUMENT} after the run.")
    source, _ = sources(settings, media)
    if settings.data.on_bad_row == "error":
        check_files_exist(source)
    with work_folder() as folder:
        words = folder / "tokenizer.json"
        MediaDecoder(list(source), source.schema.media_names, media.form, folder).run(progress)
        _check_scorable(scan_media(source, folder), labels)
        targets = [one.text("text") or ", ".join(one.labels) for one in source]
        if tokenizer is not None:
            Vocabularies(tokenizer, tokenizer).save(words)
        kept = source
        if source.schema.text_names and tokenizer is None:
            kept = replace(source, schema=source.schema.without_target())
        examples = stored_examples(source, folder)
        with DatasetWriter(kept, words, labels, folder) as encoder:
            encoder.run(all_for_validation(kept, examples), lambda routed: None)
        facts = {"columns": encoder.stores, "fields": (), "n_bytes": encoder.count.n_bytes}
        # The mapped files stay readable after their folder is removed.
        opened = open_columns(folder, "valid", {**facts, "form": asdict(media.form)})
    found = targets if source.schema.has_target else []
    return EvaluationMedia(opened, [one.place for one in source], found)


def _check_scorable(seen: DatasetScan, labels: Sequence[str]) -> None:
    unit, problems = seen.source.schema.unit, seen.labels.problems
    if not len(seen):
        raise DataError(f"the data has no {unit} to evaluate. Give files with at least one.")
    if problems:
        n = seen.labels.n_problems
        shown = " ".join(list(problems.values())[:MOST_NAMED])
        more = f" And {n - MOST_NAMED:,} more." * (n > MOST_NAMED)
        raise DataError(f"{n:,} of {len(seen):,} {unit} cannot be read: {shown}{more}")
    empty = seen.rows(EMPTY)
    if seen.source.schema.has_single_class and seen.labels.n_unlabelled:
        empty = np.flatnonzero(seen.label < 0)
    if len(empty):
        [one] = seen.examples(empty[:1].tolist()).values()
        lacks = "text" if seen.source.schema.text_names else "label"
        what = f"a {unit.removesuffix('s')} without a {lacks}"
        raise DataError(f"{one.place}: {what} cannot be evaluated.")
    for name in seen.labels.counts:
        if name not in labels:
            raise DataError(
                f"{seen.labels.places[name]}: the label {name!r} is unknown to this run. Its "
                f"labels "
                f"are: {listed(labels, 20)}."
            )
