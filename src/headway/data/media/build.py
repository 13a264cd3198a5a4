"""Making the store of media: everything is read once, then checked, split, and its texts become
tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.check import sorted_labels
from headway.data.check_report import Report
from headway.data.media.check import check_media
from headway.data.media.decoding import UNREADABLE, Decoder, read_facts
from headway.data.media.items import MediaItems, check_there, found_items
from headway.data.media.open_item import Form
from headway.data.media.source import Target, names_in
from headway.data.media.splitting import split_off
from headway.data.media.survey import Surveyed, survey
from headway.data.store import ImpossibleData
from headway.data.token_store import side, token_dtype, write_tokens
from headway.data.workplace import Workplace
from headway.progress import Progress
from headway.settings.run import RunSettings
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import train_on_texts
from headway.tokens.word_cache import Flat

SPLITS = ("train", "valid")
EXAMPLES = 200
"""Validation items that are kept for people to see."""

BLOCK = 4096
"""Texts that become tokens at once."""

MIXED = 6
"""The seed of the order of validation items."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Wanted:
    """What is to be made."""

    settings: RunSettings
    form: Form
    target: Target
    tokenizer: Tokenizer | None = None
    """None: learned from the training texts, where there are texts."""

    specials: Sequence[str] = ()

    def items(self) -> tuple[MediaItems, MediaItems]:
        """Of training and of validation. All files that are missing are one error."""
        data = self.settings.data
        both = tuple(
            found_items(paths, data, self.form, self.target)
            for paths in (data.media, data.valid_media)
        )
        if data.bad == "error":
            check_there(*both)
        return both[0], both[1]


class MediaBuild:
    """Makes all files of the folder but the seal."""

    def __init__(self, wanted: Wanted, place: Workplace, progress: Progress) -> None:
        self.wanted = wanted
        self.place = place
        self.progress = progress
        self.folder = place.results

    def run(self, training: MediaItems, validation: MediaItems) -> dict[str, Any]:
        """Returns what the seal should say."""
        both = MediaItems([*training.sources, *validation.sources])
        done, files = self.place.recorded() or ({}, {})
        decoder = Decoder(both, self.wanted.form, self.folder, done.get("items", 0), files)
        decoder.run(self.place.record, self.progress)
        with self.progress.stage("checking the data"):
            asked = self.wanted
            surveyed = survey(
                (training, validation), self.folder, asked.form, asked.target, asked.settings
            )
            report = check_media(surveyed[0], surveyed[1] if validation.sources else None)
        if report.impossible:
            raise ImpossibleData(report)
        splits = self._splits(surveyed, bool(validation.sources), report)
        stored = np.cumsum(read_facts(self.folder)["marks"] & UNREADABLE == 0) - 1
        for name, rows in zip(SPLITS, splits, strict=True):
            stored[rows].astype("<i8").tofile(self.folder / f"{name}.rows")
            if self.wanted.target == "other":
                stored[rows + 1].astype("<i8").tofile(self.folder / f"{name}.other.rows")
        facts = {"labels": [], "dtype": "<u2"}
        if self.wanted.target == "label":
            facts["labels"] = self._labels(surveyed, splits)
        elif self.wanted.target == "text":
            facts["dtype"] = self._texts(both, splits, report)
        self._examples(both, splits[1])
        text = json.dumps(report.to_dict())
        (self.folder / "report.json").write_text(text, encoding="utf-8")
        return facts

    def _splits(
        self, surveyed: tuple[Surveyed, Surveyed], given: bool, report: Report
    ) -> tuple[Rows, Rows]:
        """Numbers of items of both kinds, those of validation counted behind those of training.

        Folders come class after class. Validation items are mixed here, once and always alike, so
        that the first ones, which training is judged by on its way, are a fair sample of all.
        Of two that belong together only the first is counted.
        """
        seen, held = surveyed
        step = 2 if self.wanted.target == "other" else 1
        good = np.flatnonzero(seen.usable)[::step]
        if given:
            training, validation = good, len(seen) + np.flatnonzero(held.usable)[::step]
        else:
            held_out = split_off(seen, good, self.wanted.settings.data.valid_size, report)
            training, validation = good[~held_out], good[held_out]
        return training, np.random.default_rng(MIXED).permutation(validation)

    def _labels(self, surveyed: tuple[Surveyed, Surveyed], splits: tuple[Rows, Rows]) -> list[str]:
        names = sorted_labels(surveyed[0].counts)
        targets = [*surveyed[0].targets, *surveyed[1].targets]
        for name, rows in zip(SPLITS, splits, strict=True):
            found = [targets[row] or "" for row in rows.tolist()]
            write_labels(found, surveyed[0].answer, names, self.folder / name)
        return names

    def _texts(self, items: MediaItems, splits: tuple[Rows, Rows], report: Report) -> str:
        """Write the tokens of both splits. Returns their dtype."""
        texts = [[items[row].text or "" for row in rows.tolist()] for rows in splits]
        tokenizer = self._tokenizer(texts[0])
        Vocabularies(tokenizer, tokenizer).save(self.folder / "tokenizer.json")
        dtype = token_dtype(tokenizer.vocab_size)
        counts = []
        for name, found in zip(SPLITS, texts, strict=True):
            counts.append(write_texts(found, tokenizer, side(self.folder / name, "texts"), dtype))
        report.sizes |= {
            "tokens": float(counts[0]),
            "valid_tokens": float(counts[1]),
            "characters": float(sum(map(len, texts[0]))),
            "vocabulary": float(tokenizer.vocab_size),
        }
        return dtype

    def _tokenizer(self, texts: list[str]) -> Tokenizer:
        wanted = self.wanted
        if wanted.tokenizer is not None:
            return wanted.tokenizer.with_specials(wanted.specials)
        settings = wanted.settings.tokenizer
        reads = settings.file is not None
        with self.progress.stage("reading the tokenizer" if reads else "training the tokenizer"):
            return train_on_texts(texts, settings, sum(map(len, texts)), wanted.specials)

    def _examples(self, items: MediaItems, rows: Rows) -> None:
        with (self.folder / "valid.jsonl").open("w", encoding="utf-8") as file:
            for row in rows[:EXAMPLES].tolist():
                file.write(json.dumps(example(items, row)) + "\n")


def write_labels(labels: Sequence[str], answer: str, names: Sequence[str], name: Path) -> None:
    """The numbers of labels, or what numbers they are."""
    numbers = {label: i for i, label in enumerate(names)}
    if answer == "number":
        np.array([float(one) for one in labels], "<f4").tofile(side(name, "number"))
    elif answer == "labels":
        sets = [[numbers[label] for label in names_in(one)] for one in labels]
        write_tokens(side(name, "several"), "<u4", [Flat.of(sets)])
    else:
        np.array([numbers[one] for one in labels], "<i4").tofile(side(name, "labels"))


def write_texts(texts: Sequence[str], tokenizer: Tokenizer, name: Path, dtype: str) -> int:
    """A token store. Returns how many tokens it has."""
    blocks = (texts[first : first + BLOCK] for first in range(0, len(texts), BLOCK))
    return write_tokens(name, dtype, map(tokenizer.encode_flat, blocks))


def example(items: MediaItems, row: int) -> dict[str, Any]:
    item = items[row]
    label = item.label and ", ".join(names_in(item.label))
    values = {"place": item.place, "label": label, "text": item.text}
    return {name: value for name, value in values.items() if value is not None}
