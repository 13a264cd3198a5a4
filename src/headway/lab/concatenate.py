"""E5: should positions be added to embeddings or concatenated with them?

Addition looks wasteful, because one vector then holds both word and position. However, the
encodings of a sentence's positions span few directions, and embeddings can learn to avoid these.
The two terms of the sum can then be separated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headway.lab import datasets
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import BarChart, Figure, TableFigure, interval_bars
from headway.lab.verdict import Control, Effect, OutcomeSentences, Verdict, decide
from headway.lab.workspace import Workspace
from headway.models.parts.custom import Parts
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.positions import sinusoids
from headway.settings.model import TextSettings

if TYPE_CHECKING:
    from headway.run import Run

MOST = 512
"""Maximum number of positions in the table of encodings."""

EQUAL = 0.1
"""Minimum difference in loss that counts, as a fraction of the gain from positions."""


class FixedPositions(nn.Module):
    """Base class of positional encodings from a fixed table, which is not learned."""

    code_PC: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("code_PC", sinusoids(MOST, width), persistent=False)

    def code(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return self.code_PC[layout.positions_N].to(x_ND.dtype)


class ConcatenatedPositions(FixedPositions):
    """Positional encoding that replaces the last dimensions of the word embedding."""

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        code_NC = self.code(x_ND, layout)
        return torch.cat([x_ND[:, : -code_NC.shape[1]], code_NC], dim=1)


class RotatedPositions(FixedPositions):
    """Positional encoding that replaces the word embedding in some random orthogonal directions.

    Word and position can be separated exactly.
    """

    free_DD: Tensor
    basis_CD: Tensor

    def __init__(self, width: int, taken: int) -> None:
        super().__init__(taken)
        drawn_DD = torch.randn(width, width, generator=torch.Generator().manual_seed(5))
        basis_CD = torch.linalg.qr(drawn_DD)[0][:taken]
        self.register_buffer("basis_CD", basis_CD, persistent=False)
        self.register_buffer("free_DD", torch.eye(width) - basis_CD.T @ basis_CD, persistent=False)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return x_ND @ self.free_DD + self.code(x_ND, layout) @ self.basis_CD


class ProjectedPositions(FixedPositions):
    """Concatenation of word embedding and positional encoding, projected to the model width by a
    trained matrix."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.to_stream = Linear(2 * width, width, bias=False)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        mixed_ND: Tensor = self.to_stream(torch.cat([x_ND, self.code(x_ND, layout)], dim=1))
        return mixed_ND


def beside(taken: int, settings: TextSettings, width: int) -> nn.Module:
    return ConcatenatedPositions(taken)


ARMS: dict[str, tuple[str, Parts | None, dict[str, Any]]] = {
    "add": ("added", None, {}),
    "beside-8": ("concatenated, 8 "
        "dimensions", Parts(name="lab-beside-8", positions=partial(beside, 8)), {}),
    "beside-16": ("concatenated, 16 dimensions",
                  Parts(name="lab-beside-16", positions=partial(beside, 16)), {}),
    "beside-32": ("concatenated, 32 dimensions",
                  Parts(name="lab-beside-32", positions=partial(beside, 32)), {}),
    "turned": ("16 random directions",
               Parts(name="lab-turned", positions=lambda _, width: RotatedPositions(width, 16)),
               {}),
    "mixed": ("concatenated, then projected",
              Parts(name="lab-mixed", positions=lambda _, width: ProjectedPositions(width)), {}),
    "scores": ("only in attention scores", None, {"model.positions": "relative"}),
    "none": ("no positions", Parts(name="lab-nowhere", positions=lambda *_: None), {}),
}  # fmt: skip
QUICK = ("add", "beside-8", "beside-16", "mixed", "scores", "none")


