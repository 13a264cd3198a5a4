"""E14: when does a model begin to overfit, and what delays it?

From some step on, the training loss keeps falling while the validation loss rises, because the
model memorizes the training data. The experiment measures the step of this turning point, its loss,
and the cost of training past it. They depend on the data, the model size, dropout, label smoothing
and pretraining.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from headway.lab import datasets
from headway.lab.averaging import Losses, checkpoints_of
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean
from headway.lab.figures import Figure, LineChart, TableFigure
from headway.lab.run_loss import RunLoss
from headway.lab.verdict import Control, Effect, OutcomeSentences, Verdict, all_of, decide
from headway.lab.workspace import Workspace
from headway.training.checkpoint import Checkpoints

if TYPE_CHECKING:
    from headway.run import Run

LEAST = 0.1
"""Minimum rise of the validation loss above its lowest value that counts as overfitting, in nats
per character."""

LOOKS = 20
"""Number of checkpoints at which losses are measured."""

SIZE = 400
"""Number of characters in a passage of text."""

REMEDIES: dict[str, tuple[str, dict[str, Any]]] = {
    "dropout": ("dropout 0.2", {"model.dropout": 0.2}),
    "smoothing": ("label smoothing 0.1", {"train.label_smoothing": 0.1}),
    "pretrained": ("pretrained on other text", {}),
}


class OverfittingExperiment(Experiment):
    hypothesis = (
        "With little data the validation loss starts to rise while the training loss keeps "
        "falling; with much data it does not."
    )
    method = (
        "A small and a large language model are trained on short, medium and long parts of "
        "Shakespeare (or of the text given with --data), always for the same number of steps. At "
        "twenty checkpoints the loss is measured on the training text and on unseen text. The "
        "turning point is the checkpoint with the lowest loss on unseen text. The cost of "
        "training past this point is the rise of that loss until the end of training.",
        "On the shortest part, the large model is also trained with dropout, with label smoothing, "
        "or from weights pretrained on other text.",
    )
    control = (
        "After the turning point the training loss must continue to fall; otherwise the model "
        "would have diverged, not overfitted."
    )
    literature = (
        Citation("Kaplan et al. 2020", "Overfitting depends on the amount of data and the model "
                 "size together; a larger model needs fewer examples to reach the same loss.",
                 "context"),
        Citation("Nakkiran et al. 2019", "Larger models can improve again after overfitting "
                 "(double descent). No model here is that large.", "differs"),
    )  # fmt: skip
    pieces = (19, 31)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        sizes = bench.choose((24, 96), (32, 96, 256))
        amounts = bench.choose((5, 60, 600), (5, 60, 240, 700))
        shared = settings(bench)
        text = bench.text(datasets.shakespeare, least=amounts[-1] * SIZE + 20 * SIZE)
        every, valid = datasets.speeches(700, 20, SIZE, text)
        amounts = tuple(n for n in amounts if n <= len(every["text"]))
        curves: dict[str, Any] = {}

        def followed(name: str, n: int, width: int, **more: Any) -> dict[str, Any]:
            own = {**shared, "model.d_model": width, "model.d_ff": 2 * width, **more.pop("own", {})}
            run = bench.train(
                name, "complete", some(every, n, bench.seed), valid=valid, settings=own, **more
            )
            found: dict[str, Any] = bench.cached(name, lambda: loss_curves(run))
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

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        sizes, amounts = found[0]["sizes"], found[0]["amounts"]
        little, much = f"{sizes[-1]}-{amounts[0]}", f"{sizes[-1]}-{amounts[-1]}"
        small = f"{sizes[0]}-{amounts[0]}"
        costs = [cost(one["curves"][little]) - cost(one["curves"][much]) for one in found]
        effect = Effect.over(costs, "cost of training past the turning point, little minus much "
                                    "text",
                             "nats per character")  # fmt: skip
        enough = Effect.over([cost(one["curves"][much]) for one in found],
                             "cost of training past the turning point, much text",
                             "nats per character")  # fmt: skip
        falls = [fall(one["curves"][little]) for one in found]
        control = Control(
            name="the training loss falls after the turning point", passed=min(falls) > 0,
            said="after the turning point the training loss falls by at least another "
            f"{min(falls):.2f} nats.",
        )  # fmt: skip
        turns = [turn(one["curves"][little]) for one in found]
        every = found[0]["curves"][little]["steps"][0]
        lower = {
            name: Effect.over(
                [least(one["curves"][little]) - least(one["curves"][name]) for one in found],
                f"reduction of the lowest validation loss by {REMEDIES[name][0]}",
                "nats per character",
            )
            for name in REMEDIES
        }  # fmt: skip
        more = [
            enough,
            *lower.values(),
            # If the lowest loss is that of the first checkpoint, the turning point may really be
            # earlier.
            *(Effect.over([turn(one["curves"][name]) / turn(one["curves"][little])
                           for one in found],
                          f"turning point, factor of change by {REMEDIES[name][0]}", "×")
              for name in REMEDIES
              if not any(early(one["curves"][key]) for one in found for key in (name, little))),
            *(Effect.over([cost(one["curves"][name]) for one in found],
                          f"cost of training past the turning point, {REMEDIES[name][0]}",
                          "nats per character")
              for name in REMEDIES),
            Effect.over([cost(one["curves"][small]) for one in found],
                        "cost of training past the turning point, small model",
                        "nats per character"),
            Effect.over([least(one["curves"][small]) - least(one["curves"][little])
                         for one in found],
                        "reduction of the lowest validation loss by the larger model",
                        "nats per character"),
        ]  # fmt: skip
        order = sorted(lower, key=lambda name: -lower[name].value)
        said = ", ".join(f"{REMEDIES[name][0]} {lower[name].value:+.2f}" for name in order)
        said = said.replace("-", "−")
        when = "at or before" if any(early(one["curves"][little]) for one in found) else "at"
        rises = effect.above(LEAST)
        answers = OutcomeSentences(
            supported="A model overfits when it trains too long on little text; with much text it "
            "does not.",
            refuted="Not here: longer training costs hardly more with little text than with much "
            "text."
            if rises == "refuted"
            else "Much text does not prevent overfitting: the validation loss rises as well.",
            undecided="With little text, a model overfits early; these runs do not show whether "
            "much text prevents overfitting completely."
            if rises == "supported"
            else "These runs do not show whether little text makes a model overfit.",
            numbers=f"With {amounts[0] * SIZE:,} characters the validation loss is lowest {when} "
            f"step {sum(turns) / len(turns):.0f} (measured every {every:.0f} steps). Reduction "
            f"of the lowest validation loss, in nats per character: {said}.",
            changes="The answer may differ if training ends before the turning point, "
            "and for a far larger model trained far longer, whose validation loss may fall "
            "again.",
        )
        word = all_of(effect.above(LEAST), enough.below(LEAST))
        return decide(word, effect, answers, [control], more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        sizes, amounts = found[0]["sizes"], found[0]["amounts"]
        wide, few = sizes[-1], amounts[0]
        by_text = [
            (f"{n * SIZE:,} characters, {what}", course(found, f"{wide}-{n}", key))
            for n in (amounts[0], amounts[-1])
            for key, what in (("valid", "unseen text"), ("train", "training text"))
        ]
        remedies = [
            ("no remedy", course(found, f"{wide}-{few}", "valid")),
            *((REMEDIES[name][0], course(found, name, "valid")) for name in REMEDIES),
        ]
        names = [f"{width}-{n}" for width in sizes for n in amounts]
        rows = [
            [f"width {name.split('-')[0]}, {int(name.split('-')[1]) * SIZE:,} characters",
             *numbers(found, name)] for name in names
        ] + [[f"width {wide}, {few * SIZE:,} characters, {REMEDIES[name][0]}",
              *numbers(found, name)]
             for name in REMEDIES]  # fmt: skip
        ends = [
            (f"width {width}, {what}",
             [(float(n * SIZE), mean(found, "curves", f"{width}-{n}", key, -1)) for n in amounts])
            for width in sizes
            for key, what in (("valid", "unseen text"), ("train", "training text"))
        ]  # fmt: skip
        return [
            LineChart(title="Loss with little and with much text", series=by_text, x="step",
                  y="nats per character",
                  hint=f"The model of width {wide}. It overfits from where the loss on unseen "
                  "text starts to rise."),
            LineChart(title="Remedies against overfitting", series=remedies, x="step",
                  y="nats per character", hint=f"Loss on unseen text, width {wide}, {few * SIZE:,} "
                  "training characters."),
            LineChart(title="Final loss by amount of text and model size", series=ends,
                  x="training characters", y="nats per character", log_x=True,
                  hint="The gap between unseen and training text closes with more training text."),
            TableFigure(title="All models", rows=rows,
                  hint="Turning point: step with the lowest loss on unseen text; cost: rise of "
                  "that loss until the end.",
                  columns=["model", "turning point", "lowest loss", "final loss", "cost",
                           "final loss on training text"]),
        ]  # fmt: skip


EXPERIMENT = OverfittingExperiment()


def settings(bench: Workspace) -> dict[str, Any]:
    steps = bench.choose(200, 1600)
    return {
        "tokenizer.kind": "characters", "complete.context": 64, "model.positions": "rotary",
        "train.optimizer": "adam", "train.weight_decay": 0.0, "train.lr": 4e-3, "train.clip": 1.0,
        "train.steps": steps, "train.warmup": 20, "train.schedule": "constant",
        "train.batch_tokens": 512,
        "train.save_every": max(1, steps // LOOKS), "train.keep": LOOKS,
    }  # fmt: skip


def some(every: datasets.TextColumns, n: int, seed: int) -> datasets.TextColumns:
    """Return a random sample of `n` passages, which is different for each seed."""
    return {"text": Random(seed).sample(every["text"], n)}


def other_text() -> datasets.TextColumns:
    """Return English sentences of Tatoeba, joined and split into passages of the same size as those
    of Shakespeare."""
    text = "\n".join(english for _, english in datasets.tatoeba_pairs())
    return {"text": [text[at : at + SIZE] for at in range(0, len(text) - SIZE, SIZE)]}


def loss_curves(run: Run) -> dict[str, Any]:
    """Return the validation loss and the training loss at every checkpoint."""
    loss, learned = Losses(run), RunLoss(run, most=20)
    steps, valid, train = [], [], []
    for path in checkpoints_of(run):
        model = loss.model(Checkpoints.weights(path))
        steps.append(int(path.name.removeprefix("step-")))
        valid.append(loss.run_loss.validation(model))
        train.append(learned.training(model))
    return {"steps": steps, "valid": valid, "train": train}


# -- loss curves: training steps and losses


def least(curve: SeedMeasurements) -> float:
    return float(min(curve["valid"]))


def turn(curve: SeedMeasurements) -> float:
    """Return the training step of the checkpoint with the lowest validation loss."""
    return float(curve["steps"][curve["valid"].index(min(curve["valid"]))])


def early(curve: SeedMeasurements) -> bool:
    """Return whether the first checkpoint has the lowest loss, so that the turning point may be
    earlier."""
    return turn(curve) == float(curve["steps"][0])


def cost(curve: SeedMeasurements) -> float:
    """Return the rise of the validation loss from its minimum to the end of training."""
    return float(curve["valid"][-1]) - least(curve)


def fall(curve: SeedMeasurements) -> float:
    """Return the fall of the training loss from the turning point to the end of training."""
    at = curve["valid"].index(min(curve["valid"]))
    return float(curve["train"][at] - curve["train"][-1])


def course(
    found: Sequence[SeedMeasurements], name: str, key: str
) -> list[tuple[float, float | None]]:
    steps = found[0]["curves"][name]["steps"]
    return [(float(step), mean(found, "curves", name, key, i)) for i, step in enumerate(steps)]


def numbers(found: Sequence[SeedMeasurements], name: str) -> list[float | str]:
    curves = [one["curves"][name] for one in found]
    every = [[turn(one), least(one), one["valid"][-1], cost(one), one["train"][-1]]
             for one in curves]  # fmt: skip
    means = [round(sum(column) / len(column), 3) for column in zip(*every, strict=True)]
    when = f"at most {means[0]:.0f}" if any(map(early, curves)) else means[0]
    return [when, *means[1:]]
