"""The `short` back end: attention for short sequences, each in one tile.

Flash attention uses tiles of 128 rows, which sentences leave mostly empty. Here a sequence and one
key/value head fill one tile of the next larger size. Each tile size is one launch with as many
programs as the device holds. They iterate over all sequences and skip those of another size, so
nothing waits for lengths on the host. (One program per sequence that returns at once costs more: a
processor takes about a microsecond to replace it.) A row of scores never leaves the tile, so the
backward pass recomputes the softmax and stores nothing.

The few sequences longer than the largest tile get one more launch. It works in blocks, with an
online softmax (Milakov and Gimelshein 2018). If another back end computed them, one long sentence
in a corpus would decide the kernel of every step.

`python -m benchmarks.shortcuts`: with it, a training step of `transformer-base` in a CUDA graph is
1.5 times as fast on an H200.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from headway.nn.attention.scope import AttentionSpec
from headway.nn.kernels import processors
from headway.nn.layout import Layout


class Tile(NamedTuple):
    size: int
    """Number of tokens in the tile. All queries and keys of a sequence must fit."""

    rows: int
    """Number of queries processed at a time."""

    warps: int
    programs: int
    """Number of programs per multiprocessor. If it is too high, programs wait for each other; if it
    is too low, each has to skip more sequences."""


TILES = (
    Tile(16, 16, 1, 32),
    Tile(32, 32, 2, 16),
    Tile(64, 64, 4, 4),
    Tile(128, 64, 4, 8),
)

LARGEST = TILES[-1].size
LONG = Tile(64, 64, 4, 8)
"""Block of keys and queries for sequences that are longer than every tile. One program processes
all blocks of a sequence."""


def attend_short(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    longest = max(queries.longest, keys.longest)
    seed = torch.randint(2**31 - 1, (1,), device=q_NHK.device) if scope.dropout else None
    out_NHK: Tensor = short_forward(
        q_NHK,
        k_MGK,
        v_MGK,
        queries.starts_B,
        queries.lengths_B,
        keys.starts_B,
        keys.lengths_B,
        seed,
        longest,
        scope.causal,
        scope.window or 0,
        scope.scale_for(q_NHK.shape[-1]),
        scope.dropout,
        queries is keys,
    )
    return out_NHK


@triton.jit
def _load(
    ptr, start, row, n_rows, stride_n, stride_h, h, WIDTH: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Load one head of the given tokens of a sequence. Tokens past its end are zeros."""
    column = tl.arange(0, WIDE)
    real = (row[:, None] < n_rows) & (column[None, :] < WIDTH)
    place = (start + row)[:, None] * stride_n + h * stride_h + column[None, :]
    return tl.load(ptr + place, real, 0.0)


