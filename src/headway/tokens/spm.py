"""Convert SentencePiece model files to the library `tokenizers`.

The `sentencepiece` package is needed only to read the file. A saved run contains the converted
tokenizer and does not need it. The tests compare ids and texts with the `sentencepiece` package,
for every kind of model and for adversarial texts. They list the texts for which `tokenizers`
differs (`tests/tokens/test_spm.py`).

Unigram, BPE and character models are supported, with or without byte fallback. Text is normalized
as the model specifies. As in SentencePiece, control pieces (`<s>`, `</s>`) are never matched in
text. A piece is SentencePiece's term for a token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from headway.errors import DataError, needs
from headway.tokens.pieces import SPACE_MARK, all_merges
from headway.tokens.tokenizer_json import BEGINNING, NEVER

MAX_FILE = 1 << 28
"""Maximum size of a file in bytes. Larger files are damaged or not tokenizers: the largest
published tokenizers have some ten megabytes."""

UNIGRAM, BPE, WORD, CHAR = 1, 2, 3, 4
"""Model types, numbered as in `TrainerSpec.ModelType` of sentencepiece_model.proto."""

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Piece types, numbered as in `SentencePiece.Type` of sentencepiece_model.proto."""

USER_SCORE = -0.1
"""Score of user-defined pieces, which is better than that of any learned piece."""

LAST_RESORT_COST = 9.0
"""Cost of pieces that only Marian's other language has, in addition to the cost of the worst piece.
It is lower than 10, the cost of an unknown character in `tokenizers` and in SentencePiece."""

# In most models `▁` occurs only at the start of a piece, so texts can be split before it.
WORDS = Regex("▁*[^▁]+|▁+")
# A text that spells the name of a byte piece must not be encoded as that piece.
SPELLED_BYTE = Regex("<(?=0x[0-9A-F]{2}>)")
MANY = 1 << 20
"""Number of spaces to strip at the start of a text. It exceeds the number of spaces in any text."""


@dataclass(frozen=True, kw_only=True)
class SentencePiece:
    """Contents of a SentencePiece model file that affect encoding."""

    pieces: list[tuple[str, float, int]]
    """Text, score and type of each piece, in the order of ids."""

    kind: int = UNIGRAM
    byte_fallback: bool = False
    suffix: bool = False
    """Whether a space belongs to the word before it, instead of the word after it."""

    charsmap: bytes = b""
    dummy_prefix: bool = True
    """Whether a space is put before the text."""

    one_blank: bool = True
    """Whether several spaces in a row become one, and spaces at both ends are removed."""

    escapes: bool = True
    """Whether spaces are written as `▁`."""

    @property
    def unk(self) -> int:
        return next(i for i, (_, _, kind) in enumerate(self.pieces) if kind == UNKNOWN)

    def of_type(self, *kinds: int) -> list[str]:
        return [piece for piece, _, kind in self.pieces if kind in kinds]


def read_sentencepiece(path: Path) -> SentencePiece:
    try:
        if path.stat().st_size > MAX_FILE:
            raise DataError(f"it has more than {MAX_FILE:,} bytes")
        found = _parsed(path.read_bytes())
        _check(found)
        return found
    except OSError as error:
        raise DataError(f"cannot read the tokenizer {path}: {error.strerror}.") from error
    except DataError as error:
        reason = str(error).removesuffix(".")
        raise DataError(f"{path} is not a usable SentencePiece model: {reason}.") from error


