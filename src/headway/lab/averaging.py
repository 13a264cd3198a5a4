"""E8: why are the last checkpoints averaged?

While the learning rate is above zero, the weights do not converge. They jitter around the bottom of
a wide basin, and their mean is closer to the bottom than each of them. If this is the reason,
averaging gains little with a learning rate that decays to zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headway.lab import datasets
from headway.lab.concatenate import language
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import Figure, LineChart, TableFigure
from headway.lab.run_loss import RunLoss
from headway.lab.verdict import Control, Effect, OutcomeSentences, Verdict, all_of, decide
from headway.lab.workspace import Workspace
from headway.models.build import build_model
from headway.models.folder import load_weights
from headway.training.average import average
from headway.training.checkpoint import Checkpoints

if TYPE_CHECKING:
    from headway.run import Run

StateDict = Mapping[str, Tensor]
KEPT = 16
"""Number of checkpoints that a run keeps: twice the number on which the verdict is based, so that a
plot shows the effect of more."""

TAKEN = 8
"""Number of checkpoints that are averaged for the verdict."""

SCHEDULES = {"constant": "constant learning "
    "rate", "inverse-sqrt": "inverse square root, as in the paper",
             "linear": "linear decay to zero"}  # fmt: skip
LEAST = 0.005
"""Minimum gain of averaging that counts, in nats per token."""

WAY = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Points on the line between two sets of weights at which the loss is measured, from 0 (first) to 1
(second)."""


