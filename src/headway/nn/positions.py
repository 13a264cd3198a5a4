"""Positional encodings: added to the embeddings, applied to q and k, or added to attention
scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.errors import UserError
from headway.nn.layout import Layout


def sinusoids(
    n_positions: int, width: int, *, halves: bool = False, whisper: bool = False
) -> Tensor:
    """Return the table of sinusoidal positional encodings. Dimension 2i is sin(pos / 10000^(2i/d)),
    and dimension 2i + 1 is the cosine.

    `halves` puts all sines first, then all cosines, as in Marian and Whisper. `whisper` uses
    Whisper's frequencies, which end at exactly 1 / 10000.
    """
    end = width - 2 if whisper else width
    rate_I = torch.exp(torch.arange(0, width, 2).double() * (-math.log(10_000.0) / end))
    angle_PI = torch.arange(n_positions).double()[:, None] * rate_I
    pair = [angle_PI.sin(), angle_PI.cos()]
    table_PD = torch.cat(pair, dim=1) if halves else torch.stack(pair, dim=2).flatten(1)
    return table_PD.float()


def sinusoids_2d(n_rows: int, n_columns: int, width: int) -> Tensor:
    """Return two-dimensional sinusoidal encodings of image patches (rows × columns, width). The
    first half of the width encodes the row, the second half the column."""
    if width % 4:
        raise UserError(f"2-D sinusoids need a width divisible by 4, not {width}.")
    rows_YXD = sinusoids(n_rows, width // 2)[:, None].expand(-1, n_columns, -1)
    columns_YXD = sinusoids(n_columns, width // 2)[None].expand(n_rows, -1, -1)
    return torch.cat([rows_YXD, columns_YXD], dim=-1).flatten(0, 1)


class Sinusoidal(nn.Module):
    """Sinusoidal positional encodings, which have no parameters and no maximum length, because the
    table grows."""

    table_PD: Tensor

    def __init__(
        self, width: int, max_len: int, *, halves: bool = False, whisper: bool = False
    ) -> None:
        super().__init__()
        self.halves = halves
        self.kind = {"halves": halves, "whisper": whisper}
        self.register_buffer("table_PD", sinusoids(max_len, width, **self.kind), persistent=False)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        if layout.reach > len(self.table_PD):
            longer = sinusoids(layout.reach, self.table_PD.shape[1], **self.kind)
            self.table_PD = longer.to(self.table_PD)
        return x_ND + F.embedding(layout.positions_N, self.table_PD).to(x_ND.dtype)


class Learned(nn.Module):
    """Learned positional encodings: one trained vector per position."""

    def __init__(self, width: int, max_len: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_len, width)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        if layout.reach > self.table.num_embeddings:
            raise UserError(
                f"a sequence has {layout.reach} tokens, but this model has only "
                f"max_len={self.table.num_embeddings} learned positions. Shorten or split the "
                "text. Or train a model with a larger max_len, or with sinusoidal or rotary "
                "positions."
            )
        return x_ND + self.table(layout.positions_N).to(x_ND.dtype)


class Grid2d(nn.Module):
    """Positional encodings of the patches of an image, learned or sinusoidal. Learned ones are
    interpolated for other image sizes.

    `x_ND`: patches in row-major order. `shapes`: number of rows and columns of patches of each
    image.
    """

    table_YXD: Tensor

    def __init__(self, width: int, n_rows: int, n_columns: int, *, learned: bool) -> None:
        super().__init__()
        start = sinusoids_2d(n_rows, n_columns, width).unflatten(0, (n_rows, n_columns))
        if learned:
            self.table_YXD = nn.Parameter(start)
        else:
            self.register_buffer("table_YXD", start, persistent=False)
        self.learned = learned

    def forward(self, x_ND: Tensor, shapes: list[tuple[int, int]]) -> Tensor:
        return x_ND + torch.cat([self.code(*shape) for shape in shapes]).to(x_ND.dtype)

    def code(self, n_rows: int, n_columns: int) -> Tensor:
        if (n_rows, n_columns) == self.table_YXD.shape[:2]:
            return self.table_YXD.flatten(0, 1)
        if not self.learned:
            return sinusoids_2d(n_rows, n_columns, self.table_YXD.shape[2]).to(self.table_YXD)
        resized_1DYX = F.interpolate(
            self.table_YXD.permute(2, 0, 1)[None],
            size=(n_rows, n_columns),
            mode="bicubic",
            align_corners=False,
        )
        return resized_1DYX[0].flatten(1).T


def rope_rates(
    width: int, base: float, scaling: str = "none", factor: float = 1.0, trained_len: int = 8192
) -> Tensor:
    """Return the RoPE rates, scaled for longer contexts: the rotation of each pair of dimensions in
    radians per position.

    The scaling `linear` divides all rates by the factor. `ntk` enlarges the base, so that fast
    pairs hardly change. `llama3` divides the rates of slow pairs and keeps those of fast pairs.
    Between wavelengths of a quarter of the trained context and the whole of it, it interpolates.
    """
    if scaling == "ntk":
        base = base * factor ** (width / (width - 2))
    rate_I = base ** -(torch.arange(0, width, 2).double() / width)
    if scaling == "linear":
        return rate_I / factor
    if scaling == "llama3":
        wave_I = 2 * math.pi / rate_I
        low, high = 1.0, 4.0
        smooth_I = ((trained_len / wave_I - low) / (high - low)).clamp(0, 1)
        return smooth_I * rate_I + (1 - smooth_I) * rate_I / factor
    return rate_I


class Rotary(nn.Module):
    """Rotary position embedding (RoPE): rotates pairs of dimensions of q and k by an angle
    proportional to their position, so that scores depend on distances."""

    cos_PI: Tensor
    sin_PI: Tensor

    def __init__(self, rates: Callable[[], Tensor], max_len: int) -> None:
        super().__init__()
        self.rates = rates
        angle_PI = self._angles(max_len)
        self.register_buffer("cos_PI", angle_PI.cos().float(), persistent=False)
        self.register_buffer("sin_PI", angle_PI.sin().float(), persistent=False)

    def _angles(self, n_positions: int) -> Tensor:
        return torch.arange(n_positions).double()[:, None] * self.rates()

    def forward(self, x_NHK: Tensor, layout: Layout) -> Tensor:
        """Rotate the heads of q or k. Dimension i of a head is paired with dimension i + K/2."""
        if layout.reach > len(self.cos_PI):
            angle_PI = self._angles(layout.reach)
            self.cos_PI, self.sin_PI = (
                angle_PI.cos().to(self.cos_PI),
                angle_PI.sin().to(self.sin_PI),
            )
        cos_N1I = F.embedding(layout.positions_N, self.cos_PI).to(x_NHK.dtype)[:, None]
        sin_N1I = F.embedding(layout.positions_N, self.sin_PI).to(x_NHK.dtype)[:, None]
        a_NHI, b_NHI = x_NHK.chunk(2, dim=-1)
        turned = [a_NHI * cos_N1I - b_NHI * sin_N1I, b_NHI * cos_N1I + a_NHI * sin_N1I]
        return torch.cat(turned, dim=-1)


class Alibi(nn.Module):
    """ALiBi (Press et al. 2021), an attention bias that decreases linearly with distance, with one
    slope per head."""

    slope_H11: Tensor

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        slope_H = torch.tensor(alibi_slopes(n_heads))
        self.register_buffer("slope_H11", slope_H[:, None, None], persistent=False)

    def forward(self, distance_TS: Tensor) -> Tensor:
        return -self.slope_H11.to(distance_TS.device) * distance_TS.abs().unsqueeze(-3)


def alibi_slopes(n_heads: int) -> list[float]:
    """Return one slope for each of n heads: the powers of 2^(−8/n). If n is not a power of two,
    return the slopes for the next lower power of two, then every other slope for the next higher
    one."""
    whole = 2 ** math.floor(math.log2(n_heads))
    slopes = [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)]
    finer = [2.0 ** (-8 * (i + 1) / (2 * whole)) for i in range(0, 2 * whole, 2)]
    return slopes + finer[: n_heads - whole]


class Relative(nn.Module):
    """T5 relative position bias: a trained value per head and bucket of distances.

    The layers of a stack share the table. The bucket of each distance is computed only once and
    stored, because runtimes round logarithms differently.
    """

    bucket_P: Tensor

    def __init__(self, n_heads: int, buckets: int, max_distance: int, *, causal: bool) -> None:
        super().__init__()
        self.causal, self.max_distance = causal, max_distance
        self.table = nn.Embedding(buckets, n_heads)
        distance_P = torch.arange(-max_distance, max_distance + 1)
        self.register_buffer("bucket_P", self.bucket(distance_P), persistent=False)

    def forward(self, distance_TS: Tensor) -> Tensor:
        far = self.max_distance  # all larger distances share a bucket
        bucket_TS = self.bucket_P[distance_TS.clamp(-far, far) + far]
        bias_TSH: Tensor = self.table(bucket_TS)
        return bias_TSH.movedim(-1, -3)

    def bucket(self, distance_TS: Tensor) -> Tensor:
        """Return the bucket of each distance. Short distances have a bucket each. Long ones share
        buckets whose width grows exponentially."""
        n_buckets = self.table.num_embeddings
        if self.causal:
            back_TS = (-distance_TS).clamp(min=0)
            ahead_TS = torch.zeros_like(distance_TS)
        else:
            n_buckets //= 2
            back_TS = distance_TS.abs()
            ahead_TS = (distance_TS > 0) * n_buckets
        exact = n_buckets // 2
        ratio_TS = back_TS.clamp(min=1).float() / exact
        log_TS = ratio_TS.log() / math.log(self.max_distance / exact) * (n_buckets - exact)
        far_TS = (exact + log_TS.long()).clamp(max=n_buckets - 1)
        return ahead_TS + back_TS.where(back_TS < exact, far_TS)


class PrunedBias(nn.Module):
    """Attention position bias for the heads that remain after pruning."""

    kept_H: Tensor

    def __init__(self, bias: Callable[[Tensor], Tensor], kept: Sequence[int]) -> None:
        super().__init__()
        self.whole = (bias,)  # not as a submodule: the bias belongs to the stack
        self.register_buffer("kept_H", torch.tensor(kept), persistent=False)

    def forward(self, distance_TS: Tensor) -> Tensor:
        bias_HTS = self.whole[0](distance_TS)
        return bias_HTS.index_select(-3, self.kept_H.to(bias_HTS.device))


def max_positions(front: nn.Module) -> int | None:
    """Return the maximum number of positions that the model input supports, or None if there is no
    limit."""
    tables = [part.table for part in front.modules() if isinstance(part, Learned)]
    return min((table.num_embeddings for table in tables), default=None)


def extend_positions(model: nn.Module, reach: int) -> None:
    """Extend sinusoidal and rotary tables to `reach` positions. Call this before a CUDA graph
    captures the addresses of the tables."""
    layout = replace(Layout.of([1]), reach=reach)
    for part in model.modules():
        if isinstance(part, Sinusoidal) and reach > len(part.table_PD):
            part(part.table_PD[:1], layout.to(part.table_PD.device))
        elif isinstance(part, Rotary) and reach > len(part.cos_PI):
            pair_11K = torch.cat([part.cos_PI[:1], part.sin_PI[:1]], dim=1)[:, None]
            part(pair_11K, layout.to(pair_11K.device))
