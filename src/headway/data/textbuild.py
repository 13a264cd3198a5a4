"""Making the store of texts: the check, the split, the tokenizer, the tokens; each stage once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.config.run import RunSettings
from headway.data.example import Source, TextKind, in_example_blocks, sources
from headway.data.report import Finding, Report
from headway.data.split import choose_rows
from headway.data.store import ImpossibleData
from headway.data.survey import Survey, survey
from headway.data.textcheck import PROBLEMS, UNITS, check_texts, sorted_labels
from headway.data.tokenise import Count, Routed, Router, Tokeniser
from headway.data.workplace import Workplace
from headway.errors import DataError
from headway.progress import Progress
from headway.text.tokenizer import Tokenizer, Vocabularies
from headway.text.train import train_on_texts

FEW_DOCUMENTS = 20
"""With fewer of them a tenth of the characters is held out instead of a tenth of the documents."""


class TextBuild:
    """Makes all files of the folder but the seal."""

    def __init__(
        self, kind: TextKind, settings: RunSettings, place: Workplace, progress: Progress
    ) -> None:
        self.kind = kind
        self.settings = settings
        self.place = place
        self.progress = progress
        self.training, self.validation = sources(kind, settings)

    def run(self, given: Tokenizer | None, specials: Sequence[str]) -> dict[str, Any]:
        """Returns what the seal should say."""
        split = self.place.state / "held_out.npy"
        plan = self.place.stage("plan", lambda: self._plan(split), split)
        held_out, blank = np.load(split)
        tokenizer = self._tokenizer(plan, held_out, given, specials)
        labels = {name: i for i, name in enumerate(plan["labels"])}
        done, files = self.place.recorded() or ({}, {})
        count = Count(**done)
        with Tokeniser(
            self.training, tokenizer, labels, self.place.results, count, files
        ) as tokeniser:
            self._tokenise(tokeniser, Router(held_out, plan["cut"], blank), plan["characters"])
        report = Report.from_dict(plan["report"])
        tokeniser.add_to(report)
        if report.impossible:
            raise ImpossibleData(report)
        text = json.dumps(report.to_dict())
        (self.place.results / "report.json").write_text(text, encoding="utf-8")
        if bad := plan["problems"]:
            lines = (json.dumps({"place": place, "why": why}) + "\n" for place, why in bad.items())
            (self.place.results / PROBLEMS).write_text("".join(lines), encoding="utf-8")
        return {
            "kind": self.kind,
            "columns": list(self.training.columns),
            "labels": plan["labels"],
            "dtype": tokeniser.dtype,
            "dropped": count.dropped,
            "n_bytes": count.n_bytes,
        }

    def _plan(self, split: Path) -> dict[str, Any]:
        """The check and the split: what is known before there is a tokenizer."""
        with self.progress.stage("checking the data", unit="characters") as stage:
            seen = survey(self.training, stage.advance)
            held = survey(self.validation, stage.advance) if self.validation.paths else None
        report = check_texts(seen, held)
        if report.impossible:
            raise ImpossibleData(report)
        cut = None
        held_out = np.zeros(len(seen), np.bool_)
        if held is None and self.kind == "documents" and seen.filled.sum() < FEW_DOCUMENTS:
            cut = int(0.9 * int(seen.characters[seen.filled].sum()))
        elif held is None:
            held_out = _split(seen, self.settings.data.valid_size, report)
        np.save(split, np.stack([held_out, ~seen.filled]))
        names = sorted_labels(list(seen.names.counts))
        characters = int(seen.characters.sum()) + (int(held.characters.sum()) if held else 0)
        problems = seen.names.problems | (held.names.problems if held else {})
        return {
            "report": report.to_dict(),
            "cut": cut,
            "labels": names,
            "characters": characters,
            "problems": problems,
        }

    def _tokenizer(
        self, plan: Mapping[str, Any], held_out: NDArray[np.bool_], given: Tokenizer | None,
        specials: Sequence[str],
    ) -> Tokenizer:  # fmt: skip
        path = self.place.results / "tokenizer.json"

        def make() -> None:
            if given is not None:
                tokenizer = given.with_specials(specials)
            else:
                texts = _training_texts(self.training, Router(held_out, plan["cut"]))
                size, wanted = plan["characters"], self.settings.tokenizer
                with self.progress.stage(
                    "training the tokenizer" if wanted.file is None else "reading the tokenizer"
                ):
                    tokenizer = train_on_texts(texts, wanted, size, specials)
            Vocabularies(tokenizer, tokenizer).save(path)

        self.place.stage("tokenizer", make, path)
        return Vocabularies.load(path).source

    def _tokenise(self, tokeniser: Tokeniser, router: Router, characters: int) -> None:
        """All blocks behind those that are done; the state is recorded after each."""
        with self.progress.stage("tokenising", characters, "characters") as stage:
            for i, routed in enumerate(self._blocks(router)):
                if i >= tokeniser.count.blocks:
                    tokeniser.add(routed)
                    self.place.record(tokeniser.count.to_dict(), tokeniser.files.sync())
                columns = self.training.columns
                stage.advance(sum(len(one.item.values[name]) for one in routed for name in columns))

    def _blocks(self, router: Router) -> Iterator[list[Routed]]:
        for block in in_example_blocks(self.training, self.training.columns):
            yield router.route(block)
        yield from all_for_validation(self.validation)


def all_for_validation(source: Source) -> Iterator[list[Routed]]:
    first = True
    for block in in_example_blocks(source, source.columns):
        routed: list[Routed] = []
        for item in block:
            routed.append(Routed(item, True, first))
            first = item.ends
        yield routed


def _training_texts(source: Source, router: Router) -> Iterator[str]:
    for block in in_example_blocks(source, source.columns):
        for one in router.route(block):
            if not one.valid:
                yield from filter(None, map(one.item.text, source.columns))


def _split(seen: Survey, size: int, report: Report) -> NDArray[np.bool_]:
    """Which examples are for validation: whole groups that share a text; never all of a class."""
    held_out = np.zeros(len(seen), np.bool_)
    rows = np.flatnonzero(seen.filled)
    unit = UNITS[seen.source.kind]
    try:
        chosen = choose_rows(seen.key[rows], seen.other[rows], size, unit, "--valid-text")
    except DataError as error:
        report.findings.append(Finding("error", "no-split", 0, str(error)))
        raise ImpossibleData(report) from error
    held_out[rows[chosen]] = True
    if seen.names.counts and seen.source.kind != "tagged":
        left = np.bincount(seen.label[seen.filled & ~held_out], minlength=len(seen.names.counts))
        held_out &= left[seen.label] > 0
    return held_out
