"""Read the tokenizer.bin of llama2.c, which contains the tokens of a SentencePiece model and their
scores.

A space is put before the text. The pair of neighbouring tokens whose merged token has the best
score is merged first. Characters without a token become bytes. Tokens contain plain spaces instead
of `▁`.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from headway.errors import DataError
from headway.tokens.pieces import ONE_BYTE, all_merges
from headway.tokens.special_tokens import TokenRoles
from headway.tokens.tokenizer import Tokenizer
from headway.tokens.vocab_alignment import align_vocabulary

MAX_FILE = 1 << 28
"""Maximum size of a file in bytes. Larger files are damaged or not tokenizers: the largest
published tokenizers have some ten megabytes."""

SPECIALS = ["<unk>", "<s>", "</s>"]
WORDS = Regex(" *[^ ]+| +")

# In the TinyStories training data, `<s>` comes between stories, so this token also ends a text.
ROLES = TokenRoles(bos="<s>", eos="<s>", unk="<unk>")


def load_llama2c_tokenizer(path: Path, n_tokens: int | None = None) -> Tokenizer:
    """Return the tokenizer in a tokenizer.bin. `n_tokens`: vocabulary size of the model; None if
    unknown."""
    pieces = _read(path)
    learned = [(p, s) for p, s in pieces[len(SPECIALS) :] if not ONE_BYTE.fullmatch(p)]
    ranked = [piece for piece, _ in sorted(learned, key=lambda item: -item[1])]
    made = tokenizers.Tokenizer(
        models.BPE(
            {piece: i for i, (piece, _) in enumerate(pieces)},
            all_merges(ranked),
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Prepend(" ")
    if not any(" " in piece.lstrip(" ") for piece in ranked):
        made.pre_tokenizer = pre_tokenizers.Split(WORDS, "removed", invert=True)
    made.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(SPECIALS)
    return Tokenizer(align_vocabulary(made, n_tokens, str(path)), str(path), ROLES)


def _read(path: Path) -> list[tuple[str, float]]:
    try:
        if path.stat().st_size > MAX_FILE:
            raise DataError(f"{path} is too large for a tokenizer: more than {MAX_FILE:,} bytes.")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the tokenizer {path}: {error.strerror}.") from error
    pieces: dict[str, float] = {}
    at = 4  # skip the length of the longest piece
    while at < len(data):
        where = f"{path} is not a valid llama2.c tokenizer: piece {len(pieces):,}"
        if at + 8 > len(data):
            raise DataError(f"{where} is truncated.")
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        if not 0 < length <= len(data) - at or not math.isfinite(score):
            raise DataError(f"{where} has an invalid length ({length:,}) or score ({score}).")
        try:
            piece = data[at : at + length].decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{where} is not UTF-8.") from error
        at += length
        number = len(pieces)
        piece = SPECIALS[number] if number < 3 and SPECIALS[number] == piece.strip() else piece
        if piece in pieces:
            raise DataError(f"{where} occurs twice: {piece!r}.")
        pieces[piece] = score
    missing = {*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))} - pieces.keys()
    if missing:
        raise DataError(f"{path} is not a valid llama2.c tokenizer: {min(missing)!r} is missing.")
    return list(pieces.items())
