"""E6: does training keep the slow part of the position code for meaning?

Most numbers of the paper's code hardly move within a sentence. It has been said that embeddings
learn to put meaning there. If so, their variance grows where the code is quiet, and follows the
code when its numbers are put in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headway.inside.measure.maps.agreement import spearman
from headway.lab import beds
from headway.lab.bench import SMALL, Bench
from headway.lab.concatenate import Coded, language, longest
from headway.lab.experiment import Experiment, Measured, Source, mean, over
from headway.lab.figures import Figure, Lines, Table
from headway.lab.verdict import Answers, Control, Effect, Verdict, decide, said
from headway.lab.yardstick import Yardstick
from headway.models.build import build_model
from headway.models.parts.custom import Parts
from headway.nn.layout import Layout
from headway.nn.positions import sinusoids

if TYPE_CHECKING:
    from headway.run import Run

FLAT = 0.25
"""A rank correlation nearer to 0 than this is none: of 64 numbers in any order it is 0.13."""

CLEAR = -0.2
"""Where a modest rank correlation begins; one that is nearer to 0 says nothing of embeddings."""


class Added(Coded):
    """The paper's code with its numbers in another order, or louder than the words."""

    def __init__(self, width: int, *, mixed: bool = False, quiet: float = 1.0) -> None:
        super().__init__(width)
        self.quiet = quiet
        if mixed:
            self.code_PC = self.code_PC[:, order(width)]

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return self.quiet * x_ND + self.code(x_ND, layout)


def order(width: int) -> Tensor:
    return torch.randperm(width, generator=torch.Generator().manual_seed(6))


ARMS: dict[str, Parts | None] = {
    "usual": None,
    "mixed": Parts(name="lab-mixed-code", positions=lambda _, width: Added(width, mixed=True)),
    "none": Parts(name="lab-nowhere", positions=lambda *_: None),
    "quiet": Parts(name="lab-quiet-words", positions=lambda _, width: Added(width, quiet=0.1)),
}
NAMED = {
    "usual": "the paper's code", "mixed": "its numbers in another order", "none": "no positions",
    "quiet": "words a tenth as loud",
}  # fmt: skip