class ConcatenateExperiment(Experiment):
    hypothesis = (
        "At equal width it makes no difference whether positional encodings are added to "
        "embeddings or concatenated with them."
    )
    method = (
        "Translators of the same size are trained on the same pairs for the same number of "
        "steps. They differ in how they represent positions. The positional encoding is added to "
        "the embedding (as in the paper), replaces its last 8 or 16 dimensions (concatenation at "
        "equal width), or is concatenated and then projected by trained weights. One more model "
        "has positions only in the attention scores, as in T5, and another has no positions.",
        "Quick runs use an artificial language in which word order determines the translation. "
        "Full runs translate German to English and compare more variants.",
    )
    control = (
        "Without positions the loss must be clearly higher. The effect is measured relative to "
        "this difference, the gain from positions."
    )
    literature = (
        Citation("Ke, He, Liu 2021 (TUPE)", "Separate attention scores for words and for "
                 "positions give a small gain on GLUE.", "differs"),
        Citation("nanoGPT issue 83", "Addition can represent the same as concatenation, because "
                 "embeddings can learn to avoid the directions of the positional encoding."),
    )  # fmt: skip
    pieces = (len(QUICK) + 1, len(ARMS) + 1)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        train, valid, settings = language(bench)
        loss = {}
        found: dict[str, Any] = {}
        for arm in bench.choose(QUICK, tuple(ARMS)):
            _, parts, own = ARMS[arm]
            run = bench.train(
                arm, "translate", train, valid=valid, parts=parts, settings={**settings, **own}
            )
            loss[arm] = run.scores["loss"]
            if arm == "add":
                found = bench.cached("shared", lambda run=run: shared(run, longest(train)))  # type: ignore[misc]
        return {"loss": loss, "shared": found}

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        worth = [one["loss"]["none"] - one["loss"]["add"] for one in found]
        effect = Effect.over(
            [100 * one for one in share(found, "beside-16")],
            "loss with concatenation minus loss with addition, relative to the gain from positions",
            "%",
        )
        control = Control(
            name="positions are needed",
            passed=min(worth) > 0.1,
            said=f"without positions the loss is at least {min(worth):.2f} nats per token higher "
            "than with added positions.",
        )
        more = [
            Effect.over(worth, "gain from positions", "nats per token"),
            *(Effect.over([one["loss"][arm] - one["loss"]["add"] for one in found],
                          f"loss minus the loss with addition: {ARMS[arm][0]}", "nats per token")
              for arm in found[0]["loss"] if arm not in ("add", "none")),
            Effect.over(per_seed(found, "shared", "learned"),
            "share of the embeddings' variance in "
                        "the directions of the encoding"),
            Effect.over(per_seed(found, "shared", "chance"), "the same by chance"),
        ]  # fmt: skip
        better = "addition" if effect.value > 0 else "concatenation"
        mixed = mean(found, "loss", "mixed") - mean(found, "loss", "add")
        way = f"{abs(mixed):.2f} nats {'lower' if mixed < 0 else 'higher'}"
        answers = OutcomeSentences(
            supported="It makes almost no difference: a model learns as well with added positions "
            "as with concatenated ones.",
            refuted=f"It makes a difference: {better} is better.",
            undecided="These runs do not show which is better: a small difference was neither "
            "found nor ruled out.",
            numbers=f"With concatenation followed by a trained projection, the loss is {way} per "
            "token than with addition.",
            changes="The answer may differ for longer sentences, whose positions need more "
            "dimensions, for narrow models, in which 16 dimensions are a large share, and for "
            "longer training.",
        )
        return decide(effect.within(100 * EQUAL), effect, answers, [control], more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        arms = list(found[0]["loss"])
        spent = found[0]["shared"]
        return [
            BarChart(
                title="Loss by way of adding positions", unit="nats per token",
                hint="Validation loss after the same number of steps, mean and range over seeds; "
                "lower is better.",
                bars=interval_bars([(ARMS[arm][0], per_seed(found, "loss", arm)) for arm in arms]),
            ),
            TableFigure(
                title="Directions of words and of "
                    "positions", columns=["model with added positions", ""],
                hint="An encoding that spans few directions leaves the others to the words.",
                rows=[
                    ["width", spent["width"]],
                    ["positions of the longest sentence", spent["places"]],
                    ["directions with 99 % of the encoding's variance", spent["directions"]],
                    ["share of the trained embeddings' variance in "
                        "them", mean(found, "shared", "learned")],
                    ["the same by chance", mean(found, "shared", "chance")],
                ],
            ),
        ]  # fmt: skip


EXPERIMENT = ConcatenateExperiment()


def share(found: Sequence[SeedMeasurements], arm: str) -> list[float]:
    """Return, for each seed, the loss of an arm minus that of addition, as a fraction of the gain
    from positions."""
    return [
        (one["loss"][arm] - one["loss"]["add"]) / (one["loss"]["none"] - one["loss"]["add"])
        if one["loss"]["none"] != one["loss"]["add"]
        else float("nan")
        for one in found
    ]


def language(bench: Workspace) -> tuple[datasets.TextColumns, datasets.TextColumns, dict[str, Any]]:
    """Return training pairs, validation pairs and training settings. The pairs are a toy grammar,
    German and English, or the user's data."""
    if bench.quick and bench.data is None:
        made = datasets.make_pairs(datasets.grammar, 4000, 200, bench.seed)
        return *made.columns(), {
            "train.optimizer": "adam", "train.steps": 200, "train.lr": 4e-3,
            "train.batch_tokens": 512, "train.warmup": 20, "train.clip": 1.0,
        }  # fmt: skip
    if bench.data is not None:
        train, valid = datasets.read_folder(bench.data)
        if len(train["source"]) < 1000:
            bench.doubt(
                f"{bench.data.name} has {len(train['source']):,} pairs, but 1,000 are needed"
            )
    else:
        train, valid = datasets.translations(5700, 300)
    size = {} if bench.quick else {"model.d_model": 128, "model.d_ff": 512}
    return train, valid, {
        "tokenizer.kind": "bpe", "tokenizer.vocab_size": 4000, "train.optimizer": "adam",
        "train.steps": bench.choose(300, 3000), "train.lr": 2e-3, "train.warmup": 100,
        "train.clip": 1.0, "train.batch_tokens": bench.choose(1024, 4096), "model.dropout": 0.1,
        "train.eval_every": bench.choose(300, 500), **size,
    }  # fmt: skip


def longest(train: datasets.TextColumns) -> int:
    return max(len(text.split()) for side in train.values() for text in side)


def shared(run: Run, n_places: int) -> dict[str, Any]:
    """Measure the fraction of the embeddings' variance in the directions of the positional
    encoding."""
    front: Any = run.model.get_submodule("source_front")
    return overlap(front.tokens.weight.detach().cpu() * front.scale, n_places)


def overlap(table_VD: Tensor, n_places: int) -> dict[str, Any]:
    width = table_VD.shape[1]
    basis_CD = directions(sinusoids(n_places, width))
    centred_VD = table_VD.double() - table_VD.double().mean(0)
    inside = float((centred_VD @ basis_CD.T).square().sum() / centred_VD.square().sum())
    return {
        "width": width, "places": n_places, "directions": len(basis_CD), "learned": inside,
        "chance": len(basis_CD) / width,
    }  # fmt: skip


def directions(code_PD: Tensor, most: float = 0.99) -> Tensor:
    """Return the principal directions of an encoding (C D), largest first: the smallest number of
    directions with at least a fraction `most` of its variance."""
    centred_PD = code_PD.double() - code_PD.double().mean(0)
    _, size_C, basis_CD = torch.linalg.svd(centred_PD, full_matrices=False)
    held_C = size_C.square().cumsum(0) / size_C.square().sum()
    return basis_CD[: int((held_C < most).sum()) + 1]
