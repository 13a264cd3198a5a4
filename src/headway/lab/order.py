"""E16: what is lost without positional encodings?

An encoder without positional encodings sees a bag of words. A decoder still has information about
word order, because each token attends only to the tokens before it. The value of positional
encodings therefore depends on the task.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from headway.lab import datasets
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, per_seed
from headway.lab.figures import BarChart, Figure, interval_bars
from headway.lab.verdict import (
    Control,
    Effect,
    OutcomeSentences,
    Verdict,
    VerdictLabel,
    all_of,
    decide,
    rounded,
)
from headway.lab.workspace import REVERSAL_SETTINGS, Workspace

TASKS = {
    "first": "tell which of two words comes first (encoder)",
    "there": "tell whether a word is present (encoder)",
    "reverse": "reverse words (encoder and decoder)",
    "sort": "sort words (encoder and decoder)",
    "letters": "predict the next character (decoder)",
}
LITTLE = 0.25
"""Maximum loss without positions that counts as small for a decoder.

It is a fraction of what a decoder with positions learns beyond character frequencies.
"""

TINY: dict[str, Any] = {
    "model.d_model": 32, "model.n_heads": 2, "model.d_ff": 64, "model.n_layers": 2,
    "train.batch_tokens": 512, "train.lr": 4e-3, "train.warmup": 20, "train.clip": 1.0,
}  # fmt: skip


class OrderExperiment(Experiment):
    hypothesis = (
        "Without positions, an encoder loses all information about word order, while a decoder, "
        "which sees only earlier tokens, loses less than a quarter of what it learns."
    )
    method = (
        "Models learn five tasks with and without positions; everything else is equal. Encoders "
        "predict which of two words comes first and whether a word is present, which does not "
        "depend on word order. Encoder-decoders reverse and sort words. A decoder predicts the "
        "next character of Shakespeare. The gain from positions is the loss without positions "
        "minus the loss with positions. The decoder's learning is measured as the difference "
        "between its loss and that of character frequencies.",
    )
    control = (
        "Without positions, the encoder must predict equally well whether a word is present. "
        "With positions, it must predict which word comes first."
    )
    literature = (
        Citation("Vaswani et al. 2017", "Without recurrence and convolution a model needs explicit "
                 "information about the order.", part="encoder"),
        Citation("Haviv et al. 2022", "Causal language models without positional encodings are "
                 "nearly as good: they infer positions from the number of visible tokens.",
                 part="decoder"),
    )  # fmt: skip
    pieces = (10, 10)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        with_, without = {}, {}
        for task in TASKS:
            with_[task] = self._loss(bench, task, None)
            without[task] = self._loss(bench, task, "none")
        train, valid = datasets.speeches(300, 40)
        from headway.lab.residuals import unigram

        return {"with": with_, "without": without, "unigram": unigram(train, valid)}

    def _loss(self, bench: Workspace, task: str, positions: str | None) -> float:
        name = f"{task}-{positions or 'with'}"
        other: dict[str, Any] = {} if positions is None else {"model.positions": positions}
        if task in ("first", "there"):
            train, valid = questions(task, bench.choose(2000, 10_000), 300, bench.seed)
            settings = {
                **TINY, "model.positions": "sinusoidal", "train.steps": bench.choose(200, 1500),
                "model.ngrams": 0, **other,
            }  # fmt: skip
            run = bench.train(name, "classify", train, valid=valid, settings=settings)
        elif task == "letters":
            train, valid = datasets.speeches(bench.choose(300, 700), 40)
            settings = {
                **TINY, "tokenizer.kind": "characters", "complete.context": 64,
                "model.positions": "rotary", "train.steps": bench.choose(200, 2000), **other,
            }  # fmt: skip
            run = bench.train(name, "complete", train, valid=valid, settings=settings)
        else:
            bed = datasets.make_pairs(datasets.strings(task, 3, 8, letters=8), bench.choose(4000,
            20_000), 100,
                           bench.seed)  # fmt: skip
            train, valid = bed.columns()
            settings = {**REVERSAL_SETTINGS, "train.steps": bench.choose(250, 1500), **other}
            run = bench.train(name, "translate", train, valid=valid, settings=settings)
        return run.scores["loss"]

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        def worth(task: str) -> Effect:
            """Return the gain from positional encodings on a task.

            The effect has no `Bounds`: a model that is right without positions does not need them,
            however easy the task is.
            """
            lost = [one["without"][task] - one["with"][task] for one in found]
            return Effect.over(lost, f"gain from positions, {TASKS[task]}", "nats")

        shares = [
            (one["without"]["letters"] - one["with"]["letters"])
            / (one["unigram"] - one["with"]["letters"])
            for one in found
        ]
        encoder = worth("first")
        decoder = Effect.over(
            shares, "fraction of the decoder's learning that is lost without positions"
        )
        there = [one["without"]["there"] - one["with"]["there"] for one in found]
        first = per_seed(found, "with", "first")
        controls = [
            Control(
                name="a bag of words shows whether a word is present", passed=max(there) < 0.1,
                said="for predicting whether a word is present, the gain from positions is at "
                     f"most {rounded(max(there))} nats.",
            ),
            Control(
                name="the order is known with positions", passed=max(first) < 0.35,
                said="with positions, the loss for predicting which word comes first is at most "
                f"{max(first):.2f} nats; guessing gives 0.69 nats.",
            ),
        ]  # fmt: skip
        parts: dict[str, VerdictLabel] = {
            "encoder": encoder.above(0.3),
            "decoder": decoder.below(LITTLE),
        }
        word = all_of(*parts.values())
        effect = encoder if parts["encoder"] == word else decoder  # the part that decides
        answers = OutcomeSentences(
            supported="An encoder loses all information about word order; a decoder, which sees "
            "only earlier tokens, loses little.",
            refuted="A decoder loses much of what it learns, although it sees only earlier tokens."
            if effect is decoder
            else "An encoder knows the order of words without positions.",
            undecided="An encoder loses all information about word order; these runs do not show "
            "whether a decoder loses less than a quarter of what it learns."
            if effect is decoder
            else "These runs do not show whether an encoder loses all information about word "
            "order.",
            changes="The answer may differ with more layers and steps, which let a decoder "
            "learn positions by itself, and for data in which the words reveal their order.",
        )
        more = [decoder if effect is encoder else encoder]
        more += [worth(task) for task in ("reverse", "sort", "letters", "there")]
        return decide(word, effect, answers, controls, more, parts)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        worth = [
            (text, [one["without"][task] - one["with"][task] for one in found])
            for task, text in TASKS.items()
        ]
        both = [
            (f"{task}, {'with' if key == 'with' else 'no'} positions", per_seed(found, key, task))
            for task in TASKS
            for key in ("with", "without")
        ]
        return [
            BarChart(
                title="Gain from positions", bars=interval_bars(worth), unit="nats",
                hint="Validation loss without positions minus loss with them; the thin line is "
                "the range over seeds.",
            ),
            BarChart(title="Losses", bars=interval_bars(both), unit="nats",
                 hint="Per word, character or label; lower is better."),
        ]  # fmt: skip


EXPERIMENT = OrderExperiment()


def questions(
    kind: str, n_train: int, n_valid: int, seed: int
) -> tuple[datasets.TextColumns, datasets.TextColumns]:
    """Return training and validation sets of eight-word sentences, one label per sentence.

    If `kind` is `first`, the label is which of the words `one` and `two` comes first. If it is
    `there`, the label is whether `one` occurs.
    """

    def some(n: int, seed: int) -> datasets.TextColumns:
        picks = random.Random(seed)
        texts, labels = [], []
        for _ in range(n):
            words = [f"w{datasets.syllable(picks.randrange(12))}" for _ in range(8)]
            one, two = picks.sample(range(8), 2)
            if kind == "first":
                words[one], words[two] = "one", "two"
                labels.append("one" if one < two else "two")
            else:
                is_there = picks.random() < 0.5
                words[one] = "one" if is_there else words[one]
                labels.append("yes" if is_there else "no")
            texts.append(" ".join(words))
        return {"text": texts, "label": labels}

    return some(n_train, 2 * seed + 1), some(n_valid, 2 * seed + 2)
