"""Readable forms, word boundaries and merges of the tokens in a vocabulary."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

SPACE_MARK = "▁"
ONE_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""Pattern of SentencePiece's byte tokens, which encode characters without a token of their own."""


def _byte_characters() -> dict[str, int]:
    """Return the bytes that the visible characters of byte-level tokenizers represent.

    Printable Latin-1 characters represent themselves. The other bytes are represented by the
    characters from U+0100 on.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


_BYTES = _byte_characters()
BYTE_SIGNS = {byte: sign for sign, byte in _BYTES.items()}


def readable(piece: str) -> str:
    """Return a byte-level token in readable form: `▁` is a space, `<0xe4>` a single byte of a
    character."""
    if not all(c in _BYTES for c in piece):
        return piece
    text = bytes(_BYTES[c] for c in piece).decode("utf-8", errors="surrogateescape")
    shown = (f"<0x{ord(c) - 0xDC00:02x}>" if "\udc80" <= c <= "\udcff" else c for c in text)
    return "".join(shown).replace(" ", SPACE_MARK)


def all_borders(
    pieces: Mapping[str, int], size: int, *, in_bytes: bool, inside: str, last: str = ""
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two arrays by token id: whether the token always begins a word, and whether the word
    may continue after it.

    Ids without a token count as whole words. `inside`: WordPiece's prefix of tokens inside a word.
    `last`: the first GPT's suffix of tokens at the end of a word.
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
        # A token that ends within a character counts as a letter.
        text = bytes(_BYTES[c] for c in piece).decode("utf-8", errors="replace")
        text = text.replace("\ufffd", "a")
    else:
        text = "a" if ONE_BYTE.fullmatch(piece) else piece.replace(SPACE_MARK, " ")
    return not _in_word(text[:1]), _in_word(text[-1:])


def _in_word(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "LM"


def all_merges(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that join to another token, in the order of the joined tokens.

    SentencePiece, tiktoken and llama2.c rank merges by the joined token: the best first, and the
    leftmost of equal ones. The library `tokenizers` ranks pairs instead. Pairs that join to the
    same token compete only where they overlap, as in `aa a aa`. There, the pair with the longer
    first part is merged first.
    """
    known = set(pieces)
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in known and piece[cut:] in known
    ]
