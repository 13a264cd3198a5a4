"""Is a step of k places one and the same matrix, wherever it starts? For sinusoids it is, exactly;
that does not mean that a fit finds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.inside.measure.position_codes import PositionCode


@dataclass(frozen=True)
class Shift:
    """Is the code of place p + k a matrix times the code of place p, the same for all p?"""

    k: int
    exact: float | None
    """Largest error of the rotation that the frequencies give, in fp32; None without them."""

    fitted: float
    """Relative error of a matrix fitted by least squares, on the places that it was fitted to."""

    tested: float
    """The same on the places behind them: a map that exists is not yet one that is found."""

    blocks: float | None
    """The same for a map fitted in 2×2 blocks, one a frequency; None without frequencies."""


def shift(code: PositionCode, k: int = 1) -> Shift:
    table_PD = code.table_PD
    assert table_PD is not None
    half = len(table_PD) // 2
    assert 0 < k < half, f"a shift by {k} needs more than {2 * k} places"
    wide_PD = table_PD.double()
    before_PD, after_PD = wide_PD[: half - k], wide_PD[k:half]
    new_PD, new_after_PD = wide_PD[half:-k], wide_PD[half + k :]
    # numpy's, because it cuts off directions that rounding alone has filled.
    map_DD = torch.from_numpy(np.linalg.lstsq(before_PD.numpy(), after_PD.numpy(), rcond=None)[0])
    exact = blocks = None
    if code.rate_I is not None:
        turned_PD = table_PD[:-k] @ rotation(code, k).float().T
        exact = float((turned_PD - table_PD[k:]).abs().max())
        blocks = _error(_in_blocks(code, before_PD, after_PD, new_PD), new_after_PD)
    return Shift(
        k,
        exact,
        fitted=_error(before_PD @ map_DD, after_PD),
        tested=_error(new_PD @ map_DD, new_after_PD),
        blocks=blocks,
    )


def rotation(code: PositionCode, k: int) -> Tensor:
    """The matrix R_k with code(p + k) = R_k · code(p): each pair turns by k times its rate."""
    assert code.table_PD is not None
    assert code.rate_I is not None
    sines, cosines = code.pairs
    width = code.table_PD.shape[1]
    turn_DD = torch.zeros(width, width, dtype=torch.float64)
    angle_I = k * code.rate_I
    turn_DD[sines, sines] = turn_DD[cosines, cosines] = angle_I.cos()
    turn_DD[sines, cosines] = angle_I.sin()
    turn_DD[cosines, sines] = -angle_I.sin()
    return turn_DD


def _in_blocks(code: PositionCode, before_PD: Tensor, after_PD: Tensor, new_PD: Tensor) -> Tensor:
    out_PD = torch.empty_like(new_PD)
    for pair in zip(*code.pairs, strict=True):
        two = list(pair)
        fit = np.linalg.lstsq(before_PD[:, two].numpy(), after_PD[:, two].numpy(), rcond=None)[0]
        out_PD[:, two] = new_PD[:, two] @ torch.from_numpy(fit)
    return out_PD


def _error(got_PD: Tensor, true_PD: Tensor) -> float:
    return float((got_PD - true_PD).norm() / true_PD.norm())
