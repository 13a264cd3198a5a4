"""Tag schemes that mark spans with one tag per word: detection, and conversion to BIO.

- BIO (IOB2): `B-` begins every span, `I-` continues it, and `O` is outside of spans.
- IOB1: all words of a span are `I-`. `B-` begins a span only directly after another of its type.
- BIOES: `E-` ends a span of several words, and `S-` is a span of one word.
- BILOU: like BIOES, with `L-` and `U-` instead of `E-` and `S-`.
- Plain tags mark no spans.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headway.errors import DataError

TagScheme = Literal["bio", "bioes", "iob1", "plain"]

OUTSIDE = "O"
_MARKED = re.compile(r"([BIESLU])-(.+)", re.DOTALL)
_NAMES = {"bio": "BIO", "iob1": "IOB1", "bioes": "BIOES", "plain": "plain tags"}


def split_tag(tag: str) -> tuple[str, str]:
    """Return the letter and the type of a span tag, with `L` and `U` converted to `E` and `S`. The
    tag outside of spans gives ("O", ""). A tag that marks no span has an empty letter."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    match = _MARKED.fullmatch(tag)
    if match is None:
        return "", tag
    return {"L": "E", "U": "S"}.get(match[1], match[1]), match[2]


@dataclass
class TagSchemeDetector:
    """Detects the tag scheme of sentences that are added one by one."""

    evidence: dict[str, str] = field(default_factory=dict)
    """For each scheme, the first tag that indicates it, with its file and line."""

    def add(self, tags: Sequence[str], place: str) -> None:
        before = (OUTSIDE, "")
        split = [split_tag(tag) for tag in tags]
        for i, (letter, kind) in enumerate(split):
            shown = f"{tags[i]} (word {i + 1} of the sentence at {place})"
            same = before[0] in ("B", "I") and before[1] == kind
            following = split[i + 1] if i + 1 < len(split) else (OUTSIDE, "")
            goes_on = following[0] in ("I", "E") and following[1] == kind
            if not letter:
                self.evidence.setdefault("plain", shown)
            elif letter in ("E", "S"):
                self.evidence.setdefault("bioes", shown)
            elif letter == "I" and not same:
                self.evidence.setdefault("iob1", shown)
            elif letter == "B" and not same:
                self.evidence.setdefault("bio", shown)
            if letter in ("B", "I") and not goes_on:
                self.evidence.setdefault("no end", shown)
            before = letter, kind

    def scheme(self) -> TagScheme:
        """Return the scheme that fits all tags. Raise a `DataError` if schemes are mixed."""
        seen = self.evidence
        if not seen:
            return "bio"
        if "plain" in seen:
            self._alone("plain", ("bioes", "iob1", "bio"))
            return "plain"
        if "bioes" in seen:
            # In BIOES, a span of several words begins with B and ends with E, and a span of one
            # word is S.
            self._alone("bioes", ("iob1", "no end"))
            return "bioes"
        if "bio" in seen:
            self._alone("bio", ("iob1",))
            return "bio"
        return "iob1"

    def _alone(self, scheme: TagScheme, others: Sequence[str]) -> None:
        for other in others:
            if other in self.evidence:
                name = _NAMES["bio" if other == "no end" else other]
                raise DataError(
                    f"the tags mix two schemes: {self.evidence[scheme]} is {_NAMES[scheme]}, but "
                    f"{self.evidence[other]} is {name}. Choose one with tag.scheme=bio, bioes, "
                    "iob1 or plain. Tags that do not fit this scheme are converted as closely as "
                    "possible."
                )


def to_bio(tags: Sequence[str], scheme: TagScheme) -> tuple[list[str], int]:
    """Return the tags in BIO, and the number of tags that do not fit the scheme. As in evaluation
    programs for tagging, an `I-` or `E-` without a span to continue begins one."""
    if scheme == "plain":
        return list(tags), 0
    made: list[str] = []
    misfits = 0
    open_kind: str | None = None
    touches: str | None = None  # type of a span that ended directly before, needed for IOB1
    for tag in tags:
        letter, kind = split_tag(tag)
        if letter == OUTSIDE or not letter:
            misfits += not letter
            made.append(OUTSIDE)
            open_kind = touches = None
            continue
        begins = letter in ("B", "S") or open_kind != kind
        if scheme == "iob1":
            misfits += letter in ("E", "S") or (letter == "B" and touches != kind)
        else:
            misfits += (begins and letter in ("I", "E")) or (
                scheme == "bio" and letter in ("E", "S")
            )
        made.append(f"{'B' if begins else 'I'}-{kind}")
        touches = kind
        open_kind = None if letter in ("E", "S") else kind
    return made, misfits


def check_words(words: Sequence[str], tags: Sequence[str], where: str) -> None:
    """Raise a `DataError` unless there is one tag per word and none of them is empty."""
    if len(words) != len(tags):
        raise DataError(
            f"{where} has {len(words)} words but {len(tags)} tags. Give one tag per word."
        )
    if not all(map(str.strip, words)) or not all(tags):
        raise DataError(f"{where} has an empty word or tag.")
