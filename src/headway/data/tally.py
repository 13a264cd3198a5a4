"""Pairs to token ids, counting what is left out and what the tokenizer cannot cover."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from headway.config.data import DataSettings
from headway.data.pairs import Pair
from headway.data.report import Finding, Report
from headway.text.tokenizer import Vocabularies
from headway.text.words import Flat

LIMITS = (64, 128, 256, 512, 1024)
"""The numbers of tokens for which the report says how many pairs are longer."""

MOST_CHARACTERS = 100
"""Texts with more characters a token than this, at the longest limit, are too long unseen: nothing
is gained by tokenising megabytes without a blank, and much memory and time are lost."""


class Tally:
    def __init__(self, vocab: Vocabularies, settings: DataSettings) -> None:
        self.vocab = vocab
        self.settings = settings
        self.dropped = {"empty": 0, "over_long": 0, "ratio": 0,
                        "validation_empty": 0, "validation_over_long": 0}  # fmt: skip
        self.kept = {"training": 0, "validation": 0}
        self.over_long = dict.fromkeys(sorted({*LIMITS, settings.max_len}), 0)
        self.tokens = [0, 0]
        self.characters = [0, 0]
        self.unknown_tokens = 0
        self.unknown_characters: set[str] = set()

    def encode(
        self, pairs: Sequence[Pair], *, validation: bool = False
    ) -> tuple[list[Pair], Flat, Flat]:
        """The pairs that stay, and the ids of their sources and targets."""
        filled = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
        most = MOST_CHARACTERS * max(self.over_long)
        sources = self.vocab.source.encode_flat([source[:most] for source, _ in filled])
        targets = self.vocab.target.encode_flat([target[:most] for _, target in filled])
        characters = np.array([[len(pair[side]) for pair in filled] for side in (0, 1)], np.int64)
        lengths = np.where(characters > most, most, [sources.lengths, targets.lengths])
        longer, shorter = lengths.max(axis=0), lengths.min(axis=0)
        too_long = (longer > self.settings.max_len) | (shorter == 0)
        ratio = 0.0 if validation else self.settings.max_ratio
        uneven = ~too_long & (longer > ratio * shorter) & bool(ratio)
        prefix = "validation_" if validation else ""
        self.dropped[f"{prefix}empty"] += len(pairs) - len(filled)
        self.dropped[f"{prefix}over_long"] += int(too_long.sum())
        self.dropped["ratio"] += int(uneven.sum())
        if not validation:
            self._measure(characters, lengths)
        self._look_for_unknown(filled, sources, targets)
        kept = ~(too_long | uneven)
        self.kept["validation" if validation else "training"] += int(kept.sum())
        return list(compress(filled, kept)), sources.rows(kept), targets.rows(kept)

    def _measure(self, characters: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        longer = lengths.max(axis=0)
        for limit in self.over_long:
            self.over_long[limit] += int((longer > limit).sum())
        for side in (0, 1):
            self.tokens[side] += int(lengths[side].sum())
            self.characters[side] += int(characters[side].sum())

    def _look_for_unknown(self, pairs: list[Pair], sources: Flat, targets: Flat) -> None:
        for side, tokenizer, (ids, lengths) in (
            (0, self.vocab.source, sources),
            (1, self.vocab.target, targets),
        ):
            if tokenizer.covers_everything:
                continue
            where = np.flatnonzero(ids == tokenizer.unk)
            self.unknown_tokens += len(where)
            for row in np.unique(np.searchsorted(np.cumsum(lengths), where, side="right")):
                self.unknown_characters |= tokenizer.unknown_characters(pairs[row][side])

    def _reasons(self) -> str:
        said = {"empty": "with an empty side", "over_long": "too long", "ratio": "too uneven",
                "validation_empty": "for validation with an empty side",
                "validation_over_long": "for validation too long"}  # fmt: skip
        return ", ".join(f"{n:,} {said[why]}" for why, n in self.dropped.items() if n)

    def add_to(self, report: Report) -> None:
        """The part of the report that needs a tokenizer."""
        for which, n in self.kept.items():
            if not n:
                text = (
                    f"no {which} pairs are left: {self._reasons()}. data.max_len is "
                    f"{self.settings.max_len}; a higher one keeps longer pairs."
                )
                report.findings.append(Finding("error", "nothing-left", 0, text))
        report.over_long = self.over_long
        for side, tokenizer in enumerate((self.vocab.source, self.vocab.target)):
            name = ("source", "target")[side]
            report.sizes[f"{name}_tokens"] = self.tokens[side]
            report.sizes[f"{name}_characters"] = self.characters[side]
            report.sizes[f"{name}_vocabulary"] = tokenizer.vocab_size
        limit = self.settings.max_len
        for which, name in (("", "over_long"), ("validation ", "validation_over_long")):
            if n := self.dropped[name]:
                text = (
                    f"{n:,} {which}pair{'s' * (n > 1)} of more than {limit} tokens a side "
                    f"(data.max_len) {'are' if n > 1 else 'is'} left out."
                )
                report.findings.append(Finding("warning", name.replace("_", "-"), n, text))
        if n := self.dropped["ratio"]:
            text = (
                f"{n:,} pairs are left out because one side has more than "
                f"{self.settings.max_ratio:g} times the tokens of the other (data.max_ratio)."
            )
            report.findings.append(Finding("note", "uneven", n, text))
        if n := self.unknown_tokens:
            text = unknown_text(n, self.unknown_characters)
            report.findings.append(Finding("warning", "unknown", n, text))


def unknown_text(n: int, characters: set[str]) -> str:
    text = f"{n:,} tokens are unknown to the tokenizer"
    if characters:
        shown = sorted(characters)[:20]
        more = ", …" if len(characters) > 20 else ""
        text += (
            f", which lacks {len(characters):,} characters: "
            + ", ".join(f"{c} U+{ord(c):04X}" for c in shown)
            + more
        )
    return text + "."
