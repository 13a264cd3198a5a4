"""Read llama2.c `.bin` files, which contain a header of seven numbers and then all weights in
fp32."""

from __future__ import annotations

import struct
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.errors import FolderError
from headway.interop.families import Architecture
from headway.interop.foreign_config import LONGEST, MOST_LAYERS, ForeignConfig
from headway.interop.name_pairs import NamePair, TensorTransform
from headway.interop.weights import LazyWeights, TensorEntry
from headway.settings.model import DecoderSettings

MAGIC = 0x616B3432
"""Magic number (`ak42`) of files with a version number. Older files begin with the model width."""

NUMBERS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
VERSIONED_HEADER = 256
"""Size in bytes of the header in files with a version number, fixed by the format."""

NORM_EPS = 1e-5
"""Epsilon of all norms. It is a constant in the source code of llama2.c."""


class Header(NamedTuple):
    values: dict[str, Any]
    """Header fields by name. `version` and `shared` (tied embeddings) are derived."""

    size: int
    """Number of bytes before the first weight."""


def read_llama2c(path: Path) -> tuple[dict[str, Any], Architecture, LazyWeights]:
    """Return the header, the architecture, and the weights, which are read from disk on access."""
    header = _header(path)
    model = _settings(ForeignConfig(header.values, str(path)))
    entries, start = {}, header.size
    for name, shape in _shapes(model, header.values["version"]):
        entries[name] = TensorEntry(shape, torch.float32, partial(_load, path, start, shape))
        start += 4 * prod(shape)
    if start != path.stat().st_size:
        raise FolderError(
            f"{path} is damaged or not a llama2.c file: its header requires {start:,} bytes, but "
            f"the file has {path.stat().st_size:,}."
        )
    found = Architecture(
        task="complete",
        model=model,
        pairs=_pairs(model),
        ignored={r"freqs_(cos|sin)": "rotary position tables, which are computed"},
        decode={"beam": 1, "unknown": "keep"},
    )
    return header.values, found, LazyWeights(entries, [path])


def _header(path: Path) -> Header:
    with path.open("rb") as file:
        start = file.read(VERSIONED_HEADER)
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":
        raise FolderError(
            f"{path} contains torch weights, not llama2.c weights. Import the folder that contains "
            "this file and config.json."
        )
    if len(start) < 28:
        raise FolderError(f"{path} has only {len(start)} bytes, too few for a llama2.c file.")
    if struct.unpack_from("<I", start)[0] != MAGIC:
        values: dict[str, Any] = dict(zip(NUMBERS, struct.unpack_from("<7i", start), strict=True))
        # A negative vocabulary size means that the output layer has its own matrix.
        shared = values["vocab_size"] > 0
        values |= {"version": 0, "shared": shared, "vocab_size": abs(values["vocab_size"])}
        return Header(values, 28)
    if len(start) < VERSIONED_HEADER:
        raise FolderError(f"{path} has only {len(start)} bytes, too few for a llama2.c file.")
    version, *numbers = struct.unpack_from("<8i", start, 4)
    if version != 1:
        raise FolderError(
            f"{path} has version {version} of the llama2.c format, which is not supported. Export "
            "the model with fp32 weights: as version 1, or in the old format without a version."
        )
    values = dict(zip(NUMBERS, numbers, strict=True))
    return Header(values | {"version": 1, "shared": bool(start[36])}, VERSIONED_HEADER)


def _settings(given: ForeignConfig) -> DecoderSettings:
    return DecoderSettings(
        vocab_size=given.integer("vocab_size"),
        d_model=given.integer("dim"),
        n_layers=given.integer("n_layers", most=MOST_LAYERS),
        n_heads=given.integer("n_heads"),
        n_kv_heads=given.integer("n_kv_heads"),
        d_ff=given.integer("hidden_dim"),
        max_len=given.integer("max_seq_len", most=LONGEST),
        activation="swiglu",
        norm="rms",
        norm_eps=NORM_EPS,
        positions="rotary",
        attention_bias="",
        ff_bias=False,
        dropout=0.0,
        attention_dropout=0.0,
        tie=given.flag("shared"),
    )


