"""SentencePiece models: read from their file, without the library.

A run that was imported with one has to open for ever, and without extras; `tokenizers`, which is
there anyway, finds its pieces. What `tokenizers` does otherwise than SentencePiece is in
`charsmap.py` and `unigram.py`. The tests hold ids and texts to the `sentencepiece` package, for
every kind of model and for texts made to trip (`tests/tokens/test_spm.py`).

Unigram and BPE, with bytes for what has no piece or without; the text is prepared as the model
says. Pieces that mean something to a program (`<s>`, `</s>`) are never found in text, as there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from headway.errors import DataError
from headway.tokens.charsmap import Charsmap, Preparation
from headway.tokens.json_facts import NEVER
from headway.tokens.pieces import SPACE_MARK, all_merges

MAX_FILE = 1 << 28
UNIGRAM, BPE, WORD, CHAR = 1, 2, 3, 4
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
USER_SCORE = -0.1
"""Of a piece that the user of the trainer asked for: better than any that was learned."""

# No piece of most models has a `▁` behind another character: texts can be cut there.
WORDS = Regex("▁*[^▁]+|▁+")
# A text that spells a byte's piece must not become it.
SPELLED_BYTE = Regex("<(?=0x[0-9A-F]{2}>)")
MANY = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SentencePiece:
    """What a model file says, as far as it matters for encoding."""

    pieces: list[tuple[str, float, int]]
    """Text, score, type; the number of a piece is its place."""

    kind: int = UNIGRAM
    byte_fallback: bool = False
    suffix: bool = False
    """Blanks belong to the word before them."""

    charsmap: bytes = b""
    preparation: Preparation
    escapes: bool = True
    """Blanks are written `▁`."""

    names: dict[str, int] = field(default_factory=dict)
    """The numbers of unk, bos, eos and pad; -1 where there is none."""

    @property
    def unk(self) -> int:
        return next(i for i, (_, _, kind) in enumerate(self.pieces) if kind == UNKNOWN)

    def of_type(self, *kinds: int) -> list[str]:
        return [piece for piece, _, kind in self.pieces if kind in kinds]


def read_sentencepiece(path: Path) -> SentencePiece:
    try:
        if path.stat().st_size > MAX_FILE:
            raise DataError(f"more than {MAX_FILE:,} bytes")
        found = _parsed(path.read_bytes())
        _check(found)
        return found
    except OSError as error:
        raise DataError(f"cannot read the tokenizer {path}: {error.strerror}.") from error
    except DataError as error:
        reason = str(error).removesuffix(".")
        raise DataError(f"{path} is no SentencePiece model that can be used: {reason}.") from error


def _parsed(data: bytes) -> SentencePiece:
    pieces: list[tuple[str, float, int]] = []
    facts: dict[str, Any] = {}
    blanks: dict[str, bool] = {}
    names = {"unk": 0, "bos": 1, "eos": 2, "pad": -1}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(_block(value)))
        elif number == 2:
            for inner, v in _fields(_block(value)):
                if inner == 3:
                    facts["kind"] = _signed(v)
                elif inner in (24, 35):
                    facts["suffix" if inner == 24 else "byte_fallback"] = bool(_signed(v))
                elif 40 <= inner <= 43:
                    names[list(names)[inner - 40]] = _signed(v)
        elif number == 3:
            for inner, v in _fields(_block(value)):
                if inner == 2:
                    facts["charsmap"] = _block(v)
                elif inner in (3, 4):
                    name = "dummy_prefix" if inner == 3 else "one_blank"
                    blanks[name] = bool(_signed(v))
                elif inner == 5:
                    facts["escapes"] = bool(_signed(v))
    return SentencePiece(pieces=pieces, names=names, preparation=Preparation(**blanks), **facts)


def _piece(data: bytes) -> tuple[str, float, int]:
    piece, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1:
            piece = _text(value)
        elif number == 2:
            score = _real(value)
        elif number == 3:
            kind = _signed(value)
    return piece, score, kind


def _check(model: SentencePiece) -> None:
    seen: set[str] = set()
    for n, (piece, score, kind) in enumerate(model.pieces):
        if not piece or "\0" in piece:
            raise DataError(f"piece {n:,} is empty")
        if piece in seen:
            raise DataError(f"the piece {piece!r} is there twice")
        if not math.isfinite(score) or not NORMAL <= kind <= BYTE:
            raise DataError(f"the piece {piece!r} has the score {score} and the type {kind}")
        seen.add(piece)
    if len(model.of_type(UNKNOWN)) != 1:
        raise DataError(f"{len(model.of_type(UNKNOWN))} pieces are the unknown one, not 1")
    if model.byte_fallback and {f"<0x{byte:02X}>" for byte in range(256)} - seen:
        raise DataError("it writes unknown characters in bytes, but not every byte has a piece")
    if model.kind not in (UNIGRAM, BPE, CHAR):
        raise DataError("it is of the kind 'word'; unigram, bpe and char are read")
    if model.suffix or not model.escapes:
        raise DataError("its blanks belong to the word before them, which is not read")
    if model.kind != UNIGRAM and model.of_type(UNUSED):
        raise DataError("it has pieces that are switched off, which only unigram models may have")
    Charsmap(model.charsmap)


def library_tokenizer(
    model: SentencePiece, ids: Mapping[str, int] | None = None
) -> tokenizers.Tokenizer:
    """The model as `tokenizers` holds it; to be used with its preparation.

    `ids`: the numbers of pieces where they are others than in the model (Marian). What has a number
    but is no piece is never found in text; pieces without a number come behind the last.
    """
    numbers = dict(ids) if ids is not None else {p: i for i, (p, _, _) in enumerate(model.pieces)}
    last = max(numbers.values(), default=-1)
    for piece, _, kind in model.pieces:
        if piece not in numbers and kind != CONTROL:
            numbers[piece] = last = last + 1
    try:
        made = tokenizers.Tokenizer((_unigram if model.kind == UNIGRAM else _bpe)(model, numbers))
        made.normalizer = normalizers.Sequence(_normalisers(model))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"a SentencePiece model that cannot be used: {error}.") from error
    if cuts := _cuts(model):
        made.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    blanks = MANY if model.preparation.one_blank else int(model.preparation.dummy_prefix)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE_MARK, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", blanks, 0),
        ]
    )
    if model.kind != UNIGRAM:  # where pieces are merged, these stay whole
        made.add_tokens([tokenizers.AddedToken(p, normalized=False) for p in model.of_type(USER)])
    made.add_special_tokens([p for p in model.of_type(UNKNOWN, CONTROL) if p in numbers])
    return made


def _unigram(model: SentencePiece, numbers: Mapping[str, int]) -> models.Unigram:
    pieces: list[tuple[str, float]] = [("", NEVER)] * (max(numbers.values()) + 1)
    for piece, i in numbers.items():
        pieces[i] = piece, NEVER
    for piece, score, kind in model.pieces:
        if piece in numbers:
            score = USER_SCORE if kind == USER else NEVER if kind == UNUSED else score
            # Nine digits are enough for 32 bits, and few enough to survive being written and read.
            pieces[numbers[piece]] = piece, float(f"{score:.9g}")
    unk = numbers[model.pieces[model.unk][0]]
    return models.Unigram(pieces, unk_id=unk, byte_fallback=model.byte_fallback)


def _bpe(model: SentencePiece, numbers: Mapping[str, int]) -> models.BPE:
    """Any two neighbours that make a piece are merged, the best piece first."""
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


def _normalisers(model: SentencePiece) -> list[Any]:
    """As near to the model's own preparation as the library's parts come."""
    table = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    blanks, ends = [], []
    if model.preparation.one_blank:
        blanks = [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" +"), " "),
        ]
        ends = [normalizers.Replace(Regex(rf"{SPACE_MARK}+\z"), "")]
    prefix = [normalizers.Prepend(SPACE_MARK)] if model.preparation.dummy_prefix else []
    return [*table, *blanks, normalizers.Replace(" ", SPACE_MARK), *prefix, *ends]


def _cuts(model: SentencePiece) -> list[Any]:
    """Where a text can be cut without a loss; words are then looked up once."""
    normal = model.of_type(NORMAL, USER)
    found: list[Any] = []
    if SPACE_MARK in normal and not any(SPACE_MARK in p.lstrip(SPACE_MARK) for p in normal):
        found.append(pre_tokenizers.Split(WORDS, "removed", invert=True))
    if model.kind == UNIGRAM and model.byte_fallback:
        found.append(pre_tokenizers.Split(SPELLED_BYTE, "merged_with_previous"))
    return found


Field = int | bytes
MAX_VARINT = 10
"""Bytes of a whole number."""


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """The numbers and values of a message's fields, in the order of the file.

    A whole number is given without sign; numbers of fixed width, texts and inner messages are
    given as bytes. Whatever is cut short or has no sense is a DataError.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise DataError("a field has the number 0")
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise DataError(f"field {number} is of the kind {kind}, which does not exist here")
        if size > len(data) - at:
            raise DataError(f"field {number} should have {size:,} bytes, but the file ends before")
        yield number, data[at : at + size]
        at += size


def _signed(value: Field) -> int:
    """A whole number of 32 bits with its sign."""
    if not isinstance(value, int):
        raise DataError("a number was expected, but there are bytes")
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _real(value: Field) -> float:
    if isinstance(value, int) or len(value) != 4:
        raise DataError("a number of four bytes was expected")
    return float(struct.unpack("<f", value)[0])


def _block(value: Field) -> bytes:
    if isinstance(value, int):
        raise DataError(f"bytes were expected, but there is the number {value}")
    return value


def _text(value: Field) -> str:
    try:
        return _block(value).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"a text is not UTF-8: {error}") from error


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for n in range(MAX_VARINT):
        if at + n >= len(data):
            raise DataError("the file ends in the middle of a number")
        value |= (data[at + n] & 0x7F) << (7 * n)
        if data[at + n] < 0x80:
            return value, at + n + 1
    raise DataError("a number has too many bytes")
