"""E12: can the maps be trusted?

Maps say what a model looked at. In a made-up language it is known which word comes from which, so
that every kind of map can be held to the truth, beside maps that know nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from headway.inside import maps, trace
from headway.inside.measure.maps import Map
from headway.inside.measure.truth import Case, Known, Truth, aligned, measure
from headway.inside.measure.truth.validate import with_fresh_weights
from headway.lab import beds
from headway.lab.bench import Bench
from headway.lab.experiment import Experiment, Measured, Source, mean, over
from headway.lab.figures import Bars, Figure, Heatmap, Table, interval_bars
from headway.lab.verdict import Answers, Arm, Bounds, Control, Effect, Verdict, all_of, decide
from headway.settings.folder import run_folders
from headway.tasks.opened import Opened

NAMED = {
    "last": "attention, last layer, mean of heads",
    "first": "attention, first layer, mean of heads",
    "picked": "one head, picked on other sentences",
    "rollout": "rollout",
    "flow": "flow",
    "norm": "norm of what is added, last layer",
    "gradxattention": "gradient × attention",
    "gradxinput": "gradient × input",
    "integrated": "integrated gradients",
    "occlusion": "occlusion: words hidden in turn",
    "diagonal": "the diagonal, which knows no word",
    "random": "chance",
}
BETTER = ("rollout", "norm", "gradxinput")
"""Maps that are held to point better than attention as it is. Each is judged by itself."""

CLAUSES = 3
"""Clauses per sentence. With one, the attention of the last layer is right on 97 to 100 % of the
words, and no map can be better than that."""

MARGIN = 0.02
"""Margin of precision for `Bounds`: about three standard errors near 1 with 500 words."""

OTHERS = {
    "tatoeba-de-en": "names and numbers, German to English",
    "shapes": "things in pictures, by the words of a caption",
    "digits": "digits in recordings, by when they are said",
}
"""Models that come along, whose maps were measured in the same way."""


class Trust(Experiment):
    hypothesis = (
        "Attention as it is misleads: the mean attention of the last layer points at the wrong "
        "word more often than each of three maps that follow what is done with it (rollout, norms, "
        "gradients)."
    )
    method = (
        "A small translator learns a made-up grammar whose words change their order, melt and "
        f"split, in sentences of {CLAUSES} clauses whose order is turned round, so that for each "
        "word of the target it is known where it comes from. It reads sentences that it never saw, "
        "with their right translations.",
        "Each map says for each word written which word of the source weighs most. Precision is "
        "how often that one is right. The best single head is picked on every other sentence and "
        "judged on the rest, for the best of many is lucky, too.",
        "How far maps agree with occlusion (hide a word, see what is lost) is measured by rank "
        "correlation.",
    )
    control = (
        "A map of random weights must be at chance, so must every map whose columns are shuffled, "
        "and so must the head picked in a model that learned nothing; the picked head of the "
        "trained one must be far above."
    )
    literature = (
        Source("Kobayashi et al. 2020", "Weights times the vectors they weigh align better than "
               "weights, which often fall on words that add nothing.", part="norm"),
        Source("Abnar, Zuidema 2020", "Attention followed through the layers agrees better with "
               "ablation than attention as it is.", part="agreement"),
        Source("Jain, Wallace 2019", "Attention is often unrelated to gradients and can be changed "
               "without changing the answer.", "differs"),
        Source("Wiegreffe, Pinter 2019", "Whether attention explains depends on the question and "
               "can be tested.", "context"),
        Source("Neely et al. 2022", "That maps agree with each other says little about any: hence "
               "a truth.", "context"),
    )  # fmt: skip
    pieces = (2, 2)

    def measure(self, bench: Bench) -> Measured:
        bed = beds.bed(partial(beds.grammar, clauses=CLAUSES),
                       bench.choose(3000, 12000), bench.choose(60, 400), bench.seed)  # fmt: skip
        train, valid = bed.columns()
        run = bench.train(
            "translator", "translate", train, valid=valid,
            settings={
                "model.wiring": "pre", "train.lr": 6e-3, "train.warmup": 30,
                "model.d_model": bench.choose(48, 128), "model.d_ff": bench.choose(96, 256),
                "model.n_layers": bench.choose(2, 4), "train.steps": bench.choose(600, 2500),
                "train.batch_tokens": bench.choose(768, 1024), "decode.beam": 1,
            },
        )  # fmt: skip
        few = bench.choose(10, 80)
        found = bench.once("maps", lambda: measured(run.opened.twin(), bed.valid, few, bench.seed))
        return {"loss": run.scores["loss"], "bleu": run.scores["bleu"], **found,
                "others": elsewhere()}  # fmt: skip

    def judge(self, found: Sequence[Measured]) -> Verdict:
        chance = mean(found, "chance")
        scale = Bounds(low=chance, high=1.0, margin=MARGIN)

        def arm(name: str) -> Arm:
            return Arm(name=NAMED[name], scores=over(found, "p1", name))

        effects = {
            name: Effect.between(arm(name), arm("last"), scale,
                                 f"precision of {NAMED[name]} less that of attention")
            for name in BETTER
        }  # fmt: skip
        ablated = Effect.over(
            [one["agreement"]["rollout"] - one["agreement"]["last"] for one in found],
            "rank correlation with occlusion, rollout less attention",
        )  # fmt: skip
        words = {name: effects[name].above(0.0) for name in BETTER}
        word = all_of(*words.values())
        # The claim falls with one map: the effect is that of the first map that decides it.
        effect = next(effects[name] for name in BETTER if words[name] == word)
        off = max(abs(one["p1"]["random"] - one["chance"]) / one["sigma"] for one in found)
        shuffled = max(abs(one["shuffled"] - one["chance"]) / one["sigma"] for one in found)
        fresh = max(one["fresh"] / one["chance"] for one in found)
        best = min(one["p1"]["picked"] / one["chance"] for one in found)
        controls = [
            Control(name="random weights are chance", passed=off < 3.0,
                    said=f"a random map is {off:.1f} standard errors from chance at most."),
            Control(name="shuffled attention is chance", passed=shuffled < 3.0,
                    said=f"with its columns shuffled the picked head is {shuffled:.1f} standard "
                    "errors from chance at most."),
            Control(name="a fresh model knows nothing", passed=fresh < 2.0,
                    said=f"the head picked in a model of random weights is at {fresh:.1f} times "
                    "chance at most."),
            Control(name="there is something to find", passed=best > 3.0,
                    said=f"the picked head of the trained model is at {best:.1f} times chance or "
                    "more."),
        ]  # fmt: skip
        more = [one for one in effects.values() if one is not effect]
        more.append(ablated)
        more += [
            Effect.over(over(found, "p1", name), f"precision: {NAMED[name]}")
            for name in ("picked", "last", *BETTER, "occlusion")
        ]
        more.append(
            Effect.over([one["p1"]["picked"] - one["p1"]["last"] for one in found],
                        "precision of the picked head less that of the last layer")
        )  # fmt: skip
        top = max(
            (name for name in found[0]["p1"] if name != "picked"),
            key=lambda name: mean(found, "p1", name),
        )
        rest = (
            f"The best map was {NAMED[top]} ({mean(found, 'p1', top):.2f}), the picked head "
            f"{mean(found, 'p1', 'picked'):.2f}, chance {mean(found, 'chance'):.2f}."
        )
        each = "; ".join(f"{NAMED[name]} {effects[name]}, {words[name]}" for name in BETTER)
        answers = Answers(
            supported=f"Each of the three maps points better than attention: {each}. {rest}",
            refuted=f"Not each of the three maps points better than attention: {each}. {rest}",
            undecided=f"Whether each map points better depends on the training: {each}. {rest}",
            changes="Another model: in which layer and head attention points right, and which map "
            "is best, differs from model to model. So measure it with `headway truth` before you "
            "believe a map.",
        )
        parts = {**words, "agreement": ablated.above(0.0)}
        return decide(word, effect, answers, controls, more, parts)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        p1 = found[0]["p1"]
        names = sorted(p1, key=lambda name: -mean(found, "p1", name))
        layers, n_heads = len(found[0]["heads"]), len(found[0]["heads"][0])
        grid = [[mean(found[:1], "heads", layer, head) for head in range(n_heads)]
                for layer in range(layers)]  # fmt: skip
        return [
            Bars(
                title="How often each map is right", most=1.0,
                hint="Share of words written whose heaviest source word is one that they come "
                "from; low and high are the seeds.",
                bars=interval_bars([(NAMED[name], over(found, "p1", name)) for name in names]),
            ),
            Heatmap(
                title="Head by head", values=grid, low=0.0, high=1.0, label="precision",
                rows=[f"layer {layer + 1}" for layer in range(layers)],
                columns=[f"head {head + 1}" for head in range(n_heads)],
                hint="Attention from decoder to encoder of the first seed's model. Which head "
                "points right is another one with every training.",
            ),
            Table(
                title="Agreement with occlusion", columns=["map", "rank correlation", "precision"],
                hint="Mean correlation with what is lost when a word is hidden. To agree with "
                "another map is not to be right.",
                rows=[[NAMED[name], mean(found, "agreement", name), mean(found, "p1", name)]
                      for name in found[0]["agreement"]],
            ),
            Table(
                title="The same of models that come along",
                columns=["model", "truth", "last layer", "picked head", "rollout", "norm",
                         "chance"],
                hint="As measured by `headway truth` when they were made.",
                rows=found[0]["others"],
            ),
        ]  # fmt: skip


EXPERIMENT = Trust()


def measured(
    run: Opened, known: Sequence[Known], few: int, seed: int
) -> dict[str, Any]:  # fmt: skip
    """Precision of every map, of those of a fresh model, and of the picked head when shuffled."""
    cases = aligned(run, known)
    methods = ("heads", "mean", "rollout", "norm", "flow", "gradients", "integrated", "occlusion")
    found = measure(run, cases, methods, few=few)
    plain = measure(with_fresh_weights(run), cases, ("heads",))
    assert found.best is not None
    assert plain.best is not None
    draws = torch.Generator().manual_seed(seed)
    name = found.best.name
    mixed = measure(run, cases, maker=lambda run, case: [shuffled(run, case, name, draws)])
    n_layers = sum(one.endswith(".mean") and one.startswith("cross.") for one in found.maps)
    return {
        "n": found.n,
        "chance": found.chance,
        "sigma": math.sqrt(found.chance * (1 - found.chance) / found.n),
        "p1": by_name(found, n_layers),
        "picked": name,
        "heads": [[found.maps[one].p1 for one in sorted(found.maps)
                   if one.startswith(f"cross.{layer}.") and one.rpartition(".")[2].isdecimal()]
                  for layer in range(n_layers)],
        "aer": {one: found.maps[one].aer for one in ("rollout", f"cross.{n_layers - 1}.norm")},
        "fresh": plain.best.p1,
        "shuffled": mixed.maps["shuffled"].p1,
        "agreement": agreements(run, cases[:few], n_layers),
    }  # fmt: skip


def by_name(found: Truth, n_layers: int) -> dict[str, float]:
    assert found.best is not None
    layers = {"last": f"cross.{n_layers - 1}.mean", "first": "cross.0.mean",
              "norm": f"cross.{n_layers - 1}.norm"}  # fmt: skip
    rest = ("rollout", "flow", "gradxattention", "gradxinput", "integrated", "occlusion",
            "diagonal", "random")  # fmt: skip
    p1 = {name: found.maps[layers.get(name, name)].p1 for name in (*layers, *rest)}
    return {"picked": found.best.p1, **p1}


def shuffled(run: Opened, case: Case, name: str, draws: torch.Generator) -> Map:
    """The map of a head with its columns in another order for every row."""
    [map_] = [one for one in maps.make(run, trace(run, case.reading), ["heads"])
              if one.name == name]  # fmt: skip
    weights_RS = map_.weights_RS
    places = [place for places in case.columns for place in places]
    mixed_RS = weights_RS.clone()
    for row in range(len(weights_RS)):
        order = torch.randperm(len(places), generator=draws)
        mixed_RS[row, places] = weights_RS[row, torch.tensor(places)[order]]
    return replace(map_, name="shuffled", weights_RS=mixed_RS)


def agreements(run: Opened, cases: Sequence[Case], n_layers: int) -> dict[str, float]:
    """Mean rank correlation of maps with occlusion, over the words of the source."""
    wanted = {"last": f"cross.{n_layers - 1}.mean", "norm": f"cross.{n_layers - 1}.norm",
              "rollout": "rollout", "gradxinput": "gradxinput"}  # fmt: skip
    methods = ("mean", "norm", "rollout", "gradients", "occlusion")
    sums: dict[str, list[float]] = {name: [] for name in wanted}
    for case in cases:
        found = maps.make(run, trace(run, case.reading), methods)
        made = {one.name: one for one in found}
        for name, full in wanted.items():
            pair = [Map.of(full, {"source": made[one].parts()["source"]})
                    for one in (full, "occlusion")]  # fmt: skip
            value = maps.agreement(pair[0], pair[1], case.reading)
            if value is not None:
                sums[name].append(value)
    return {name: sum(all_) / len(all_) if all_ else math.nan for name, all_ in sums.items()}


def elsewhere() -> list[list[Any]]:
    """What was measured of the models that come along."""
    rows = []
    for name, what in OTHERS.items():
        truth = Truth.load(run_folders([name])[0] / "truth.json")
        last = max(one for one in truth.maps if one.startswith("cross.") and one.endswith(".mean"))
        norm = last.replace(".mean", ".norm")
        picked = None if truth.best is None else truth.best.p1
        rows.append([name, what, truth.maps[last].p1, picked, truth.maps["rollout"].p1,
                     truth.maps[norm].p1, truth.chance])  # fmt: skip
    return rows
