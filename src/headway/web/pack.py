"""Pack the data of a page into one string: a JSON header and binary arrays, compressed with deflate
and encoded in base64.

Attention weights written as JSON numbers would be fifty times larger than with eight bits each.
Base64 also ensures that no text of a model can close the script element that contains it.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS: dict[str, np.dtype[Any]] = {
    "u8": np.dtype("u1"),
    "sqrt8": np.dtype("u1"),
    "f16": np.dtype("<f2"),
    "f32": np.dtype("<f4"),
    "i32": np.dtype("<i4"),
    "u16": np.dtype("<u2"),
}

LARGEST_HALF = 65504.0
"""Largest finite number of IEEE 754 half precision."""

ALIGNED = 4
"""Alignment of arrays in bytes. A typed array of 32-bit numbers must begin at a multiple of 4."""

DATA = re.compile(r'<script[^>]* id="data"[^>]*>([^<]*)</script>')


@dataclass(frozen=True)
class PackedArray:
    """Array that is stored as bytes and becomes a typed array with a shape in the page.

    The kind `u8` is linear between the lowest and the highest value, with a maximum error of 1/510
    of their difference. `sqrt8` is for weights that are mostly small: it is finer near the lowest
    value, with a maximum error of 1/255. `f16` has three significant digits, and becomes `f32` if a
    value does not fit.
    """

    values: Any
    kind: str = "u8"
    ends: tuple[float, float] | None = None
    """Values at the ends of the 8-bit scale; None for the lowest and the highest value.

    A wider scale is coarser but compresses better.
    """

    def numpy(self) -> np.ndarray:
        values = self.values
        if hasattr(values, "detach"):
            values = values.detach().cpu().float() if values.is_floating_point() else values.cpu()
        return np.asarray(values)


class _Writer:
    """Converts a tree of values to plain JSON, and collects the bytes of its arrays."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def array(self, array: PackedArray) -> dict[str, Any]:
        if array.kind not in KINDS:
            raise ValueError(f"unknown kind of array {array.kind!r}: use one of {', '.join(KINDS)}")
        codes, kind, low, high = _encode(array.numpy(), array.kind, array.ends)
        raw = codes.tobytes()
        offset = self.size
        self.parts.append(raw + bytes(-len(raw) % ALIGNED))
        self.size += len(self.parts[-1])
        return {"$": [kind, list(codes.shape), offset, low, high]}

    def plain(self, node: Any) -> Any:
        if isinstance(node, PackedArray):
            return self.array(node)
        if isinstance(node, Mapping):
            if "$" in node:
                raise ValueError("the key '$' is reserved for arrays")
            return {str(key): self.plain(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return [self.plain(value) for value in node]
        if isinstance(node, np.generic):
            return self.plain(node.item())
        if isinstance(node, float) and not math.isfinite(node):
            return None  # JSON has no infinity; the page shows a dash
        return node


def _encode(
    values: np.ndarray, kind: str, ends: tuple[float, float] | None
) -> tuple[np.ndarray, str, float, float]:
    """Return the encoded values, the encoding that was used, and the two ends of the scale."""
    if kind == "f16" and values.size and float(np.abs(values).max()) > LARGEST_HALF:
        kind = "f32"
    if kind not in ("u8", "sqrt8"):
        return np.ascontiguousarray(values, KINDS[kind]), kind, 0.0, 0.0
    if values.size == 0:
        return np.zeros(values.shape, np.uint8), kind, 0.0, 0.0
    low, high = ends or (float(values.min()), float(values.max()))
    if not np.isfinite(values).all():
        raise ValueError(f"an array of kind {kind} contains a value that is not finite")
    share = (values.astype(np.float32) - low) / ((high - low) or 1.0)
    share = np.clip(share if kind == "u8" else np.sqrt(np.clip(share, 0, 1)), 0, 1)
    return np.rint(share * 255).astype(np.uint8), kind, low, high


def pack(tree: Any) -> str:
    """Pack dicts, lists, strings, numbers and `PackedArray`s into one text, which `unpack` and the
    page can read.

    Numbers that are not finite become null.
    """
    writer = _Writer()
    plain = writer.plain(tree)
    header = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    header += b" " * (-len(header) % ALIGNED)
    raw = b"".join([struct.pack("<I", len(header)), header, *writer.parts])
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def unpack(text: str) -> Any:
    """Return the data of a page or of a packed string. `PackedArray`s become NumPy arrays."""
    found = DATA.search(text)
    raw = zlib.decompress(base64.b64decode(found[1] if found else text))
    (size,) = struct.unpack_from("<I", raw)
    start = 4 + size
    return _revive(json.loads(raw[4:start]), raw[start:])


def _revive(node: Any, raw: bytes) -> Any:
    if isinstance(node, list):
        return [_revive(value, raw) for value in node]
    if not isinstance(node, dict):
        return node
    if "$" in node:
        return _decode(node["$"], raw)
    return {key: _revive(value, raw) for key, value in node.items()}


def _decode(record: list[Any], raw: bytes) -> np.ndarray:
    kind, shape, offset, low, high = record
    codes = np.frombuffer(raw, KINDS[kind], count=math.prod(shape), offset=offset).reshape(shape)
    if kind in ("f32", "i32", "u16"):
        return codes
    if kind == "f16":
        return codes.astype(np.float32)
    share = codes.astype(np.float32) / 255
    return (low + (high - low) * (share if kind == "u8" else share**2)).astype(np.float32)
