"""From files to what training reads: checked, split, tokenised, and kept in the run folder.

The result lies in `data/`. It is made beside it and moved there when complete; a process may be
killed at any moment, and the next one goes on where it was. It carries checksums of itself and of
what it was made from, so that it is used again exactly when nothing has changed. Preparing takes
all cores, and the memory of some blocks of text and of about 100 bytes an example. Texts are read
twice, for the check and for their tokens; media once, and what is known of them then decides.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, compress, tee
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.data import example
from headway.data.check import (
    MOST_NAMED,
    PROBLEMS,
    absent_labels,
    check,
    listed,
    sorted_labels,
    unit_of,
)
from headway.data.check_report import Report
from headway.data.checksummed import Facts, read_sealed, seal
from headway.data.encode import Encoder, Routed, Router, all_for_validation
from headway.data.example import Example, Source, TextKind, WantedMedia, in_example_blocks, sources
from headway.data.fingerprint import (
    SEEN,
    contents,
    rereadable,
    states,
    tokenizer_inputs,
    wanted_inputs,
)
from headway.data.language_id import Profiles
from headway.data.media.decoding import UNREADABLE, Decoder, read_facts
from headway.data.media.open_item import Medium, is_there, leads_nowhere
from headway.data.readers import lines
from headway.data.resumable import Workplace, tidy, workplace
from headway.data.split import split_off
from headway.data.store import (
    DATA,
    Columns,
    ImpossibleData,
    Prepared,
    load_prepared,
    open_columns,
)
from headway.data.survey import EMPTY, Survey, survey, survey_media
from headway.errors import DataError
from headway.progress import SILENT, Progress
from headway.settings.run import RunSettings
from headway.settings.text import Shape
from headway.storage import work_folder
from headway.tasks.specs import spec_of
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import train_on_texts, train_vocabularies

FEW_DOCUMENTS = 20
"""With fewer of them a tenth of the characters is held out instead of a tenth of the documents."""

MIXED = 6
"""The seed of the order of validation media: folders come class after class, and the first ones,
which training is judged by on its way, must be a fair sample of all."""

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
    media: WantedMedia | None = None,
) -> Prepared:
    """Check, split, train the tokenizer unless one is given, tokenise; or find all that done.

    `specials` are tokens that no text becomes, such as `<mask>`. Where the given tokenizer lacks
    them they get new ids behind all others. `media`: what pictures, videos and recordings are
    brought to, and come with.
    """
    _check_asked(kind, settings)
    folder.mkdir(parents=True, exist_ok=True)
    with rereadable(settings, folder) as settings:
        settings = example.answered(kind, settings, media)
        both = None if media is None else sources(kind, settings, media)
        wanted = wanted_inputs(settings) if both is None else _media_inputs(both, folder)
        wanted |= {
            "kind": kind,
            "specials": list(specials),
            "given": tokenizer and hashlib.sha256(tokenizer.to_json().encode()).hexdigest(),
        }
        if kind == "tagged":
            tag = settings.tag
            wanted["tag"] = {"scheme": tag.scheme, "prefix_strip": tag.prefix_strip}
        if spec_of(settings).answers in ("labels", "number"):
            wanted["answer"] = spec_of(settings).answers
        made = read_sealed(folder / DATA, progress.note)
        if made is None or not _is_of(made, wanted):
            # Work goes on behind whole blocks, so that it must be cut into the same ones, with the
            # same columns.
            blocks = [example.BLOCK, example.BLOCK_CHARACTERS, lines.PIECE]
            cut = {"blocks": blocks, **({"shapes": len(Shape)} if kind == "tagged" else {})}
            with workplace(folder / DATA, {**wanted, **cut}, progress.note) as place:
                build = Build(both or sources(kind, settings), place, progress)
                facts = build.run(tokenizer, specials)
                if both is not None:
                    seen = {"states": states([list(one) for one in both]), "files": wanted["files"]}
                    (place.results / SEEN).write_text(json.dumps(seen), encoding="utf-8")
                seal(place.results, {"inputs": wanted, **facts})
        tidy(folder / DATA)
    return load_prepared(folder)


def _is_of(made: Facts, wanted: Facts) -> bool:
    """Whether it was made from this. The first version said less of pairs."""
    inputs = made["inputs"]
    if made["version"] == 1 and wanted["kind"] == "pairs" and "dtypes" in made:
        wanted = {name: value for name, value in wanted.items() if name in inputs}
    return inputs == wanted


def _media_inputs(both: tuple[Source, Source], folder: Path) -> Facts:
    """What the prepared data follows from. While the files are as they were when it was made, they
    are not read again to see whether their contents are."""
    settings, media = both[0].settings, both[0].media
    assert media is not None
    if settings.data.bad == "error":
        check_there(*(one for one in both if not one.in_arrays))
    splits = [list(one) for one in both]
    try:
        seen = json.loads((folder / DATA / SEEN).read_text(encoding="utf-8"))
        files = seen["files"] if seen["states"] == states(splits) else contents(splits)
    except (OSError, ValueError, KeyError, TypeError):
        files = contents(splits)
    values = {
        "files": files, "form": asdict(media.form), "target": media.target,
        "valid_size": settings.data.valid_size, "answer": "label",
        "tokenizer": tokenizer_inputs(settings) if both[0].columns else None,
    }  # fmt: skip
    return json.loads(json.dumps(values))  # as it comes back from a file


def check_there(*several: Source) -> None:
    """One error that lists all missing files."""
    files: dict[str, str] = {}
    for one in chain(*several):
        for value in one.values.values():
            if isinstance(value, Medium):
                files.setdefault(value.path, one.place)
    # Links that lead nowhere are named when they are read, and left out.
    missing = [
        f"{name} ({place})" for name, place in files.items()
        if not is_there(Path(name)) and not leads_nowhere(Path(name))
    ]  # fmt: skip
    if missing:
        shown = ", ".join(missing[:MOST_NAMED])
        more = f", and {len(missing) - MOST_NAMED:,} more" * (len(missing) > MOST_NAMED)
        n = len(missing)
        raise DataError(
            f"{'1 file is' if n == 1 else f'{n:,} files are'} missing: {shown}{more}. Paths in a "
            "manifest are relative to the folder it lies in."
        )


NOTHING_IN_PYTHON = (
    "there is nothing to train on. Pass data, a path or a table: headway.train(task, data, out=…)"
)


def _check_asked(kind: TextKind, settings: RunSettings) -> None:
    data = settings.data
    if kind == "media":
        if not data.media:
            raise DataError(
                "there is nothing to train on. Give a folder or files: headway train TASK FILES",
                python=NOTHING_IN_PYTHON,
            )
    elif kind == "pairs":
        if not data.source and not data.pairs:
            raise DataError(
                "there is nothing to train on. Give a table of pairs, or --source and --target."
            )
    elif not data.text and not (kind == "texts" and data.pairs):
        raise DataError(
            "there is nothing to train on. Give files: headway train TASK FILES",
            python=NOTHING_IN_PYTHON,
        )
    if kind == "fields" and not data.fields:
        raise DataError("data.fields=… must name the fields of the records; the last is the body.")


class Build:
    """Makes all files of the folder but the seal, stage after stage, each once."""

    def __init__(self, both: tuple[Source, Source], place: Workplace, progress: Progress) -> None:
        self.training, self.validation = both
        self.kind = self.training.kind
        self.settings = self.training.settings
        self.media = self.training.media
        self.place = place
        self.progress = progress

    def run(self, given: Tokenizer | None, specials: Sequence[str]) -> Facts:
        """Returns what the seal should say."""
        split = self.place.state / "held_out.npy"
        if self.media is not None:
            examples = [*self.training, *self.validation]
            Decoder(examples, self.media, self.place.results, self.place).run(self.progress)
        plan = self.place.stage("plan", lambda: self._plan(split), split)
        held_out, blank = np.load(split)
        words = self.place.results / "tokenizer.json"

        def make() -> None:
            left_out = held_out | blank if self.kind in ("pairs", "media") else held_out
            texts = _for_training(self.training, Router(left_out, plan["cut"]))
            self._vocabularies(plan, texts, given, specials).save(words)

        if self.training.columns:
            self.place.stage("tokenizer", make, words)
        with Encoder(
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
            "fields": list(self.training.columns) if self.kind == "fields" else [],
            "labels": plan["labels"],
            "dropped": encoder.count.dropped,
            "n_bytes": encoder.count.n_bytes,
        }

    @property
    def _unit(self) -> str:
        return "characters" if self.kind not in ("pairs", "media") else unit_of(self.training)

    def _surveys(self) -> tuple[Survey, Survey | None]:
        """Of training, and of validation where that is given."""
        if self.media is not None:
            seen, held = survey_media(self.training, self.place.results), None
            if self.validation.is_given:
                held = survey_media(self.validation, self.place.results, len(seen))
            return seen, held
        with self.progress.stage("checking the data", unit=self._unit) as stage:
            profiles, held = Profiles(), None
            seen = survey(self.training, stage.advance, profiles)
            if self.validation.is_given:
                held = survey(self.validation, stage.advance, profiles, learn=False)
        return seen, held

    def _plan(self, split: Path) -> Facts:
        """The check and the split: what is known before there is a tokenizer."""
        seen, held = self._surveys()
        report = check(seen, held)
        if report.impossible:
            raise ImpossibleData(report)
        cut, labels = None, sorted_labels(seen.names.counts)
        surveys = [seen] if held is None else [seen, held]
        characters = sum(one.n_characters for one in surveys)
        size = characters if self._unit == "characters" else sum(map(len, surveys))
        problems = {k: v for one in surveys for k, v in one.names.problems.items()}
        held_out = np.zeros(len(seen), np.bool_)
        if held is None and self.kind == "documents" and seen.filled.sum() < FEW_DOCUMENTS:
            cut = int(0.9 * int(seen.lengths[0][seen.filled].sum()))
        elif held is None:
            # Where most memory is taken, what only the check needs is gone.
            surveys.clear()
            seen = replace(seen, exact=seen.exact[:0].copy(), lengths=())
            held_out = split_off(seen, self.settings.data.valid_size, report)
        if self.media is not None:
            some = [list(compress(self.training, rows)) for rows in (seen.filled, held_out)]
            if held is None:
                named = [{name for one in part for name in one.labels} for part in some]
                report.findings += absent_labels(named[1], named[0])
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

    def _encode(self, encoder: Encoder, blocks: Iterator[Routed], size: int) -> None:
        """All blocks behind those that are done; now and then it is recorded how far it is."""
        kept = time.monotonic()
        columns = self.training.columns
        progress = self.progress if columns else SILENT
        with progress.stage("tokenising", size, self._unit) as stage:

            def done(routed: Routed) -> None:
                nonlocal kept
                if time.monotonic() - kept >= RECORD_SECONDS:
                    self.place.record(encoder.count.to_dict(), encoder.files.sync())
                    kept = time.monotonic()
                if self._unit != "characters":
                    stage.advance(len(routed.examples))
                else:
                    stage.advance(sum(len(one.text(n)) for one in routed.examples for n in columns))

            encoder.run(blocks, done)
        encoder.files.sync()

    def _blocks(self, router: Router) -> Iterator[Routed]:
        for block in in_example_blocks(self.training, self.training.columns):
            yield router.route(block)
        yield from all_for_validation(self.validation)

    def _media_blocks(
        self, held_out: NDArray[np.bool_], usable: NDArray[np.bool_]
    ) -> Iterator[Routed]:
        """What is for training in its order, then what is for validation, mixed; each by the
        number under which it was stored."""
        folder, n = self.place.results, len(usable)
        training = stored_examples(self.training, folder)
        validation = list(compress(training, held_out))
        if self.validation.is_given:
            found = stored_examples(self.validation, folder, n)
            validation = list(compress(found, survey_media(self.validation, folder, n).filled))
        mixed = np.random.default_rng(MIXED).permutation(len(validation)).tolist()
        both = compress(training, usable & ~held_out), [validation[row] for row in mixed]
        for is_valid, examples in enumerate(both):
            for block in in_example_blocks(examples, self.training.columns):
                each = np.ones(len(block), np.bool_)
                yield Routed(block, each & bool(is_valid), each)


def stored_examples(source: Source, folder: Path, first: int = 0) -> list[Example]:
    """With the numbers of their media in the folder, behind the `first` examples that are not
    these; what could not be read has one of another."""
    assert source.media is not None
    names = source.media.names
    stored = np.cumsum(read_facts(folder)["marks"] & UNREADABLE == 0) - 1
    rows = stored.reshape(-1, len(names))[first:].tolist()
    return [
        Example({**one.values, **dict(zip(names, row, strict=True))}, *one[1:])
        for one, row in zip(source, rows, strict=False)
    ]


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
    with work_folder() as folder:
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
            raise DataError(f"there are no {unit_of(source)} in {', '.join(source.paths)}.")
        return opened.in_memory(), [json.loads(line) for line in examples]


@dataclass(frozen=True)
class EvaluationMedia:
    """A test set."""

    items: Columns
    places: list[str]
    targets: list[str]
    """Labels or texts as they stand in the files; empty where none were asked for."""


def evaluation_media(
    media: WantedMedia,
    settings: RunSettings,
    *,
    labels: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    progress: Progress = SILENT,
) -> EvaluationMedia:
    """Everything in `data.media`, for scoring. What cannot be read, has no target or a label that
    is not among `labels` is an error that says where: scores would not be of the same things.

    Texts become tokens if there is a tokenizer.
    """
    if not settings.data.media:
        raise DataError(
            "there is nothing to score. Give a folder or files: headway evaluate RUN FILES",
            python="there is nothing to score. Pass data, a path or a table: run.evaluate(data)",
        )
    source, _ = sources("media", settings, media)
    if settings.data.bad == "error":
        check_there(source)
    with work_folder() as folder:
        words = folder / "tokenizer.json"
        Decoder(list(source), media, folder).run(progress)
        _check_scorable(survey_media(source, folder), labels)
        targets = [one.text("text") or ", ".join(one.labels) for one in source]
        if tokenizer is not None:
            Vocabularies(tokenizer, tokenizer).save(words)
        kept = source
        if source.columns and tokenizer is None:
            kept = replace(source, media=replace(media, target="none"))
        examples = stored_examples(source, folder)
        with Encoder(kept, words, labels, folder) as encoder:
            encoder.run(all_for_validation(kept, examples), lambda routed: None)
        facts = {"columns": encoder.stores, "fields": (), "n_bytes": encoder.count.n_bytes}
        # The files stay mapped when their folder is gone.
        opened = open_columns(folder, "valid", {**facts, "form": asdict(media.form)})
    found = [] if media.target in ("none", "other") else targets
    return EvaluationMedia(opened, [one.place for one in source], found)


def _check_scorable(seen: Survey, labels: Sequence[str]) -> None:
    unit, problems = unit_of(seen.source), seen.names.problems
    if not len(seen):
        raise DataError(f"there are no {unit} to score.")
    if problems:
        n = seen.names.n_problems
        shown = " ".join(list(problems.values())[:MOST_NAMED])
        more = f" And {n - MOST_NAMED:,} more." * (n > MOST_NAMED)
        raise DataError(f"{n:,} of {len(seen):,} {unit} cannot be read: {shown}{more}")
    empty = seen.rows(EMPTY)
    if "label" in seen.source.kinds and seen.names.without:
        empty = np.flatnonzero(seen.label < 0)
    if len(empty):
        [one] = seen.examples(empty[:1].tolist()).values()
        what = f"a {unit.removesuffix('s')} without a {'text' if seen.source.columns else 'label'}"
        raise DataError(f"{one.place}: {what} cannot be scored.")
    for name in seen.names.counts:
        if name not in labels:
            raise DataError(
                f"{seen.names.places[name]}: the label {name!r} cannot be scored; this run knows "
                f"the classes {listed(labels, 20)}."
            )
