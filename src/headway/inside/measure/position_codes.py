"""Positional encodings of a model, and their measured properties.

Learned and sinusoidal encodings are added to the embeddings. Rotary encodings rotate queries and
keys. ALiBi and relative encodings are biases that depend on distance and are added to the attention
scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.measure.maps.agreement import spearman
from headway.models.parts.text import TextFront
from headway.nn.positions import Alibi, Learned, Relative, Rotary, Sinusoidal, sinusoids

MOST_PLACES = 512
"""Maximum number of positions of an encoding that are measured: enough to show the end of a usual
table, and fast."""

STILL = 0.1
"""Minimum range of a dimension's values over positions for it to count as distinguishing positions,
in encodings with values from -1 to 1."""


@dataclass(frozen=True)
class PositionCode:
    """Positional encoding of one stack, or of several stacks with equal encodings."""

    kind: str
    """Kind of encoding: learned, sinusoidal, sinusoidal-halves, rotary, alibi or relative."""

    stacks: tuple[str, ...]
    table_PD: Tensor | None = None
    """Encoding of each position (rows); for a rotary encoding, the cosines of its angles and then
    the sines. None for a bias."""

    rate_I: Tensor | None = None
    """Radians per position of each pair of dimensions; None unless the encoding is sinusoidal or
    rotary."""

    bias_HR: Tensor | None = None
    """Bias that each head adds to the attention scores at each of the `distances`; None unless the
    encoding is a bias."""

    distances: tuple[int, ...] = ()
    """Distances of the columns of `bias_HR`, as key position minus query position."""

    @property
    def pairs(self) -> tuple[list[int], list[int]]:
        """Indices of the columns of `table_PD` with sines and with cosines, in the order of
        `rate_I`."""
        assert self.rate_I is not None
        half = len(self.rate_I)
        first, second = list(range(half)), list(range(half, 2 * half))
        if self.kind == "rotary":
            return second, first
        if self.kind == "sinusoidal-halves":
            return first, second
        return list(range(0, 2 * half, 2)), list(range(1, 2 * half, 2))

    def of_length(self, n_places: int) -> PositionCode:
        """Return the encoding of only the first positions."""
        assert self.table_PD is not None
        return replace(self, table_PD=self.table_PD[:n_places])


def codes(model: nn.Module, n_places: int = MOST_PLACES) -> list[PositionCode]:
    """Return all positional encodings of the model, with at most `n_places` positions each; empty
    if it has none."""
    found = [code for part in Anatomy.of(model).stacks for code in _codes_of(part, n_places)]
    merged: list[PositionCode] = []
    for code in found:
        same = next((i for i, other in enumerate(merged) if _equal(code, other)), None)
        if same is None:
            merged.append(code)
        else:
            merged[same] = replace(merged[same], stacks=merged[same].stacks + code.stacks)
    return merged


@torch.no_grad()
def _codes_of(part: StackPart, n_places: int) -> list[PositionCode]:
    found: list[PositionCode] = []
    added = part.front.positions if isinstance(part.front, TextFront) else None
    attention = part.blocks[0].attention
    rotary = None if attention is None else attention.rotary
    if isinstance(added, Learned):
        table_PD = added.table.weight.detach().float()[:n_places]
        found.append(PositionCode("learned", (part.name,), table_PD))
    if isinstance(added, Sinusoidal):
        found.append(_sinusoidal(part.name, added, n_places))
    if isinstance(rotary, Rotary):
        angle_PI = torch.arange(n_places).double()[:, None] * rotary.rates()
        table_PD = torch.cat([angle_PI.cos(), angle_PI.sin()], dim=1).float()
        found.append(PositionCode("rotary", (part.name,), table_PD, rotary.rates()))
    bias = part.stack.bias
    if isinstance(bias, Alibi | Relative):
        assert attention is not None
        causal = attention.scope.causal
        ahead = 0 if causal else min(n_places, 129) - 1
        distances = torch.arange(-min(n_places, 129) + 1, ahead + 1)
        bias_HR = bias(distances[None]).squeeze(-2).float()
        kind = "alibi" if isinstance(bias, Alibi) else "relative"
        places = tuple(distances.tolist())
        found.append(PositionCode(kind, (part.name,), bias_HR=bias_HR, distances=places))
    return found


def _sinusoidal(stack: str, added: Sinusoidal, n_places: int) -> PositionCode:
    width = added.table_PD.shape[1]
    table_PD = sinusoids(n_places, width, halves=added.halves)
    kind = "sinusoidal-halves" if added.halves else "sinusoidal"
    rate_I = 10_000.0 ** -(torch.arange(0, width, 2).double() / width)
    return PositionCode(kind, (stack,), table_PD, rate_I)


def _equal(one: PositionCode, other: PositionCode) -> bool:
    if (one.kind, one.distances) != (other.kind, other.distances):
        return False
    for a, b in ((one.table_PD, other.table_PD), (one.bias_HR, other.bias_HR)):
        if (a is None) != (b is None) or (a is not None and b is not None and not a.equal(b)):
            return False
    return True


@dataclass(frozen=True)
class PositionKernel:
    """Similarity of the encodings of two positions as a function of their distance."""

    value_R: Tensor
    """Mean cosine similarity of the encodings of two positions at each distance; 1 at distance
    0."""

    spread_R: Tensor
    """Standard deviation of the cosine similarity over positions, at each distance; 0 if it depends
    only on the distance."""

    twin: float
    """Euclidean distance between the encodings of the two most similar positions, which are scaled
    to norm 1."""

    twin_apart: int
    """Distance in positions between the two most similar encodings. A large value means that the
    encoding repeats."""

    spearman: float
    """Rank correlation between the distance of two encodings and the distance of their
    positions."""


def kernel(table_PD: Tensor) -> PositionKernel:
    unit_PD = torch.nn.functional.normalize(table_PD.double(), dim=-1)
    cosine_PP = unit_PD @ unit_PD.T
    diagonals = [cosine_PP.diagonal(apart) for apart in range(len(cosine_PP))]
    value_R = torch.stack([line.mean() for line in diagonals])
    spread_R = torch.stack([line.std(correction=0) for line in diagonals])
    far_R = (2 - 2 * value_R).clamp(min=0).sqrt()[1:]
    others_PP = cosine_PP - 4 * torch.eye(len(cosine_PP))
    place, other = divmod(int(others_PP.argmax()), len(cosine_PP))
    return PositionKernel(
        value_R,
        spread_R,
        twin=float((2 - 2 * others_PP[place, other]).clamp(min=0).sqrt()),
        twin_apart=abs(place - other),
        spearman=_spearman(far_R, torch.arange(1, len(table_PD))),
    )


def slow_share(code: PositionCode, n_places: int) -> float:
    """Return the fraction of dimensions that hardly change over the first `n_places` positions and
    so remain free for embeddings."""
    assert code.table_PD is not None
    table_PD = code.table_PD[:n_places]
    range_D = table_PD.amax(0) - table_PD.amin(0)
    # Trained encodings can have any scale. It is estimated as half the range that a tenth of the
    # dimensions exceed.
    size = float(range_D.quantile(0.9)) / 2 if code.rate_I is None else 1.0
    return float((range_D < STILL * size).float().mean())


@dataclass(frozen=True)
class PositionUse:
    """How much the trained weights use each dimension, in comparison with the positional
    encoding."""

    code_D: Tensor
    """Variance of each dimension of the encoding over positions. For a rotary encoding: its
    rates."""

    use_D: Tensor
    """Variance of each dimension of the token embeddings. For a rotary encoding: norms of the query
    weights times norms of the key weights."""

    spearman: float
    """Rank correlation of `code_D` and `use_D`. If it is negative, embeddings mainly use dimensions
    in which the encoding changes little."""


@torch.no_grad()
def position_use(model: nn.Module, code: PositionCode, n_places: int) -> PositionUse | None:
    """Measure how much the model uses each dimension of its position encoding, in the first stack
    with this encoding. Return None for encodings without dimensions, such as distance biases."""
    part = Anatomy.of(model).stack(code.stacks[0])
    if code.table_PD is None:
        return None
    if code.kind == "rotary":
        assert code.rate_I is not None
        code_D, use_D = code.rate_I, _pair_sizes(part)
    else:
        assert isinstance(part.front, TextFront)
        table_VD = part.front.tokens.weight.detach().double() * part.front.scale
        code_D, use_D = code.table_PD[:n_places].double().var(0), table_VD.var(0)
    return PositionUse(code_D, use_D, _spearman(code_D, use_D))


def _pair_sizes(part: StackPart) -> Tensor:
    """Return the norm of the query weights times that of the key weights, for each rotating pair of
    dimensions."""
    sizes = []
    for block in part.blocks:
        n_q, n_k, _ = block.attention.sizes
        rows_E = block.attention.to_qkv.weight.detach().double().square().sum(1)
        both = [rows_E[:n_q], rows_E[n_q : n_q + n_k]]
        q_I, k_I = (
            rows.view(-1, 2, block.attention.d_head // 2).sum(1).mean(0).sqrt() for rows in both
        )
        sizes.append(q_I * k_I)
    return torch.stack(sizes).mean(0)


def _spearman(one: Tensor, other: Tensor) -> float:
    """Return Spearman's rank correlation, or 0 if it is undefined."""
    return spearman(one.double().numpy(), other.double().numpy()) or 0.0