@triton.jit
def _store(
    ptr, x, start, row, n_rows, stride_n, h, WIDTH: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Store one head of the given tokens of a sequence in a tensor with contiguous heads."""
    column = tl.arange(0, WIDE)
    real = (row[:, None] < n_rows) & (column[None, :] < WIDTH)
    place = (start + row)[:, None] * stride_n + h * WIDTH + column[None, :]
    tl.store(ptr + place, x.to(ptr.dtype.element_ty), real)


@triton.jit
def _kept(weights, draw, row, key, dropout, DROPOUT: tl.constexpr):
    """Return the dropout factors of a tile of attention weights: 0 for dropped weights, 1 / (1 − p)
    for kept ones."""
    keep = tl.full(weights.shape, 1.0, tl.float32)
    if DROPOUT:
        chance = tl.rand(draw, row[:, None] * 65536 + key[None, :])
        keep = tl.where(chance > dropout, 1.0 / (1.0 - dropout), 0.0)
    return keep


@triton.jit
def _scores(
    q, k, row, key, n_queries, n_keys, scale, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a tile of attention scores in base 2, with −∞ where a query may not attend."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
    distance = key[None, :] - (row[:, None] + n_keys - n_queries)
    may = (key[None, :] < n_keys) & (row[:, None] < n_queries)
    if CAUSAL:
        may = may & (distance <= 0)
    if WINDOW > 0:
        may = may & (distance < WINDOW) & (distance > -WINDOW)
    return tl.where(may, scores, float("-inf"))


@triton.jit
def _weights(
    q, k, row, key, n_queries, n_keys, draw, scale, dropout, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a tile of attention weights (the softmax of the scores) and its dropout factors."""
    scores = _scores(q, k, row, key, n_queries, n_keys, scale, CAUSAL, WINDOW, PRECISION)
    # Queries without visible keys (padding, or sequences without keys) give zeros, not NaN.
    top = tl.maximum(tl.max(scores, 1), -1e30)
    weights = tl.exp2(scores - top[:, None])
    total = tl.sum(weights, 1)
    weights = weights / tl.where(total == 0.0, 1.0, total)[:, None]
    return weights, _kept(weights, draw, row, key, dropout, DROPOUT)


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, out_ptr, q_starts, q_lengths, k_starts, k_lengths, seed_ptr,
    q_stride_n, q_stride_h, k_stride_n, k_stride_h, v_stride_n, v_stride_h, scale, dropout, n_work,
    REPEATS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    TILE: tl.constexpr, LOWER: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for work in range(tl.program_id(0), n_work, tl.num_programs(0)):
        b, g = work // (HEADS // REPEATS), work % (HEADS // REPEATS)
        n_queries, n_keys = tl.load(q_lengths + b), tl.load(k_lengths + b)
        longest = tl.maximum(n_queries, n_keys)
        if (n_queries > 0) & (longest > LOWER) & (longest <= TILE):
            q_start = tl.load(q_starts + b).to(tl.int64)
            k_start = tl.load(k_starts + b).to(tl.int64)
            key = tl.arange(0, TILE)
            k = _load(k_ptr, k_start, key, n_keys, k_stride_n, k_stride_h, g, WIDTH, WIDE)
            v = _load(v_ptr, k_start, key, n_keys, v_stride_n, v_stride_h, g, WIDTH, WIDE)
            for repeat in range(REPEATS):
                h = g * REPEATS + repeat
                draw = 0
                if DROPOUT:
                    draw = tl.load(seed_ptr) + b * HEADS + h
                for first in tl.static_range(0, TILE, ROWS):
                    row = first + tl.arange(0, ROWS)
                    q = _load(
                        q_ptr, q_start, row, n_queries, q_stride_n, q_stride_h, h, WIDTH, WIDE
                    )
                    weights, keep = _weights(
                        q, k, row, key, n_queries, n_keys, draw, scale, dropout,
                        CAUSAL, WINDOW, DROPOUT, PRECISION,
                    )  # fmt: skip
                    out = tl.dot((weights * keep).to(v.dtype), v, input_precision=PRECISION)
                    _store(out_ptr, out, q_start, row, n_queries, HEADS * WIDTH, h, WIDTH, WIDE)


@triton.jit
def _backward(
    q_ptr, k_ptr, v_ptr, dout_ptr, dq_ptr, dk_ptr, dv_ptr,
    q_starts, q_lengths, k_starts, k_lengths, seed_ptr,
    q_stride_n, q_stride_h, k_stride_n, k_stride_h, v_stride_n, v_stride_h,
    do_stride_n, do_stride_h, dq_stride_n, dkv_stride_n, scale, dropout, n_work,
    REPEATS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    TILE: tl.constexpr, LOWER: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for work in range(tl.program_id(0), n_work, tl.num_programs(0)):
        b, g = work // (HEADS // REPEATS), work % (HEADS // REPEATS)
        n_queries, n_keys = tl.load(q_lengths + b), tl.load(k_lengths + b)
        longest = tl.maximum(n_queries, n_keys)
        if (longest > LOWER) & (longest <= TILE):
            q_start = tl.load(q_starts + b).to(tl.int64)
            k_start = tl.load(k_starts + b).to(tl.int64)
            key = tl.arange(0, TILE)
            k = _load(k_ptr, k_start, key, n_keys, k_stride_n, k_stride_h, g, WIDTH, WIDE)
            v = _load(v_ptr, k_start, key, n_keys, v_stride_n, v_stride_h, g, WIDTH, WIDE)
            dk = tl.zeros((TILE, WIDE), tl.float32)
            dv = tl.zeros((TILE, WIDE), tl.float32)
            for repeat in range(REPEATS):
                h = g * REPEATS + repeat
                draw = 0
                if DROPOUT:
                    draw = tl.load(seed_ptr) + b * HEADS + h
                for first in tl.static_range(0, TILE, ROWS):
                    row = first + tl.arange(0, ROWS)
                    q = _load(
                        q_ptr, q_start, row, n_queries, q_stride_n, q_stride_h, h, WIDTH, WIDE
                    )
                    dout = _load(
                        dout_ptr, q_start, row, n_queries, do_stride_n, do_stride_h, h, WIDTH, WIDE
                    )
                    weights, keep = _weights(
                        q, k, row, key, n_queries, n_keys, draw, scale, dropout,
                        CAUSAL, WINDOW, DROPOUT, PRECISION,
                    )  # fmt: skip
                    kept = (weights * keep).to(v.dtype)
                    dv += tl.dot(tl.trans(kept), dout, input_precision=PRECISION)
                    dweights = tl.dot(dout, tl.trans(v), input_precision=PRECISION) * keep
                    slope = tl.sum(weights * dweights, 1)
                    dscores = (weights * (dweights - slope[:, None]) * scale).to(q.dtype)
                    dq = tl.dot(dscores, k, input_precision=PRECISION)
                    dk += tl.dot(tl.trans(dscores), q, input_precision=PRECISION)
                    _store(dq_ptr, dq, q_start, row, n_queries, dq_stride_n, h, WIDTH, WIDE)
            _store(dk_ptr, dk, k_start, key, n_keys, dkv_stride_n, g, WIDTH, WIDE)
            _store(dv_ptr, dv, k_start, key, n_keys, dkv_stride_n, g, WIDTH, WIDE)


@triton.jit
def _seen(
    first, n_queries, n_keys, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """Return the range of keys that at least one of the given queries may see. It starts at a block
    boundary."""
    place = first + n_keys - n_queries
    begin, end = 0, n_keys
    if CAUSAL:
        end = tl.minimum(end, place + ROWS)
    if WINDOW > 0:
        begin = tl.maximum(place - WINDOW + 1, 0) // KEYS * KEYS
        end = tl.minimum(end, place + ROWS + WINDOW)
    return begin, end


@triton.jit
def _long_forward(
    q_ptr, k_ptr, v_ptr, out_ptr, q_starts, q_lengths, k_starts, k_lengths, seed_ptr,
    q_stride_n, q_stride_h, k_stride_n, k_stride_h, v_stride_n, v_stride_h, scale, dropout, n_work,
    REPEATS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    TILE: tl.constexpr, LOWER: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for work in range(tl.program_id(0), n_work, tl.num_programs(0)):
        b, g = work // (HEADS // REPEATS), work % (HEADS // REPEATS)
        n_queries, n_keys = tl.load(q_lengths + b), tl.load(k_lengths + b)
        if (n_queries > 0) & (tl.maximum(n_queries, n_keys) > LOWER):
            q_start = tl.load(q_starts + b).to(tl.int64)
            k_start = tl.load(k_starts + b).to(tl.int64)
            for repeat in range(REPEATS):
                h = g * REPEATS + repeat
                draw = 0
                if DROPOUT:
                    draw = tl.load(seed_ptr) + b * HEADS + h
                for first in range(0, n_queries, ROWS):
                    row = first + tl.arange(0, ROWS)
                    q = _load(
                        q_ptr, q_start, row, n_queries, q_stride_n, q_stride_h, h, WIDTH, WIDE
                    )
                    top = tl.full((ROWS,), -1e30, tl.float32)
                    total = tl.zeros((ROWS,), tl.float32)
                    out = tl.zeros((ROWS, WIDE), tl.float32)
                    begin, end = _seen(first, n_queries, n_keys, ROWS, TILE, CAUSAL, WINDOW)
                    for start in range(begin, end, TILE):
                        key = start + tl.arange(0, TILE)
                        k = _load(
                            k_ptr, k_start, key, n_keys, k_stride_n, k_stride_h, g, WIDTH, WIDE
                        )
                        v = _load(
                            v_ptr, k_start, key, n_keys, v_stride_n, v_stride_h, g, WIDTH, WIDE
                        )
                        scores = _scores(
                            q, k, row, key, n_queries, n_keys, scale, CAUSAL, WINDOW, PRECISION
                        )
                        higher = tl.maximum(top, tl.max(scores, 1))
                        weights = tl.exp2(scores - higher[:, None])
                        shrink = tl.exp2(top - higher)
                        total = total * shrink + tl.sum(weights, 1)
                        keep = _kept(weights, draw, row, key, dropout, DROPOUT)
                        out = out * shrink[:, None]
                        out += tl.dot((weights * keep).to(v.dtype), v, input_precision=PRECISION)
                        top = higher
                    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
                    _store(out_ptr, out, q_start, row, n_queries, HEADS * WIDTH, h, WIDTH, WIDE)


@triton.jit
def _long_backward_rows(
    q_ptr, k_ptr, v_ptr, dout_ptr, dq_ptr, sums_ptr, slopes_ptr,
    q_starts, q_lengths, k_starts, k_lengths, seed_ptr,
    q_stride_n, q_stride_h, k_stride_n, k_stride_h, v_stride_n, v_stride_h,
    do_stride_n, do_stride_h, dq_stride_n, dkv_stride_n, scale, dropout, n_work,
    REPEATS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    TILE: tl.constexpr, LOWER: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of queries.

    Also store two values per query, from which the gradients of keys are computed: the log-sum-exp
    of its scores, and the weighted mean of the gradients of its attention weights.
    """
    for work in range(tl.program_id(0), n_work, tl.num_programs(0)):
        b, g = work // (HEADS // REPEATS), work % (HEADS // REPEATS)
        n_queries, n_keys = tl.load(q_lengths + b), tl.load(k_lengths + b)
        if (n_queries > 0) & (tl.maximum(n_queries, n_keys) > LOWER):
            q_start = tl.load(q_starts + b).to(tl.int64)
            k_start = tl.load(k_starts + b).to(tl.int64)
            for repeat in range(REPEATS):
                h = g * REPEATS + repeat
                draw = 0
                if DROPOUT:
                    draw = tl.load(seed_ptr) + b * HEADS + h
                for first in range(0, n_queries, ROWS):
                    row = first + tl.arange(0, ROWS)
                    q = _load(
                        q_ptr, q_start, row, n_queries, q_stride_n, q_stride_h, h, WIDTH, WIDE
                    )
                    dout = _load(
                        dout_ptr, q_start, row, n_queries, do_stride_n, do_stride_h, h, WIDTH, WIDE
                    )
                    begin, end = _seen(first, n_queries, n_keys, ROWS, TILE, CAUSAL, WINDOW)
                    top = tl.full((ROWS,), -1e30, tl.float32)
                    total = tl.zeros((ROWS,), tl.float32)
                    slope = tl.zeros((ROWS,), tl.float32)
                    for start in range(begin, end, TILE):
                        key = start + tl.arange(0, TILE)
                        k = _load(
                            k_ptr, k_start, key, n_keys, k_stride_n, k_stride_h, g, WIDTH, WIDE
                        )
                        v = _load(
                            v_ptr, k_start, key, n_keys, v_stride_n, v_stride_h, g, WIDTH, WIDE
                        )
                        scores = _scores(
                            q, k, row, key, n_queries, n_keys, scale, CAUSAL, WINDOW, PRECISION
                        )
                        higher = tl.maximum(top, tl.max(scores, 1))
                        weights = tl.exp2(scores - higher[:, None])
                        shrink = tl.exp2(top - higher)
                        keep = _kept(weights, draw, row, key, dropout, DROPOUT)
                        dweights = tl.dot(dout, tl.trans(v), input_precision=PRECISION) * keep
                        total = total * shrink + tl.sum(weights, 1)
                        slope = slope * shrink + tl.sum(weights * dweights, 1)
                        top = higher
                    total = tl.where(total == 0.0, 1.0, total)
                    sums = top + tl.log2(total)
                    slope = slope / total
                    dq = tl.zeros((ROWS, WIDE), tl.float32)
                    for start in range(begin, end, TILE):
                        key = start + tl.arange(0, TILE)
                        k = _load(
                            k_ptr, k_start, key, n_keys, k_stride_n, k_stride_h, g, WIDTH, WIDE
                        )
                        v = _load(
                            v_ptr, k_start, key, n_keys, v_stride_n, v_stride_h, g, WIDTH, WIDE
                        )
                        scores = _scores(
                            q, k, row, key, n_queries, n_keys, scale, CAUSAL, WINDOW, PRECISION
                        )
                        weights = tl.exp2(scores - sums[:, None])
                        keep = _kept(weights, draw, row, key, dropout, DROPOUT)
                        dweights = tl.dot(dout, tl.trans(v), input_precision=PRECISION) * keep
                        dscores = (weights * (dweights - slope[:, None]) * scale).to(q.dtype)
                        dq += tl.dot(dscores, k, input_precision=PRECISION)
                    _store(dq_ptr, dq, q_start, row, n_queries, dq_stride_n, h, WIDTH, WIDE)
                    tl.store(sums_ptr + (q_start + row) * HEADS + h, sums, row < n_queries)
                    tl.store(slopes_ptr + (q_start + row) * HEADS + h, slope, row < n_queries)


@triton.jit
def _long_backward_keys(
    q_ptr, k_ptr, v_ptr, dout_ptr, sums_ptr, slopes_ptr, dk_ptr, dv_ptr,
    q_starts, q_lengths, k_starts, k_lengths, seed_ptr,
    q_stride_n, q_stride_h, k_stride_n, k_stride_h, v_stride_n, v_stride_h,
    do_stride_n, do_stride_h, dq_stride_n, dkv_stride_n, scale, dropout, n_work,
    REPEATS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    TILE: tl.constexpr, LOWER: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for work in range(tl.program_id(0), n_work, tl.num_programs(0)):
        b, g = work // (HEADS // REPEATS), work % (HEADS // REPEATS)
        n_queries, n_keys = tl.load(q_lengths + b), tl.load(k_lengths + b)
        if (n_keys > 0) & (tl.maximum(n_queries, n_keys) > LOWER):
            q_start = tl.load(q_starts + b).to(tl.int64)
            k_start = tl.load(k_starts + b).to(tl.int64)
            for start in range(0, n_keys, TILE):
                key = start + tl.arange(0, TILE)
                k = _load(k_ptr, k_start, key, n_keys, k_stride_n, k_stride_h, g, WIDTH, WIDE)
                v = _load(v_ptr, k_start, key, n_keys, v_stride_n, v_stride_h, g, WIDTH, WIDE)
                dk = tl.zeros((TILE, WIDE), tl.float32)
                dv = tl.zeros((TILE, WIDE), tl.float32)
                for repeat in range(REPEATS):
                    h = g * REPEATS + repeat
                    draw = 0
                    if DROPOUT:
                        draw = tl.load(seed_ptr) + b * HEADS + h
                    for first in range(0, n_queries, ROWS):
                        row = first + tl.arange(0, ROWS)
                        q = _load(
                            q_ptr, q_start, row, n_queries, q_stride_n, q_stride_h, h, WIDTH, WIDE
                        )
                        dout = _load(
                            dout_ptr,
                            q_start,
                            row,
                            n_queries,
                            do_stride_n,
                            do_stride_h,
                            h,
                            WIDTH,
                            WIDE,
                        )
                        here = (q_start + row) * HEADS + h
                        sums = tl.load(sums_ptr + here, row < n_queries, 0.0)
                        slope = tl.load(slopes_ptr + here, row < n_queries, 0.0)
                        scores = _scores(
                            q, k, row, key, n_queries, n_keys, scale, CAUSAL, WINDOW, PRECISION
                        )
                        weights = tl.exp2(scores - sums[:, None])
                        keep = _kept(weights, draw, row, key, dropout, DROPOUT)
                        kept = (weights * keep).to(v.dtype)
                        dv += tl.dot(tl.trans(kept), dout, input_precision=PRECISION)
                        dweights = tl.dot(dout, tl.trans(v), input_precision=PRECISION) * keep
                        dscores = (weights * (dweights - slope[:, None]) * scale).to(q.dtype)
                        dk += tl.dot(tl.trans(dscores), q, input_precision=PRECISION)
                _store(dk_ptr, dk, k_start, key, n_keys, dkv_stride_n, g, WIDTH, WIDE)
                _store(dv_ptr, dv, k_start, key, n_keys, dkv_stride_n, g, WIDTH, WIDE)


def _launch(
    kernel: Any,
    pointers: tuple[Tensor, ...],
    layouts: tuple[Tensor, ...],
    seed: Tensor | None,
    strides: tuple[int, ...],
    options: tuple[int, bool, int, float, float],
    tiles: tuple[Tile, ...] = TILES,
    lower: int = 0,
) -> None:
    """Launch the kernel once per tile size, for sequences longer than `lower` and up to `longest`
    tokens. `options`: longest, causal, window, scale and dropout."""
    heads, width = pointers[0].shape[1:]
    kv_heads = pointers[1].shape[1]
    longest, causal, window, scale, dropout = options
    n_work = len(layouts[0]) * kv_heads
    for tile in tiles:
        n_programs = min(n_work, tile.programs * processors(pointers[0].device))
        kernel[(max(1, n_programs),)](
            *pointers,
            *layouts,
            layouts[0] if seed is None else seed,
            *strides,
            scale,
            dropout,
            n_work,
            REPEATS=heads // kv_heads,
            HEADS=heads,
            WIDTH=width,
            WIDE=max(16, triton.next_power_of_2(width)),
            TILE=tile.size,
            LOWER=lower,
            ROWS=tile.rows,
            CAUSAL=causal,
            WINDOW=window,
            DROPOUT=dropout > 0,
            PRECISION="ieee" if pointers[0].dtype == torch.float32 else "tf32",
            num_warps=tile.warps,
            num_stages=1,
        )
        lower = tile.size
        if tile.size >= longest:
            break


@torch.library.custom_op("headway::short_forward", mutates_args=())
def short_forward(
    q_NHK: Tensor,
    k_MGK: Tensor,
    v_MGK: Tensor,
    q_starts_B: Tensor,
    q_lengths_B: Tensor,
    k_starts_B: Tensor,
    k_lengths_B: Tensor,
    seed: Tensor | None,
    longest: int,
    causal: bool,
    window: int,
    scale: float,
    dropout: float,
    joined: bool,
) -> Tensor:
    q, k, v = _rows(q_NHK), _rows(k_MGK), _rows(v_MGK)
    out_NHK = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    layouts = (q_starts_B, q_lengths_B, k_starts_B, k_lengths_B)
    options = (longest, causal, window, scale, dropout)
    given = (layouts, seed, _strides(q, k, v), options)
    _launch(_forward, (q, k, v, out_NHK), *given)
    if longest > LARGEST:
        _launch(_long_forward, (q, k, v, out_NHK), *given, (LONG,), LARGEST)
    return out_NHK


@torch.library.custom_op("headway::short_backward", mutates_args=())
def short_backward(
    dout_NHK: Tensor,
    q_NHK: Tensor,
    k_MGK: Tensor,
    v_MGK: Tensor,
    q_starts_B: Tensor,
    q_lengths_B: Tensor,
    k_starts_B: Tensor,
    k_lengths_B: Tensor,
    seed: Tensor | None,
    longest: int,
    causal: bool,
    window: int,
    scale: float,
    dropout: float,
    joined: bool,
) -> list[Tensor]:
    """Return the gradients of q, k and v in the layout of their projections.

    With `joined`, they are one tensor; otherwise, q is one tensor, and k and v are another. A
    compiled step can therefore use them without a copy.
    """
    q, k, v, dout = _rows(q_NHK), _rows(k_MGK), _rows(v_MGK), _rows(dout_NHK)
    grads = _empty_gradients(q, k, joined)
    dq, dk, dv = _split_gradients(grads, q.shape[1], k.shape[1])
    layouts = (q_starts_B, q_lengths_B, k_starts_B, k_lengths_B)
    options = (longest, causal, window, scale, dropout)
    strides = (*_strides(q, k, v, dout), dq.stride(0), dk.stride(0))
    given = (layouts, seed, strides, options)
    _launch(_backward, (q, k, v, dout, dq, dk, dv), *given)
    if longest > LARGEST:
        sums_NH, slopes_NH = (q.new_empty(q.shape[:2], dtype=torch.float32) for _ in range(2))
        rows = (q, k, v, dout, dq, sums_NH, slopes_NH)
        _launch(_long_backward_rows, rows, *given, (LONG,), LARGEST)
        keys = (q, k, v, dout, sums_NH, slopes_NH, dk, dv)
        _launch(_long_backward_keys, keys, *given, (LONG,), LARGEST)
    return grads


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for x_NHK in tensors for stride in x_NHK.stride()[:2])


def _empty_gradients(q_NHK: Tensor, k_MGK: Tensor, joined: bool) -> list[Tensor]:
    width, n_q, n_kv = q_NHK.shape[2], q_NHK.shape[1], 2 * k_MGK.shape[1]
    if joined:
        return [q_NHK.new_empty(len(q_NHK), (n_q + n_kv) * width)]
    return [q_NHK.new_empty(len(q_NHK), n_q * width), q_NHK.new_empty(len(k_MGK), n_kv * width)]


def _split_gradients(grads: list[Tensor], n_heads: int, n_kv_heads: int) -> list[Tensor]:
    """Split gradients into heads: q (N H K), k (M G K) and v (M G K)."""
    width = sum(grad.shape[1] for grad in grads) // (n_heads + 2 * n_kv_heads)
    n_q, n_kv = n_heads * width, n_kv_heads * width
    if len(grads) == 1:
        parts = grads[0].split([n_q, n_kv, n_kv], dim=1)
    else:
        parts = (grads[0], *grads[1].split([n_kv, n_kv], dim=1))
    return [part.unflatten(1, (-1, width)) for part in parts]


def _rows(x_NHK: Tensor) -> Tensor:
    """Return the tensor with contiguous elements in each head, as the kernels require. Heads may
    have any stride."""
    return x_NHK if x_NHK.stride(-1) == 1 else x_NHK.contiguous()


@short_forward.register_fake
def _(q_NHK: Tensor, *others: Any) -> Tensor:
    return torch.empty(q_NHK.shape, dtype=q_NHK.dtype, device=q_NHK.device)


@short_backward.register_fake
def _(dout: Tensor, q_NHK: Tensor, k_MGK: Tensor, *others: Any) -> list[Tensor]:
    return _empty_gradients(q_NHK, k_MGK, joined=others[-1])


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.options = inputs[8:]


def _backward_of_forward(ctx: Any, dout_NHK: Tensor) -> tuple[Tensor | None, ...]:
    q_NHK, k_MGK = ctx.saved_tensors[:2]
    grads = short_backward(dout_NHK, *ctx.saved_tensors, *ctx.options)
    dq, dk, dv = _split_gradients(grads, q_NHK.shape[1], k_MGK.shape[1])
    return dq, dk, dv, *([None] * 11)


short_forward.register_autograd(_backward_of_forward, setup_context=_keep_inputs)