class AveragingExperiment(Experiment):
    hypothesis = (
        "Averaging checkpoints helps because the weights jitter while the learning rate is above "
        "zero. The gain is therefore larger with a constant learning rate than with one that "
        "decays to zero."
    )
    method = (
        "A model is trained three times from the same initial weights. The learning rate is "
        "constant, falls with the inverse square root of the step (as in the paper), or decays "
        "linearly to zero. The validation loss of the last checkpoint is compared with the loss "
        "of the averaged weights of the last 2, 4, 8 and 16 checkpoints.",
        "Quick runs train a character-level language model on Shakespeare. Full runs train a "
        "larger model for longer. With --data, a translator from German to English is trained.",
    )
    control = (
        "The averaged weights of 8 checkpoints must have a lower loss than these checkpoints "
        "have on average. The averaged weights of two models from different seeds must have a "
        "much higher loss than either model."
    )
    literature = (
        Citation("Popel, tensor2tensor issue 473", "Averaging gains about 0.3 BLEU, and more early "
                 "in training."),
        Citation("fairseq issue 732", "Averaging gains nothing if the learning rate has been "
                 "decayed well."),
        Citation("Izmailov et al. 2018", "The mean of the weights along the training trajectory "
                 "is in a flatter region of the loss surface than the final weights."),
    )  # fmt: skip
    pieces = (6, 6)

    def measure(self, bench: Workspace) -> SeedMeasurements:
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
        return bench.cached("means", lambda: means(runs, ema, other))

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        eight = str(TAKEN)
        gains = {name: [one["mean"][name]["1"] - one["mean"][name][eight] for one in found]
                 for name in SCHEDULES}  # fmt: skip
        less = [a - b for a, b in zip(gains["constant"], gains["linear"], strict=True)]
        effect = Effect.over(less, f"gain of averaging {TAKEN} checkpoints, constant learning "
                             "rate minus decay to zero", "nats per token")  # fmt: skip
        gain = Effect.over(gains["constant"], f"gain of averaging {TAKEN} checkpoints, constant "
                                              "learning rate",
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
                said=f"the loss of the averaged weights of {TAKEN} checkpoints is at least "
                f"{min(over_members):.3f} nats lower than the mean loss of these checkpoints.",
            ),
            Control(
                name="two seeds cannot be averaged", passed=min(apart) > 0.1,
                said="the loss of the averaged weights of two models from different seeds is at "
                f"least {min(apart):.2f} nats higher than that of either model.",
            ),
        ]  # fmt: skip
        more = [
            gain,
            *(Effect.over(gains[name], f"gain of averaging {TAKEN} checkpoints, "
                                       f"{SCHEDULES[name]}",
                          "nats per token") for name in ("inverse-sqrt", "linear")),
            Effect.over([one["mean"]["constant"]["1"] - one["ema"] for one in found],
                        "gain of a moving average of the weights, constant learning "
                        "rate", "nats per token"),
            Effect.over([one["mean"]["constant"]["1"] - one["ensemble"] for one in found],
                        f"gain of an ensemble of {TAKEN} models, constant learning "
                        "rate", "nats per token"),
            Effect.over([one["mean"]["constant"][eight] - one["mean"]["linear"]["1"]
                         for one in found], "loss of the mean with a constant learning rate minus "
                        "loss of the last checkpoint with decay to zero", "nats per token"),
            Effect.over(per_seed(found, "cosine", "constant"),
            "cosine of consecutive steps, constant "
                        "learning rate"),
        ]  # fmt: skip
        word = all_of(gain.above(LEAST), effect.above(LEAST))
        if gain.above(LEAST) == "refuted":
            refuted = "Averaging gains nothing here, even with a constant learning rate."
        else:
            refuted = (
                "Not because of jitter: averaging gains as much when the learning rate decays to "
                "zero."
            )
        answers = OutcomeSentences(
            supported="Averaging cancels the jitter of the weights while the learning rate is "
            "high; it gains less once the learning rate has decayed to zero.",
            refuted=refuted,
            undecided="These runs do not show whether averaging gains more with a constant "
            "learning rate than with one that decays to zero.",
            changes="The gain may differ for checkpoints so far apart that the loss still falls "
            "between them, and for lower learning rates or larger batches, which reduce the "
            "jitter.",
        )
        return decide(word, effect, answers, controls, more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        counts = sorted(found[0]["mean"]["constant"], key=int)
        gains = [
            (SCHEDULES[name],
             [(float(k), mean(found, "mean", name, "1") - mean(found, "mean", name, k))
              for k in counts])
            for name in SCHEDULES
        ]  # fmt: skip
        lines = [
            (name, [(at, mean(found, "line", key, i)) for i, at in enumerate(WAY)])
            for key, name in (("near", f"two checkpoints of one run, {TAKEN - 1} apart"),
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
            ("moving average of the weights", ("ema",)),
            (f"ensemble of {TAKEN} models", ("ensemble",)),
            ("mean of two seeds", ("seeds", "mean")),
        ]
        return [
            LineChart(
                title="Gain of averaging the last checkpoints", series=gains, log_x=True,
                hint="Validation loss of the last checkpoint minus that of the mean; above 0 the "
                "mean is better.",
                x="checkpoints in the mean", y="nats per token", levels=[("no gain", 0.0)],
            ),
            LineChart(
                title="Loss on the line between two models", series=lines,
                x="share of the second model", y="nats per token",
                hint="Loss of weights on the straight line between two models. Within one basin it "
                "dips in the middle; between two seeds there is a barrier.",
            ),
            TableFigure(
                title="Three learning rate schedules",
                hint="Validation loss. The cosine is below 0 if steps go back and forth, and above "
                "0 if they still make progress.",
                columns=["", "last", f"mean of {TAKEN}", "cosine of consecutive steps"], rows=rows,
            ),
            TableFigure(
                title="Other ways to average", columns=["constant learning rate", "nats per token"],
                hint="All from the same training run.",
                rows=[[name, f"{mean(found, *path):.3f}"] for name, path in ways],
            ),
        ]  # fmt: skip


EXPERIMENT = AveragingExperiment()


def material(
    bench: Workspace,
) -> tuple[str, datasets.TextColumns, datasets.TextColumns, dict[str, Any]]:
    """Return the task, its training and validation data, and training settings that keep the last
    checkpoints."""
    if bench.data is not None:
        train, valid, settings = language(bench)
        every = bench.choose(5, 25)
        return "translate", train, valid, {
            **settings, "train.save_every": every, "train.keep": KEPT,
            "train.eval_every": settings["train.steps"],
        }  # fmt: skip
    train, valid = datasets.speeches(bench.choose(600, 700), 40)
    return "complete", train, valid, {
        "tokenizer.kind": "characters", "complete.context": 64, "model.positions": "rotary",
        "model.d_model": bench.choose(64, 128), "model.d_ff": bench.choose(128, 512),
        "train.optimizer": "adam", "train.lr": bench.choose(4e-3, 2e-3), "train.clip": 1.0,
        "train.steps": bench.choose(240, 1500), "train.warmup": bench.choose(20, 100),
        "train.batch_tokens": bench.choose(768, 2048), "train.keep": KEPT,
        "train.save_every": bench.choose(5, 20), "model.dropout": bench.choose(0.0, 0.1),
    }  # fmt: skip


def means(runs: Mapping[str, Run], ema: Run, other: Run) -> dict[str, Any]:
    """Return the losses of averaged checkpoints, and of the models that they are compared with."""
    found: dict[str, Any] = {"mean": {}, "members": {}, "cosine": {}}
    for name, run in runs.items():
        loss = Losses(run)
        kept = [Checkpoints.weights(path) for path in checkpoints_of(run)[-KEPT:]]
        members = [loss(one) for one in kept[-TAKEN:]]
        found["members"][name] = members
        found["mean"][name] = {"1": members[-1]} | {
            str(k): loss(average(kept[-k:])) for k in (2, 4, 8, 16) if k <= len(kept)
        }
        found["cosine"][name] = cosine(kept)
        if name == "constant":
            mine, theirs = kept[-1], Checkpoints.weights(checkpoints_of(other)[-1])
            found["ensemble"] = loss.ensemble(kept[-TAKEN:])
            found["line"] = {
                "near": [loss(between(kept[-TAKEN], mine, at)) for at in WAY],
                "seeds": [loss(between(mine, theirs, at)) for at in WAY],
            }
            line = found["line"]["seeds"]
            found["seeds"] = {"one": line[0], "other": line[-1], "mean": line[len(WAY) // 2]}
    found["ema"] = ema.scores["loss"]
    return found


class Losses:
    """Computes the validation loss of a run with weights other than its own."""

    def __init__(self, run: Run) -> None:
        self.run, self.run_loss = run, RunLoss(run)

    def __call__(self, weights: StateDict) -> float:
        return self.run_loss.validation(self.model(weights))

    def ensemble(self, all_weights: Sequence[StateDict]) -> float:
        return self.run_loss.ensemble([self.model(weights) for weights in all_weights])

    def model(self, weights: StateDict) -> nn.Module:
        model = build_model(self.run.settings.model, seed=None)
        load_weights(model, dict(weights))
        return model.to(self.run.device).eval()


def checkpoints_of(run: Run) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    return Checkpoints(run.folder, 1, lambda line: None, owner=False).paths()


def between(one: StateDict, other: StateDict, at: float) -> dict[str, Tensor]:
    return {name: torch.lerp(one[name], other[name], at) for name in one}


def cosine(kept: Sequence[StateDict]) -> float:
    """Return the mean cosine similarity of consecutive weight changes, from checkpoint to
    checkpoint."""
    flat = [torch.cat([tensor.flatten() for tensor in one.values()]) for one in kept]
    steps = [b - a for a, b in pairwise(flat)]
    found = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairwise(steps)]
    return sum(found) / len(found) if found else float("nan")
