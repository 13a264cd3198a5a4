"""E11: is the Transformer optimal?

An LSTM with a single head of attention, convolutions, and attention that never looks at what it
reads are held against it, with as many parameters, on as many letters and in as much time.
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

from headway.lab import beds
from headway.lab.bench import Bench
from headway.lab.experiment import Experiment, Measured, Source, mean, over
from headway.lab.figures import Bars, Figure, Lines, Table, interval_bars
from headway.lab.parallelism import in_turns, shape, step_of, width_of
from headway.lab.residuals import unigram
from headway.lab.verdict import (
    Answers,
    Arm,
    Bounds,
    Control,
    Effect,
    Verdict,
    all_of,
    decide,
    said,
)
from headway.models.decoder import Decoder
from headway.models.parts.custom import Parts
from headway.models.summary import count, outline
from headway.nn.attention.attention import Attention
from headway.nn.block import PreNorm
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.run import Run

CONTEXT, LAYERS = 64, 4
ECHO, LETTERS, TIMES = 20, "abcdefgh", 3
"""The copying test: so many letters, drawn from these, so many times in a row."""

COPY = Bounds(low=0.0, high=math.log(len(LETTERS)), margin=0.05)
"""Loss in copying: from knowing every letter to guessing it."""


class Bell(nn.Module):
    """Scores that only know how far back a letter is: the first head likes the one before best, the
    second the one before that, and so on."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads

    def forward(self, distance_TS: Tensor) -> Tensor:
        back_H11 = torch.arange(1, self.n_heads + 1, device=distance_TS.device)[:, None, None]
        return -0.5 * (distance_TS.abs().unsqueeze(-3) - back_H11).float() ** 2


class FixedAttention(Attention):
    """Heads that look at places, whatever is written there (You, Sun, Iyyer 2020): no queries and
    no keys."""

    def __init__(self, usual: Attention) -> None:
        n_heads, scope = usual.n_heads, replace(usual.scope, bias=Bell(usual.n_heads))
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
"""What is set in place of a Transformer."""

REPLACED = ("lstm", "single", "every-layer", "convolution")
CLOSE = 0.05
"""Nats per letter: nearer than that is as good."""

COPYISTS = ("transformer", "no-head", "single", "every-layer")


