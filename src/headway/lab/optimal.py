"""E11: is the Transformer the optimal architecture?

It is compared with an LSTM that has a single attention head, with convolutions, and with fixed
attention that ignores its input. The comparisons are at equal numbers of parameters, with equal
data, and at equal training time.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.lab import datasets
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import BarChart, Figure, LineChart, TableFigure, interval_bars
from headway.lab.parallelism import in_turns, shape, step_of, width_of
from headway.lab.residuals import unigram
from headway.lab.verdict import (
    Arm,
    Bounds,
    Control,
    Effect,
    OutcomeSentences,
    Verdict,
    all_of,
    decide,
    rounded,
)
from headway.lab.workspace import Workspace
from headway.models.decoder import Decoder
from headway.models.parts.custom import Parts
from headway.models.summary import count_parameters, meta_model
from headway.nn.attention.attention import Attention
from headway.nn.block import PreNorm
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.run import Run

CONTEXT, LAYERS = 64, 4
"""Context length in characters, and number of layers. They are small enough to train all
architectures on a CPU."""

ECHO, LETTERS, TIMES = 20, "abcdefgh", 3
"""Copying test: each text has `ECHO` random characters from `LETTERS`, repeated `TIMES` times."""

COPY = Bounds(low=0.0, high=math.log(len(LETTERS)), margin=0.05)
"""Range of the copying loss, from perfect copying to random guessing."""


class DistanceScores(nn.Module):
    """Attention scores that depend only on distance. Head h attends mostly to the token h positions
    before."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads

    def forward(self, distance_TS: Tensor) -> Tensor:
        back_H11 = torch.arange(1, self.n_heads + 1, device=distance_TS.device)[:, None, None]
        return -0.5 * (distance_TS.abs().unsqueeze(-3) - back_H11).float() ** 2


