"""E6: do embeddings store meaning in the slow dimensions of the positional encoding?

Most dimensions of the paper's encoding hardly change within a sentence. It has been claimed that
embeddings learn to store meaning there. If so, the variance of embeddings grows in the dimensions
where the encoding varies little, even if the dimensions of the encoding are permuted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headway.inside.measure.maps.agreement import spearman
from headway.lab import datasets
from headway.lab.concatenate import FixedPositions, language, longest
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import Figure, LineChart, TableFigure
from headway.lab.run_loss import RunLoss
from headway.lab.verdict import Control, Effect, OutcomeSentences, Verdict, decide, rounded
from headway.lab.workspace import QUICK_SETTINGS, Workspace
from headway.models.build import build_model
from headway.models.parts.custom import Parts
from headway.nn.layout import Layout
from headway.nn.positions import sinusoids

if TYPE_CHECKING:
    from headway.run import Run

FLAT = 0.25
"""Maximum absolute rank correlation that counts as no correlation. For 64 dimensions in random
order its standard deviation is 0.13."""

CLEAR = -0.2
"""Rank correlation below which the effect counts as at least modest."""


class ScaledPositions(FixedPositions):
    """Sinusoidal encoding of the paper with permuted dimensions, or added to word embeddings that
    are scaled down."""

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
    "mixed": Parts(
        name="lab-mixed-code", positions=lambda _, width: ScaledPositions(width, mixed=True)
    ),
    "none": Parts(name="lab-nowhere", positions=lambda *_: None),
    "quiet": Parts(
        name="lab-quiet-words", positions=lambda _, width: ScaledPositions(width, quiet=0.1)
    ),
}
NAMED = {
    "usual": "the paper's encoding", "mixed": "permuted dimensions", "none": "no positions",
    "quiet": "words a tenth as large",
}  # fmt: skip


class SlowTailExperiment(Experiment):
    hypothesis = (
        "Training stores meaning in the dimensions in which the positional encoding varies "
        "little: there, the variance of the embeddings grows more than in the other dimensions."
    )
    method = (
        "A translator with the paper's encoding is trained. For each dimension two numbers are "
        "measured: the variance of the encoding over the positions of a sentence, and the growth "
        "of the variance of the embeddings since initialisation. The effect is the rank "
        "correlation of these numbers, averaged with that of a second model, whose encoding has "
        "permuted dimensions.",
        "Linear probes then predict the word from the half of the dimensions in which the "
        "encoding varies most (high frequencies), or from the other half (low frequencies). "
        "Quick runs use an artificial language; full runs translate German to English.",
    )
    control = (
        "A model without positions must not show this correlation. If the dimensions are "
        "permuted, the correlation must follow the permuted order, not the usual order."
    )
    literature = (
        Citation("tensor2tensor issue 1591", "A commenter suggests that training probably stores "
                 "meaning in the low-frequency dimensions, but gives no measurement.", "context"),
    )  # fmt: skip
    pieces = (4, 5)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        train, valid, settings = language(bench)
        n_places = longest(train)
        code_D = sinusoids(n_places, settings.get("model.d_model", QUICK_SETTINGS["model.d_model"]))
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
        found["halves"] = bench.cached("halves", lambda: halves(usual, code_D, valid))
        return found

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        both = [(one["usual"]["own"] + one["mixed"]["own"]) / 2 for one in found]
        effect = Effect.over(both, "rank correlation between the variance of the encoding and "
                             "the growth of the embeddings' variance")  # fmt: skip
        flat, other = mean(found, "none", "own"), mean(found, "mixed", "paper")
        follows = mean(found, "mixed", "own")
        controls = [
            Control(
                name="no correlation without positions", passed=abs(flat) < FLAT,
                said="without positions, the correlation with the paper's encoding is "
                     f"{rounded(flat)}.",
            ),
            Control(
                name="the correlation follows the order of the encoding",
                passed=abs(other) < FLAT or abs(follows) > 2 * abs(other),
                said=f"with a permuted encoding, the correlation is {rounded(follows)} with the "
                f"permuted order and {rounded(other)} with the usual order.",
            ),
        ]  # fmt: skip
        more = [
            Effect.over(per_seed(found, "usual", "ratio"),
            "variance of embeddings in the low-frequency half relative to the high-frequency "
                        "half", "×"),
            Effect.over([one["halves"]["loss"]["slow"] - one["halves"]["loss"]["whole"]
                         for one in found], "increase of the loss without the low-frequency half "
                                            "of the embeddings", "nats per token"),
            Effect.over([one["halves"]["loss"]["fast"] - one["halves"]["loss"]["whole"]
                         for one in found], "increase of the loss without the high-frequency "
                                            "half of the embeddings", "nats per token"),
        ]  # fmt: skip
        words = {half: mean(found, "halves", "probes", half, "word", 0) for half in HALVES}
        answers = OutcomeSentences(
            supported="A little: in training, embeddings grow more in the dimensions where the "
            "positional encoding varies little.",
            refuted="No: embeddings do not grow more where the positional encoding varies little.",
            undecided="These runs do not show whether embeddings grow more where the positional "
            "encoding varies little.",
            numbers="A linear probe predicts the word from the low-frequency half of the "
            f"dimensions with {words['slow']:.0%} accuracy, and from the high-frequency half "
            f"with {words['fast']:.0%} accuracy.",
            changes="The answer may differ for longer sentences, in which fewer dimensions vary "
            "little, for embeddings that are small relative to the encoding, and for longer "
            "training.",
        )
        return decide(effect.below(CLEAR), effect, answers, controls, more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        bands = len(found[0]["usual"]["bands"])
        arms = [arm for arm in ARMS if arm in found[0]]
        lines = [
            (NAMED[arm], [((band + 0.5) / bands, mean(found, arm, "bands", band))
                          for band in range(bands)])
            for arm in arms
        ]  # fmt: skip
        layers = len(found[0]["halves"]["probes"]["slow"]["word"])
        rows = [
            ["input of the encoder" if layer == 0 else f"after layer {layer}",
             *(f"{mean(found, 'halves', 'probes', half, what, layer):.0%}"
               for what in ("word", "place") for half in HALVES)]
            for layer in range(layers)
        ]  # fmt: skip
        return [
            LineChart(
                title="Growth of embeddings in training, by dimension",
                hint="Variance of the embeddings after training divided by that before it. "
                "Dimensions are sorted by the variance of the encoding, fast ones on the left.",
                series=lines, x="dimensions, from fast to slow", y="growth, ×",
                levels=[("no growth", 1.0)],
            ),
            TableFigure(
                title="Half of every embedding set to zero", columns=["without", "nats per token"],
                hint="Trained model with the paper's encoding; the encoding itself is unchanged.",
                rows=[
                    ["nothing", mean(found, "halves", "loss", "whole")],
                    ["the slow half", mean(found, "halves", "loss", "slow")],
                    ["the fast half", mean(found, "halves", "loss", "fast")],
                ],
            ),
            TableFigure(
                title="Accuracy of linear probes on either half",
                hint="Accuracy on sentences that the probe was not fitted to.",
                columns=["", "word, slow half", "word, fast half", "position, slow half",
                         "position, fast half"],
                rows=rows,
            ),
        ]  # fmt: skip


EXPERIMENT = SlowTailExperiment()
HALVES = ("slow", "fast")
BANDS = 8
"""Number of groups of dimensions in the plot, from the fastest to the slowest. Each plotted value
is the mean over eight or more dimensions."""


def tables(run: Run) -> tuple[Tensor, Tensor]:
    """Return the source embeddings at initialization and after training."""
    fresh = build_model(run.settings.model, seed=run.settings.train.seed)
    first: Any = fresh.get_submodule("source_front")
    last: Any = run.model.get_submodule("source_front")
    return first.tokens.weight.detach(), last.tokens.weight.detach().cpu()


def profile(first_VD: Tensor, last_VD: Tensor, code_D: Tensor, paper_D: Tensor) -> dict[str, Any]:
    """Measure how the growth of the embeddings' variance is related to the variance of the
    positional encoding.

    The rank correlations are with the model's own encoding (`own`) and with that of the paper
    (`paper`).
    """
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


def halves(run: Run, code_D: Tensor, valid: datasets.TextColumns) -> dict[str, Any]:
    """Measure the loss without the slow or the fast half of the embedding dimensions, and the
    accuracy of probes on each half."""
    ranks = code_D.argsort(descending=True)
    parts = {"slow": ranks[len(ranks) // 2 :], "fast": ranks[: len(ranks) // 2]}
    yardstick = RunLoss(run)
    loss = {"whole": yardstick.validation()}
    for name, part in parts.items():
        with dimensions_zeroed(run.model, part):
            loss[name] = yardstick.validation()
    return {"loss": loss, "probes": probes(run, parts, valid["source"])}


class MaskedEmbeddings(nn.Module):
    """Positional encoding that is added to embeddings with some dimensions set to zero."""

    def __init__(self, positions: nn.Module, kept_D: Tensor) -> None:
        super().__init__()
        self.positions, self.kept_D = positions, kept_D

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        given_ND: Tensor = self.positions(x_ND * self.kept_D.to(x_ND), layout)
        return given_ND


@contextmanager
def dimensions_zeroed(model: nn.Module, part: Tensor) -> Iterator[None]:
    """Context manager within which the given dimensions of all embeddings are zero."""
    fronts: list[Any] = [model.get_submodule(f"{side}_front") for side in ("source", "target")]
    usual = [front.positions for front in fronts]
    for front in fronts:
        kept_D = torch.ones(front.tokens.embedding_dim)
        kept_D[part] = 0.0
        front.positions = MaskedEmbeddings(front.positions, kept_D)
    try:
        yield
    finally:
        for front, positions in zip(fronts, usual, strict=True):
            front.positions = positions


@torch.no_grad()
def probes(run: Run, parts: dict[str, Tensor], texts: Sequence[str]) -> dict[str, Any]:
    """Return the accuracy of linear probes for words and positions, on the given dimensions of the
    hidden states of each encoder layer.

    Half of the texts are used for fitting, and the other half for testing.
    """
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
            what: [probe_accuracy(x_MD.cpu()[:, part], right_M, n_first) for x_MD in streams]
            for what, right_M in asked.items()
        }
        for name, part in parts.items()
    }


def probe_accuracy(x_MC: Tensor, right_M: Tensor, n_first: int, ridge: float = 1e-2) -> float:
    """Fit a linear probe on the first `n_first` vectors, and return its accuracy on the remaining
    ones."""
    wide_MC = torch.cat([x_MC.double(), torch.ones(len(x_MC), 1).double()], dim=1)
    truth_MK = torch.nn.functional.one_hot(right_M).double()
    fit_FC, test_TC = wide_MC[:n_first], wide_MC[n_first:]
    size = fit_FC.square().mean()
    gram_CC = fit_FC.T @ fit_FC + ridge * size * len(fit_FC) * torch.eye(fit_FC.shape[1]).double()
    map_CK = torch.linalg.solve(gram_CC, fit_FC.T @ truth_MK[:n_first])
    return float(((test_TC @ map_CK).argmax(1) == right_M[n_first:]).float().mean())