def _parsed(data: bytes) -> SentencePiece:
    """Read a model file with the Protocol Buffers classes of `sentencepiece`."""
    proto = needs("sentencepiece.sentencepiece_model_pb2", "sentencepiece")
    broken = needs("google.protobuf.message", "sentencepiece").DecodeError
    try:
        model = proto.ModelProto.FromString(data)
    except broken as error:
        raise DataError(f"{error}") from error
    for n, piece in enumerate(model.pieces):
        if isinstance(piece.piece, bytes):  # the class returns invalid text unconverted
            raise DataError(f"piece {n:,} is not valid UTF-8: {piece.piece!r}")
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    return SentencePiece(
        pieces=[(p.piece, p.score, p.type) for p in model.pieces],
        kind=trainer.model_type,
        byte_fallback=trainer.byte_fallback,
        suffix=trainer.treat_whitespace_as_suffix,
        charsmap=normalizer.precompiled_charsmap,
        dummy_prefix=normalizer.add_dummy_prefix,
        one_blank=normalizer.remove_extra_whitespaces,
        escapes=normalizer.escape_whitespaces,
    )


def _check(model: SentencePiece) -> None:
    seen: set[str] = set()
    for n, (piece, score, kind) in enumerate(model.pieces):
        if not piece or "\0" in piece:
            raise DataError(f"piece {n:,} is empty or contains a null character")
        if piece in seen:
            raise DataError(f"the piece {piece!r} occurs twice")
        if not math.isfinite(score) or not NORMAL <= kind <= BYTE:
            raise DataError(f"the piece {piece!r} has an invalid score ({score}) or type ({kind})")
        seen.add(piece)
    if len(model.of_type(UNKNOWN)) != 1:
        raise DataError(f"it has {len(model.of_type(UNKNOWN))} unknown pieces instead of exactly 1")
    if model.byte_fallback and {f"<0x{byte:02X}>" for byte in range(256)} - seen:
        raise DataError("it uses byte fallback, but not every byte has a piece")
    if model.kind not in (UNIGRAM, BPE, CHAR):
        raise DataError("its type is 'word'; only unigram, bpe and char are supported")
    if model.suffix or not model.escapes:
        raise DataError(
            "it treats spaces as suffixes or does not escape them, which is not supported"
        )
    if model.kind != UNIGRAM and model.of_type(UNUSED):
        raise DataError("it has unused pieces, which are only supported in unigram models")
    if model.charsmap:
        try:
            normalizers.Precompiled(model.charsmap)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"its table of characters is damaged: {error}") from error


def library_tokenizer(
    model: SentencePiece, ids: Mapping[str, int] | None = None, first: Sequence[Any] = ()
) -> tokenizers.Tokenizer:
    """Convert a model to `tokenizers`.

    `ids`: ids of pieces, if they differ from those of the model (Marian). If the model lacks a
    piece in `ids`, the piece is matched only where the text has characters unknown to the model.
    Pieces without an id are appended. `first`: normalizers to apply before those of the model
    (ALBERT).
    """
    numbers = dict(ids) if ids is not None else {p: i for i, (p, _, _) in enumerate(model.pieces)}
    last = max(numbers.values(), default=-1)
    for piece, _, kind in model.pieces:
        if piece not in numbers and kind != CONTROL:
            numbers[piece] = last = last + 1
    try:
        made = tokenizers.Tokenizer((_unigram if model.kind == UNIGRAM else _bpe)(model, numbers))
        made.normalizer = normalizers.Sequence([*first, *_normalizers(model)])
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"cannot use the SentencePiece model: {error}.") from error
    if cuts := _cuts(model):
        made.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    blanks = MANY if model.one_blank else int(model.dummy_prefix)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE_MARK, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", blanks, 0),
        ]
    )
    if model.kind != UNIGRAM:  # merges must not split user-defined pieces
        prepared = made.normalizer.normalize_str
        made.add_tokens(
            [tokenizers.AddedToken(p, normalized=prepared(p) == p) for p in model.of_type(USER)]
        )
    made.add_special_tokens([p for p in model.of_type(UNKNOWN, CONTROL) if p in numbers])
    return made


