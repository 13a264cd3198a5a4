"""Tag schemes that mark spans with one tag per word: detection, and conversion to BIO.

BIO (also IOB2): `B-` begins every span, `I-` continues it, `O` is outside. IOB1: spans are all
`I-`, and `B-` begins one only directly after another of its type. BIOES: `E-` ends a span of
several words, `S-` is a span of one; BILOU writes `L-` and `U-` instead. Plain tags mark no spans.
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
    """Split a span tag into letter and type, with `L` and `U` converted to `E` and `S`. A tag
    outside spans gives ("O", ""). A tag that marks no span has an empty letter."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    match = _MARKED.fullmatch(tag)
    if match is None:
        return "", tag
    return {"L": "E", "U": "S"}.get(match[1], match[1]), match[2]


@dataclass
class TagSchemeDetector:
    """Tag scheme detector that collects evidence sentence by sentence."""

    evidence: dict[str, str] = field(default_factory=dict)
    """For each scheme, the first tag that is evidence for it, with its place."""

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
        """Return the scheme that fits all tags; raise a `DataError` if two schemes are mixed."""
        seen = self.evidence
        if not seen:
            return "bio"
        if "plain" in seen:
            self._alone("plain", ("bioes", "iob1", "bio"))
            return "plain"
        if "bioes" in seen:
            # In BIOES, a longer span begins with B and ends with E, and a span of one word is S.
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
    """Convert tags to BIO and count those that do not fit the scheme. An `I-` or `E-` without a
    span to continue begins one, as in evaluation programs."""
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
    """Raise an error unless there is one tag for each word."""
    if len(words) != len(tags):
        raise DataError(
            f"{where} has {len(words)} words but {len(tags)} tags. Give one tag per word."
        )
    if not all(map(str.strip, words)) or not all(tags):
        raise DataError(f"{where} has an empty word or tag.")
