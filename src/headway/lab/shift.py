"""E3: is shifting a positional encoding a linear map?

It is, because every pair of dimensions is rotated by an angle that depends only on the shift. The
verdict is about the encoding that a model actually adds to its embeddings. That the map exists does
not mean that it is learned: least squares on some positions finds a different map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import Figure, LineChart, TableFigure
from headway.lab.verdict import Control, Effect, OutcomeSentences, Verdict, decide
from headway.lab.workspace import Workspace
from headway.models.parts.body import added_positions
from headway.nn.layout import Layout
from headway.settings.model import EncoderSettings

PLACES = 5000
"""Number of positions at which the rotation is checked, far more than most texts have."""

SHIFTS = (1, 7, 100, 1000)
"""Shifts that are checked, in positions: from neighbouring words to far beyond a sentence."""

SEEN, UNSEEN = 512, 500
"""Number of positions on which the matrix is fitted, and of later positions on which it is
tested."""

FITTED = 7
"""Shift, in positions, of the map that is fitted by least squares."""

ROUNDING = 1e-6
"""Tolerance for rounding errors: eight units in the last place of single precision, in which models
store the encoding."""


class ShiftExperiment(Experiment):
    hypothesis = (
        "For every shift k there is one matrix R, the same for all positions p, such that code(p "
        "+ k) = R · code(p)."
    )
    method = (
        "The experiment takes the positional encoding that a model adds to its embeddings at "
        f"{PLACES:,} positions. It rotates every pair of dimensions by k times its frequency and "
        "compares the result with the encoding k positions later, for k = 1, 7, 100 and 1,000. "
        f"Models store the encoding in single precision, so a rounding error of {ROUNDING:g} is "
        "allowed.",
        f"A matrix is also fitted by least squares on {SEEN} positions, once without constraints "
        f"and once as rotations of pairs, and tested on the next {UNSEEN} positions.",
    )
    control = (
        "For a table of random numbers, such a matrix must not exist; otherwise its existence "
        "would prove nothing."
    )
    literature = (
        Citation("Vaswani et al. 2017", "A shift is a linear function of the encoding, which "
                 "should make attention by relative position easy to learn."),
        Citation("Kazemnejad et al. 2023", "Models with sinusoidal encodings extrapolate poorly "
                 "to longer sequences, so the existence of a linear map is not enough.", "context"),
    )  # fmt: skip
    pieces = (1, 1)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        widths = bench.choose((128,), (64, 128, 256, 512))
        return bench.cached("errors", lambda: {str(width): errors(width, bench.seed)
                                             for width in widths})  # fmt: skip

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        widths = list(found[0])
        worst = [max(one[width]["single"] for width in widths) for one in found]
        effect = Effect.over(
            worst, "largest error of the rotation of a model's encoding", exact=True
        )
        noise = min(min(per_seed(found, width, "random")) for width in widths)
        control = Control(
            name="a random table has none", passed=noise > 0.3,
            said=f"the best matrix for a random table has an error of {100 * noise:.0f} % of its "
                 "norm.",
        )  # fmt: skip
        width = shown(found)
        more = [
            Effect.over(per_seed(found, width, "double"),
                        "largest error of the rotation of the formula in double precision",
                        exact=True),
            Effect.over(per_seed(found, width, "fit_seen"),
            "error of the least-squares matrix on the fitted positions",
                        "%", exact=True),
            Effect.over(per_seed(found, width, "fit_unseen"), "error of the least-squares matrix "
                                                          "on later positions",
                        "%", exact=True),
            Effect.over(per_seed(found, width, "turns_unseen"), "error of the fitted rotations "
                                                            "on later positions",
                        "%", exact=True),
        ]  # fmt: skip
        off = mean(found, width, "fit_unseen")
        answers = OutcomeSentences(
            supported="Yes: a shift of all positions rotates each pair of dimensions by a fixed "
            "angle, exactly up to rounding.",
            refuted="No: rotating each pair of dimensions does not give the shifted encoding.",
            numbers=f"A matrix fitted by least squares on {SEEN} positions differs: its error on "
            f"the next {UNSEEN} positions is {off:.0f} %.",
            changes="Nothing: the answer follows from the addition theorem of sine and "
            "cosine. The error of the fitted matrix depends on the number of positions used for "
            "the fit.",
        )
        return decide(effect.below(ROUNDING), effect, answers, [control], more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        width = shown(found)
        curves: Any = found[0][width]["curves"]
        named = {"free": "any matrix", "turns": "rotations of pairs"}
        table = [
            [k, *(mean(found, width, "by_shift", k, kind) for kind in ("double", "single"))]
            for k in map(str, SHIFTS)
        ]
        return [
            LineChart(
                title="A fitted shift on fitted and on later positions",
                series=[(named[key], [(p, e) for p, e in curves[key]]) for key in named],
                x="position", y="error, share of the norm", log_y=True,
                hint=f"Fitted by least squares on the first {SEEN} positions. A matrix without "
                "constraints is exact there and wrong after them; rotations of pairs remain "
                "exact.",
            ),
            TableFigure(
                title="The exact shift",
                columns=["shift", "error, formula in double precision",
                         "error, encoding of a model"],
                rows=table, hint=f"Largest absolute difference of any dimension, over {PLACES:,} "
                                 "positions.",
            ),
        ]  # fmt: skip


EXPERIMENT = ShiftExperiment()


def shown(found: Sequence[SeedMeasurements]) -> str:
    """Return the embedding width for which the page reports results.

    It is 128 if that width was measured and otherwise the last one, because 128 is far smaller than
    the number of fitted positions.
    """
    return "128" if "128" in found[0] else list(found[0])[-1]


def rates(width: int) -> Tensor:
    """Return the radians per position of each pair of dimensions, by the formula of the paper."""
    return torch.exp(torch.arange(0, width, 2).double() * (-math.log(10_000.0) / width))


def code(places_P: Tensor, width: int) -> Tensor:
    """Return the positional encoding in double precision (positions, pairs, 2)."""
    angle_PI = places_P.double()[:, None] * rates(width)
    return torch.stack([angle_PI.sin(), angle_PI.cos()], -1)


def model_positions(n_places: int, width: int) -> Tensor:
    """Return the positional encoding that a model with `model.positions=sinusoidal` adds to its
    embeddings."""
    settings = EncoderSettings(d_model=width, n_heads=1, positions="sinusoidal")
    positions: Any = added_positions(settings, width)
    code_PD: Tensor = positions(torch.zeros(n_places, width), Layout.of([n_places]))
    return code_PD


def rotated(code_PI2: Tensor, angle_I: Tensor) -> Tensor:
    """Return the encodings (positions, pairs, 2) with every pair of dimensions rotated by its
    angle."""
    sin_PI, cos_PI = code_PI2.unbind(-1)
    sin_I, cos_I = angle_I.sin().to(sin_PI), angle_I.cos().to(sin_PI)
    return torch.stack([sin_PI * cos_I + cos_PI * sin_I, cos_PI * cos_I - sin_PI * sin_I], -1)


def errors(width: int, seed: int) -> dict[str, Any]:
    by_shift = {}
    places_P = torch.arange(PLACES)
    table = model_positions(PLACES + max(SHIFTS), width).unflatten(1, (-1, 2))
    for k in SHIFTS:
        angle_I = k * rates(width)
        exact = rotated(code(places_P, width), angle_I) - code(places_P + k, width)
        single = rotated(table[:PLACES], angle_I) - table[k : PLACES + k]
        by_shift[str(k)] = {"double": float(exact.abs().max()), "single": float(single.abs().max())}
    random = torch.Generator().manual_seed(seed)
    # The table needs more positions than dimensions. Otherwise a matrix would exist for any table.
    noise = torch.randn(max(SEEN, 4 * width), width, generator=random, dtype=torch.float64)
    seen = torch.arange(SEEN - FITTED)
    both = torch.arange(SEEN + UNSEEN - FITTED)
    here, there = code(both, width), code(both + FITTED, width)
    free = best_map(here[: len(seen)].flatten(1), there[: len(seen)].flatten(1))
    free_P = relative_errors(here.flatten(1) @ free, there.flatten(1))
    turns_P = relative_errors(rotated(here, fitted_turns(here[: len(seen)],
    there[: len(seen)])).flatten(1),
                  there.flatten(1))  # fmt: skip
    later = slice(SEEN, None)
    return {
        "by_shift": by_shift,
        "double": max(one["double"] for one in by_shift.values()),
        "single": max(one["single"] for one in by_shift.values()),
        "random": unshiftable(noise),
        "fit_seen": 100 * float(free_P[: len(seen)].max()),
        "fit_unseen": 100 * float(free_P[later].mean()),
        "turns_unseen": 100 * float(turns_P[later].mean()),
        "curves": {
            "free": [[place, float(free_P[place])] for place in range(0, len(both), 12)],
            "turns": [[place, float(turns_P[place])] for place in range(0, len(both), 12)],
        },
    }


def unshiftable(table_PD: Tensor) -> float:
    """Return the remaining error of the best matrix for a shift by one position, as a fraction of
    the norm."""
    here, there = table_PD[:-1], table_PD[1:]
    return float((here @ best_map(here, there) - there).norm() / there.norm())


def best_map(here_PD: Tensor, there_PD: Tensor) -> Tensor:
    """Return the matrix that maps one table to another with the least squared error.

    numpy is used because it solves the problem by singular values. Columns are nearly equal, so the
    results of torch's method vary between calls.
    """
    found, *_ = np.linalg.lstsq(here_PD.numpy(), there_PD.numpy(), rcond=None)
    return torch.from_numpy(found)


def fitted_turns(here_PI2: Tensor, there_PI2: Tensor) -> Tensor:
    """Return the best-fitting rotation angle of each pair of dimensions."""
    sin, cos = here_PI2.unbind(-1)
    sin_there, cos_there = there_PI2.unbind(-1)
    return torch.atan2((sin_there * cos - cos_there * sin).sum(0),
                       (sin_there * sin + cos_there * cos).sum(0))  # fmt: skip


def relative_errors(found_PD: Tensor, right_PD: Tensor) -> Tensor:
    """Return the error at each position, as a fraction of the norm of the correct encoding."""
    return (found_PD - right_PD).norm(dim=1) / right_PD.norm(dim=1)
