"""E15: why are scores divided by the root of the head's width?

A score is a sum over the width of a head, so it grows with it; the softmax of large scores is a
choice of one, through which hardly any gradient flows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from headway.lab import beds
from headway.lab.bench import PAIRS, Bench
from headway.lab.experiment import Experiment, Measured, Source, mean, over
from headway.lab.figures import Figure, Lines
from headway.lab.verdict import Answers, Arm, Bounds, Control, Effect, Verdict, decide
from headway.models.parts.custom import Parts

LEAST = 0.05
"""Nats per word: a difference that is one."""

LOSS = Bounds(low=0.0, margin=LEAST)
"""Each word of the target is determined by the source, so a perfect model has a loss of 0."""

KEYS = 32
FRESH = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


ARMS = {"root": "divided by √d", "none": "not divided", "width": "divided by d"}


def parts(arm: str, width: int) -> Parts | None:
    """Scores that are divided by the width itself, which no setting has."""
    if arm != "width":
        return None
    return Parts(name=f"lab-by-{width}", scope=lambda scope, *_: replace(scope, scale=1.0 / width))


class Scale(Experiment):
    hypothesis = (
        "Without the division by √d scores grow with the width of a head, attention becomes a "
        "choice of one key through which no gradient flows, and wide heads learn worse."
    )
    method = (
        f"First queries and keys of random numbers, {KEYS} keys, for widths from 4 to 1,024: the "
        "entropy of attention as a share of the most there can be, and how much of a change of "
        "scores reaches the weights.",
        "Then small translators with one head of width 8 and 128 (full: 8 to 512) learn to turn "
        "words round, with scores that are divided by the root of the width, or not, or (full) by "
        "the width.",
    )
    control = (
        "With the division entropy must be the same at every width; and a narrow head must learn "
        "the task both ways, or something else would be broken."
    )
    literature = (
        Source("Vaswani et al. 2017", "For large widths dot products grow large and push the "
               "softmax into regions with extremely small gradients."),
        Source("Britz et al. 2017", "Unscaled dot-product attention falls behind additive "
               "attention at large widths."),
        Source("Raffel et al. 2020 (T5)", "No division at all, with first weights that are smaller "
               "by the same factor: the scale can stand in either place.", "differs"),
    )  # fmt: skip
    pieces = (4, 12)

    def measure(self, bench: Bench) -> Measured:
        widths = bench.choose((8, 128), (8, 32, 128, 512))
        arms = bench.choose(("root", "none"), tuple(ARMS))
        bed = beds.bed(beds.strings("reverse", 3, 8, letters=8), bench.choose(4000, 20_000), 200,
                       bench.seed)  # fmt: skip
        train, valid = bed.columns()
        loss: dict[str, dict[str, float]] = {arm: {} for arm in arms}
        for arm in arms:
            for width in widths:
                run = bench.train(
                    f"{arm}-{width}", "translate", train, valid=valid, parts=parts(arm, width),
                    settings={
                        **PAIRS, "model.n_heads": 1, "model.d_head": width, "model.init": "small",
                        "model.scale_attention": arm == "root",
                        "train.steps": bench.choose(250, 2000),
                    },
                )  # fmt: skip
                loss[arm][str(width)] = run.scores["loss"]
        return {"fresh": fresh(bench.seed), "loss": loss}

    def judge(self, found: Sequence[Measured]) -> Verdict:
        widths = sorted(found[0]["loss"]["root"], key=int)
        narrow, wide = widths[0], widths[-1]

        def less(width: str, name: str) -> Effect:
            undivided, divided = (
                Arm(name=text, scores=over(found, "loss", arm, width))
                for arm, text in (("none", "undivided"), ("root", "divided"))
            )
            return Effect.between(undivided, divided, LOSS, name, "nats per word")

        effect = less(wide, f"loss undivided less divided, width {wide}")
        shares = [one["fresh"]["root"]["entropy"] for one in found]
        drift = max(max(one.values()) - min(one.values()) for one in shares)
        learned = max(max(one["loss"][arm][narrow] for arm in ("root", "none")) for one in found)
        controls = [
            Control(
                name="divided, entropy does not depend on width", passed=drift < 0.05,
                said=f"with the division entropy differs by {drift:.3f} over all widths.",
            ),
            Control(
                name="a narrow head learns both ways", passed=learned < 1.5,
                said=f"with a head of width {narrow} the loss is at most {learned:.2f} nats, and "
                "knowing nothing has more than 2.",
            ),
        ]  # fmt: skip
        last = str(FRESH[-1])
        entropies = [one["fresh"]["none"]["entropy"][last] for one in found]
        flows = [
            one["fresh"]["none"]["flow"][last] / one["fresh"]["root"]["flow"][last] for one in found
        ]
        more = [
            less(narrow, f"the same, width {narrow}"),
            Effect.over(entropies, f"entropy undivided, width {last}, share of the most"),
            Effect.over(flows, f"gradient undivided, width {last}, share of divided"),
        ]
        left = 100 * mean(found, "fresh", "none", "entropy", last)
        seen = f"undivided scores of width {last} leave {left:.0f} % of the entropy"
        answers = Answers(
            supported=f"A head of width {wide} is worse by {{effect}} undivided: {seen}.",
            refuted=f"Fresh attention does saturate ({seen}), but a trained head of width {wide} "
            "is not worse without the division: {effect}.",
            changes="Smaller first weights of queries and keys do the same as the division (T5); "
            "norms of queries and keys too.",
        )
        return decide(effect.above(LEAST), effect, answers, controls, more)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        def curve(arm: str, what: str) -> list[tuple[float, float | None]]:
            return [(float(w), mean(found, "fresh", arm, what, str(w))) for w in FRESH]

        widths = sorted(found[0]["loss"]["root"], key=int)
        return [
            Lines(
                title="Entropy of fresh attention", x="width of the head", log_x=True,
                y="share of the most", series=[(ARMS[arm], curve(arm, "entropy")) for arm in ARMS],
                hint="1: all keys alike; 0: one key takes all.",
            ),
            Lines(
                title="What reaches the weights", x="width of the head", log_x=True,
                y="length of the gradient", log_y=True,
                series=[(ARMS[arm], curve(arm, "flow")) for arm in ARMS],
                hint="How much attention weights answer to a small change of scores.",
            ),
            Lines(
                title="Loss after training", x="width of the head", log_x=True, y="nats per word",
                series=[(ARMS[arm], [(float(w), mean(found, "loss", arm, w)) for w in widths])
                        for arm in found[0]["loss"]],
                hint="Turning words round, after equal steps; lower is better.",
            ),
        ]  # fmt: skip


EXPERIMENT = Scale()


def fresh(seed: int, repeats: int = 200) -> dict[str, Any]:
    """Entropy and gradients of attention between random queries and keys, by width."""
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
            # The matrix of derivatives of a softmax is diag(w) − w wᵀ; this is its length.
            square_R = (weight_RS**2).sum(-1)
            length_R = (square_R - 2 * (weight_RS**3).sum(-1) + square_R**2).clamp(min=0).sqrt()
            found[arm]["entropy"][str(width)] = float(entropy) / math.log(KEYS)
            found[arm]["flow"][str(width)] = float(length_R.mean())
    return found
