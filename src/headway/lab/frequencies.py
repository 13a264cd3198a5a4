"""E4: why these frequencies?

The paper's code has frequencies that fall geometrically. What counts is that all scales are served
alike; the neat order, the chirp that one sees in pictures, is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.lab import beds
from headway.lab.bench import PAIRS, Bench
from headway.lab.experiment import Experiment, Measured, Source, mean, over
from headway.lab.figures import Bars, Figure, Lines, Table, interval_bars
from headway.lab.nats import of_pairs
from headway.lab.verdict import (
    Answers,
    Arm,
    Bounds,
    Control,
    Effect,
    Verdict,
    Word,
    all_of,
    decide,
)
from headway.models.parts.custom import Parts
from headway.nn.layout import Layout
from headway.settings.model import TextSettings

PLACES = 512
LEAST = 0.05
"""Nats per word: a difference that is one."""

LOSS = Bounds(low=0.0, margin=LEAST)
"""Each word of the target is determined by the source, so a perfect model has a loss of 0."""

LENGTHS = {"quick": ((3, 16), (17, 24)), "full": ((3, 40), (41, 60))}
"""Lengths that are trained on, and longer ones that are only asked for. With up to 8 words every
family of frequencies reached 100 %."""

Rates = Callable[[int, np.random.Generator], Any]

FAMILIES: dict[str, Rates] = {
    "geometric": lambda pairs, _: 10_000.0 ** -(np.arange(pairs) / pairs),
    "log-uniform": lambda pairs, random: 10_000.0 ** -random.uniform(0, 1, pairs),
    "shuffled": lambda pairs, random: random.permutation(10_000.0 ** -(np.arange(pairs) / pairs)),
    "linear": lambda pairs, _: np.arange(1, pairs + 1) / pairs,
    "base 100": lambda pairs, _: 100.0 ** -(np.arange(pairs) / pairs),
    "uniform": lambda pairs, random: random.uniform(0, math.pi, pairs),
    "dft": lambda pairs, _: 2 * math.pi * np.arange(1, pairs + 1) / PLACES,
}
"""Turns per place of each pair of numbers."""


class Waves(nn.Module):
    """Sines and cosines of any frequencies, added to embeddings."""

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
        return Waves(torch.tensor(rates, dtype=torch.float64, device="cpu"))

    return Parts(name=f"lab-waves-{family.replace(' ', '-')}-{seed}", positions=positions)


class Frequencies(Experiment):
    hypothesis = (
        "What counts is that frequencies are spread evenly over all scales: random ones with that "
        "spread serve as well as the paper's, and evenly spaced ones, which repeat, serve worse."
    )
    method = (
        "First arithmetic: how far apart the codes of two places are, by their distance, for seven "
        "families of frequencies, and whether near places look nearer than far ones.",
        "Then small translators learn to turn strings of 3 to 16 words round (full: to 40), which "
        "takes exact places, each with another family of frequencies in place of the paper's; and "
        "are asked about longer strings too, which they have not seen. Losses are compared after "
        "equal steps, before any of them has learned the task to the end.",
    )
    control = (
        "Without any positions the same model must fail at this task; else the frequencies would "
        "not matter here at all."
    )
    literature = (
        Source("Vaswani et al. 2017", "A geometric progression of wavelengths; learned positions "
               "were as good (25.7 against 25.8 BLEU).", "context"),
        Source("Haviv et al. 2022", "Causal language models learn places without any code; "
               "encoders do not.", "context"),
        Source("Tancik et al. 2020", "For coordinates it is the spread of frequencies that counts, "
               "not their exact choice.", part="random"),
    )  # fmt: skip
    pieces = (4, 9)

    def measure(self, bench: Bench) -> Measured:
        trained = bench.choose(("geometric", "log-uniform", "linear"), tuple(FAMILIES))
        lengths, beyond_them = LENGTHS[bench.choose("quick", "full")]
        short = beds.bed(beds.strings("reverse", *lengths, letters=8), bench.choose(4000, 20_000),
                         100, bench.seed)  # fmt: skip
        longer = beds.strings("reverse", *beyond_them, letters=8)(200, 999 + bench.seed)
        train, valid = short.columns()
        loss, accuracy, beyond = {}, {}, {}
        arms = [*trained, "none", *bench.choose((), ("learned",))]
        for arm in arms:
            own = parts(arm, bench.seed) if arm in FAMILIES else None
            run = bench.train(
                arm, "translate", train, valid=valid, parts=own,
                settings={
                    **PAIRS, "model.positions": "none" if own else
                    {"none": "none", "learned": "learned"}[arm],
                    "train.steps": bench.choose(450, 2000), "model.max_len": 64,
                    "model.d_model": bench.choose(48, 128),
                },
            )  # fmt: skip
            loss[arm] = run.scores["loss"]
            accuracy[arm] = of_pairs(run, short.valid).accuracy
            beyond[arm] = None if arm == "learned" else of_pairs(run, longer).accuracy
        kernels = {name: kernel(name, 128, bench.seed) for name in FAMILIES}
        return {"loss": loss, "accuracy": accuracy, "beyond": beyond, "kernel": kernels}

    def judge(self, found: Sequence[Measured]) -> Verdict:
        def less(one: str, name: str) -> Effect:
            other, usual = (
                Arm(name=arm, scores=over(found, "loss", arm)) for arm in (one, "geometric")
            )
            what = f"loss, {name} less geometric"
            return Effect.between(other, usual, LOSS, what, "nats per word")

        same, worse = less("log-uniform", "random"), less("linear", "evenly spaced")
        lost = [one["loss"]["none"] - one["loss"]["geometric"] for one in found]
        control = Control(
            name="without positions it fails", passed=min(lost) > 0.3,
            said=f"without positions the loss is at least {min(lost):.2f} nats per word higher.",
        )  # fmt: skip
        twins = [one["kernel"]["linear"]["twin"] for one in found]
        alias = Effect.over(twins, "evenly spaced: nearest of all other places", exact=True)
        parts: dict[str, Word] = {"random": same.below(LEAST), "spaced": worse.above(LEAST)}
        word = all_of(*parts.values())
        if parts["random"] == word != "supported":
            effect, said = same, "random log-uniform frequencies are worse by {effect}"
        else:
            effect, said = (
                worse,
                (
                    "evenly spaced frequencies, which repeat only over hundreds of places, do "
                    "not lose by it here (their loss differs by {effect})"
                ),
            )
        answers = Answers(
            supported=f"Random frequencies of the same spread serve as well ({same}), and evenly "
            "spaced ones are worse by {effect}: the spread over scales counts, not the chirp.",
            refuted=f"Not as was held: {said}.",
            undecided=f"The seeds do not agree: random log-uniform frequencies differ by {same}, "
            f"evenly spaced ones by {worse}.",
            changes="Longer sequences, where evenly spaced frequencies repeat; a model that learns "
            "its own positions; or positions that work inside attention.",
        )
        return decide(word, effect, answers, [control],
                      [worse if effect is same else same, alias], parts)  # fmt: skip

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
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
            Bars(
                title="Words right, by family of frequencies", bars=bars, unit="%", most=100.0,
                hint="Turning round strings of words that were not trained on; the thin line "
                "spans the seeds.",
            ),
            Lines(
                title="How far apart codes are", series=curves, x="distance of the places",
                y="distance of the codes", log_x=True,
                hint="A good code tells near from far: the line rises. Where it falls back, far "
                "places look near.",
            ),
            Table(
                title="The same in numbers", rows=rows,
                columns=["frequencies", "to the next place", "nearest of all", "rank correlation"],
                hint=f"Codes of unit length, {PLACES} places; rank correlation of the distance of "
                "places and of codes.",
            ),
            Bars(
                title="Longer than trained", bars=beyond, unit="%", most=100.0,
                hint="Words right of strings that are longer than all that were trained on.",
            ),
        ]  # fmt: skip


EXPERIMENT = Frequencies()


def kernel(family: str, width: int, seed: int) -> dict[str, Any]:
    """How far codes of unit length are from that of the first place."""
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
