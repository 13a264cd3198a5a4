"""E14: when does a model begin to learn by heart, and what puts it off?

From some step on the training loss goes on falling while the validation loss rises: what is learned
from then on is true of the training data alone. Where that turning point lies, how low it is and
what it costs to miss it depends on data, size, dropout, smoothing and what a model knew before.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from headway.lab import beds
from headway.lab.averaging import Losses, kept_by
from headway.lab.bench import Bench
from headway.lab.experiment import Experiment, Measured, Source, mean
from headway.lab.figures import Figure, Lines, Table
from headway.lab.verdict import Answers, Control, Effect, Verdict, all_of, decide
from headway.lab.yardstick import Yardstick
from headway.training.checkpoint import Checkpoints

if TYPE_CHECKING:
    from headway.run import Run

LEAST = 0.1
"""Nats per letter above the turning point: that is learned by heart."""

LOOKS = 20
"""How often on the way losses are taken."""

SIZE = 400
"""Letters of a piece."""

REMEDIES: dict[str, tuple[str, dict[str, Any]]] = {
    "dropout": ("dropout 0.2", {"model.dropout": 0.2}),
    "smoothing": ("label smoothing 0.1", {"train.smoothing": 0.1}),
    "pretrained": ("trained on other text first", {}),
}


class Overfitting(Experiment):
    hypothesis = (
        "With little data the validation loss turns up while the training loss goes on falling; "
        "with much data it does not."
    )
    method = (
        "Language models learn Shakespeare (or the text of --data) letter by letter, all for the "
        "same number of steps: a small and a large one, each from little, more and much text. "
        "At twenty points on the way the loss is taken on the text that a model learns from and on "
        "text that it has not seen, both without dropout and smoothing. The turning point is "
        "where the second is lowest; at the first of the points it may have been before.",
        "The large model with little text is then trained again with dropout, with label "
        "smoothing, and from weights that have learned other text first (English sentences of "
        "Tatoeba, nothing of Shakespeare).",
        "The effect is what missing the turning point costs: the validation loss at the end less "
        "the lowest one, of the large model, with little text less with much.",
    )
    control = (
        "Behind the turning point the training loss must still fall: else the model would have "
        "broken down, and not learned by heart."
    )
    literature = (
        Source("Srivastava et al. 2014", "Dropout keeps units from learning by heart together."),
        Source("Kaplan et al. 2020", "Overfitting depends on data and size together; a larger "
               "model needs fewer examples for the same loss.", "context"),
        Source("Nakkiran et al. 2019", "Larger models can get better again beyond the worst point, "
               "also with more steps: double descent. Nothing so large is trained here.",
               "differs"),
        Source("Müller, Kornblith, Hinton 2019", "Smoothing calibrates and regularises, and what "
               "wrong answers have in common is lost.", "context"),
    )  # fmt: skip
    pieces = (19, 31)

    def measure(self, bench: Bench) -> Measured:
        sizes = bench.choose((24, 96), (32, 96, 256))
        amounts = bench.choose((5, 60, 600), (5, 60, 240, 700))
        shared = settings(bench)
        text = bench.text(beds.shakespeare, least=amounts[-1] * SIZE + 20 * SIZE)
        every, valid = beds.speeches(700, 20, SIZE, text)
        amounts = tuple(n for n in amounts if n <= len(every["text"]))
        curves: dict[str, Any] = {}

        def followed(name: str, n: int, width: int, **more: Any) -> dict[str, Any]:
            own = {**shared, "model.d_model": width, "model.d_ff": 2 * width, **more.pop("own", {})}
            run = bench.train(
                name, "complete", some(every, n, bench.seed), valid=valid, settings=own, **more
            )
            found: dict[str, Any] = bench.once(name, lambda: followed_by(run))
            return found

        for width in sizes:
            for n in amounts:
                curves[f"{width}-{n}"] = followed(f"{width}-{n}", n, width)
        wide, few = sizes[-1], amounts[0]
        before = bench.train(
            "other-text", "complete", other_text(), valid=valid,
            settings={**shared, "model.d_model": wide, "model.d_ff": 2 * wide, "train.keep": 1},
        )  # fmt: skip
        for name, (_, own) in REMEDIES.items():
            start: dict[str, Any] = {"start": before.folder} if name == "pretrained" else {}
            curves[name] = followed(name, few, wide, own=own, **start)
        return {
            "curves": curves, "sizes": list(sizes), "amounts": list(amounts),
            "letters": [n * SIZE for n in amounts], "before": before.scores["loss"],
        }  # fmt: skip

    def judge(self, found: Sequence[Measured]) -> Verdict:
        sizes, amounts = found[0]["sizes"], found[0]["amounts"]
        little, much = f"{sizes[-1]}-{amounts[0]}", f"{sizes[-1]}-{amounts[-1]}"
        small = f"{sizes[0]}-{amounts[0]}"
        costs = [cost(one["curves"][little]) - cost(one["curves"][much]) for one in found]
        effect = Effect.over(costs, "cost of missing the turning point, little text less much",
                             "nats per letter")  # fmt: skip
        enough = Effect.over([cost(one["curves"][much]) for one in found],
                             "cost of missing it, much text", "nats per letter")  # fmt: skip
        falls = [fall(one["curves"][little]) for one in found]
        control = Control(
            name="it learns on behind the turning point", passed=min(falls) > 0,
            said="behind the turning point the training loss falls by at least "
            f"{min(falls):.2f} nats more.",
        )  # fmt: skip
        turns = [turn(one["curves"][little]) for one in found]
        every = found[0]["curves"][little]["steps"][0]
        lower = {
            name: Effect.over(
                [least(one["curves"][little]) - least(one["curves"][name]) for one in found],
                f"lowest validation loss, lower by {REMEDIES[name][0]}", "nats per letter",
            )
            for name in REMEDIES
        }  # fmt: skip
        more = [
            enough,
            *lower.values(),
            # At the first look a turning point is only known to be no later.
            *(Effect.over([turn(one["curves"][name]) / turn(one["curves"][little])
                           for one in found], f"turning point, moved by {REMEDIES[name][0]}", "×")
              for name in REMEDIES
              if not any(early(one["curves"][key]) for one in found for key in (name, little))),
            *(Effect.over([cost(one["curves"][name]) for one in found],
                          f"cost of missing it, {REMEDIES[name][0]}", "nats per letter")
              for name in REMEDIES),
            Effect.over([cost(one["curves"][small]) for one in found],
                        "cost of missing it, small model", "nats per letter"),
            Effect.over([least(one["curves"][small]) - least(one["curves"][little])
                         for one in found], "lowest validation loss, lower by the larger model",
                        "nats per letter"),
        ]  # fmt: skip
        order = sorted(lower, key=lambda name: -lower[name].value)
        said = ", ".join(f"{REMEDIES[name][0]} {lower[name].value:+.2f}" for name in order)
        said = said.replace("-", "−")
        when = "at or before" if any(early(one["curves"][little]) for one in found) else "at"
        answers = Answers(
            supported=f"With {amounts[0] * SIZE:,} letters the validation loss is lowest {when} "
            f"step {sum(turns) / len(turns):.0f} (every {every:.0f} were looked at), and to train "
            f"on costs {{effect}} more than with {amounts[-1] * SIZE:,}. What lowers the turning "
            f"point, in nats: {said}.",
            refuted=f"Not as was held: with {amounts[0] * SIZE:,} letters to train on costs "
            f"{{effect}} more than with {amounts[-1] * SIZE:,}, where it costs {enough}.",
            undecided="The seeds do not agree on whether little text makes the validation loss "
            f"turn and much does not: {{effect}} more with little, {enough} with much.",
            changes="Fewer steps, which end before the turning point; more text; a far larger "
            "model trained far longer, whose validation loss may come down again.",
        )
        word = all_of(effect.above(LEAST), enough.below(LEAST))
        return decide(word, effect, answers, [control], more)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        sizes, amounts = found[0]["sizes"], found[0]["amounts"]
        wide, few = sizes[-1], amounts[0]
        by_text = [
            (f"{n * SIZE:,} letters, {what}", course(found, f"{wide}-{n}", key))
            for n in (amounts[0], amounts[-1])
            for key, what in (("valid", "unseen"), ("train", "learned from"))
        ]
        remedies = [
            ("nothing", course(found, f"{wide}-{few}", "valid")),
            *((REMEDIES[name][0], course(found, name, "valid")) for name in REMEDIES),
        ]
        names = [f"{width}-{n}" for width in sizes for n in amounts]
        rows = [
            [f"width {name.split('-')[0]}, {int(name.split('-')[1]) * SIZE:,} letters",
             *numbers(found, name)] for name in names
        ] + [[f"width {wide}, {few * SIZE:,} letters, {REMEDIES[name][0]}", *numbers(found, name)]
             for name in REMEDIES]  # fmt: skip
        ends = [
            (f"width {width}, {what}",
             [(float(n * SIZE), mean(found, "curves", f"{width}-{n}", key, -1)) for n in amounts])
            for width in sizes for key, what in (("valid", "unseen"), ("train", "learned from"))
        ]  # fmt: skip
        return [
            Lines(title="Little text and much", series=by_text, x="step", y="nats per letter",
                  hint=f"The model of width {wide}. Where the line of unseen text turns up, it has "
                  "begun to learn by heart."),
            Lines(title="What moves the turning point", series=remedies, x="step",
                  y="nats per letter", hint=f"Loss on unseen text, width {wide}, "
                  f"{few * SIZE:,} letters to learn from."),
            Lines(title="At the end, by text and size", series=ends, x="letters to learn from",
                  y="nats per letter", log_x=True,
                  hint="The gap between unseen and learned text closes as there is more to learn "
                  "from."),
            Table(title="All of them", rows=rows,
                  hint="Turning point: the step with the lowest loss on unseen text; cost: how "
                  "much higher that loss is at the end.",
                  columns=["model", "turning point", "lowest", "at the end", "cost",
                           "learned text at the end"]),
        ]  # fmt: skip


EXPERIMENT = Overfitting()


def settings(bench: Bench) -> dict[str, Any]:
    steps = bench.choose(200, 1600)
    return {
        "tokenizer.kind": "characters", "complete.context": 64, "model.positions": "rotary",
        "train.optimizer": "adam", "train.weight_decay": 0.0, "train.lr": 4e-3, "train.clip": 1.0,
        "train.steps": steps, "train.warmup": 20, "train.schedule": "constant",
        "train.batch_tokens": 512,
        "train.save_every": max(1, steps // LOOKS), "train.keep": LOOKS,
    }  # fmt: skip


def some(every: beds.Columns, n: int, seed: int) -> beds.Columns:
    """So many pieces, others for each seed."""
    return {"text": Random(seed).sample(every["text"], n)}


def other_text() -> beds.Columns:
    """English sentences of Tatoeba, in pieces as long as those of Shakespeare."""
    text = "\n".join(english for _, english in beds.sentences())
    return {"text": [text[at : at + SIZE] for at in range(0, len(text) - SIZE, SIZE)]}


def followed_by(run: Run) -> dict[str, Any]:
    """Losses on unseen text and on text that was learned from, at every checkpoint."""
    loss, learned = Losses(run), Yardstick(run, most=20)
    steps, valid, train = [], [], []
    for path in kept_by(run):
        model = loss.model(Checkpoints.weights(path))
        steps.append(int(path.name.removeprefix("step-")))
        valid.append(loss.yardstick.valid(model))
        train.append(learned.learned(model))
    return {"steps": steps, "valid": valid, "train": train}


# -- a curve: steps, and losses at them


def least(curve: Measured) -> float:
    return float(min(curve["valid"]))


def turn(curve: Measured) -> float:
    """The step with the lowest loss on unseen text."""
    return float(curve["steps"][curve["valid"].index(min(curve["valid"]))])


def early(curve: Measured) -> bool:
    """Whether it was lowest at the first look, or before it."""
    return turn(curve) == float(curve["steps"][0])


def cost(curve: Measured) -> float:
    """How much higher that loss is at the end."""
    return float(curve["valid"][-1]) - least(curve)


def fall(curve: Measured) -> float:
    """How much the training loss falls behind the turning point."""
    at = curve["valid"].index(min(curve["valid"]))
    return float(curve["train"][at] - curve["train"][-1])


def course(found: Sequence[Measured], name: str, key: str) -> list[tuple[float, float | None]]:
    steps = found[0]["curves"][name]["steps"]
    return [(float(step), mean(found, "curves", name, key, i)) for i, step in enumerate(steps)]


def numbers(found: Sequence[Measured], name: str) -> list[float | str]:
    curves = [one["curves"][name] for one in found]
    every = [[turn(one), least(one), one["valid"][-1], cost(one), one["train"][-1]]
             for one in curves]  # fmt: skip
    means = [round(sum(column) / len(column), 3) for column in zip(*every, strict=True)]
    when = f"at most {means[0]:.0f}" if any(map(early, curves)) else means[0]
    return [when, *means[1:]]
