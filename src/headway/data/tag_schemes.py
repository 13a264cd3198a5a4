"""Ways to mark spans with one tag a word, told apart and brought to one: BIO.

BIO (also IOB2): `B-` begins every span, `I-` goes on with it, `O` is outside. IOB1: spans are all
`I-`, and `B-` begins one only right behind another of its type. BIOES: `E-` ends a span of several
words, `S-` is a span of one; BILOU writes `L-` and `U-` for those. Plain tags mark no spans.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headway.errors import DataError

Scheme = Literal["bio", "bioes", "iob1", "plain"]

OUTSIDE = "O"
_MARKED = re.compile(r"([BIESLU])-(.+)", re.DOTALL)
_NAMES = {"bio": "BIO", "iob1": "IOB1", "bioes": "BIOES", "plain": "plain tags"}


def split_tag(tag: str) -> tuple[str, str]:
    """Letter and type of a tag that marks a span (`L`, `U` read as `E`, `S`); of others ("O", "")
    for outside, and no letter for a tag that stands for itself."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    match = _MARKED.fullmatch(tag)
    if match is None:
        return "", tag
    return {"L": "E", "U": "S"}.get(match[1], match[1]), match[2]


@dataclass
class Detection:
    """Which scheme the tags follow; sentence by sentence what speaks for each is noted."""

    evidence: dict[str, str] = field(default_factory=dict)
    """For each scheme the place and tag that first spoke for it."""

    def look(self, tags: Sequence[str], place: str) -> None:
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

    def scheme(self) -> Scheme:
        """The one that everything speaks for; a mixture is an error that shows both."""
        seen = self.evidence
        if not seen:
            return "bio"
        if "plain" in seen:
            self._alone("plain", ("bioes", "iob1", "bio"))
            return "plain"
        if "bioes" in seen:
            # There a span begins with B and ends with E, and one of one word is S.
            self._alone("bioes", ("iob1", "no end"))
            return "bioes"
        if "bio" in seen:
            self._alone("bio", ("iob1",))
            return "bio"
        return "iob1"

    def _alone(self, scheme: Scheme, others: Sequence[str]) -> None:
        for other in others:
            if other in self.evidence:
                name = _NAMES["bio" if other == "no end" else other]
                raise DataError(
                    f"the tags mix two schemes: {self.evidence[scheme]} is {_NAMES[scheme]}, but "
                    f"{self.evidence[other]} is {name}. Say which is meant with tag.scheme=bio, "
                    "bioes, iob1 or plain; tags that do not fit are then read as they best can."
                )


def to_bio(tags: Sequence[str], scheme: Scheme) -> tuple[list[str], int]:
    """The tags in BIO, and how many did not fit the scheme: an `I-` or `E-` with nothing to go on
    with begins a span, as evaluation programs read it."""
    if scheme == "plain":
        return list(tags), 0
    made: list[str] = []
    misfits = 0
    open_kind: str | None = None
    touches: str | None = None  # the type of a span that ended right here, as IOB1 asks
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
