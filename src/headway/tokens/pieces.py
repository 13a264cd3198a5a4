"""Pieces of a vocabulary as people can read them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

SPACE_MARK = "▁"
ONE_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A byte of a character that has no piece, as SentencePiece writes it."""


def _byte_characters() -> dict[str, int]:
    """Byte-level tokenizers write each byte as a visible character; this is the way back.

    Printable Latin-1 stands for itself, and the rest in order for what follows U+0100.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


_BYTES = _byte_characters()
BYTE_SIGNS = {byte: sign for sign, byte in _BYTES.items()}


def readable(piece: str) -> str:
    """A piece of a byte-level vocabulary: `▁` is a space, `<0xe4>` a byte of a character."""
    if not all(c in _BYTES for c in piece):
        return piece
    text = bytes(_BYTES[c] for c in piece).decode("utf-8", errors="surrogateescape")
    shown = (f"<0x{ord(c) - 0xDC00:02x}>" if "\udc80" <= c <= "\udcff" else c for c in text)
    return "".join(shown).replace(" ", SPACE_MARK)


def all_borders(
    pieces: Mapping[str, int], size: int, *, in_bytes: bool, inside: str, last: str = ""
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each id whether it begins a word wherever it stands, and whether a word may go on behind
    it. Ids that are no pieces stand alone.

    `inside` is what WordPiece writes before pieces that go on with a word; `last` is what the first
    GPT writes behind those that end one.
    """
    begins, open_ends = np.ones(size, np.bool_), np.zeros(size, np.bool_)
    for piece, i in pieces.items():
        begins[i], open_ends[i] = _borders(piece.removesuffix(last), in_bytes, inside)
        if last and piece.endswith(last):
            open_ends[i] = False
    return begins, open_ends


def _borders(piece: str, in_bytes: bool, inside: str) -> tuple[bool, bool]:
    if inside:
        return not piece.startswith(inside), True
    if in_bytes and all(c in _BYTES for c in piece):
        # Part of a character stands for a letter.
        text = bytes(_BYTES[c] for c in piece).decode("utf-8", errors="replace")
        text = text.replace("\ufffd", "a")
    else:
        text = "a" if ONE_BYTE.fullmatch(piece) else piece.replace(SPACE_MARK, " ")
    return not _in_word(text[:1]), _in_word(text[-1:])


def _in_word(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "LM"


def all_merges(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """All ways to make each piece of two others, in the order of the pieces.

    SentencePiece, tiktoken and llama2.c merge by pieces: the best that two neighbours make, and of
    equals the leftmost. `tokenizers` merges by pairs. Several pairs that make the same piece can
    only compete in a text where they overlap, which takes a run such as `aa a aa`; there the pair
    with the longer first part goes first here.
    """
    known = set(pieces)
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in known and piece[cut:] in known
    ]
