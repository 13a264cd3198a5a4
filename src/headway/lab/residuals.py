"""E1: why are residual connections a good idea?

Without them all tokens become one and the same vector within a few layers, and deep models learn
nothing; with them each layer makes a correction, and can be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headway.lab import beds
from headway.lab.bench import Bench
from headway.lab.experiment import Experiment, Measured, Source, mean, over
from headway.lab.figures import Figure, Lines, Table
from headway.lab.verdict import Answers, Control, Effect, Verdict, all_of, decide, said
from headway.models.build import build_model
from headway.models.parts.custom import Parts, know
from headway.nn.attention.attention import Memory
from headway.nn.block import PreNorm
from headway.nn.cache import LayerCache
from headway.nn.layout import Layout
from headway.settings.model import EncoderSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.run import Run

DEEP = 12
"""Layers of the models that are only looked at, not trained."""

ALIKE, APART = 1e-3, 0.3
"""Shares of their length in which tokens differ: below the one they are the same vector, above the
other they are not."""


class NoSkip(PreNorm):
    """The same sub-layers, and nothing is kept of what they read."""

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
    """Half of what is read is kept."""

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
NAMED = {"skip": "with skips", "half": "skips halved", "none": "without skips"}


class Residuals(Experiment):
    hypothesis = (
        "Without the path around each layer, all tokens become the same vector within a few layers "
        "and depth is lost: the deepest model is worse by at least 0.2 nats per letter."
    )
    method = (
        "Twelve fresh layers read 32 random tokens. Behind each layer we ask how different the "
        "tokens still are: the length of what sets them apart from their mean, as a share of all. "
        "And how much gradient comes back to each, with norms and without, and how much each adds.",
        "Then small language models learn Shakespeare letter by letter, with 1, 3 and 6 layers "
        "(full: up to 12), with the skip of every layer as it is, halved, or taken out. All "
        "else is the same: sub-layers, norms, steps, data.",
        "At last single layers of the deepest model with skips are left out, one at a time.",
    )
    control = (
        "A model without skips must learn with one layer, or its block would simply be broken; and "
        "the usual model must learn at every depth, or the comparison would mean nothing."
    )
    literature = (
        Source("Dong, Cordonnier, Loukas 2021", "Attention alone makes all tokens alike, doubly "
               "exponentially in depth; skips are what stops it."),
        Source("Veit, Wilber, Belongie 2016", "Layers of a residual network can be left out one at "
               "a time: it acts as a collection of shallow ones."),
        Source("Xiong et al. 2020", "Where the norm stands decides whether deep models train at "
               "all: residual and norm are one design.", "context"),
    )  # fmt: skip
    pieces = (10, 17)

    def measure(self, bench: Bench) -> Measured:
        depths = bench.choose((1, 3, 6), (1, 2, 4, 8, 12))
        arms = {"skip": depths, "half": depths[-1:] if bench.quick else depths[1:], "none": depths}
        found: dict[str, Any] = {"fresh": bench.once("fresh", lambda: fresh(bench.seed))}
        found["flow"] = bench.once("flow", lambda: flow(bench.seed))
        size = bench.choose(300, 700)
        train, valid = beds.speeches(size, 40, text=bench.text(beds.shakespeare))
        loss: dict[str, dict[str, float]] = {arm: {} for arm in arms}
        for arm, wanted in arms.items():
            for depth in wanted:
                run = bench.train(
                    f"{arm}-{depth}", "complete", train, valid=valid, parts=ARMS[arm],
                    settings={
                        "tokenizer.kind": "characters", "model.wiring": "pre",
                        "model.positions": "rotary", "model.n_layers": depth,
                        "model.d_model": bench.choose(48, 128), "model.d_ff": bench.choose(96, 512),
                        "complete.context": 64, "train.lr": 4e-3,
                        "train.steps": bench.choose(100, 1500), "train.warmup": 20,
                        "train.batch_tokens": bench.choose(768, 4096), "train.clip": 1.0,
                        "model.init": "paper",  # some begin with sub-layers that give zero
                    },
                )  # fmt: skip
                loss[arm][str(depth)] = run.scores["loss"]
                if arm == "skip" and depth == depths[-1]:
                    found["lesion"] = bench.once("lesion", lambda run=run: lesions(run, valid))  # type: ignore[misc]
        return {**found, "loss": loss, "unigram": unigram(train, valid)}

    def judge(self, found: Sequence[Measured]) -> Verdict:
        depths = sorted(found[0]["loss"]["skip"], key=int)
        deep, shallow = depths[-1], depths[0]
        gaps = [one["loss"]["none"][deep] - one["loss"]["skip"][deep] for one in found]
        effect = Effect.over(
            gaps, f"loss without skips less with, {deep} layers", "nats per letter"
        )
        learned = [one["unigram"] - one["loss"]["none"][shallow] for one in found]
        usual = [one["unigram"] - max(one["loss"]["skip"].values()) for one in found]
        controls = [
            Control(
                name=f"without skips, {shallow} layer learns",
                passed=min(learned) > 0.1,
                said=f"without skips a model of {shallow} layer is {min(learned):.2f} nats better "
                "than counting letters.",
            ),
            Control(
                name="with skips, every depth learns",
                passed=min(usual) > 0.1,
                said=f"with skips all depths are at least {min(usual):.2f} nats better than "
                "counting letters.",
            ),
        ]
        alike = Effect.over(over(found, "fresh", "none", 4), "how different tokens are behind 4 "
                            "fresh layers, without skips")  # fmt: skip
        kept = Effect.over(over(found, "fresh", "skip", 4), "the same with skips")
        more = [
            alike,
            kept,
            Effect.over([max(one["lesion"]["dropped"]) - one["lesion"]["whole"] for one in found],
                        "loss added by leaving out the worst layer", "nats per letter"),
        ]  # fmt: skip
        seen = (
            f"behind four fresh layers tokens differ in {said(alike.value)} of their length, with "
            f"skips in {said(kept.value)}"
        )
        answers = Answers(
            supported=f"Without skips a model of {deep} layers is worse by {{effect}}, and all "
            f"tokens become one vector: {seen}.",
            refuted=f"Not as was held: without skips a model of {deep} layers is worse by "
            f"{{effect}}; {seen}.",
            undecided=f"The seeds do not agree well enough to say: without skips a model of {deep} "
            f"layers is worse by {{effect}}; {seen}.",
            changes="Another way to keep tokens apart (shaped attention, gates, careful first "
            "weights) can train deep models without skips; with one or two layers there is little "
            "to lose.",
        )
        word = all_of(effect.above(0.2), alike.below(ALIKE), kept.above(APART))
        return decide(word, effect, answers, controls, more)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        loss = found[0]["loss"]
        curves = [
            (NAMED[arm], [(float(depth), mean(found, "loss", arm, depth))
                          for depth in sorted(loss[arm], key=int)])
            for arm in loss
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
        if all("flow" in one for one in found):  # it was not measured at first
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
                Lines(title="What gradient comes back", series=back, x="layer", log_y=True,
                      y="share of the last", hint="In a fresh model: the length of the gradient "
                      "behind each layer, as a share of that behind the last."),
                Lines(title="What a layer adds", series=added, x="layer", log_y=True,
                      y="share of the stream", hint="In a fresh model with skips: the length of "
                      "what a layer adds, as a share of what it is given."),
            ]  # fmt: skip
        return [
            Lines(
                title="Loss by depth", hint="Validation loss after equal steps; lower is better.",
                series=curves, x="layers", y="nats per letter",
                levels=[("counting letters", mean(found, "unigram"))],
            ),
            Lines(
                title="How different tokens stay", series=ways, x="layer", y="share", log_y=True,
                hint="In a fresh model: the length of what sets tokens apart, as a share of their "
                "length. At 1e-7 all tokens are one vector.",
            ),
            Table(
                title="One layer left out", columns=["layer left out", "nats per letter"],
                rows=lesion, hint="Of the deepest trained model with skips.",
            ),
            *flows,
        ]  # fmt: skip


EXPERIMENT = Residuals()


def fresh(seed: int) -> dict[str, list[float]]:
    """How different 32 tokens are behind each of twelve fresh layers, with skips and without."""
    return {arm: [apart(x_ND.detach()) for x_ND in streams(arm, seed)] for arm in ARMS}


def flow(seed: int) -> dict[str, Any]:
    """By norm and skip: the gradient behind each fresh layer as a share of that behind the last,
    and what each adds as a share of what it is given."""
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
    """What 32 random tokens are before twelve fresh layers and behind each of them."""
    random = torch.Generator().manual_seed(seed)
    tokens_N, layout = torch.randint(100, (32,), generator=random), Layout.of([32])
    parts = ARMS[arm]
    know(parts)
    model: Any = build_model(
        EncoderSettings(
            vocab_size=100, d_model=64, n_heads=4, d_ff=256, n_layers=DEEP, dropout=0.0,
            attention_dropout=0.0, wiring="pre", init="paper", heads=("words",),
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


def apart(x_ND: Tensor) -> float:
    """The length of what sets rows apart from their mean, as a share of their length."""
    return float((x_ND - x_ND.mean(0)).norm() / x_ND.norm())


def lesions(run: Run, valid: beds.Columns) -> dict[str, Any]:
    """The loss with each layer left out."""
    stack: Any = run.model.stack
    dropped = []
    for layer in range(len(stack.blocks)):
        with without(stack, layer):
            dropped.append(run.evaluate(valid)["loss"])
    return {"whole": run.evaluate(valid)["loss"], "dropped": dropped}


@contextmanager
def without(stack: Any, layer: int) -> Iterator[None]:
    """Inside, the layer gives what it is given."""
    block = stack.blocks[layer]
    usual, block.forward = block.forward, lambda x_ND, *_: x_ND
    try:
        yield
    finally:
        block.forward = usual


def unigram(train: beds.Columns, valid: beds.Columns) -> float:
    """Nats per letter of who only counts letters."""
    text, other = "".join(train["text"]), "".join(valid["text"])
    counts = {letter: text.count(letter) for letter in set(text)}
    total = len(text) + 1
    logs = [torch.tensor(counts.get(letter, 1) / total).log().item() for letter in other]
    return -sum(logs) / len(logs)
