"""Reads messages of Protocol Buffers, as far as SentencePiece's model files need it."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from headway.errors import DataError

Field = int | bytes
MAX_VARINT = 10
"""Bytes of a whole number."""


def fields(data: bytes) -> Iterator[tuple[int, Field]]:
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


def signed(value: Field) -> int:
    """A whole number of 32 bits with its sign."""
    if not isinstance(value, int):
        raise DataError("a number was expected, but there are bytes")
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def real(value: Field) -> float:
    if isinstance(value, int) or len(value) != 4:
        raise DataError("a number of four bytes was expected")
    return float(struct.unpack("<f", value)[0])


def block(value: Field) -> bytes:
    if isinstance(value, int):
        raise DataError(f"bytes were expected, but there is the number {value}")
    return value


def text(value: Field) -> str:
    try:
        return block(value).decode("utf-8")
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
