"""Page section for positional encodings: the table as an image, and its measured properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.inside.measure.position_codes import (
    PositionCode,
    codes,
    kernel,
    position_use,
    rotation,
    shift,
    slow_share,
)
from headway.inside.page.sections import PageSection
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

PLACES = 64
"""Maximum number of positions in the image of an encoding. Wide encodings show fewer."""

CELLS = 24_000
"""Maximum number of values in the image of an encoding. Each takes a byte."""

SHIFTS = (1, 4, 16)
"""Shifts in positions whose linear map is tested: neighbours, a few words, and about a sentence."""

SHIFTED = 256
"""Number of positions for the shift test. One half is for the fit, the other for the test."""

CORNER = 24
"""Number of rows and columns of a shift matrix that are displayed. They belong to the fastest pairs
of dimensions."""


def section(looked: LookInputs) -> PageSection | None:
    if looked.run is None:
        return None
    streams = looked.trace.reading.streams
    n_tokens = max(len(stream) for stream in streams.values())
    found = [_code(looked.run.model, code, n_tokens) for code in codes(looked.run.model)]
    return {"codes": found, "n_tokens": n_tokens} if found else None


def _code(model: torch.nn.Module, code: PositionCode, n_tokens: int) -> PageSection:
    facts: PageSection = {"kind": code.kind, "stacks": list(code.stacks)}
    if code.bias_HR is not None:
        return {
            **facts,
            "bias": PackedArray(code.bias_HR, "f32"),
            "distances": list(code.distances),
        }
    assert code.table_PD is not None
    n_table, width = code.table_PD.shape
    # Encodings hardly change over a few words, so at least fifty positions (about a sentence) are
    # measured.
    n_places = min(n_table, max(n_tokens, 50))
    image_PD = code.table_PD[: max(16, min(PLACES, CELLS // width))]
    found, used = kernel(code.table_PD), position_use(model, code, n_places)
    assert used is not None
    facts |= {
        "n_places": n_places,
        "n_table": n_table,
        "image": PackedArray(image_PD, "f16" if code.rate_I is None else "u8"),
        # A single very large value of a trained encoding would make all other colours grey.
        "colours": float(image_PD.abs().flatten().quantile(0.995)),
        "kernel": PackedArray(found.value_R, "f32"),
        "spread": PackedArray(found.spread_R, "f32"),
        "twin": found.twin,
        "twin_apart": found.twin_apart,
        "kernel_spearman": found.spearman,
        "shifts": [_shift(code, k) for k in SHIFTS if 4 * k < n_table],
        "slow": [[n, slow_share(code, n)] for n in (20, 50, 100, 512) if n <= n_table],
        "slow_here": slow_share(code, n_places),
        "code_use": PackedArray(_share(used.code_D), "f32"),
        "use": PackedArray(_share(used.use_D), "f32"),
        "use_spearman": used.spearman,
    }
    if code.rate_I is not None:
        facts["turn"] = PackedArray(_corner(code), "f32")
    return facts


def _shift(code: PositionCode, k: int) -> PageSection:
    found = shift(code.of_length(SHIFTED), k)
    return {name: getattr(found, name) for name in ("k", "exact", "fitted", "tested", "blocks")}


def _corner(code: PositionCode) -> Tensor:
    """Return the matrix of a shift by one position, for the fastest pairs of dimensions. The two
    columns of a pair are adjacent."""
    order = [column for pair in zip(*code.pairs, strict=True) for column in pair][:CORNER]
    return rotation(code, 1)[order][:, order]


def _share(values_D: Tensor) -> Tensor:
    """Divide values by the largest one, so that two measurements fit one chart."""
    return values_D / values_D.max().clamp(min=1e-30)
