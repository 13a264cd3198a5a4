"""E15: why are attention scores divided by the square root of the head width?

A score is a sum over the dimensions of a head, so it grows with their number. The softmax of large
scores selects a single key, and hardly any gradient flows through it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from headway.lab import datasets
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import Figure, LineChart
from headway.lab.verdict import Arm, Bounds, Control, Effect, OutcomeSentences, Verdict, decide
from headway.lab.workspace import REVERSAL_SETTINGS, Workspace
from headway.models.parts.custom import Parts

LEAST = 0.05
"""Minimum difference in loss that counts, in nats per word."""

LOSS = Bounds(low=0.0, margin=LEAST)
"""Range of the loss. The source determines each word of the target, so a perfect model has a loss
of 0."""

KEYS = 32
"""Number of keys per query in the measurement without training: about the length of a sentence."""

FRESH = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Head widths in the measurement without training. Most models use 64 or 128."""


ARMS = {"root": "divided by √d", "none": "not divided", "width": "divided by d"}


def parts(arm: str, width: int) -> Parts | None:
    """Return model parts that divide attention scores by the head width. Return None for arms that
    need only settings."""
    if arm != "width":
        return None
    return Parts(name=f"lab-by-{width}", scope=lambda scope, *_: replace(scope, scale=1.0 / width))