def _shapes(model: DecoderSettings, version: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names and shapes of all tensors in the order of the file: each kind of tensor for
    all layers, then the next kind."""
    width, n_kv = model.d_model, model.kv_heads * model.head_width
    kinds: dict[str, tuple[int, ...]] = {
        "attention_norm": (width,),
        "attention.wq": (width, width),
        "attention.wk": (n_kv, width),
        "attention.wv": (n_kv, width),
        "attention.wo": (width, width),
        "ffn_norm": (width,),
        "feed_forward.w1": (model.d_ff, width),
        "feed_forward.w2": (width, model.d_ff),
        "feed_forward.w3": (model.d_ff, width),
    }
    words = ("tok_embeddings.weight", (model.vocab_size, width))
    final = ("norm.weight", (width,))

    def layers(names: list[str]) -> list[tuple[str, tuple[int, ...]]]:
        numbers = range(model.n_layers)
        return [(f"layers.{n}.{name}.weight", kinds[name]) for name in names for n in numbers]

    if version:
        norms = ["attention_norm", "ffn_norm"]
        rest = [name for name in kinds if name not in norms]
        listed = [*layers(norms), final, words, *layers(rest)]
    else:
        turns = (model.max_len, model.head_width // 2)
        listed = [words, *layers(list(kinds)), final, ("freqs_cos", turns), ("freqs_sin", turns)]
    return listed if model.tie else [*listed, ("output.weight", words[1])]


def _load(path: Path, start: int, shape: tuple[int, ...]) -> Tensor:
    numbers = np.fromfile(path, "<f4", prod(shape), offset=start)
    return torch.from_numpy(numbers).reshape(shape)


def halves(n_heads: int) -> TensorTransform:
    """Return the conversion from llama2.c's layout of rotary position embeddings (RoPE) to
    headway's, and its inverse.

    llama2.c rotates each even dimension of a head with the next odd one. headway rotates dimension
    i with i + K/2, where K is the width of the head.
    """

    def to_ours(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (n_heads, -1, 2)).transpose(1, 2).flatten(0, 2)

    def to_theirs(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (n_heads, 2, -1)).transpose(1, 2).flatten(0, 2)

    return TensorTransform(to_ours, to_theirs)


def _pairs(model: DecoderSettings) -> list[NamePair]:
    width, n_kv = model.d_model, model.kv_heads * model.head_width
    pairs = [NamePair("tok_embeddings.weight", "front.tokens.weight")]
    for number in range(model.n_layers):
        layer, block = f"layers.{number}", f"stack.blocks.{number}"
        qkv = f"{block}.attention.to_qkv.weight"
        hidden = f"{block}.feed_forward.to_hidden.weight"
        pairs += [
            NamePair(f"{layer}.attention_norm.weight", f"{block}.norm_attention.weight"),
            NamePair(f"{layer}.attention.wq.weight", qkv, slice(0, width), halves(model.n_heads)),
            NamePair(f"{layer}.attention.wk.weight", qkv, slice(width, width + n_kv),
                 halves(model.kv_heads)),
            NamePair(f"{layer}.attention.wv.weight", qkv, slice(width + n_kv, width + 2 * n_kv)),
            NamePair(f"{layer}.attention.wo.weight", f"{block}.attention.to_out.weight"),
            NamePair(f"{layer}.ffn_norm.weight", f"{block}.norm_feed_forward.weight"),
            NamePair(f"{layer}.feed_forward.w1.weight", hidden, slice(0, model.d_ff)),
            NamePair(f"{layer}.feed_forward.w3.weight", hidden, slice(model.d_ff, 2 * model.d_ff)),
            NamePair(f"{layer}.feed_forward.w2.weight", f"{block}.feed_forward.to_out.weight"),
        ]  # fmt: skip
    pairs.append(NamePair("norm.weight", "stack.final_norm.weight"))
    return pairs if model.tie else [*pairs, NamePair("output.weight", "head.linear.weight")]
