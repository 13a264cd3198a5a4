"""Readable forms, word boundaries and merges of vocabulary pieces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

SPACE_MARK = "▁"
ONE_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""SentencePiece's notation of a byte, for characters without a piece."""


def _byte_characters() -> dict[str, int]:
    """Map the visible characters of byte-level tokenizers to the bytes that they represent.

    Printable Latin-1 characters represent themselves. The other bytes are numbered from U+0100.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


_BYTES = _byte_characters()
BYTE_SIGNS = {byte: sign for sign, byte in _BYTES.items()}


def readable(piece: str) -> str:
    """Decode a byte-level piece for display: `▁` is a space, `<0xe4>` a single byte of a
    character."""
    if not all(c in _BYTES for c in piece):
        return piece
    text = bytes(_BYTES[c] for c in piece).decode("utf-8", errors="surrogateescape")
    shown = (f"<0x{ord(c) - 0xDC00:02x}>" if "\udc80" <= c <= "\udcff" else c for c in text)
    return "".join(shown).replace(" ", SPACE_MARK)


def all_borders(
    pieces: Mapping[str, int], size: int, *, in_bytes: bool, inside: str, last: str = ""
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return for each id whether it always begins a word, and whether a word may continue after it.

    Ids without a piece count as whole words. `inside`: prefix of WordPiece for pieces inside a
    word. `last`: suffix of the first GPT for pieces at the end of a word.
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
        # A piece that ends within a character counts as a letter.
        text = bytes(_BYTES[c] for c in piece).decode("utf-8", errors="replace")
        text = text.replace("\ufffd", "a")
    else:
        text = "a" if ONE_BYTE.fullmatch(piece) else piece.replace(SPACE_MARK, " ")
    return not _in_word(text[:1]), _in_word(text[-1:])


def _in_word(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "LM"


def all_merges(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that join to another piece, in the order of the joined pieces.

    SentencePiece, tiktoken and llama2.c rank merges by the joined piece: the best one first, and
    the leftmost of equal ones. `tokenizers` ranks pairs instead. Pairs with the same joined piece
    compete only where they overlap, as in `aa a aa`. There, the pair with the longer first part is
    merged first.
    """
    known = set(pieces)
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in known and piece[cut:] in known
    ]
