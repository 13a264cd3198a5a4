"""Unigram segmentation with the rounding of SentencePiece.

In a run such as `aaaaa` several segmentations are equally good, and the choice depends on the
rounding of sums: 32 bits in SentencePiece, 64 in `tokenizers`. This is slow and therefore used only
for texts with such runs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Sequence
from itertools import groupby

from headway.tokens.pieces import ONE_BYTE
from headway.tokens.tokenizer_json import NEVER

UNKNOWN_COST = 10.0
RUN = re.compile(r"(.)\1\1|(..)\2\2|(...)\3\3|(.{4})\4\4", re.DOTALL)
"""Matches one to four characters three times in a row. Ties are rare in other texts."""


class ExactUnigram:
    def __init__(
        self,
        vocab: Sequence[tuple[str, float]],
        specials: Collection[int],
        unk: int,
        *,
        in_bytes: bool,
    ) -> None:
        self.unk, self.in_bytes = unk, in_bytes
        self.numbers = {piece: i for i, (piece, _) in enumerate(vocab)}
        self.others = {
            piece: i
            for i, (piece, score) in enumerate(vocab)
            if score <= NEVER and i not in specials
        }
        self.pieces = {
            piece: (i, _single(score))
            for i, (piece, score) in enumerate(vocab)
            if i not in specials and score > NEVER and not (in_bytes and ONE_BYTE.fullmatch(piece))
        }
        self.longest = max(map(len, self.pieces), default=1)
        lowest = min((score for _, score in self.pieces.values()), default=0.0)
        self.unk_score = _single(lowest - UNKNOWN_COST)

    def encode(self, text: str) -> list[int]:
        """Encode a prepared text. A run of characters without pieces becomes its bytes if the
        model has byte fallback, else one piece of the other language (Marian) or unknown."""
        found: list[int] = []
        for unknown, group in groupby(self._best(text), lambda step: step[2] == self.unk):
            steps = list(group)
            run = text[steps[0][0] : steps[-1][1]]
            if not unknown:
                found += [i for _, _, i in steps]
            elif self.in_bytes:
                found += [self.numbers[f"<0x{byte:02X}>"] for byte in run.encode()]
            else:
                found.append(self.others.get(run, self.unk))
        return found

    def may_differ(self, text: str, ids: Sequence[int]) -> bool:
        """Whether `encode` may give a more exact result than these ids of `tokenizers`."""
        return bool(RUN.search(text)) or (bool(self.others) and self.unk in ids)

    def _best(self, text: str) -> list[tuple[int, int, int]]:
        """Start, end and id of each piece of the best segmentation."""
        reached: list[float] = [0.0] * (len(text) + 1)
        came: list[tuple[int, int] | None] = [None] * (len(text) + 1)
        for start in range(len(text)):
            here, alone = reached[start], False
            for end in range(start + 1, min(len(text), start + self.longest) + 1):
                known = self.pieces.get(text[start:end])
                if known is None:
                    continue
                alone |= end == start + 1
                total = _single(here + known[1])
                if came[end] is None or total > reached[end]:
                    reached[end], came[end] = total, (start, known[0])
            if not alone:
                total = _single(here + self.unk_score)
                if came[start + 1] is None or total > reached[start + 1]:
                    reached[start + 1], came[start + 1] = total, (start, self.unk)
        path: list[tuple[int, int, int]] = []
        at = len(text)
        while at > 0:
            step = came[at]
            assert step is not None
            path.append((step[0], at, step[1]))
            at = step[0]
        return path[::-1]


def _single(value: float) -> float:
    """Round to single precision."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
