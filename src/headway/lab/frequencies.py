"""E4: why does the positional encoding use these frequencies?

The paper's encoding has geometrically decreasing frequencies. The hypothesis is that all scales
must be covered equally, and that the regular order visible in plots is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.lab import datasets
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import BarChart, Figure, LineChart, TableFigure, interval_bars
from headway.lab.losses import score_pairs
from headway.lab.verdict import (
    Arm,
    Bounds,
    Control,
    Effect,
    OutcomeSentences,
    Verdict,
    VerdictLabel,
    all_of,
    decide,
)
from headway.lab.workspace import REVERSAL_SETTINGS, Workspace
from headway.models.parts.custom import Parts
from headway.nn.layout import Layout
from headway.settings.model import TextSettings

PLACES = 512
"""Number of positions over which encodings are compared. It is also the period of the slowest wave
in the DFT family."""

LEAST = 0.05
"""Minimum difference in loss that counts, in nats per word."""

LOSS = Bounds(low=0.0, margin=LEAST)
"""Range of the loss. The source determines each word of the target, so a perfect model has a loss
of 0."""

LENGTHS = {"quick": ((3, 16), (17, 24)), "full": ((3, 40), (41, 60))}
"""Minimum and maximum length of the training strings, and of longer strings used only for testing.

The strings are long because with up to 8 words every family of frequencies reached 100 %.
"""

FrequencyFamily = Callable[[int, np.random.Generator], Any]

FAMILIES: dict[str, FrequencyFamily] = {
    "geometric": lambda pairs, _: 10_000.0 ** -(np.arange(pairs) / pairs),
    "log-uniform": lambda pairs, random: 10_000.0 ** -random.uniform(0, 1, pairs),
    "shuffled": lambda pairs, random: random.permutation(10_000.0 ** -(np.arange(pairs) / pairs)),
    "linear": lambda pairs, _: np.arange(1, pairs + 1) / pairs,
    "base 100": lambda pairs, _: 100.0 ** -(np.arange(pairs) / pairs),
    "uniform": lambda pairs, random: random.uniform(0, math.pi, pairs),
    "dft": lambda pairs, _: 2 * math.pi * np.arange(1, pairs + 1) / PLACES,
}
"""Families of frequencies by name. Each function returns the radians per position of every pair of
dimensions."""


class FrequencyPositions(nn.Module):
    """Sinusoidal positional encoding with arbitrary frequencies, added to embeddings."""

    rate_I: Tensor

    def __init__(self, rate_I: Tensor) -> None:
        super().__init__()
        self.register_buffer("rate_I", rate_I.float(), persistent=False)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        table_PD = waves(layout.reach, self.rate_I)
        return x_ND + F.embedding(layout.positions_N, table_PD).to(x_ND.dtype)


def waves(n_places: int, rate_I: Tensor) -> Tensor:
    angle_PI = torch.arange(n_places, device=rate_I.device)[:, None] * rate_I
    return torch.stack([angle_PI.sin(), angle_PI.cos()], -1).flatten(1)


def parts(family: str, seed: int) -> Parts:
    def positions(settings: TextSettings, width: int) -> nn.Module:
        random = np.random.default_rng(seed)
        rates = FAMILIES[family](width // 2, random)
        return FrequencyPositions(torch.tensor(rates, dtype=torch.float64, device="cpu"))

    return Parts(name=f"lab-waves-{family.replace(' ', '-')}-{seed}", positions=positions)


class FrequenciesExperiment(Experiment):
    hypothesis = (
        "Frequencies must be spread evenly over all scales: random frequencies with this spread "
        "work as well as the paper's, and linearly spaced frequencies, whose encodings repeat, "
        "work worse."
    )
    method = (
        "Small translators learn to reverse sequences of 3 to 16 words (up to 40 in full runs), "
        "a task that needs exact positions. The frequencies of their encodings are geometric as in "
        "the paper, random with the same spread (log-uniform), or linearly spaced. The losses are "
        "compared after the same number of steps, before any model has learned the task "
        "completely.",
        "The experiment also computes the distances between the encodings of positions: nearby "
        "positions should have similar encodings.",
    )
    control = (
        "Without positions the same model must fail; otherwise the frequencies would not matter "
        "for this task."
    )
    literature = (
        Citation("Tancik et al. 2020", "For networks whose inputs are coordinates, the spread of "
                 "the frequencies matters, not their exact distribution.", part="random"),
        Citation("Vaswani et al. 2017", "Learned positional embeddings were as good as sinusoids "
                 "with geometric wavelengths (25.7 against 25.8 BLEU).", "context"),
    )  # fmt: skip
    pieces = (4, 9)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        trained = bench.choose(("geometric", "log-uniform", "linear"), tuple(FAMILIES))
        lengths, beyond_them = LENGTHS[bench.choose("quick", "full")]
        short = datasets.make_pairs(datasets.strings("reverse", *lengths, letters=8),
        bench.choose(4000, 20_000),
                         100, bench.seed)  # fmt: skip
        longer = datasets.strings("reverse", *beyond_them, letters=8)(200, 999 + bench.seed)
        train, valid = short.columns()
        loss, accuracy, beyond = {}, {}, {}
        arms = [*trained, "none", *bench.choose((), ("learned",))]
        for arm in arms:
            own = parts(arm, bench.seed) if arm in FAMILIES else None
            run = bench.train(
                arm, "translate", train, valid=valid, parts=own,
                settings={
                    **REVERSAL_SETTINGS, "model.positions": "none" if own else
                    {"none": "none", "learned": "learned"}[arm],
                    "train.steps": bench.choose(450, 2000), "model.max_len": 64,
                    "model.d_model": bench.choose(48, 128),
                },
            )  # fmt: skip
            loss[arm] = run.scores["loss"]
            accuracy[arm] = score_pairs(run, short.valid).accuracy
            beyond[arm] = None if arm == "learned" else score_pairs(run, longer).accuracy
        kernels = {name: kernel(name, 128, bench.seed) for name in FAMILIES}
        return {"loss": loss, "accuracy": accuracy, "beyond": beyond, "kernel": kernels}

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        def less(one: str, name: str) -> Effect:
            other, usual = (
                Arm(name=arm, scores=per_seed(found, "loss", arm)) for arm in (one, "geometric")
            )
            what = f"loss, {name} minus geometric"
            return Effect.between(other, usual, LOSS, what, "nats per word")

        same, worse = less("log-uniform", "random"), less("linear", "linearly spaced")
        lost = [one["loss"]["none"] - one["loss"]["geometric"] for one in found]
        control = Control(
            name="the model fails without positions", passed=min(lost) > 0.3,
            said=f"without positions the loss is at least {min(lost):.2f} nats per word higher.",
        )  # fmt: skip
        twins = [one["kernel"]["linear"]["twin"] for one in found]
        alias = Effect.over(
            twins,
            "distance from the first encoding to the nearest other one, linearly spaced "
            "frequencies",
            exact=True,
        )
        parts: dict[str, VerdictLabel] = {"random": same.below(LEAST), "spaced": worse.above(LEAST)}
        word = all_of(*parts.values())
        if parts["random"] == word != "supported":
            effect = same
            refuted = "The spread is not enough: random frequencies with that spread work worse."
        else:
            effect = worse
            refuted = (
                "The choice matters little here: linearly spaced frequencies work as well as the "
                "paper's."
            )
        answers = OutcomeSentences(
            supported="They are spread over all scales: random frequencies with that spread work "
            "as well, and linearly spaced ones, which repeat, work worse.",
            refuted=refuted,
            changes="The answer may differ for longer sequences, where linearly spaced "
            "frequencies repeat, for learned positional embeddings, and for encodings applied "
            "inside attention.",
        )
        return decide(word, effect, answers, [control],
                      [worse if effect is same else same, alias], parts)  # fmt: skip

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        arms = list(found[0]["loss"])
        bars = interval_bars([(arm, [one["accuracy"][arm] * 100 for one in found]) for arm in arms])
        shown = ("geometric", "log-uniform", "linear", "uniform")
        curves = [
            (name, [(float(d), found[0]["kernel"][name]["distance"][i])
                    for i, d in enumerate(found[0]["kernel"][name]["at"])])
            for name in shown
        ]  # fmt: skip
        rows = [
            [name, *(mean(found, "kernel", name, key) for key in ("one", "twin", "spearman"))]
            for name in FAMILIES
        ]
        beyond = interval_bars(
            [(arm, [one["beyond"][arm] * 100 for one in found]) for arm in arms
             if found[0]["beyond"][arm] is not None]
        )  # fmt: skip
        return [
            BarChart(
                title="Accuracy by family of frequencies", bars=bars, unit="%", most=100.0,
                hint="Share of right words when reversing new strings; the thin line is the range "
                "over seeds.",
            ),
            LineChart(
                title="Distance between encodings", series=curves, x="distance between positions",
                y="distance between encodings", log_x=True,
                hint="With a good encoding the line rises. Where it falls back, far positions look "
                "near.",
            ),
            TableFigure(
                title="The distances as numbers", rows=rows,
                columns=["frequencies", "to the next "
                    "position", "to the nearest position", "rank correlation"],
                hint=f"Encodings of unit length, {PLACES} positions; rank correlation between the "
                "distances of positions and of encodings.",
            ),
            BarChart(
                title="Accuracy on longer strings", bars=beyond, unit="%", most=100.0,
                hint="Share of right words on strings longer than all training strings.",
            ),
        ]  # fmt: skip


EXPERIMENT = FrequenciesExperiment()


def kernel(family: str, width: int, seed: int) -> dict[str, Any]:
    """Return the distances of unit-length encodings from the encoding of the first position, with
    summary statistics."""
    rates = FAMILIES[family](width // 2, np.random.default_rng(seed))
    table_PD = waves(PLACES, torch.tensor(rates)).double()
    table_PD = table_PD / table_PD.norm(dim=1, keepdim=True)
    distance_P = (table_PD - table_PD[0]).norm(dim=1)[1:].numpy()
    at = sorted({round(2 ** (i / 4)) for i in range(37) if 2 ** (i / 4) < PLACES})
    return {
        "at": at,
        "distance": [float(distance_P[d - 1]) for d in at],
        "one": float(distance_P[0]),
        "twin": float(distance_P.min()),
        "spearman": spearman(np.arange(1, PLACES), distance_P),
    }


def spearman(one: Any, other: Any) -> float:
    first, second = (np.argsort(np.argsort(values)).astype(float) for values in (one, other))
    return float(np.corrcoef(first, second)[0, 1])