def _unigram(model: SentencePiece, numbers: Mapping[str, int]) -> models.Unigram:
    known = {c for piece in model.of_type(NORMAL, USER) for c in piece}
    learned = [score for _, score, kind in model.pieces if kind == NORMAL]
    last_resort = min(learned, default=0.0) - LAST_RESORT_COST
    pieces: list[tuple[str, float]] = [("", NEVER)] * (max(numbers.values()) + 1)
    for piece, i in numbers.items():
        pieces[i] = piece, last_resort if known.isdisjoint(piece) else NEVER
    for piece, score, kind in model.pieces:
        if piece in numbers:
            score = USER_SCORE if kind == USER else NEVER if kind == UNUSED else score
            # Nine digits identify a 32-bit number, and are few enough to be unchanged by a round
            # trip as JSON.
            pieces[numbers[piece]] = piece, float(f"{score:.9g}")
    unk = numbers[model.pieces[model.unk][0]]
    return models.Unigram(pieces, unk_id=unk, byte_fallback=model.byte_fallback)


def _bpe(model: SentencePiece, numbers: Mapping[str, int]) -> models.BPE:
    """Return a BPE model that merges any two neighbouring pieces that join to a piece, the best
    first."""
    learned = [(p, s) for p, s, kind in model.pieces if kind == NORMAL]
    ranked = sorted(learned, key=lambda item: -item[1])
    unk = model.pieces[model.unk][0]
    return models.BPE(
        dict(numbers),
        all_merges([p for p, _ in ranked]) if model.kind == BPE else [],
        unk_token=unk,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _normalizers(model: SentencePiece) -> list[Any]:
    """Return the normalizers that the model specifies.

    SentencePiece takes the longest match in its table. `Precompiled` looks up graphemes of up to
    five bytes, and loses what follows a shorter match: the second mark of a letter, or the vowel of
    Hangul in single letters. Composing characters first prevents that without changing the result,
    because the tables compose them, too. Composing again joins the marks of half-width katakana
    (`ｶﾞ`), which have more bytes.
    """
    composed = normalizers.NFC()
    table = [composed, normalizers.Precompiled(model.charsmap), composed] if model.charsmap else []
    blanks, ends = [], []
    if model.one_blank:
        blanks = [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" +"), " "),
        ]
        ends = [normalizers.Replace(Regex(rf"{SPACE_MARK}+\z"), "")]
    prefix = [_prefix(model)] if model.dummy_prefix else []
    return [*table, *blanks, normalizers.Replace(" ", SPACE_MARK), *prefix, *ends]


def _prefix(model: SentencePiece) -> Any:
    """Return a normalizer that puts a space before a text.

    The library `tokenizers` normalizes its added tokens, too, before it looks for them in a text.
    In BPE models the user-defined pieces are added tokens, and must stay unchanged.
    """
    own = model.of_type(USER) if model.kind != UNIGRAM else []
    if not own:
        return normalizers.Prepend(SPACE_MARK)
    pieces = "|".join(map(re.escape, own))
    return normalizers.Replace(Regex(rf"{BEGINNING}(?!(?:{pieces})\z)"), SPACE_MARK)


def albert_folding(*, strip_accents: bool, lowercase: bool) -> list[Any]:
    """Return the normalizers of ALBERT that precede those of its SentencePiece model. For example,
    doubled quotation marks become one character."""
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    accents = [normalizers.NFKD(), normalizers.StripAccents()] if strip_accents else []
    return [*quotes, *accents, *([normalizers.Lowercase()] if lowercase else [])]


def _cuts(model: SentencePiece) -> list[Any]:
    """Return pre-tokenizers that split a text into words without changing its ids, so that words
    can be cached."""
    normal = model.of_type(NORMAL, USER)
    found: list[Any] = []
    if SPACE_MARK in normal and not any(SPACE_MARK in p.lstrip(SPACE_MARK) for p in normal):
        found.append(pre_tokenizers.Split(WORDS, "removed", invert=True))
    if model.kind == UNIGRAM and model.byte_fallback:
        found.append(pre_tokenizers.Split(SPELLED_BYTE, "merged_with_previous"))
    return found
