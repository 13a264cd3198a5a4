"""From files to what training reads: checked, split, tokenised, and kept in the run folder.

The result lies in `data/`. It is made beside it and moved there when complete; a process may be
killed at any moment, and the next one goes on where it was. It carries checksums of itself and of
what it was made from, so that it is used again exactly when nothing has changed. Preparing takes
all cores, and the memory of some blocks of text and of about 100 bytes an example.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress, tee
from pathlib import Path

import numpy as np

from headway.data import example
from headway.data.check import PROBLEMS, UNITS, check_texts, sorted_labels
from headway.data.check_report import Report
from headway.data.encode import Encoder, Routed, Router, all_for_validation
from headway.data.example import Source, TextKind, in_example_blocks, sources
from headway.data.fingerprint import rereadable, wanted_inputs
from headway.data.language_id import Profiles
from headway.data.readers import lines
from headway.data.sealed import Facts, read_sealed, seal
from headway.data.split import split_off
from headway.data.store import (
    DATA,
    Columns,
    ImpossibleData,
    Prepared,
    load_prepared,
    open_columns,
)
from headway.data.survey import survey
from headway.data.workplace import Workplace, tidy, workplace
from headway.errors import DataError
from headway.progress import SILENT, Progress
from headway.settings.run import RunSettings
from headway.tasks.specs import spec_of
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import train_on_texts, train_vocabularies

FEW_DOCUMENTS = 20
"""With fewer of them a tenth of the characters is held out instead of a tenth of the documents."""

RECORD_SECONDS = 2.0
"""How often it is written down how far the work is: a kill costs no more than this."""


def prepare(
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
        settings = example.answered(kind, settings)
        if spec_of(settings).answers in ("labels", "number"):
            wanted["answer"] = spec_of(settings).answers
        made = read_sealed(folder / DATA, progress.note)
        if made is None or not _is_of(made, wanted):
            # Work goes on behind whole blocks, so that it must be cut into the same ones.
            blocks = [example.BLOCK, example.BLOCK_CHARACTERS, lines.PIECE]
            with workplace(folder / DATA, {**wanted, "blocks": blocks}, progress.note) as place:
                facts = Build(kind, settings, place, progress).run(tokenizer, specials)
                seal(place.results, {"inputs": wanted, **facts})
        tidy(folder / DATA)
    return load_prepared(folder)


def _is_of(made: Facts, wanted: Facts) -> bool:
    """Whether it was made from this. The first version said less of pairs."""
    inputs = made["inputs"]
    if made["version"] == 1 and wanted["kind"] == "pairs" and "dtypes" in made:
        wanted = {name: value for name, value in wanted.items() if name in inputs}
    return inputs == wanted


def _check_asked(kind: TextKind, settings: RunSettings) -> None:
    data = settings.data
    if kind == "pairs":
        if not data.source and not data.pairs:
            raise DataError("there is nothing to train on. Give --source and --target, or --pairs.")
    elif not data.text and not (kind == "texts" and data.pairs):
        raise DataError("there is nothing to train on. Give --text FILE.")
    if kind == "fields" and not data.fields:
        raise DataError("data.fields=… must name the fields of the records; the last is the body.")


class Build:
    """Makes all files of the folder but the seal, stage after stage, each once."""

    def __init__(
        self, kind: TextKind, settings: RunSettings, place: Workplace, progress: Progress
    ) -> None:
        self.kind = kind
        self.settings = settings
        self.place = place
        self.progress = progress
        self.training, self.validation = sources(kind, settings)

    def run(self, given: Tokenizer | None, specials: Sequence[str]) -> Facts:
        """Returns what the seal should say."""
        split = self.place.state / "held_out.npy"
        plan = self.place.stage("plan", lambda: self._plan(split), split)
        held_out, blank = np.load(split)
        words = self.place.results / "tokenizer.json"

        def make() -> None:
            left_out = held_out | blank if self.kind == "pairs" else held_out
            texts = _for_training(self.training, Router(left_out, plan["cut"]))
            self._vocabularies(plan, texts, given, specials).save(words)

        self.place.stage("tokenizer", make, words)
        with Encoder(
            self.training, words, plan["labels"], self.place.results, self.place.recorded()
        ) as encoder:
            self._encode(encoder, Router(held_out, plan["cut"], blank), plan["size"])
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
            "columns": encoder.stores,
            "fields": list(self.training.columns) if self.kind == "fields" else [],
            "labels": plan["labels"],
            "dropped": encoder.count.dropped,
            "n_bytes": encoder.count.n_bytes,
        }

    @property
    def _unit(self) -> str:
        return "pairs" if self.kind == "pairs" else "characters"

    def _plan(self, split: Path) -> Facts:
        """The check and the split: what is known before there is a tokenizer."""
        with self.progress.stage("checking the data", unit=self._unit) as stage:
            profiles, held = Profiles(), None
            seen = survey(self.training, stage.advance, profiles)
            if self.validation.is_given:
                held = survey(self.validation, stage.advance, profiles, learn=False)
        report = check_texts(seen, held)
        if report.impossible:
            raise ImpossibleData(report)
        cut, labels = None, sorted_labels(seen.names.counts)
        surveys = [seen] if held is None else [seen, held]
        characters = sum(one.n_characters for one in surveys)
        size = sum(map(len, surveys)) if self.kind == "pairs" else characters
        problems = {k: v for one in surveys for k, v in one.names.problems.items()}
        held_out = np.zeros(len(seen), np.bool_)
        if held is None and self.kind == "documents" and seen.filled.sum() < FEW_DOCUMENTS:
            cut = int(0.9 * int(seen.lengths[0][seen.filled].sum()))
        elif held is None:
            # Where most memory is taken, what only the check needs is gone.
            surveys.clear()
            seen = replace(seen, exact=seen.exact[:0].copy(), lengths=())
            held_out = split_off(seen, self.settings.data.valid_size, report)
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
        self, plan: Facts, examples: Iterator[example.Example],
        given: Tokenizer | None, specials: Sequence[str],
    ) -> Vocabularies:  # fmt: skip
        """Those that are given, or learned from the training examples."""
        if given is not None:
            tokenizer = given.with_specials(specials)
            return Vocabularies(tokenizer, tokenizer)
        wanted = self.settings.tokenizer
        with self.progress.stage(
            "training the tokenizer" if wanted.file is None else "reading the tokenizer"
        ):
            if self.kind == "pairs":
                one, other = tee(examples)
                sides = (e.text("source") for e in one), (e.text("target") for e in other)
                return train_vocabularies(*sides, wanted, plan["n"])
            columns = self.training.columns
            texts = (text for one in examples for name in columns if (text := one.text(name)))
            tokenizer = train_on_texts(texts, wanted, plan["characters"], specials)
            return Vocabularies(tokenizer, tokenizer)

    def _encode(self, encoder: Encoder, router: Router, size: int) -> None:
        """All blocks behind those that are done; now and then it is recorded how far it is."""
        kept = time.monotonic()
        columns = self.training.columns
        with self.progress.stage("tokenising", size, self._unit) as stage:

            def done(routed: Routed) -> None:
                nonlocal kept
                if time.monotonic() - kept >= RECORD_SECONDS:
                    self.place.record(encoder.count.to_dict(), encoder.files.sync())
                    kept = time.monotonic()
                if self.kind == "pairs":
                    stage.advance(len(routed.examples))
                else:
                    stage.advance(sum(len(one.text(n)) for one in routed.examples for n in columns))

            encoder.run(self._blocks(router), done)
        encoder.files.sync()

    def _blocks(self, router: Router) -> Iterator[Routed]:
        for block in in_example_blocks(self.training, self.training.columns):
            yield router.route(block)
        yield from all_for_validation(self.validation)


def _for_training(source: Source, router: Router) -> Iterator[example.Example]:
    for block in in_example_blocks(source, source.columns):
        routed = router.route(block)
        yield from compress(routed.examples, ~routed.valid)


def evaluation_set(
    kind: TextKind, settings: RunSettings, tokenizer: Tokenizer, labels: Sequence[str]
) -> tuple[Columns, list[Facts]]:
    """The files of `data.text` (or `data.pairs`) for scoring, in memory, and the examples as they
    stand in the files. A label that is not among `labels` is an error that says where."""
    _check_asked(kind, settings)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = folder / "tokenizer.json"
        Vocabularies(tokenizer, tokenizer).save(words)
        with rereadable(settings, folder) as readable:
            source, _ = sources(kind, replace(readable, data=replace(readable.data, valid_text=())))
            with Encoder(source, words, labels, folder) as encoder:
                encoder.run(all_for_validation(source), lambda routed: None)
        fields = source.columns if kind == "fields" else ()
        facts = {"columns": encoder.stores, "fields": fields, "n_bytes": encoder.count.n_bytes}
        opened = open_columns(folder, "valid", facts)
        examples = (folder / "valid.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        if not opened.n:
            raise DataError(f"there are no {UNITS[kind]} in {', '.join(source.paths)}.")
        return opened.in_memory(), [json.loads(line) for line in examples]