class SlowTail(Experiment):
    hypothesis = (
        "Training puts meaning where the position code is quiet: the variance of embeddings grows "
        "less in dimensions where the code moves, and more where it does not."
    )
    method = (
        "A translator with the paper's code is trained, and for each dimension two numbers are "
        "taken: how much the code varies over the places of a sentence, and how much the variance "
        "of the embeddings has grown since the first step. Their rank correlation over the "
        "dimensions is the effect, averaged with that of a second model whose code has its "
        "dimensions in another order. Negative: meaning keeps to where the code is quiet.",
        "Then half of every embedding is set to zero in the trained model, the half in which the "
        "code moves most or the other one: whichever carries meaning costs more.",
        "At last a linear map tries to read from either half which word stands there, and where, "
        "from what the encoder is given and behind each of its layers.",
        "Quick: a made-up language of sentences of up to ten words. Full: German to English, and "
        "also with embeddings a tenth as large beside the code.",
    )
    control = (
        "A model without positions must show no such profile; and the profile of a model whose "
        "code was put in another order must follow that order, not the usual one."
    )
    literature = (
        Source("tensor2tensor issue 1591", "It is probable that training leaves the slow "
               "dimensions to meaning; nobody there has measured it.", "context"),
        Source("Vaswani et al. 2017", "The code is added, with wavelengths from 2π to 10000·2π; "
               "nothing is said of what the slow ones are for.", "context"),
    )  # fmt: skip
    pieces = (4, 5)

    def measure(self, bench: Bench) -> Measured:
        train, valid, settings = language(bench)
        n_places = longest(train)
        code_D = sinusoids(n_places, settings.get("model.d_model", SMALL["model.d_model"]))
        code_D = code_D.double().var(0)
        found: dict[str, Any] = {"places": n_places}
        for arm in bench.choose(("usual", "mixed", "none"), tuple(ARMS)):
            run = bench.train(
                arm, "translate", train, valid=valid, parts=ARMS[arm],
                settings={**settings, **({"train.steps": 300} if bench.quick else {})},
            )  # fmt: skip
            mine_D = code_D[order(len(code_D))] if arm == "mixed" else code_D
            found[arm] = {"loss": run.scores["loss"], **profile(*tables(run), mine_D, code_D)}
            if arm == "usual":
                usual = run
        found["halves"] = bench.once("halves", lambda: halves(usual, code_D, valid))
        return found

    def judge(self, found: Sequence[Measured]) -> Verdict:
        both = [(one["usual"]["own"] + one["mixed"]["own"]) / 2 for one in found]
        effect = Effect.over(both, "rank correlation of the code's variance with the growth of "
                             "the embeddings'")  # fmt: skip
        flat, other = mean(found, "none", "own"), mean(found, "mixed", "paper")
        follows = mean(found, "mixed", "own")
        controls = [
            Control(
                name="no profile without positions", passed=abs(flat) < FLAT,
                said=f"without positions the correlation with the same code is {said(flat)}.",
            ),
            Control(
                name="it follows the order of the code",
                passed=abs(other) < FLAT or abs(follows) > 2 * abs(other),
                said=f"with the code in another order the correlation is {said(follows)} with that "
                f"order and {said(other)} with the usual one.",
            ),
        ]  # fmt: skip
        more = [
            Effect.over(over(found, "usual", "ratio"), "variance of embeddings in the quiet half, "
                        "of that in the other", "×"),
            Effect.over([one["halves"]["loss"]["slow"] - one["halves"]["loss"]["whole"]
                         for one in found], "loss added without the quiet half", "nats per token"),
            Effect.over([one["halves"]["loss"]["fast"] - one["halves"]["loss"]["whole"]
                         for one in found], "loss added without the other half", "nats per token"),
        ]  # fmt: skip
        kept = mean(found, "usual", "ratio")
        lost = {half: mean(found, "halves", "loss", half) for half in HALVES}
        words = {half: mean(found, "halves", "probes", half, "word", 0) for half in HALVES}
        answers = Answers(
            supported="A little: embeddings grow where the code is quiet, rank correlation "
            f"{{effect}}, and end with {kept:.2f} times the variance there. But the word is read "
            f"from the quiet half with {words['slow']:.0%} accuracy and from the other with "
            f"{words['fast']:.0%}, and without them the loss is {lost['slow']:.1f} and "
            f"{lost['fast']:.1f} nats: words and places are told apart by directions more than by "
            "dimensions.",
            refuted="No: embeddings do not grow where the code is quiet, rank correlation "
            f"{{effect}}. The word is read from the quiet half with {words['slow']:.0%} accuracy "
            f"and from the other with {words['fast']:.0%}: words and places are told apart by "
            "directions, not by dimensions.",
            undecided="It cannot be told whether embeddings grow where the code is quiet: rank "
            "correlation {effect}.",
            changes="Longer sentences, in which fewer dimensions are quiet; embeddings that are "
            "small beside the code, which have more reason to get out of its way; more steps.",
        )
        return decide(effect.below(CLEAR), effect, answers, controls, more)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        bands = len(found[0]["usual"]["bands"])
        arms = [arm for arm in ARMS if arm in found[0]]
        lines = [
            (NAMED[arm], [((band + 0.5) / bands, mean(found, arm, "bands", band))
                          for band in range(bands)])
            for arm in arms
        ]  # fmt: skip
        layers = len(found[0]["halves"]["probes"]["slow"]["word"])
        rows = [
            ["given to the encoder" if layer == 0 else f"behind layer {layer}",
             *(f"{mean(found, 'halves', 'probes', half, what, layer):.0%}"
               for what in ("word", "place") for half in HALVES)]
            for layer in range(layers)
        ]  # fmt: skip
        return [
            Lines(
                title="What training did to embeddings, from quick dimensions to quiet ones",
                hint="Variance of the embeddings after training, of that before it; dimensions in "
                "the order of how much the code moves in them, the quick ones on the left.",
                series=lines, x="dimensions, from quick to quiet", y="growth, ×",
                levels=[("as at the start", 1.0)],
            ),
            Table(
                title="Half of every embedding set to zero", columns=["without", "nats per token"],
                hint="Of the trained model with the paper's code; the code itself stays whole.",
                rows=[
                    ["nothing", mean(found, "halves", "loss", "whole")],
                    ["the quiet half", mean(found, "halves", "loss", "slow")],
                    ["the other half", mean(found, "halves", "loss", "fast")],
                ],
            ),
            Table(
                title="What can be read from either half",
                hint="Accuracy of a linear map on sentences that it was not fitted to.",
                columns=["", "word, quiet half", "word, other half", "place, quiet half",
                         "place, other half"],
                rows=rows,
            ),
        ]  # fmt: skip


EXPERIMENT = SlowTail()
HALVES = ("slow", "fast")
BANDS = 8


