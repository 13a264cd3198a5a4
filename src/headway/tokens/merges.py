"""Merges of a vocabulary that has none: any two neighbours that make a piece become it."""

from __future__ import annotations

from collections.abc import Sequence


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