class ScaleExperiment(Experiment):
    hypothesis = (
        "Without the division by √d, scores grow with the head width, attention selects a single "
        "key and passes no gradient, and wide heads learn worse."
    )
    method = (
        f"First, attention is computed between random queries and {KEYS} random keys, with "
        "widths from 4 to 1,024. The experiment measures the entropy of attention as a fraction of "
        "its maximum, and the norm of the gradient of the attention weights.",
        "Then small translators with one head of width 8 or 128 (8 to 512 in full runs) learn to "
        "reverse words. Their scores are divided by √d, not divided or, in full runs only, "
        "divided by d.",
    )
    control = (
        "With the division, entropy must be nearly the same at every width. A narrow head must "
        "learn the task with and without the division."
    )
    literature = (
        Citation("Vaswani et al. 2017", "At large widths, dot products grow large and push the "
                 "softmax into regions with extremely small gradients."),
        Citation("Britz et al. 2017", "Unscaled dot-product attention is worse than additive "
                 "attention at large widths."),
        Citation("Raffel et al. 2020 (T5)", "T5 does not divide the scores, but makes the "
                 "initial weights smaller by the same factor.", "differs"),
    )  # fmt: skip
    pieces = (4, 12)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        widths = bench.choose((8, 128), (8, 32, 128, 512))
        arms = bench.choose(("root", "none"), tuple(ARMS))
        bed = datasets.make_pairs(datasets.strings("reverse", 3, 8, letters=8), bench.choose(4000,
        20_000), 200,
                       bench.seed)  # fmt: skip
        train, valid = bed.columns()
        loss: dict[str, dict[str, float]] = {arm: {} for arm in arms}
        for arm in arms:
            for width in widths:
                run = bench.train(
                    f"{arm}-{width}", "translate", train, valid=valid, parts=parts(arm, width),
                    settings={
                        **REVERSAL_SETTINGS, "model.n_heads": 1, "model.d_head": width,
                        "model.init": "small",
                        "model.scale_attention": arm == "root",
                        "train.steps": bench.choose(250, 2000),
                    },
                )  # fmt: skip
                loss[arm][str(width)] = run.scores["loss"]
        return {"fresh": fresh(bench.seed), "loss": loss}

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        widths = sorted(found[0]["loss"]["root"], key=int)
        narrow, wide = widths[0], widths[-1]

        def less(width: str, name: str) -> Effect:
            undivided, divided = (
                Arm(name=text, scores=per_seed(found, "loss", arm, width))
                for arm, text in (("none", "undivided"), ("root", "divided"))
            )
            return Effect.between(undivided, divided, LOSS, name, "nats per word")

        effect = less(wide, f"loss without the division minus loss with it, width {wide}")
        shares = [one["fresh"]["root"]["entropy"] for one in found]
        drift = max(max(one.values()) - min(one.values()) for one in shares)
        learned = max(max(one["loss"][arm][narrow] for arm in ("root", "none")) for one in found)
        controls = [
            Control(
                name="divided, entropy does not depend on width", passed=drift < 0.05,
                said=f"with the division, entropy varies by at most {drift:.3f} over all widths.",
            ),
            Control(
                name="a narrow head learns both ways", passed=learned < 1.5,
                said=f"with a head of width {narrow}, the loss is at most {learned:.2f} nats "
                "with and without the division; guessing gives more than 2 nats.",
            ),
        ]  # fmt: skip
        last = str(FRESH[-1])
        entropies = [one["fresh"]["none"]["entropy"][last] for one in found]
        flows = [
            one["fresh"]["none"]["flow"][last] / one["fresh"]["root"]["flow"][last] for one in found
        ]
        more = [
            less(narrow, f"loss without the division minus loss with it, width {narrow}"),
            Effect.over(
                entropies, f"entropy without the division as a share of its maximum, width {last}"
            ),
            Effect.over(
                flows,
                f"gradient norm without the division relative to the norm with it, width {last}",
            ),
        ]
        left = 100 * mean(found, "fresh", "none", "entropy", last)
        answers = OutcomeSentences(
            supported="Without the division, scores grow with the width, attention selects a "
            "single key, and wide heads learn worse.",
            refuted="Without the division, attention selects a single key before training, but a "
            "trained wide head is not worse.",
            undecided="Without the division, attention selects a single key even before "
            "training; these runs do not show whether a trained wide head is worse.",
            numbers=f"With random queries and keys of width {last}, attention without the "
            f"division has {left:.0f} % of its maximum entropy.",
            changes="The answer may differ with smaller initial query and key weights, which "
            "have the same effect as the division (T5), and with normalised queries and keys "
            "(QK-norm).",
        )
        return decide(effect.above(LEAST), effect, answers, controls, more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        def curve(arm: str, what: str) -> list[tuple[float, float | None]]:
            return [(float(w), mean(found, "fresh", arm, what, str(w))) for w in FRESH]

        widths = sorted(found[0]["loss"]["root"], key=int)
        return [
            LineChart(
                title="Entropy of attention with random weights", x="head width", log_x=True,
                y="share of the maximum",
                series=[(ARMS[arm], curve(arm, "entropy")) for arm in ARMS],
                hint="1: all keys have the same weight; 0: one key has all the weight.",
            ),
            LineChart(
                title="Gradient of the attention weights", x="head width", log_x=True,
                y="norm of the gradient", log_y=True,
                series=[(ARMS[arm], curve(arm, "flow")) for arm in ARMS],
                hint="Change of the attention weights for a small change of the scores.",
            ),
            LineChart(
                title="Loss after training", x="head width", log_x=True, y="nats per word",
                series=[(ARMS[arm], [(float(w), mean(found, "loss", arm, w)) for w in widths])
                        for arm in found[0]["loss"]],
                hint="Reversing words, after equal steps; lower is better.",
            ),
        ]  # fmt: skip


EXPERIMENT = ScaleExperiment()


def fresh(seed: int, repeats: int = 200) -> dict[str, Any]:
    """Return the entropy and the gradient norm of attention between random queries and keys, by
    head width."""
    random = torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {arm: {"entropy": {}, "flow": {}} for arm in ARMS}
    for width in FRESH:
        q_RK = torch.randn(repeats, width, generator=random)
        k_RSK = torch.randn(repeats, KEYS, width, generator=random)
        dots_RS = (k_RSK @ q_RK[:, :, None]).squeeze(-1)
        factors = {"root": width**-0.5, "none": 1.0, "width": 1.0 / width}
        for arm, factor in factors.items():
            weight_RS = (dots_RS * factor).softmax(-1)
            entropy = -(weight_RS * weight_RS.clamp(min=1e-30).log()).sum(-1).mean()
            # Frobenius norm of the Jacobian of the softmax, which is diag(w) − w wᵀ.
            square_R = (weight_RS**2).sum(-1)
            length_R = (square_R - 2 * (weight_RS**3).sum(-1) + square_R**2).clamp(min=0).sqrt()
            found[arm]["entropy"][str(width)] = float(entropy) / math.log(KEYS)
            found[arm]["flow"][str(width)] = float(length_R.mean())
    return found