def tables(run: Run) -> tuple[Tensor, Tensor]:
    """Embeddings as they were at the beginning, and as they are."""
    fresh = build_model(run.settings.model, seed=run.settings.train.seed)
    first: Any = fresh.get_submodule("source_front")
    last: Any = run.model.get_submodule("source_front")
    return first.tokens.weight.detach(), last.tokens.weight.detach().cpu()


def profile(first_VD: Tensor, last_VD: Tensor, code_D: Tensor, paper_D: Tensor) -> dict[str, Any]:
    """How the growth of embeddings goes with the variance of the code that they are added to, and
    with that of the paper's."""
    growth_D = last_VD.double().var(0) / first_VD.double().var(0)
    ranks = code_D.argsort(descending=True)
    slow, fast = ranks[len(ranks) // 2 :], ranks[: len(ranks) // 2]
    last_D = last_VD.double().var(0)
    return {
        "own": spearman(code_D.numpy(), growth_D.numpy()) or 0.0,
        "paper": spearman(paper_D.numpy(), growth_D.numpy()) or 0.0,
        "ratio": float(last_D[slow].mean() / last_D[fast].mean()),
        "bands": [float(growth_D[band].mean()) for band in ranks.chunk(BANDS)],
    }


def halves(run: Run, code_D: Tensor, valid: beds.Columns) -> dict[str, Any]:
    """The loss without either half of the embeddings, and what can be read from it."""
    ranks = code_D.argsort(descending=True)
    parts = {"slow": ranks[len(ranks) // 2 :], "fast": ranks[: len(ranks) // 2]}
    yardstick = Yardstick(run)
    loss = {"whole": yardstick.valid()}
    for name, part in parts.items():
        with without(run.model, part):
            loss[name] = yardstick.valid()
    return {"loss": loss, "probes": probes(run, parts, valid["source"])}


class Masked(nn.Module):
    """Positions behind embeddings of which a part is missing."""

    def __init__(self, positions: nn.Module, kept_D: Tensor) -> None:
        super().__init__()
        self.positions, self.kept_D = positions, kept_D

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        given_ND: Tensor = self.positions(x_ND * self.kept_D.to(x_ND), layout)
        return given_ND


@contextmanager
def without(model: nn.Module, part: Tensor) -> Iterator[None]:
    """Inside, these dimensions of what the model is given of a word are zero."""
    fronts: list[Any] = [model.get_submodule(f"{side}_front") for side in ("source", "target")]
    usual = [front.positions for front in fronts]
    for front in fronts:
        kept_D = torch.ones(front.tokens.embedding_dim)
        kept_D[part] = 0.0
        front.positions = Masked(front.positions, kept_D)
    try:
        yield
    finally:
        for front, positions in zip(fronts, usual, strict=True):
            front.positions = positions


@torch.no_grad()
def probes(run: Run, parts: dict[str, Tensor], texts: Sequence[str]) -> dict[str, Any]:
    """Accuracy with which words and places are read from parts of the encoder's stream: half of
    the texts to fit a linear map, half to test it."""
    words: Any = run.opened.words
    model: Any = run.model
    numbers = [words.source.as_source(words.source.encode(text)) for text in texts]
    tokens_M, layout = model.source_front.collate(numbers, run.device)
    x_MD = model.source_front(tokens_M, layout)
    streams = [x_MD]
    for block in model.encoder.blocks:
        x_MD = block(x_MD, layout)
        streams.append(x_MD)
    n_first = sum(len(one) for one in numbers[: len(numbers) // 2])
    asked = {"word": tokens_M.cpu(), "place": layout.positions_N.cpu()}
    return {
        name: {
            what: [read_off(x_MD.cpu()[:, part], right_M, n_first) for x_MD in streams]
            for what, right_M in asked.items()
        }
        for name, part in parts.items()
    }


def read_off(x_MC: Tensor, right_M: Tensor, n_first: int, ridge: float = 1e-2) -> float:
    """Fit a linear map to classes on the first rows, and count its hits on the others."""
    wide_MC = torch.cat([x_MC.double(), torch.ones(len(x_MC), 1).double()], dim=1)
    truth_MK = torch.nn.functional.one_hot(right_M).double()
    fit_FC, test_TC = wide_MC[:n_first], wide_MC[n_first:]
    size = fit_FC.square().mean()
    gram_CC = fit_FC.T @ fit_FC + ridge * size * len(fit_FC) * torch.eye(fit_FC.shape[1]).double()
    map_CK = torch.linalg.solve(gram_CC, fit_FC.T @ truth_MK[:n_first])
    return float(((test_TC @ map_CK).argmax(1) == right_M[n_first:]).float().mean())
