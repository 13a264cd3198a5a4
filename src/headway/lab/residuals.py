"""E1: why are residual connections a good idea?

Without them all tokens become the same vector within a few layers, and deep models learn nothing.
With them each layer adds a correction, and can be left out without much harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headway.lab import datasets
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import Figure, LineChart, TableFigure
from headway.lab.verdict import Control, Effect, OutcomeSentences, Verdict, all_of, decide, rounded
from headway.lab.workspace import Workspace
from headway.models.build import build_model
from headway.models.parts.custom import Parts, register_parts
from headway.nn.attention.attention import Memory
from headway.nn.block import PreNorm
from headway.nn.cache import LayerCache
from headway.nn.layout import Layout
from headway.settings.model import EncoderSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.run import Run

DEEP = 12
"""Number of layers in the models that are measured without training."""

ALIKE, APART = 1e-3, 0.3
"""Thresholds for the distance of tokens from their mean, relative to their norm.

Below `ALIKE`, tokens count as the same vector. Above `APART`, they count as clearly different.
"""


class NoSkip(PreNorm):
    """Pre-norm block without residual connections."""

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
        n_first: int | None = None,
    ) -> Tensor:
        x_ND = self.drop(self.attention(self.norm_attention(x_ND), layout, cache=cache))
        return self.stream(self.drop(self.feed_forward(self.norm_feed_forward(x_ND))))


class HalfSkip(PreNorm):
    """Pre-norm block whose residual connections are multiplied by 0.5."""

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
        n_first: int | None = None,
    ) -> Tensor:
        added_ND = self.attention(self.norm_attention(x_ND), layout, cache=cache)
        x_ND = 0.5 * x_ND + self.drop(added_ND)
        x_ND = 0.5 * x_ND + self.drop(self.feed_forward(self.norm_feed_forward(x_ND)))
        return self.stream(x_ND)


ARMS: dict[str, Parts | None] = {
    "skip": None,
    "half": Parts(name="lab-half-skip", block=HalfSkip),
    "none": Parts(name="lab-no-skip", block=NoSkip),
}
NORMS = ("norms", "no norms")
NAMED = {
    "skip": "with residual connections",
    "half": "residual connections halved",
    "none": "without residual connections",
}


class ResidualsExperiment(Experiment):
    hypothesis = (
        "Without residual connections all tokens become the same vector within a few layers, and "
        "depth does not help: the loss of the deepest model is at least 0.2 nats per character "
        "higher than with residual connections."
    )
    method = (
        "Small character-level language models with 1, 3 and 6 layers (up to 12 in full runs) "
        "are trained on Shakespeare. Their residual connections are unchanged, multiplied by "
        "0.5 or removed; everything else is equal.",
        "In an untrained model with twelve layers, the difference between the token vectors is "
        "measured after each layer: their distance from their mean, relative to their norm. In "
        "the trained model, each layer is skipped in turn.",
    )
    control = (
        "A model with one layer must learn without residual connections, and models of every "
        "depth must learn with them; otherwise a different fault would explain the loss."
    )
    literature = (
        Citation("Dong, Cordonnier, Loukas 2021", "With attention alone, all tokens converge to "
                 "the same vector, doubly exponentially with depth; residual connections prevent "
                 "this."),
        Citation("Veit, Wilber, Belongie 2016", "Single layers of a residual network can be "
                 "skipped: the network acts as an ensemble of shallow networks."),
    )  # fmt: skip
    pieces = (10, 17)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        depths = bench.choose((1, 3, 6), (1, 2, 4, 8, 12))
        arms = {"skip": depths, "half": depths[-1:] if bench.quick else depths[1:], "none": depths}
        found: dict[str, Any] = {"fresh": bench.cached("fresh", lambda: fresh(bench.seed))}
        found["flow"] = bench.cached("flow", lambda: flow(bench.seed))
        size = bench.choose(300, 700)
        train, valid = datasets.speeches(size, 40, text=bench.text(datasets.shakespeare))
        loss: dict[str, dict[str, float]] = {arm: {} for arm in arms}
        for arm, wanted in arms.items():
            for depth in wanted:
                run = bench.train(
                    f"{arm}-{depth}", "complete", train, valid=valid, parts=ARMS[arm],
                    settings={
                        "tokenizer.kind": "characters", "model.block_layout": "pre",
                        "model.positions": "rotary", "model.n_layers": depth,
                        "model.d_model": bench.choose(48, 128), "model.d_ff": bench.choose(96, 512),
                        "complete.context": 64, "train.lr": 4e-3,
                        "train.steps": bench.choose(100, 1500), "train.warmup": 20,
                        "train.batch_tokens": bench.choose(768, 4096), "train.clip": 1.0,
                        "model.init": "paper",  # in others sub-layers start at zero
                    },
                )  # fmt: skip
                loss[arm][str(depth)] = run.scores["loss"]
                if arm == "skip" and depth == depths[-1]:
                    found["lesion"] = bench.cached(
                        "lesion",
                        lambda run=run: layer_ablations(run, valid),  # type: ignore[misc]
                    )
        return {**found, "loss": loss, "unigram": unigram(train, valid)}

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        depths = sorted(found[0]["loss"]["skip"], key=int)
        deep, shallow = depths[-1], depths[0]
        gaps = [one["loss"]["none"][deep] - one["loss"]["skip"][deep] for one in found]
        effect = Effect.over(
            gaps,
            f"loss without residual connections minus loss with them, {deep} layers",
            "nats per character",
        )
        learned = [one["unigram"] - one["loss"]["none"][shallow] for one in found]
        usual = [one["unigram"] - max(one["loss"]["skip"].values()) for one in found]
        controls = [
            Control(
                name=f"{shallow} layer without residual connections learns",
                passed=min(learned) > 0.1,
                said=f"without residual connections, the loss of a model with {shallow} layer is "
                f"at least {min(learned):.2f} nats lower than that of character frequencies.",
            ),
            Control(
                name="every depth with residual connections learns",
                passed=min(usual) > 0.1,
                said="with residual connections, the loss at every depth is at least "
                f"{min(usual):.2f} nats lower than that of character frequencies.",
            ),
        ]
        alike = Effect.over(per_seed(found, "fresh", "none", 4), "difference between tokens "
                            "after 4 untrained layers, without residual connections")  # fmt: skip
        kept = Effect.over(
            per_seed(found, "fresh", "skip", 4),
            "difference between tokens after 4 untrained layers, with residual connections",
        )
        more = [
            alike,
            kept,
            Effect.over([max(one["lesion"]["dropped"]) - one["lesion"]["whole"] for one in found],
                        "increase of the loss when the most important layer is skipped",
                        "nats per character"),
        ]  # fmt: skip
        answers = OutcomeSentences(
            supported="They keep token vectors distinct: without residual connections, all "
            "tokens have nearly the same vector after a few layers, and a deep model learns much "
            "less.",
            refuted="Here they are not needed: a deep model learns almost as well without them."
            if effect.above(0.2) == "refuted"
            else "Not because they keep tokens different: that part of the claim fails.",
            undecided="These runs do not show how much a deep model loses without them.",
            numbers="After four untrained layers, token vectors differ by "
            f"{rounded(alike.value)} of their norm without residual connections and by "
            f"{rounded(kept.value)} with them.",
            changes="The answer may differ with other ways to keep token vectors different, such "
            "as gates or careful initialisation, and for models with one or two layers.",
        )
        word = all_of(effect.above(0.2), alike.below(ALIKE), kept.above(APART))
        return decide(word, effect, answers, controls, more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        loss = found[0]["loss"]
        curves = [
            (NAMED[arm], [(float(depth), mean(found, "loss", arm, depth))
                          for depth in sorted(loss[arm], key=int)])
            for arm in loss if len(loss[arm]) > 1  # one depth makes no line
        ]  # fmt: skip
        ways = [
            (NAMED[arm], [(float(layer), mean(found, "fresh", arm, layer))
                          for layer in range(DEEP + 1)])
            for arm in ("skip", "half", "none")
        ]  # fmt: skip
        lesion = [
            ["none", mean(found, "lesion", "whole")],
            *([str(layer + 1), mean(found, "lesion", "dropped", layer)]
              for layer in range(len(found[0]["lesion"]["dropped"]))),
        ]  # fmt: skip
        flows: list[Figure] = []
        if all("flow" in one for one in found):  # older results do not have it
            back = [
                (f"{NAMED[arm]}, {norm}",
                 [(float(layer), mean(found, "flow", norm, arm, "back", layer) or None)
                  for layer in range(DEEP + 1)])
                for arm in ARMS for norm in NORMS
            ]  # fmt: skip
            added = [
                (norm, [(float(layer + 1), mean(found, "flow", norm, "skip", "added", layer))
                        for layer in range(DEEP)])
                for norm in NORMS
            ]  # fmt: skip
            flows = [
                LineChart(title="Gradient at each layer", series=back, x="layer", log_y=True,
                      y="share of the last layer's",
                      hint="In an untrained model: norm of the gradient after each layer, as a "
                      "share of that after the last layer."),
                LineChart(title="Output of each layer", series=added, x="layer", log_y=True,
                      y="share of the input",
                      hint="In an untrained model with residual connections: norm of what a "
                      "layer adds, as a share of the norm of its input."),
            ]  # fmt: skip
        return [
            LineChart(
                title="Loss by depth", hint="Validation loss after equal steps; lower is better.",
                series=curves, x="layers", y="nats per character",
                levels=[("character frequencies", mean(found, "unigram"))],
            ),
            LineChart(
                title="Difference of tokens by layer", series=ways, x="layer", y="share",
                log_y=True,
                hint="In an untrained model: distance of tokens from their mean, as a share of "
                "their length. At 1e-7 all tokens are one vector.",
            ),
            TableFigure(
                title="Loss with one layer left out",
                columns=["layer left out", "nats per character"],
                rows=lesion, hint="For the deepest trained model with residual connections.",
            ),
            *flows,
        ]  # fmt: skip


EXPERIMENT = ResidualsExperiment()


def fresh(seed: int) -> dict[str, list[float]]:
    """Return the spread of 32 random tokens before and after each untrained layer, for each type of
    block."""
    return {arm: [relative_spread(x_ND.detach()) for x_ND in streams(arm, seed)] for arm in ARMS}


def flow(seed: int) -> dict[str, Any]:
    """Measure gradient norms in untrained models, by normalization and type of block, relative to
    the last layer.

    The result also contains the size of each layer's change relative to its input.
    """
    found: dict[str, Any] = {norm: {} for norm in NORMS}
    for norm, arms in found.items():
        for arm in ARMS:
            seen = streams(arm, seed, norms=norm == NORMS[0])
            random = torch.Generator().manual_seed(seed)
            loss = (seen[-1] * torch.randn(seen[-1].shape, generator=random)).sum()
            lengths = [float(one_ND.norm()) for one_ND in torch.autograd.grad(loss, seen)]
            arms[arm] = {
                "back": [length / lengths[-1] for length in lengths],
                "added": [
                    float((b - a).detach().norm() / a.detach().norm()) for a, b in pairwise(seen)
                ],
            }
    return found


def streams(arm: str, seed: int, *, norms: bool = True) -> list[Tensor]:
    """Return the hidden states of 32 random tokens before the first of twelve untrained layers and
    after each layer."""
    random = torch.Generator().manual_seed(seed)
    tokens_N, layout = torch.randint(100, (32,), generator=random), Layout.of([32])
    parts = ARMS[arm]
    register_parts(parts)
    model: Any = build_model(
        EncoderSettings(
            vocab_size=100, d_model=64, n_heads=4, d_ff=256, n_layers=DEEP, dropout=0.0,
            attention_dropout=0.0, block_layout="pre", init="paper", heads=("words",),
            parts=None if parts is None else parts.name,
        ),
        seed=seed,
    ).eval()  # fmt: skip
    seen = [model.front(tokens_N, layout)]
    for block in model.stack.blocks:
        if not norms:
            block.norm_attention = block.norm_feed_forward = nn.Identity()
        seen.append(block(seen[-1], layout))
    return seen


def relative_spread(x_ND: Tensor) -> float:
    """Return the distance of the vectors from their mean, as a fraction of their norm."""
    return float((x_ND - x_ND.mean(0)).norm() / x_ND.norm())


def layer_ablations(run: Run, valid: datasets.TextColumns) -> dict[str, Any]:
    """Return the validation loss of the whole model, and with each layer left out in turn."""
    stack: Any = run.model.stack
    dropped = []
    for layer in range(len(stack.blocks)):
        with layer_skipped(stack, layer):
            dropped.append(run.evaluate(valid)["loss"])
    return {"whole": run.evaluate(valid)["loss"], "dropped": dropped}


@contextmanager
def layer_skipped(stack: Any, layer: int) -> Iterator[None]:
    """Context manager within which a layer returns its input unchanged."""
    block = stack.blocks[layer]
    usual, block.forward = block.forward, lambda x_ND, *_: x_ND
    try:
        yield
    finally:
        block.forward = usual


def unigram(train: datasets.TextColumns, valid: datasets.TextColumns) -> float:
    """Return the loss of a baseline that knows only character frequencies, in nats per
    character."""
    text, other = "".join(train["text"]), "".join(valid["text"])
    counts = {letter: text.count(letter) for letter in set(text)}
    total = len(text) + 1
    logs = [torch.tensor(counts.get(letter, 1) / total).log().item() for letter in other]
    return -sum(logs) / len(logs)