@dataclass(frozen=True)
class ShiftTest:
    """Result of testing whether one matrix maps the encoding of position p to that of p + k, for
    all p."""

    k: int
    exact: float | None
    """Largest error of the rotation matrix with the known frequencies, in fp32. None if the
    encoding has no frequencies."""

    fitted: float
    """Relative error of a matrix fitted by least squares, on the positions that it was fitted
    to."""

    tested: float
    """Relative error of the fitted matrix on later positions, which shows whether it
    generalizes."""

    blocks: float | None
    """Relative error on later positions of a matrix fitted in 2×2 blocks, one per frequency. None
    if the encoding has no frequencies."""


def shift(code: PositionCode, k: int = 1) -> ShiftTest:
    table_PD = code.table_PD
    assert table_PD is not None
    half = len(table_PD) // 2
    assert 0 < k < half, f"a shift by {k} needs more than {2 * k} places"
    wide_PD = table_PD.double()
    before_PD, after_PD = wide_PD[: half - k], wide_PD[k:half]
    new_PD, new_after_PD = wide_PD[half:-k], wide_PD[half + k :]
    # numpy's solver is used because it cuts off directions that consist of rounding errors.
    map_DD = torch.from_numpy(np.linalg.lstsq(before_PD.numpy(), after_PD.numpy(), rcond=None)[0])
    exact = blocks = None
    if code.rate_I is not None:
        turned_PD = table_PD[:-k] @ rotation(code, k).float().T
        exact = float((turned_PD - table_PD[k:]).abs().max())
        blocks = _error(_in_blocks(code, before_PD, after_PD, new_PD), new_after_PD)
    return ShiftTest(
        k,
        exact,
        fitted=_error(before_PD @ map_DD, after_PD),
        tested=_error(new_PD @ map_DD, new_after_PD),
        blocks=blocks,
    )


def rotation(code: PositionCode, k: int) -> Tensor:
    """Return the rotation matrix R_k with code(p + k) = R_k · code(p). Each pair of dimensions is
    rotated by k times its rate."""
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
