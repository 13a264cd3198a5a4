"""E5: are positions better added to embeddings, or written beside them?

Adding looks wasteful: two things in one vector. But the code of a sentence's places lies in few
directions, and embeddings can learn to keep out of them: a sum that can be taken apart again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headway.lab import beds
from headway.lab.bench import Bench
from headway.lab.experiment import Experiment, Measured, Source, mean, over
from headway.lab.figures import Bars, Figure, Table, interval_bars
from headway.lab.verdict import Answers, Control, Effect, Verdict, decide
from headway.models.parts.custom import Parts
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.positions import sinusoids
from headway.settings.model import TextSettings

if TYPE_CHECKING:
    from headway.run import Run

MOST = 512
"""Places that these codes have."""

EQUAL = 0.1
"""Of what positions are worth: less than that is no difference."""


class Coded(nn.Module):
    """A table of codes that is given, not learned."""

    code_PC: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("code_PC", sinusoids(MOST, width), persistent=False)

    def code(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return self.code_PC[layout.positions_N].to(x_ND.dtype)


class Beside(Coded):
    """The last numbers of a vector are the code of its place, and no word has a say in them."""

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        code_NC = self.code(x_ND, layout)
        return torch.cat([x_ND[:, : -code_NC.shape[1]], code_NC], dim=1)


class Turned(Coded):
    """The same in directions drawn by chance: each number has a bit of both, and yet the two
    can be told apart exactly."""

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


class Mixed(Coded):
    """Both side by side, and a trained matrix brings them to the width of the stream."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.to_stream = Linear(2 * width, width, bias=False)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        mixed_ND: Tensor = self.to_stream(torch.cat([x_ND, self.code(x_ND, layout)], dim=1))
        return mixed_ND


def beside(taken: int, settings: TextSettings, width: int) -> nn.Module:
    return Beside(taken)


ARMS: dict[str, tuple[str, Parts | None, dict[str, Any]]] = {
    "add": ("added", None, {}),
    "beside-8": ("beside, 8 numbers", Parts(name="lab-beside-8", positions=partial(beside, 8)), {}),
    "beside-16": ("beside, 16 numbers",
                  Parts(name="lab-beside-16", positions=partial(beside, 16)), {}),
    "beside-32": ("beside, 32 numbers",
                  Parts(name="lab-beside-32", positions=partial(beside, 32)), {}),
    "turned": ("16 directions by chance",
               Parts(name="lab-turned", positions=lambda _, width: Turned(width, 16)), {}),
    "mixed": ("beside, then a matrix",
              Parts(name="lab-mixed", positions=lambda _, width: Mixed(width)), {}),
    "scores": ("only in the scores", None, {"model.positions": "relative"}),
    "none": ("no positions", Parts(name="lab-nowhere", positions=lambda *_: None), {}),
}  # fmt: skip
QUICK = ("add", "beside-8", "beside-16", "mixed", "scores", "none")


