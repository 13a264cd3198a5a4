"""E3: is the shift of the position code a linear function?

It is: every pair of numbers turns by an angle that depends on the shift alone. What is judged is
the code that a model adds to its embeddings, as the model makes it. That such a map exists does not
mean that it is found: least squares on some places misses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.lab.bench import Bench
from headway.lab.experiment import Experiment, Measured, Source, mean, over
from headway.lab.figures import Figure, Lines, Table
from headway.lab.verdict import Answers, Control, Effect, Verdict, decide, said
from headway.models.parts.body import added_positions
from headway.nn.layout import Layout
from headway.settings.model import EncoderSettings

PLACES = 5000
SHIFTS = (1, 7, 100, 1000)
SEEN, UNSEEN = 512, 500
FITTED = 7
"""The shift that is learned by least squares."""

ROUNDING = 1e-6
"""Eight units in the last place of single precision, in which models hold their code."""


class Shift(Experiment):
    hypothesis = (
        "For every shift k there is one matrix R, the same for all places p, with "
        "code(p + k) = R · code(p)."
    )
    method = (
        f"We take what a model adds to its embeddings at {PLACES:,} places, turn every pair of "
        "numbers by k times its frequency, and compare with what it adds k places on, for k = 1, "
        f"7, 100 and 1,000. Models hold the code in single precision, so {ROUNDING:g} is allowed "
        "for rounding. The formula of the paper in double precision shows how exact the identity "
        "itself is.",
        "Then we pretend not to know the answer: for the formula, a matrix is fitted by least "
        f"squares on {SEEN} places for a shift of {FITTED}, once without any rule and once as "
        f"turns of pairs, and asked about the next {UNSEEN} places.",
    )
    control = (
        "A table of random numbers, as many as the code has, must not have such a matrix; else "
        "having one would mean nothing."
    )
    literature = (
        Source("Vaswani et al. 2017", "The code was chosen because a shift is a linear function of "
               "it, which should make it easy to attend by relative positions."),
        Source("Kazemnejad et al. 2023", "Sinusoids extrapolate poorly to longer sequences, and no "
               "positions at all rank first: that a linear map exists is not enough.", "context"),
    )  # fmt: skip
    pieces = (1, 1)

    def measure(self, bench: Bench) -> Measured:
        widths = bench.choose((128,), (64, 128, 256, 512))
        return bench.once("errors", lambda: {str(width): errors(width, bench.seed)
                                             for width in widths})  # fmt: skip

    def judge(self, found: Sequence[Measured]) -> Verdict:
        widths = list(found[0])
        worst = [max(one[width]["single"] for width in widths) for one in found]
        effect = Effect.over(
            worst, "largest error of the rotation, the code of a model", exact=True
        )
        noise = min(min(over(found, width, "random")) for width in widths)
        control = Control(
            name="a random table has none", passed=noise > 0.3,
            said=f"the best matrix for a random table is off by {100 * noise:.0f} % of its length.",
        )  # fmt: skip
        width = shown(found)
        more = [
            Effect.over(over(found, width, "double"), "the same, formula in double precision",
                        exact=True),
            Effect.over(over(found, width, "fit_seen"), "error of least squares, places it saw",
                        "%", exact=True),
            Effect.over(over(found, width, "fit_unseen"), "error of least squares, later places",
                        "%", exact=True),
            Effect.over(over(found, width, "turns_unseen"), "error of fitted turns, later places",
                        "%", exact=True),
        ]  # fmt: skip
        off = mean(found, width, "fit_unseen")
        answers = Answers(
            supported="Yes: turning pairs gives the shifted code of a model to {effect}, which is "
            f"rounding to single precision ({said(mean(found, width, 'double'))} in double). But "
            f"least squares on {SEEN} places finds another matrix, which is off by {off:.0f} % on "
            f"the next {UNSEEN}.",
            refuted="No: the turn of pairs is off by {effect}.",
            changes="Nothing about the first part: it is the addition theorem of sine and cosine. "
            "How badly least squares extrapolates depends on how many places it saw, since slow "
            "pairs hardly move over few of them.",
        )
        return decide(effect.below(ROUNDING), effect, answers, [control], more)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        width = shown(found)
        curves: Any = found[0][width]["curves"]
        named = {"free": "any matrix", "turns": "turns of pairs"}
        table = [
            [k, *(mean(found, width, "by_shift", k, kind) for kind in ("double", "single"))]
            for k in map(str, SHIFTS)
        ]
        return [
            Lines(
                title="A learned shift, on places it saw and later ones",
                series=[(named[key], [(p, e) for p, e in curves[key]]) for key in named],
                x="place", y="error, share of length", log_y=True,
                hint=f"Fitted by least squares on the first {SEEN} places. A matrix without a rule "
                "is perfect there and wrong behind them; turns of pairs stay right.",
            ),
            Table(
                title="The exact shift",
                columns=["shift", "error, formula in double", "error, code of a model"],
                rows=table, hint=f"The largest difference of any number, over {PLACES:,} places.",
            ),
        ]  # fmt: skip


EXPERIMENT = Shift()


def shown(found: Sequence[Measured]) -> str:
    """The width whose fit is told: one with far fewer numbers than places were seen, where that
    was measured."""
    return "128" if "128" in found[0] else list(found[0])[-1]


def rates(width: int) -> Tensor:
    """Turns per place of each pair, by the formula of the paper."""
    return torch.exp(torch.arange(0, width, 2).double() * (-math.log(10_000.0) / width))


def code(places_P: Tensor, width: int) -> Tensor:
    """In double precision: (places, pairs, 2)."""
    angle_PI = places_P.double()[:, None] * rates(width)
    return torch.stack([angle_PI.sin(), angle_PI.cos()], -1)


def of_model(n_places: int, width: int) -> Tensor:
    """What a model with `model.positions=sinusoidal` adds to its embeddings, by place."""
    settings = EncoderSettings(d_model=width, n_heads=1, positions="sinusoidal")
    positions: Any = added_positions(settings, width)
    code_PD: Tensor = positions(torch.zeros(n_places, width), Layout.of([n_places]))
    return code_PD


def turned(code_PI2: Tensor, angle_I: Tensor) -> Tensor:
    """Every pair turned by its angle."""
    sin_PI, cos_PI = code_PI2.unbind(-1)
    sin_I, cos_I = angle_I.sin().to(sin_PI), angle_I.cos().to(sin_PI)
    return torch.stack([sin_PI * cos_I + cos_PI * sin_I, cos_PI * cos_I - sin_PI * sin_I], -1)


def errors(width: int, seed: int) -> dict[str, Any]:
    by_shift = {}
    places_P = torch.arange(PLACES)
    table = of_model(PLACES + max(SHIFTS), width).unflatten(1, (-1, 2))
    for k in SHIFTS:
        angle_I = k * rates(width)
        exact = turned(code(places_P, width), angle_I) - code(places_P + k, width)
        single = turned(table[:PLACES], angle_I) - table[k : PLACES + k]
        by_shift[str(k)] = {"double": float(exact.abs().max()), "single": float(single.abs().max())}
    random = torch.Generator().manual_seed(seed)
    # More rows than a matrix has columns, or there would be one for any table.
    noise = torch.randn(max(SEEN, 4 * width), width, generator=random, dtype=torch.float64)
    seen = torch.arange(SEEN - FITTED)
    both = torch.arange(SEEN + UNSEEN - FITTED)
    here, there = code(both, width), code(both + FITTED, width)
    free = best_map(here[: len(seen)].flatten(1), there[: len(seen)].flatten(1))
    free_P = off(here.flatten(1) @ free, there.flatten(1))
    turns_P = off(turned(here, fitted_turns(here[: len(seen)], there[: len(seen)])).flatten(1),
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
    """What the best matrix leaves of a shift by one, as a share of its length."""
    here, there = table_PD[:-1], table_PD[1:]
    return float((here @ best_map(here, there) - there).norm() / there.norm())


def best_map(here_PD: Tensor, there_PD: Tensor) -> Tensor:
    """By least squares. By numpy's singular values: columns are nearly alike here, and torch's
    own way with those differs from call to call."""
    found, *_ = np.linalg.lstsq(here_PD.numpy(), there_PD.numpy(), rcond=None)
    return torch.from_numpy(found)


def fitted_turns(here_PI2: Tensor, there_PI2: Tensor) -> Tensor:
    """The angle of each pair that fits best."""
    sin, cos = here_PI2.unbind(-1)
    sin_there, cos_there = there_PI2.unbind(-1)
    return torch.atan2((sin_there * cos - cos_there * sin).sum(0),
                       (sin_there * sin + cos_there * cos).sum(0))  # fmt: skip


def off(found_PD: Tensor, right_PD: Tensor) -> Tensor:
    """The error of each place, as a share of its length."""
    return (found_PD - right_PD).norm(dim=1) / right_PD.norm(dim=1)