class Optimal(Experiment):
    hypothesis = (
        "The Transformer is not optimal: in equal time an LSTM with one head of attention is as "
        f"good on a small text, or better (within {CLOSE} nats per letter), and a head in every "
        "layer adds little to that. But some attention is needed: without, what was said is soon "
        "forgotten."
    )
    method = (
        "Eight bodies of four layers with the same number of parameters learn Shakespeare letter "
        "by letter: a Transformer with four heads in each layer and with one, the same with "
        "attention that always looks at the letters just before, an LSTM, a SHA-RNN (an LSTM with "
        "a feed-forward network, Merity 2019) without a head of attention, with one in its "
        "second-last layer and with one in every layer, and gated convolutions.",
        "They are compared after equal letters, and after equal time: their steps are timed in "
        "turns, and each is judged by its loss when the time is over that the fastest of them "
        "needs for all its steps.",
        f"And they copy: {ECHO} random letters come {TIMES} times in a row. From the second time "
        "on every letter is known to whoever can look back.",
    )
    control = (
        "Every body must learn more than how often letters come, all must have the same number of "
        "parameters, and someone must learn to copy; else the comparison means nothing."
    )
    literature = (
        Source("Merity 2019", "On enwik8 an LSTM has 1.33 bits per letter without attention, 1.076 "
               "with one head in its second-last layer and 1.068 with one in each; a "
               "Transformer-XL has 1.06."),
        Source("You, Sun, Iyyer 2020", "Self-attention that is fixed costs translation next to "
               "nothing; attention from decoder to encoder must be learned.", "context"),
        Source("Gehring et al. 2017", "Convolutions with attention to the source translate as well "
               "as recurrences, and faster.", "context"),
    )  # fmt: skip
    pieces = (13, 13)

    def measure(self, bench: Bench) -> Measured:
        text = bench.text(beds.shakespeare)
        train, valid = beds.speeches(bench.choose(400, 100_000), 40, text=text)
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
        seconds = bench.once("seconds", lambda: step_seconds(runs, tokens, bench.choose(7, 15)))
        curves = {arm: [list(point) for point in run.history.points("valid", "loss")]
                  for arm, run in runs.items()}  # fmt: skip
        return {
            "curves": curves, "seconds": seconds, "copy": copied, "unigram": unigram(train, valid),
            "parameters": {arm: count(run.model) for arm, run in runs.items()},
        }  # fmt: skip

    def _train(
        self, bench: Bench, arm: str, name: str, train: Any, valid: Any, width: int, vocab: int, *,
        steps: int, tokens: int,
    ) -> Run:  # fmt: skip
        n, other = parameters_of(width, vocab), OTHERS.get(arm)
        wide = width if other is None else width_of(
            n_parameters=n, n_layers=LAYERS, vocab=vocab, by=1, **other)  # fmt: skip
        settings: dict[str, Any] = {
            "tokenizer.kind": "characters", "model.wiring": "pre", "complete.context": CONTEXT,
            "model.d_model": wide, "model.n_layers": LAYERS,
            "train.schedule": "constant", "train.warmup": 20, "train.clip": 1.0,
            "train.optimizer": "adam", "train.lr": 3e-3 if bench.quick else 1e-3,
            "train.steps": steps,
            "train.batch_tokens": tokens, "train.eval_every": max(1, steps // 5),
        }  # fmt: skip
        if other is None:
            # What fixed attention saves in queries and keys it has in its feed-forward network.
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

    def judge(self, found: Sequence[Measured]) -> Verdict:
        timed = [at_equal_time(one) for one in found]
        effect = Effect.over(
            [one["single"] - one["transformer"] for one in timed],
            f"loss of: {NAMED['single']}, less the Transformer's, equal time", "nats per letter",
        )  # fmt: skip
        best = min(REPLACED, key=lambda arm: sum(one[arm] - one["transformer"] for one in timed))
        least = Effect.over([one[best] - one["transformer"] for one in timed], "")
        without, single = (Arm(name=NAMED[name], scores=over(found, "copy", name))
                           for name in ("no-head", "single"))  # fmt: skip
        needed = Effect.between(without, single, COPY,
                             "what the head takes off the loss in copying",
                             "nats per letter")  # fmt: skip
        added = Effect.over([one["single"] - one["every-layer"] for one in timed],
                            "what a head in every layer takes off the loss, equal time",
                            "nats per letter")  # fmt: skip
        learned = min(one["unigram"] - curve[-1][1] for one in found
                      for curve in one["curves"].values())  # fmt: skip
        sizes = [value for one in found for value in one["parameters"].values()]
        apart = max(sizes) / min(sizes)
        copied = max(min(one["copy"].values()) for one in found)
        controls = [
            Control(name="every body learns", passed=learned > 0.1,
                    said=f"all are at least {said(learned)} nats better than counting letters."),
            Control(name="equal parameters", passed=apart < 1.05,
                    said=f"the largest has {apart:.2f} times the parameters of the smallest."),
            Control(name="copying can be learned", passed=copied < 0.5 * math.log(len(LETTERS)),
                    said=f"the best copyist is at {said(copied)} nats per letter; chance is "
                    f"{math.log(len(LETTERS)):.2f}."),
        ]  # fmt: skip
        more = [
            needed, added,
            *(Effect.over([one[arm] - one["transformer"] for one in timed],
                          f"loss of: {NAMED[arm]}, less the Transformer's, equal time",
                          "nats per letter")
              for arm in NAMED if arm not in ("transformer", "single")),
            *(Effect.over([one["curves"][arm][-1][1] - one["curves"]["transformer"][-1][1]
                           for one in found],
                          f"the same after equal letters: {NAMED[arm]}", "nats per letter")
              for arm in ("no-head", *REPLACED, "fixed")),
        ]  # fmt: skip
        head = (
            f"in copying the head takes {said(needed.value)} nats off the loss, and a head in "
            f"every layer instead of one changes that of the text by {said(-added.value)}"
        )
        lead = "In equal time the loss of an LSTM with one head differs from the Transformer's by"
        rest = (
            f"Of the bodies that it replaced {NAMED[best]} does best "
            f"({said(least.value)} nats from the Transformer; picked afterwards)."
        )
        answers = Answers(
            supported=f"{lead} {{effect}}: it is as good or better. Some attention is needed, and "
            f"little is enough: {head}. {rest}",
            refuted=f"Not as was held. {lead} {{effect}}, and {head}. {rest}",
            undecided=f"It cannot be told whether it is as good. {lead} {{effect}}; {head}. {rest}",
            changes="Scale: in the literature the Transformer overtakes with more parameters, more "
            "text and hardware that computes much at once. Small models and short minutes favour "
            "what has the order of letters built in. More steps: in a quick run each learns for a "
            "few seconds, and neither the text nor copying is learned to the end by the LSTM with "
            "one head. Its own optimizer: it had that of the others here.",
        )
        word = all_of(effect.below(CLOSE), needed.above(0.1), added.below(CLOSE))
        return decide(word, needed if word == "cannot tell" else effect, answers, controls, more)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        timed = [at_equal_time(one) for one in found]
        order = sorted(NAMED, key=lambda arm: sum(one[arm] for one in timed))
        curves = {
            arm: [(mean(found, "seconds", arm) * step,
                   mean(found, "curves", arm, number, 1))
                  for number, (step, _) in enumerate(found[0]["curves"][arm])]
            for arm in NAMED
        }  # fmt: skip
        return [
            Lines(
                title="Loss by time", x="seconds of training", y="nats per letter",
                hint="Validation loss while they train; lower and further left is better. Equal "
                "parameters.",
                series=[(NAMED[arm], curves[arm]) for arm in NAMED if arm != "one-head"],
                levels=[("counting letters", mean(found, "unigram"))],
            ),
            Bars(
                title="Loss at equal time", unit="nats per letter",
                hint="When the time of the fastest is over; low and high are the seeds.",
                bars=interval_bars([(NAMED[arm], [one[arm] for one in timed]) for arm in order]),
            ),
            Table(
                title="All numbers", hint="Means over seeds. Letters a second: in training.",
                columns=["body", "parameters", "letters a second", "nats, equal letters",
                         "nats, equal time"],
                rows=[[NAMED[arm], mean(found, "parameters", arm),
                       found[0]["seconds"]["tokens"] / mean(found, "seconds", arm),
                       mean(found, "curves", arm, -1, 1),
                       sum(one[arm] for one in timed) / len(timed)] for arm in order],
            ),
            Bars(
                title=f"Copying from {ECHO} letters back", unit="nats per letter",
                hint="Loss on letters that came before; chance is "
                f"{math.log(len(LETTERS)):.2f}, and 0 is perfect.",
                bars=interval_bars([(NAMED[arm], over(found, "copy", arm)) for arm in COPYISTS]),
            ),
        ]  # fmt: skip


EXPERIMENT = Optimal()


def parameters_of(width: int, vocab: int) -> int:
    """Of the Transformer that all others are as large as."""
    return count(outline(shape("transformer", width, LAYERS, vocab)))


def echoes(n: int, seed: int) -> list[str]:
    """Random letters, several times in a row."""
    picks = random.Random(seed)
    return ["".join(picks.choices(LETTERS, k=ECHO)) * TIMES for _ in range(n)]


@torch.no_grad()
def copy_loss(run: Run, texts: Sequence[str]) -> float:
    """Nats per letter where it came before."""
    model = run.model
    assert isinstance(model, Decoder)
    device = next(model.parameters()).device
    rows = [run.tokenizer.begun(run.tokenizer.encode(text)) for text in texts]
    tokens_N = torch.tensor([token for row in rows for token in row], device=device)
    layout = Layout.of([len(row) for row in rows], device)
    scores_NV = model.scores(model(tokens_N, layout))
    # A letter is said where the one before it is read; the first ones are anyone's guess.
    said_N = (layout.positions_N >= len(rows[0]) - len(texts[0]) - 1 + ECHO) & (
        layout.positions_N < len(rows[0]) - 1
    )
    return float(F.cross_entropy(scores_NV[said_N].float(), tokens_N.roll(-1)[said_N]))


def step_seconds(runs: dict[str, Run], tokens: int, rounds: int) -> dict[str, float]:
    """Seconds of a step of training by body, timed in turns; and of how many tokens."""
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


def at_equal_time(one: Measured) -> dict[str, float]:
    """Losses when the time is over in which the fastest does all its steps."""
    seconds, curves = one["seconds"], one["curves"]
    budget = min(seconds[arm] * curve[-1][0] for arm, curve in curves.items())
    return {arm: between(curve, budget / seconds[arm]) for arm, curve in curves.items()}


def between(curve: Sequence[Sequence[float]], step: float) -> float:
    """The loss at a step, on the line between those that were measured."""
    before = curve[0]
    for point in curve:
        if point[0] >= step:
            share = (step - before[0]) / max(point[0] - before[0], 1e-9)
            return float(before[1] + max(share, 0.0) * (point[1] - before[1]))
        before = point
    return float(curve[-1][1])
