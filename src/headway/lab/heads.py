"""E10: how many attention heads are needed?

Models with 1, 4 and 8 heads are trained in the same way. Then heads of a trained model are
disabled: the least important first, the most important first, in random order, and by type of
attention.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import headway
from headway.inside import GenerationOptions, Intervention, heads, read
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.forward import ReadingBatch, final_states, last_hidden_states, read_out
from headway.inside.capture.interventions import disable_heads
from headway.inside.capture.streams import Reading
from headway.inside.measure.heads import HeadAnalysis
from headway.inside.measure.pruning import HeadId, prune_heads, select_heads
from headway.inside.measure.pruning_curve import order_units
from headway.lab import datasets
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import BarChart, Figure, LineChart, TableFigure, interval_bars
from headway.lab.parallelism import in_turns
from headway.lab.verdict import Control, Effect, OutcomeSentences, Verdict, all_of, decide, rounded
from headway.lab.workspace import Workspace
from headway.models.summary import count_parameters
from headway.nn.attention.attention import Attention
from headway.tasks.loaded_run import LoadedRun

FREE = 0.05
"""Maximum rise of the loss, in nats per token, at which the removed heads count as unnecessary."""

KINDS = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
ORDERS = {
    "least": "least important first",
    "chance": "random order",
    "most": "most important first",
}
COMES_ALONG = "tatoeba-de-en"


class HeadsExperiment(Experiment):
    hypothesis = (
        "A trained model does not need all of its heads: at least 30 % can be removed, starting "
        "with the least important, with almost no increase in loss. Cross-attention depends most "
        "on its heads."
    )
    method = (
        "A small translator with 4 heads per attention layer learns to translate an artificial "
        "language. The importance of a head is the absolute gradient of the loss with respect to a "
        "gate on the output of the head (Michel et al. 2019). Then the gates are closed one after "
        "another, starting with the least important head. Removed heads count as unnecessary while "
        f"the loss on unseen sentences rises by less than {FREE} nats per token.",
        "The German-English translator shipped with headway is tested in the same way.",
    )
    control = (
        "A model whose heads are removed from the weights must have the same loss as a model "
        "with closed gates. Removing the most important quarter of the heads must increase the "
        "loss more than removing the least important quarter."
    )
    literature = (
        Citation("Michel, Levy, Neubig 2019", "After training, 20 to 40 % of the heads can be "
                 "removed; cross-attention is most sensitive to the removal."),
        Citation("Voita et al. 2019", "38 of 48 encoder heads can be removed at a cost of 0.15 "
                 "BLEU if the weights are trained together with the gates.", "differs"),
        Citation("Vaswani et al. 2017", "A model with one head is 0.9 BLEU worse than a model "
                                        "with eight heads.", "context"),
    )  # fmt: skip
    pieces = (6, 8)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        train, valid, pairs, unseen = self._data(bench)
        real = bench.data is not None
        usual = {
            "model.block_layout": "pre", "train.lr": 2e-3 if real else 6e-3, "train.warmup": 30,
            "model.d_model": bench.choose(48, 128), "model.d_ff": bench.choose(96, 256),
            "train.steps": bench.choose(300, 2500), "train.batch_tokens": bench.choose(384, 1024),
        }  # fmt: skip
        if real:
            usual |= {"tokenizer.kind": "bpe", "tokenizer.vocab_size": 4000, "model.dropout": 0.1,
                      "train.batch_tokens": 4096}  # fmt: skip
        arms: dict[str, dict[str, Any]] = {
            str(n): {"model.n_heads": n} for n in bench.choose((1, 4, 8), (1, 2, 4, 8, 16))
        }
        arms["deep"] = {
            "model.n_heads": 1, "model.n_layers": 4, "model.d_model": bench.choose(34, 90),
            "model.d_ff": bench.choose(68, 180),
        }  # fmt: skip
        runs = {
            arm: bench.train(f"heads-{arm}", "translate", train, valid=valid,
                             settings={**usual, **more})
            for arm, more in arms.items()
        }  # fmt: skip
        own = bench.cached(
            "pruned", lambda: pruned(runs["4"].opened.inspection_copy(), pairs, unseen, bench.seed)
        )
        known = list(datasets.test_set_pairs())
        some = known[60 * bench.seed : 60 * bench.seed + 60]
        other = bench.cached(
            "comes-along",
            lambda: pruned(headway.load(COMES_ALONG, device="cpu").opened.inspection_copy(),
            known[-40:],
                           some, bench.seed, gates=False),
        )  # fmt: skip
        return {
            "loss": {arm: run.scores["loss"] for arm, run in runs.items()},
            "parameters": {arm: count_parameters(run.model) for arm, run in runs.items()},
            "own": own, "comes_along": other,
        }  # fmt: skip

    def _data(
        self, bench: Workspace
    ) -> tuple[
        datasets.TextColumns, datasets.TextColumns, list[tuple[str, str]], list[tuple[str, str]]
    ]:
        """Return the training data, the validation data, the pairs for ranking heads, and the pairs
        for measuring the loss."""
        if bench.data is None:
            bed = datasets.make_pairs(datasets.grammar, bench.choose(3000, 12000), 150, bench.seed)
            train, valid = bed.columns()
        else:
            train, valid = datasets.read_folder(bench.data)
            if len(train["source"]) < 2_000:
                bench.doubt(f"{bench.data.name} has {len(train['source']):,} training pairs, but "
                            "2,000 are needed")  # fmt: skip
        sides = [list(zip(some["source"], some["target"], strict=True)) for some in (train, valid)]
        return train, valid, sides[0][:60], sides[1][:150]

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        effect = Effect.over([100 * v for v in per_seed(found, "own", "free")],
                             "share of heads that are not needed", "%")  # fmt: skip
        quarter = {order: [at_quarter(one["own"], order) for one in found] for order in ORDERS}
        told = [most - few for most, few in zip(quarter["most"], quarter["least"], strict=True)]
        apart = max(per_seed(found, "own", "sliced_apart"))
        controls = [
            Control(
                name="closed gates are heads cut out", passed=apart < 1e-3,
                said="the losses with removed heads and with closed gates differ by at most "
                f"{rounded(apart)} nats per token.",
            ),
            Control(
                name="importance tells heads apart", passed=min(told) > 0,
                said="removing the most important quarter of the heads increases the loss by at "
                f"least {rounded(min(quarter['most']))} nats, removing the least important "
                f"quarter by at most {rounded(max(quarter['least']))} nats.",
            ),
        ]  # fmt: skip
        whole = {kind: mean(found, "own", "kinds", kind, -1) for kind in KINDS}
        first = max(whole, key=lambda kind: whole[kind])
        crossing = Effect.over(
            [one["own"]["kinds"]["cross"][-1]
             - max(one["own"]["kinds"][kind][-1] for kind in KINDS if kind != "cross")
             for one in found],
            f"loss with all heads of one type removed, {KINDS['cross']} minus the worse of the "
            "other types",
            "nats per token",
        )  # fmt: skip
        more = [
            crossing,
            Effect.over([100 * v for v in per_seed(found, "comes_along", "free")],
                        f"share of heads that are not needed in {COMES_ALONG}", "%"),
            *(Effect.over([one["own"]["kinds"][kind][-1] - one["own"]["loss"] for one in found],
                          f"increase of the loss when all heads of {name} are removed",
                          "nats per token")
              for kind, name in KINDS.items()),
            Effect.over([one["loss"]["1"] - one["loss"]["8"] for one in found],
                        "loss with 1 head minus loss with 8, both trained so", "nats per token"),
            Effect.over([one["loss"]["deep"] - one["loss"]["4"] for one in found],
                        "loss of 1 head in twice the layers minus loss of 4 "
                        "heads", "nats per token"),
            Effect.over(per_seed(found, "own", "speed"), "speed with half of the heads cut out",
            "×"),
        ]  # fmt: skip
        answers = OutcomeSentences(
            supported="Not all: at least 30 % of a trained model's heads can be removed with "
            "almost no increase in loss, and cross-attention depends most on its heads.",
            refuted="Most of them: less than 30 % of a trained model's heads can be removed with "
            "almost no increase in loss."
            if effect.above(30.0) == "refuted"
            else "Cross-attention is not the part that depends most on its heads.",
            undecided="Some heads can be removed with almost no increase in loss, but their "
            "number varies too much between runs for a verdict.",
            numbers=f"Removing all heads of {KINDS[first]} increases the loss most, to "
            f"{whole[first]:.1f} nats per token.",
            changes="The share may differ for larger models and for real text. Further training "
            "after the removal makes more heads dispensable.",
        )
        word = all_of(effect.above(30.0), crossing.above(0.0))
        return decide(word, effect, answers, controls, more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        n = len(found[0]["own"]["orders"]["least"]) - 1
        many = len(found[0]["comes_along"]["orders"]["least"]) - 1
        arms = [(f"{arm} head{'s' * (arm != '1')}" if arm != "deep" else "1 head, twice the layers",
                 arm) for arm in found[0]["loss"]]  # fmt: skip
        return [
            LineChart(
                title="Loss by number of removed heads", x="heads off", y="nats per token",
                hint=f"Validation loss of the trained model with {n} heads, without further "
                "training.",
                series=[(name, [(float(i), mean(found, "own", "orders", order, i))
                                for i in range(n + 1)]) for order, name in ORDERS.items()],
                levels=[("still not needed", mean(found, "own", "loss") + FREE)],
            ),
            LineChart(
                title="Removed heads by kind of attention", x="heads off", y="nats per token",
                hint="Only heads of one kind are switched off, the least important first.",
                series=[(name, [(float(i), mean(found, "own", "kinds", kind, i))
                                for i in range(len(found[0]["own"]["kinds"][kind]))])
                        for kind, name in KINDS.items()],
            ),
            BarChart(
                title="Trained with fewer heads", unit="nats per token",
                hint="Validation loss at equal steps and equal parameters (about "
                f"{mean(found, 'parameters', '4'):,.0f}); lower is better.",
                bars=interval_bars([(name, per_seed(found, "loss", arm)) for name, arm in arms]),
            ),
            LineChart(
                title=f"A translator trained on real sentences ({COMES_ALONG})", x="heads off",
                y="nats per token", hint="The same measurement on sentences of its test set.",
                series=[(name, [(float(i), mean(found, "comes_along", "orders", order, i))
                                for i in range(many + 1)]) for order, name in ORDERS.items()],
            ),
            TableFigure(
                title="Trained gates", columns=["price per head", "open heads", "nats per token"],
                hint="The weights are frozen; each open gate costs this much.",
                rows=[[price, mean(found, "own", "gates", price, "open"),
                       mean(found, "own", "gates", price, "loss")]
                      for price in found[0]["own"]["gates"]],
            ),
            TableFigure(
                title="Roles of the most important heads",
                columns=["head", "importance", "roles", "added loss if it alone is off"],
                hint="First seed, most important heads first.",
                rows=found[0]["own"]["roles"],
            ),
        ]  # fmt: skip


EXPERIMENT = HeadsExperiment()


def at_quarter(one: Mapping[str, Any], order: str) -> float:
    """Return by how much the loss rises when a quarter of the heads is disabled."""
    losses = one["orders"][order]
    return float(losses[(len(losses) - 1) // 4] - losses[0])


def pruned(
    run: LoadedRun,
    judged_by: Sequence[tuple[str, str]],
    unseen: Sequence[tuple[str, str]],
    seed: int,
    *,
    gates: bool = True,
) -> dict[str, Any]:
    """Measure the loss by number of removed heads, in three orders and for each type of attention.

    The result also contains the speed of a pruned model, learned gates, and the roles of the most
    important heads.
    """
    known = [read(run, source, GenerationOptions(output=target)) for source, target in judged_by]
    found = heads(run, known)
    batch = ReadingBatch.of(
        run, [read(run, source, GenerationOptions(output=target)) for source, target in unseen]
    )
    worth = found.importance()
    order = [head for unit in order_units(run.shape, worth) for head in unit]
    lot = list(order)
    random.Random(seed).shuffle(lot)
    orders = {
        name: [loss(run, batch, queue[:n]) for n in range(len(queue) + 1)]
        for name, queue in (("least", order), ("chance", lot), ("most", order[::-1]))
    }
    kinds = {}
    for kind in run.shape.attention_layers:
        queue = [head for unit in order_units(run.shape, worth, kind) for head in unit]
        kinds[kind] = [loss(run, batch, queue[:n]) for n in range(len(queue) + 1)]
    half = select_heads(order_units(run.shape, worth), len(order) // 2, run.shape)
    small = run.with_model(prune_heads(run.model, run.shape, half).eval())
    return {
        "loss": orders["least"][0],
        "free": removable_share(orders["least"]),
        "orders": orders,
        "kinds": kinds,
        "sliced_apart": abs(loss(small, batch) - loss(run, batch, half)),
        "speed": speedup(run, small, batch),
        "gates": learned_gates(run, known, batch, seed) if gates else {},
        "roles": roles(run, found, batch),
    }


def removable_share(losses: Sequence[float]) -> float:
    """Return the fraction of heads that can be removed, one by one, before the loss has risen by
    `FREE`.

    It is interpolated linearly between two measurements.
    """
    rises = [value - losses[0] for value in losses]
    for n, (before, behind) in enumerate(pairwise(rises)):
        if behind >= FREE:
            return (n + max(0.0, FREE - before) / (behind - before)) / (len(losses) - 1)
    return 1.0


@torch.no_grad()
def loss(
    run: LoadedRun, batch: ReadingBatch, off: Sequence[HeadId] | frozenset[HeadId] = ()
) -> float:
    """Return the loss in nats per token of the target sentences, with the heads in `off`
    disabled."""
    with disable_heads(run.model, Intervention(disabled_heads=frozenset(off))):
        return float(_loss(run, batch))


def _loss(run: LoadedRun, batch: ReadingBatch) -> Tensor:
    scores_RV = read_out(run, batch, final_states(run.model, batch)).averaged_logits().float()
    said_R = torch.tensor([output.id for one in batch.readings for output in one.outputs])
    return torch.nn.functional.cross_entropy(scores_RV, said_R.to(scores_RV.device))


def roles(
    run: LoadedRun, found: HeadAnalysis, batch: ReadingBatch, most: int = 8
) -> list[list[Any]]:
    whole = loss(run, batch)
    best = sorted(found.heads, key=lambda head: -head.importance)[:most]
    return [
        [f"{KINDS.get(head.kind, head.kind)}, layer {head.layer + 1}, head {head.head + 1}",
         round(head.importance, 4), ", ".join(head.roles) or "no known role",
         loss(run, batch, [(head.kind, head.layer, head.head)]) - whole]
        for head in best
    ]  # fmt: skip


@torch.no_grad()
def speedup(run: LoadedRun, small: LoadedRun, batch: ReadingBatch, rounds: int = 7) -> float:
    """Return how many times faster the pruned model is than the unpruned one."""
    steps = {name: partial(last_hidden_states, one.model, batch)
             for name, one in (("run", run), ("small", small))}  # fmt: skip
    times = in_turns(steps, rounds, next(run.model.parameters()).device)
    return statistics.median(times["run"]) / statistics.median(times["small"])


# -- learned gates (Louizos et al. 2018)

BETA, LOW, HIGH = 2 / 3, -0.1, 1.1
"""Temperature and stretching limits of the hard concrete distribution, as in Louizos et al.
(2018)."""

PRICES = (0.02, 0.1, 0.4)
"""Costs of an open gate in nats per head. Over this range, the number of heads that stay open falls
from nearly all to only a few."""

STEPS = 80
"""Number of optimizer steps for training the gates. Few are enough, because each head has a single
parameter."""


def learned_gates(
    run: LoadedRun, known: Sequence[Reading], batch: ReadingBatch, seed: int
) -> dict[str, dict[str, float]]:
    """Return, for each cost of an open gate, the number of heads that stay open, and the loss with
    only these heads."""
    some = ReadingBatch.of(run, known)
    return {f"{price:g}": _gates(run, some, batch, price, seed) for price in PRICES}


def _gates(
    run: LoadedRun, some: ReadingBatch, batch: ReadingBatch, price: float, seed: int
) -> dict[str, float]:
    layers = [
        (kind.name, layer, attention)
        for kind in Anatomy.of(run.model).kinds
        for layer, attention in enumerate(kind.layers)
    ]
    draws = torch.Generator().manual_seed(seed)
    logs = [torch.full((one.n_heads,), 1.0, requires_grad=True) for *_, one in layers]
    optimizer = torch.optim.Adam(logs, lr=0.15)
    shift = BETA * torch.tensor(-LOW / HIGH).log()
    parts: list[Attention] = [one for *_, one in layers]
    try:
        for _ in range(STEPS):
            for attention, log_H in zip(parts, logs, strict=True):
                u_H = torch.rand(log_H.shape, generator=draws).clamp(1e-6, 1 - 1e-6)
                open_H = ((u_H.logit() + log_H) / BETA).sigmoid()
                gate_H = (open_H * (HIGH - LOW) + LOW).clamp(0, 1)
                attention.gate_H = gate_H.to(next(attention.parameters()).device)
            paid = torch.stack([(log_H - shift).sigmoid().sum() for log_H in logs]).sum()
            optimizer.zero_grad()
            (_loss(run, some).cpu() + price * paid).backward()
            optimizer.step()
    finally:
        for attention in parts:
            attention.gate_H = None
        run.model.zero_grad(set_to_none=True)
    off = [
        (kind, layer, head)
        for (kind, layer, _), log_H in zip(layers, logs, strict=True)
        for head, log in enumerate(log_H.tolist())
        if torch.tensor(log).sigmoid() * (HIGH - LOW) + LOW < 0.5
    ]
    n = sum(one.n_heads for one in parts)
    return {"open": float(n - len(off)), "loss": loss(run, batch, off)}