class FixedAttention(Attention):
    """Attention to fixed positions, without queries and keys (You, Sun & Iyyer 2020)."""

    def __init__(self, usual: Attention) -> None:
        n_heads, scope = usual.n_heads, replace(usual.scope, bias=DistanceScores(usual.n_heads))
        super().__init__(usual.to_out.weight.shape[0], n_heads, scope=scope)
        self.to_qkv = Linear(self.to_qkv.weight.shape[1], self.sizes[2], bias=False)

    def matrices(self) -> dict[Tensor, tuple[int, ...]]:
        weights = (self.to_qkv.weight, self.to_out.weight)
        return {weight: (len(weight),) for weight in weights}

    def projected(self, x_ND: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        v_NHK = self._heads(self.to_qkv(x_ND))
        return torch.zeros_like(v_NHK), torch.zeros_like(v_NHK), v_NHK


class FixedBlock(PreNorm):
    def __init__(
        self, attention: Attention, feed_forward: Any, norm: Callable[[], nn.Module], **more: Any
    ) -> None:
        super().__init__(FixedAttention(attention), feed_forward, norm, **more)


FIXED = Parts(name="lab-fixed-attention", block=FixedBlock)
NAMED = {
    "transformer": "Transformer, 4 heads", "one-head": "Transformer, 1 head",
    "fixed": "fixed attention", "lstm": "LSTM", "no-head": "SHA-RNN without a head",
    "single": "LSTM with one head (SHA-RNN)", "every-layer": "SHA-RNN, a head in every layer",
    "convolution": "convolution",
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "lstm": {"body": "lstm"},
    "no-head": {"body": "sha-rnn", "single_head": "none"},
    "single": {"body": "sha-rnn", "single_head": "second-last"},
    "every-layer": {"body": "sha-rnn", "single_head": "every"},
    "convolution": {"body": "convolution", "dilation": 2},
}
"""Model settings of each architecture other than the Transformer."""

REPLACED = ("lstm", "single", "every-layer", "convolution")
CLOSE = 0.05
"""Maximum difference in nats per character at which two losses count as equal."""

COPYISTS = ("transformer", "no-head", "single", "every-layer")


class OptimalExperiment(Experiment):
    hypothesis = (
        "The Transformer is not optimal: after equal training time on a small text, the loss of "
        f"an LSTM with one attention head is at most {CLOSE} nats per character higher, and a "
        "head in every layer adds little. Without any attention, however, the model soon forgets "
        "earlier text."
    )
    method = (
        "Eight architectures with four layers and about the same number of parameters are "
        "trained on Shakespeare as character-level language models. They are Transformers with "
        "four heads, one head or fixed attention, an LSTM, gated convolutions, and SHA-RNNs "
        "(LSTMs with a feed-forward network, Merity 2019) without attention, with one head or "
        "with a head in every layer. All losses are compared when the fastest architecture "
        "finishes training.",
        f"Four of the architectures are also trained on texts in which {ECHO} random characters "
        f"appear {TIMES} times in a row. To predict the repetitions, a model must copy the "
        f"character {ECHO} positions back.",
    )
    control = (
        "Every architecture must learn more than character frequencies, all must have nearly the "
        "same number of parameters, and at least one must learn to copy."
    )
    literature = (
        Citation("Merity 2019", "On enwik8, an LSTM reaches 1.33 bits per character without "
                 "attention and 1.076 with one head; a Transformer-XL reaches 1.06."),
        Citation("Gehring et al. 2017", "Convolutional models with attention to the source "
                 "translate as well as recurrent networks, and are faster.", "context"),
    )  # fmt: skip
    pieces = (13, 13)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        text = bench.text(datasets.shakespeare)
        train, valid = datasets.speeches(bench.choose(400, 100_000), 40, text=text)
        width = bench.choose(48, 192)
        steps, tokens = bench.choose((150, 768), (3000, 4096))
        letters = len({letter for piece in train["text"] for letter in piece}) + 4
        runs = {
            arm: self._train(bench, arm, f"text-{arm}", train, valid, width, letters,
                             steps=steps, tokens=tokens)
            for arm in NAMED
        }  # fmt: skip
        drawn, other = echoes(bench.choose(1500, 8000), bench.seed), echoes(60, 1000 + bench.seed)
        copied = {}
        for arm in COPYISTS:
            run = self._train(
                bench, arm, f"copy-{arm}", {"text": drawn}, {"text": other}, width,
                len(LETTERS) + 4, steps=bench.choose(600, 3000), tokens=tokens,
            )  # fmt: skip
            copied[arm] = copy_loss(run, other)
        seconds = bench.cached("seconds", lambda: step_seconds(runs, tokens, bench.choose(7, 15)))
        curves = {arm: [list(point) for point in run.history.points("valid", "loss")]
                  for arm, run in runs.items()}  # fmt: skip
        return {
            "curves": curves, "seconds": seconds, "copy": copied, "unigram": unigram(train, valid),
            "parameters": {arm: count_parameters(run.model) for arm, run in runs.items()},
        }  # fmt: skip

    def _train(
        self, bench: Workspace, arm: str, name: str, train: Any, valid: Any, width: int,
        vocab: int, *,
        steps: int, tokens: int,
    ) -> Run:  # fmt: skip
        n, other = parameters_of(width, vocab), OTHERS.get(arm)
        wide = width if other is None else width_of(
            n_parameters=n, n_layers=LAYERS, vocab=vocab, by=1, **other)  # fmt: skip
        settings: dict[str, Any] = {
            "tokenizer.kind": "characters", "model.block_layout": "pre",
            "complete.context": CONTEXT,
            "model.d_model": wide, "model.n_layers": LAYERS,
            "train.schedule": "constant", "train.warmup": 20, "train.clip": 1.0,
            "train.optimizer": "adam", "train.lr": 3e-3 if bench.quick else 1e-3,
            "train.steps": steps,
            "train.batch_tokens": tokens, "train.eval_every": max(1, steps // 5),
        }  # fmt: skip
        if other is None:
            # Widen the feed-forward network to compensate for the missing queries and keys.
            settings |= {
                "model.d_ff": (5 if arm == "fixed" else 4) * wide, "model.positions": "rotary",
                "model.n_heads": 1 if arm == "one-head" else 4,
            }  # fmt: skip
        else:
            settings |= {
                "model.n_heads": None,
                "model.d_ff": 4 * wide if other["body"] == "sha-rnn" else None,
                **{f"model.{name}": value for name, value in other.items()},
            }  # fmt: skip
        parts = FIXED if arm == "fixed" else None
        return bench.train(name, "complete", train, valid=valid, settings=settings, parts=parts)

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        timed = [at_equal_time(one) for one in found]
        effect = Effect.over(
            [one["single"] - one["transformer"] for one in timed],
            f"loss of {NAMED['single']} minus loss of the Transformer, equal time",
            "nats per character",
        )  # fmt: skip
        best = min(REPLACED, key=lambda arm: sum(one[arm] - one["transformer"] for one in timed))
        least = Effect.over([one[best] - one["transformer"] for one in timed], "")
        without, single = (Arm(name=NAMED[name], scores=per_seed(found, "copy", name))
                           for name in ("no-head", "single"))  # fmt: skip
        needed = Effect.between(without, single, COPY,
                             "reduction of the copying loss by one head",
                             "nats per character")  # fmt: skip
        added = Effect.over([one["single"] - one["every-layer"] for one in timed],
                            "reduction of the loss by a head in every layer instead of one, "
                            "equal time",
                            "nats per character")  # fmt: skip
        learned = min(one["unigram"] - curve[-1][1] for one in found
                      for curve in one["curves"].values())  # fmt: skip
        sizes = [value for one in found for value in one["parameters"].values()]
        apart = max(sizes) / min(sizes)
        copied = max(min(one["copy"].values()) for one in found)
        controls = [
            Control(name="every architecture learns", passed=learned > 0.1,
                    said=f"the loss of every architecture is at least {rounded(learned)} nats "
                         "lower than that of character frequencies."),
            Control(name="equal parameters", passed=apart < 1.05,
                    said=f"the largest model has {apart:.2f} times the parameters of the "
                         "smallest."),
            Control(name="copying can be learned", passed=copied < 0.5 * math.log(len(LETTERS)),
                    said=f"the lowest copying loss is at most {rounded(copied)} nats per "
                         f"character; guessing gives {math.log(len(LETTERS)):.2f}."),
        ]  # fmt: skip
        more = [
            needed, added,
            *(Effect.over([one[arm] - one["transformer"] for one in timed],
                          f"loss of {NAMED[arm]} minus loss of the Transformer, equal time",
                          "nats per character")
              for arm in NAMED if arm not in ("transformer", "single")),
            *(Effect.over([one["curves"][arm][-1][1] - one["curves"]["transformer"][-1][1]
                           for one in found],
                          f"the same after equal characters: {NAMED[arm]}", "nats per character")
              for arm in ("no-head", *REPLACED, "fixed")),
        ]  # fmt: skip
        if effect.below(CLOSE) == "refuted":
            refuted = (
                "In this comparison, yes: in equal training time it learns more than an LSTM "
                "with one attention head."
            )
        elif added.below(CLOSE) == "refuted":
            refuted = "One attention head in an LSTM is not enough: a head in every layer helps."
        else:
            refuted = "An LSTM does not need attention here: one head hardly helps it to copy."
        answers = OutcomeSentences(
            supported="Not always: on a small text and after equal training time, an LSTM with "
            "one attention head is as good.",
            refuted=refuted,
            undecided="These runs do not show whether, after equal training time, an LSTM with "
            "one attention head is as good as a Transformer of the same size.",
            numbers=f"The best other architecture, selected after the runs, is {NAMED[best]}; "
            f"its loss minus that of the Transformer is {rounded(least.value)} nats per "
            "character.",
            changes="The answer may differ with longer training, more parameters, more text and "
            "parallel hardware; the Transformer wins under these conditions in the literature.",
        )
        word = all_of(effect.below(CLOSE), needed.above(0.1), added.below(CLOSE))
        return decide(word, needed if word == "cannot tell" else effect, answers, controls, more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        timed = [at_equal_time(one) for one in found]
        order = sorted(NAMED, key=lambda arm: sum(one[arm] for one in timed))
        curves = {
            arm: [(mean(found, "seconds", arm) * step,
                   mean(found, "curves", arm, number, 1))
                  for number, (step, _) in enumerate(found[0]["curves"][arm])]
            for arm in NAMED
        }  # fmt: skip
        return [
            LineChart(
                title="Loss by time", x="seconds of training", y="nats per character",
                hint="Validation loss during training; lower and further left is better. Equal "
                "parameters.",
                series=[(NAMED[arm], curves[arm]) for arm in ("transformer", *REPLACED)],
                levels=[("character frequencies", mean(found, "unigram"))],
            ),
            BarChart(
                title="Loss at equal time", unit="nats per character",
                hint="At the time when the fastest model has finished; low and high are the "
                     "range over seeds.",
                bars=interval_bars([(NAMED[arm], [one[arm] for one in timed]) for arm in order]),
            ),
            TableFigure(
                title="All numbers", hint="Means over seeds. Characters per second: in training.",
                columns=["model", "parameters", "characters per second", "nats, equal characters",
                         "nats, equal time"],
                rows=[[NAMED[arm], mean(found, "parameters", arm),
                       found[0]["seconds"]["tokens"] / mean(found, "seconds", arm),
                       mean(found, "curves", arm, -1, 1),
                       sum(one[arm] for one in timed) / len(timed)] for arm in order],
            ),
            BarChart(
                title=f"Copying from {ECHO} characters back", unit="nats per character",
                hint=f"Loss on repeated characters; chance is {math.log(len(LETTERS)):.2f}, and "
                "0 is perfect.",
                bars=interval_bars([(NAMED[arm], per_seed(found, "copy",
                arm)) for arm in COPYISTS]),
            ),
        ]  # fmt: skip


EXPERIMENT = OptimalExperiment()


def parameters_of(width: int, vocab: int) -> int:
    """Return the number of parameters of the Transformer, which all other architectures match."""
    return count_parameters(meta_model(shape("transformer", width, LAYERS, vocab)))


def echoes(n: int, seed: int) -> list[str]:
    """Return `n` texts for the copying test: random characters that are repeated several times."""
    picks = random.Random(seed)
    return ["".join(picks.choices(LETTERS, k=ECHO)) * TIMES for _ in range(n)]


@torch.no_grad()
def copy_loss(run: Run, texts: Sequence[str]) -> float:
    """Return the loss on the repeated characters of the copying test, in nats per character."""
    model = run.model
    assert isinstance(model, Decoder)
    device = next(model.parameters()).device
    rows = [run.tokenizer.as_open_prompt(run.tokenizer.encode(text)) for text in texts]
    tokens_N = torch.tensor([token for row in rows for token in row], device=device)
    layout = Layout.of([len(row) for row in rows], device)
    scores_NV = model.scores(model(tokens_N, layout))
    # A character is predicted at the position of the character before it. The first copy does not
    # count, because it is random.
    said_N = (layout.positions_N >= len(rows[0]) - len(texts[0]) - 1 + ECHO) & (
        layout.positions_N < len(rows[0]) - 1
    )
    return float(F.cross_entropy(scores_NV[said_N].float(), tokens_N.roll(-1)[said_N]))


def step_seconds(runs: dict[str, Run], tokens: int, rounds: int) -> dict[str, float]:
    """Measure the seconds per training step of each architecture, in alternating rounds.

    The result also contains the number of tokens per step.
    """
    steps = {}
    for arm, run in runs.items():
        model = run.model
        assert isinstance(model, Decoder)
        device = next(model.parameters()).device
        vocab = run.tokenizer.vocab_size
        steps[arm] = step_of(model, CONTEXT, tokens // CONTEXT * CONTEXT, device, 0, vocab)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = in_turns(steps, rounds, device)
    finally:
        torch.set_num_threads(threads)
    return {
        "tokens": float(tokens),
        **{arm: statistics.median(all_) for arm, all_ in found.items()},
    }


def at_equal_time(one: SeedMeasurements) -> dict[str, float]:
    """Return the loss of each architecture at the time at which the first architecture finished
    training."""
    seconds, curves = one["seconds"], one["curves"]
    budget = min(seconds[arm] * curve[-1][0] for arm, curve in curves.items())
    return {arm: between(curve, budget / seconds[arm]) for arm, curve in curves.items()}


def between(curve: Sequence[Sequence[float]], step: float) -> float:
    """Return the loss at a training step, interpolated linearly between measured steps."""
    before = curve[0]
    for point in curve:
        if point[0] >= step:
            share = (step - before[0]) / max(point[0] - before[0], 1e-9)
            return float(before[1] + max(share, 0.0) * (point[1] - before[1]))
        before = point
    return float(curve[-1][1])
