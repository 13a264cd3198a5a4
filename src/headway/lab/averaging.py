"""E8: why are the last checkpoints averaged?

As long as the learning rate is not zero, weights do not settle: they jitter around the bottom of a
wide basin, and their mean lies nearer to it than any of them. If that is why, a rate that ends at
zero leaves averaging little to gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headway.lab import beds
from headway.lab.bench import Bench
from headway.lab.concatenate import language
from headway.lab.experiment import Experiment, Measured, Source, mean, over
from headway.lab.figures import Figure, Lines, Table
from headway.lab.verdict import Answers, Control, Effect, Verdict, all_of, decide, said
from headway.lab.yardstick import Yardstick
from headway.models.build import build_model
from headway.models.folder import load_weights
from headway.training.average import average
from headway.training.checkpoint import Checkpoints

if TYPE_CHECKING:
    from headway.run import Run

Weights = Mapping[str, Tensor]
KEPT = 16
TAKEN = 8
"""Checkpoints whose mean the verdict is about."""

SCHEDULES = {"constant": "constant rate", "inverse-sqrt": "the paper's rate, falling slowly",
             "linear": "a rate that ends at zero"}  # fmt: skip
LEAST = 0.005
"""Nats per token: a gain that is one."""

WAY = (0.0, 0.25, 0.5, 0.75, 1.0)


class Averaging(Experiment):
    hypothesis = (
        "Averaging gains because weights jitter while the learning rate is not zero: it gains "
        "with a constant rate, and less with one that ends at zero."
    )
    method = (
        "One model is trained three times from the same weights on the same data, with a learning "
        "rate that stays, one that falls with the square root of the step as in the paper, and "
        "one that goes down to zero. The last 16 checkpoints of each are kept, and the validation "
        "loss is taken of the mean of the last 1, 2, 4, 8 and 16 of them. The effect is what the "
        "mean of 8 gains over the last one alone, with a rate that stays less with one that ends "
        "at zero.",
        "Beside that: a running average of the weights (train.ema), the mean of the answers of the "
        "same 8 models, which costs eight times as much, the loss along "
        "the straight line between two checkpoints, and whether two steps on end point the "
        "same way.",
        "Quick: Shakespeare letter by letter. Full: a larger model, longer; with --data German to "
        "English.",
    )
    control = (
        "The mean of 8 must be better than its members are on average, or it would be no average "
        "of one basin; and the mean of two models from different seeds must be far worse than "
        "both: it is not the averaging itself that helps."
    )
    literature = (
        Source("Vaswani et al. 2017", "The last 5 checkpoints are averaged, 20 of the big model; "
               "the rate still falls slowly there.", "context"),
        Source("Popel, tensor2tensor issue 473", "About 0.3 BLEU on average, more early in "
               "training."),
        Source("fairseq issue 732", "No gain on a run whose rate was brought down well."),
        Source("Izmailov et al. 2018", "The mean of weights along the way lies in a flatter part "
               "of the basin than the last ones."),
        Source("Gao et al. 2022", "The landscape is rather flat there, and nothing beats the plain "
               "mean.", "context"),
    )  # fmt: skip
    pieces = (6, 6)

    def measure(self, bench: Bench) -> Measured:
        task, train, valid, settings = material(bench)
        runs = {
            name: bench.train(name, task, train, valid=valid,
                              settings={**settings, "train.schedule": name})
            for name in SCHEDULES
        }  # fmt: skip
        constant = {**settings, "train.schedule": "constant"}
        ema = bench.train(
            "ema", task, train, valid=valid,
            settings={**constant, "train.ema": bench.choose(0.95, 0.995), "train.keep": 1},
        )  # fmt: skip
        other = bench.train(
            "other-seed", task, train, valid=valid,
            settings={**constant, "train.seed": 1001 + bench.seed, "train.keep": 1},
        )  # fmt: skip
        return bench.once("means", lambda: means(runs, ema, other))

    def judge(self, found: Sequence[Measured]) -> Verdict:
        eight = str(TAKEN)
        gains = {name: [one["mean"][name]["1"] - one["mean"][name][eight] for one in found]
                 for name in SCHEDULES}  # fmt: skip
        less = [a - b for a, b in zip(gains["constant"], gains["linear"], strict=True)]
        effect = Effect.over(less, f"gain of averaging {TAKEN}, constant rate less one that ends "
                             "at zero", "nats per token")  # fmt: skip
        gain = Effect.over(gains["constant"], f"gain of averaging {TAKEN}, constant rate",
                           "nats per token")  # fmt: skip
        over_members = [
            sum(one["members"]["constant"]) / len(one["members"]["constant"])
            - one["mean"]["constant"][eight]
            for one in found
        ]
        apart = [one["seeds"]["mean"] - max(one["seeds"]["one"], one["seeds"]["other"])
                 for one in found]  # fmt: skip
        controls = [
            Control(
                name="the mean is better than its members", passed=min(over_members) > 0,
                said=f"with a constant rate the mean of {TAKEN} is better than its members on "
                f"average by at least {min(over_members):.3f} nats.",
            ),
            Control(
                name="two seeds cannot be averaged", passed=min(apart) > 0.1,
                said="the mean of two models from different seeds is worse than both by at least "
                f"{min(apart):.2f} nats.",
            ),
        ]  # fmt: skip
        more = [
            gain,
            *(Effect.over(gains[name], f"gain of averaging {TAKEN}, {SCHEDULES[name]}",
                          "nats per token") for name in ("inverse-sqrt", "linear")),
            Effect.over([one["mean"]["constant"]["1"] - one["ema"] for one in found],
                        "gain of a running average, constant rate", "nats per token"),
            Effect.over([one["mean"]["constant"]["1"] - one["ensemble"] for one in found],
                        f"gain of {TAKEN} models that answer together", "nats per token"),
            Effect.over([one["mean"]["constant"][eight] - one["mean"]["linear"]["1"]
                         for one in found], "loss of the mean, constant rate, less that of the "
                        "last with a rate that ends at zero", "nats per token"),
            Effect.over(over(found, "cosine", "constant"), "cosine of two steps on end, constant "
                        "rate"),
        ]  # fmt: skip
        word = all_of(gain.above(LEAST), effect.above(LEAST))
        linear = sum(gains["linear"]) / len(gains["linear"])
        answers = Answers(
            supported=f"Because weights jitter: averaging {TAKEN} checkpoints gains {gain} with a "
            f"constant rate and {said(linear)} with one that ends at zero: {{effect}} less.",
            refuted=f"Not because weights jitter: averaging {TAKEN} checkpoints gains {gain} with "
            f"a constant rate and {said(linear)} with one that ends at zero, {{effect}} less.",
            undecided=f"The gain of averaging {TAKEN} checkpoints, {gain} with a constant rate, "
            "differs too little or too unevenly from that with one that ends at zero: {effect}.",
            changes="Checkpoints so far apart that the loss still falls between them, whose older "
            "ones drag the mean back; smaller steps or larger batches, which jitter less.",
        )
        return decide(word, effect, answers, controls, more)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        counts = sorted(found[0]["mean"]["constant"], key=int)
        gains = [
            (SCHEDULES[name],
             [(float(k), mean(found, "mean", name, "1") - mean(found, "mean", name, k))
              for k in counts])
            for name in SCHEDULES
        ]  # fmt: skip
        lines = [
            (name, [(at, mean(found, "line", key, i)) for i, at in enumerate(WAY)])
            for key, name in (("near", f"two checkpoints, {TAKEN - 1} apart"),
                              ("seeds", "two seeds"))
        ]  # fmt: skip
        rows = [
            [SCHEDULES[name], *(f"{mean(found, 'mean', name, k):.3f}" for k in ("1", str(TAKEN))),
             f"{mean(found, 'cosine', name):.2f}"]
            for name in SCHEDULES
        ]  # fmt: skip
        ways: list[tuple[str, tuple[str, ...]]] = [
            ("last checkpoint", ("mean", "constant", "1")),
            (f"mean of {TAKEN}", ("mean", "constant", str(TAKEN))),
            ("running average", ("ema",)),
            (f"{TAKEN} models that answer together", ("ensemble",)),
            ("mean of two seeds", ("seeds", "mean")),
        ]
        return [
            Lines(
                title="What the mean of the last checkpoints gains", series=gains, log_x=True,
                hint="Validation loss of the last one less that of the mean; above 0 the mean is "
                "better.",
                x="checkpoints in the mean", y="nats per token", levels=[("no gain", 0.0)],
            ),
            Lines(
                title="On the way from one model to another", series=lines,
                x="share of the other", y="nats per token",
                hint="Loss of weights on the straight line between two: within a basin it sags, "
                "between two seeds there is a barrier.",
            ),
            Table(
                title="Three rates",
                hint="Validation loss; the cosine is below 0 where steps go to and fro, and above "
                "it where they still go somewhere.",
                columns=["", "last", f"mean of {TAKEN}", "cosine of two steps on end"], rows=rows,
            ),
            Table(
                title="Other ways to average", columns=["constant rate", "nats per token"],
                hint="All of the same training.",
                rows=[[name, f"{mean(found, *path):.3f}"] for name, path in ways],
            ),
        ]  # fmt: skip


EXPERIMENT = Averaging()


def material(bench: Bench) -> tuple[str, beds.Columns, beds.Columns, dict[str, Any]]:
    """A task, its data, and settings that keep the last checkpoints."""
    if bench.data is not None:
        train, valid, settings = language(bench)
        every = bench.choose(5, 25)
        return "translate", train, valid, {
            **settings, "train.save_every": every, "train.keep": KEPT,
            "train.eval_every": settings["train.steps"],
        }  # fmt: skip
    train, valid = beds.speeches(bench.choose(600, 700), 40)
    return "complete", train, valid, {
        "tokenizer.kind": "characters", "complete.context": 64, "model.positions": "rotary",
        "model.d_model": bench.choose(64, 128), "model.d_ff": bench.choose(128, 512),
        "train.optimizer": "adam", "train.lr": bench.choose(4e-3, 2e-3), "train.clip": 1.0,
        "train.steps": bench.choose(240, 1500), "train.warmup": bench.choose(20, 100),
        "train.batch_tokens": bench.choose(768, 2048), "train.keep": KEPT,
        "train.save_every": bench.choose(5, 20), "model.dropout": bench.choose(0.0, 0.1),
    }  # fmt: skip


def means(runs: Mapping[str, Run], ema: Run, other: Run) -> dict[str, Any]:
    """Losses of the mean of the last checkpoints, and what is to be compared with them."""
    found: dict[str, Any] = {"mean": {}, "members": {}, "cosine": {}}
    for name, run in runs.items():
        loss = Losses(run)
        kept = [Checkpoints.weights(path) for path in kept_by(run)[-KEPT:]]
        members = [loss(one) for one in kept[-TAKEN:]]
        found["members"][name] = members
        found["mean"][name] = {"1": members[-1]} | {
            str(k): loss(average(kept[-k:])) for k in (2, 4, 8, 16) if k <= len(kept)
        }
        found["cosine"][name] = cosine(kept)
        if name == "constant":
            mine, theirs = kept[-1], Checkpoints.weights(kept_by(other)[-1])
            found["ensemble"] = loss.together(kept[-TAKEN:])
            found["line"] = {
                "near": [loss(between(kept[-TAKEN], mine, at)) for at in WAY],
                "seeds": [loss(between(mine, theirs, at)) for at in WAY],
            }
            line = found["line"]["seeds"]
            found["seeds"] = {"one": line[0], "other": line[-1], "mean": line[len(WAY) // 2]}
    found["ema"] = ema.scores["loss"]
    return found


class Losses:
    """Validation losses of a run with other weights than its own."""

    def __init__(self, run: Run) -> None:
        self.run, self.yardstick = run, Yardstick(run)

    def __call__(self, weights: Weights) -> float:
        return self.yardstick.valid(self.model(weights))

    def together(self, all_weights: Sequence[Weights]) -> float:
        return self.yardstick.together([self.model(weights) for weights in all_weights])

    def model(self, weights: Weights) -> nn.Module:
        model = build_model(self.run.settings.model, seed=None)
        load_weights(model, dict(weights))
        return model.to(self.run.device).eval()


def kept_by(run: Run) -> list[Path]:
    """Its checkpoints, oldest first."""
    return Checkpoints(run.folder, 1, lambda line: None, owner=False).paths()


def between(one: Weights, other: Weights, at: float) -> dict[str, Tensor]:
    return {name: torch.lerp(one[name], other[name], at) for name in one}


def cosine(kept: Sequence[Weights]) -> float:
    """Of each step from checkpoint to checkpoint with the next: the mean."""
    flat = [torch.cat([tensor.flatten() for tensor in one.values()]) for one in kept]
    steps = [b - a for a, b in pairwise(flat)]
    found = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairwise(steps)]
    return sum(found) / len(found) if found else float("nan")