class Concatenate(Experiment):
    hypothesis = (
        "At equal width it makes no difference whether the code of a place is added to an "
        "embedding or written beside it."
    )
    method = (
        "Translators of one size learn the same pairs, in equal steps; they differ in how a token "
        "learns where it stands. Added: embedding plus code, as in the paper. Beside: the last 8 "
        "or 16 numbers of a vector are a code of that width, the rest belongs to the word, so "
        "that the vector is no wider. Beside, then a matrix: both in full, brought to the width "
        "of the stream by trained weights, which the others do not have. Only in the scores: a "
        "trained number for each distance, as in T5. And no positions at all.",
        "Quick: a made-up language in which the order of words decides what they become, so that "
        "its truth is known. Full: German to English, also with 32 numbers, and with a code in 16 "
        "directions drawn by chance.",
        "Then the model that adds is looked at: how many directions the code of a sentence's "
        "places takes, and how much of the embeddings' variance lies in them, beside what chance "
        "would put there.",
    )
    control = (
        "Without positions the loss must be clearly higher, or the task would not need them and "
        "the comparison would say nothing. Differences are counted in shares of that."
    )
    literature = (
        Source("Ke, He, Liu 2021 (TUPE)", "Words and places are better kept apart, in scores of "
               "their own: a small gain on GLUE.", "differs"),
        Source("tensor2tensor issue 1591", "Asked for results, the authors' forum had opinions and "
               "no publication.", "context"),
        Source("nanoGPT issue 83", "Addition can do what concatenation does, since embeddings can "
               "keep out of the code's directions."),
    )  # fmt: skip
    pieces = (len(QUICK) + 1, len(ARMS) + 1)

    def measure(self, bench: Bench) -> Measured:
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
                found = bench.once("shared", lambda run=run: shared(run, longest(train)))  # type: ignore[misc]
        return {"loss": loss, "shared": found}

    def judge(self, found: Sequence[Measured]) -> Verdict:
        worth = [one["loss"]["none"] - one["loss"]["add"] for one in found]
        effect = Effect.over(
            [100 * one for one in share(found, "beside-16")],
            "loss beside less added, of what positions are worth",
            "%",
        )
        control = Control(
            name="positions are needed",
            passed=min(worth) > 0.1,
            said=f"without positions the loss is at least {min(worth):.2f} nats per token higher "
            "than with added ones.",
        )
        more = [
            Effect.over(worth, "what positions are worth", "nats per token"),
            *(Effect.over([one["loss"][arm] - one["loss"]["add"] for one in found],
                          f"loss, {ARMS[arm][0]}, less added", "nats per token")
              for arm in found[0]["loss"] if arm not in ("add", "none")),
            Effect.over(over(found, "shared", "learned"), "share of the embeddings' variance in "
                        "the code's directions"),
            Effect.over(over(found, "shared", "chance"), "the same by chance"),
        ]  # fmt: skip
        better = "Added" if effect.value > 0 else "Beside"
        mixed = mean(found, "loss", "mixed") - mean(found, "loss", "add")
        way = f"{abs(mixed):.2f} nats {'lower' if mixed < 0 else 'higher'}"
        answers = Answers(
            supported="Added or beside in 16 numbers comes to nearly the same: the loss differs by "
            f"{{effect}} of the {sum(worth) / len(worth):.2f} nats that positions are worth. "
            f"With a trained matrix over both it is {way} than added.",
            refuted=f"It does make a difference. {better} is better: the loss beside less that "
            f"added is {{effect}} of the {sum(worth) / len(worth):.2f} nats that positions are "
            "worth.",
            undecided="A difference of a tenth of what positions are worth can neither be shown "
            "nor ruled out: {effect} of it.",
            changes="Longer sentences, whose places take more directions; narrow models, in which "
            "16 numbers are many; more steps, where one way is only slower than the other.",
        )
        return decide(effect.within(100 * EQUAL), effect, answers, [control], more)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        arms = list(found[0]["loss"])
        spent = found[0]["shared"]
        return [
            Bars(
                title="Loss by where positions are", unit="nats per token",
                hint="Validation loss after equal steps, mean and range of the seeds; lower is "
                "better.",
                bars=interval_bars([(ARMS[arm][0], over(found, "loss", arm)) for arm in arms]),
            ),
            Table(
                title="Room for both", columns=["of the model that adds", ""],
                hint="A code that takes few directions leaves the others to the words.",
                rows=[
                    ["width", spent["width"]],
                    ["places of the longest sentence", spent["places"]],
                    ["directions with 99 % of the code", spent["directions"]],
                    ["embeddings' variance in them, trained", mean(found, "shared", "learned")],
                    ["the same by chance", mean(found, "shared", "chance")],
                ],
            ),
        ]  # fmt: skip


EXPERIMENT = Concatenate()


def share(found: Sequence[Measured], arm: str) -> list[float]:
    """How much higher its loss is than that of adding, of what positions are worth."""
    return [
        (one["loss"][arm] - one["loss"]["add"]) / (one["loss"]["none"] - one["loss"]["add"])
        if one["loss"]["none"] != one["loss"]["add"]
        else float("nan")
        for one in found
    ]


def language(bench: Bench) -> tuple[beds.Columns, beds.Columns, dict[str, Any]]:
    """Pairs to translate, and settings for them: a toy grammar, or German and English."""
    if bench.quick and bench.data is None:
        made = beds.bed(beds.grammar, 4000, 200, bench.seed)
        return *made.columns(), {
            "train.optimizer": "adam", "train.steps": 200, "train.lr": 4e-3,
            "train.batch_tokens": 512, "train.warmup": 20, "train.clip": 1.0,
        }  # fmt: skip
    if bench.data is not None:
        train, valid = beds.folder(bench.data)
        if len(train["source"]) < 1000:
            bench.doubt(f"{bench.data.name} has {len(train['source']):,} pairs: 1,000 are needed")
    else:
        train, valid = beds.translations(5700, 300)
    size = {} if bench.quick else {"model.d_model": 128, "model.d_ff": 512}
    return train, valid, {
        "tokenizer.kind": "bpe", "tokenizer.vocab_size": 4000, "train.optimizer": "adam",
        "train.steps": bench.choose(300, 3000), "train.lr": 2e-3, "train.warmup": 100,
        "train.clip": 1.0, "train.batch_tokens": bench.choose(1024, 4096), "model.dropout": 0.1,
        "train.eval_every": bench.choose(300, 500), **size,
    }  # fmt: skip


def longest(train: beds.Columns) -> int:
    return max(len(text.split()) for side in train.values() for text in side)


def shared(run: Run, n_places: int) -> dict[str, Any]:
    """How much of the embeddings lies in the directions that the code takes."""
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
    """Those that hold so much of the variance of a code, the largest first (C D)."""
    centred_PD = code_PD.double() - code_PD.double().mean(0)
    _, size_C, basis_CD = torch.linalg.svd(centred_PD, full_matrices=False)
    held_C = size_C.square().cumsum(0) / size_C.square().sum()
    return basis_CD[: int((held_C < most).sum()) + 1]
