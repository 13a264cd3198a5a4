"""E12: can attention maps be trusted?

Attention maps show which source words a model uses for a target word. In an artificial language the
true alignment is known. Every type of map can therefore be compared with the ground truth, and with
baselines that ignore the input.
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
from headway.inside.measure.truth import (
    AlignedPair,
    Case,
    MapAccuracy,
    alignment_cases,
    measure_accuracy,
)
from headway.inside.measure.truth.accuracy import with_fresh_weights
from headway.lab import datasets
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import BarChart, Figure, Heatmap, TableFigure, interval_bars
from headway.lab.verdict import (
    Arm,
    Bounds,
    Control,
    Effect,
    OutcomeSentences,
    Verdict,
    all_of,
    decide,
)
from headway.lab.workspace import Workspace
from headway.settings.folder import run_folders
from headway.tasks.loaded_run import LoadedRun

NAMED = {
    "last": "attention, last layer, mean of heads",
    "first": "attention, first layer, mean of heads",
    "picked": "one head, selected on other sentences",
    "rollout": "rollout",
    "flow": "flow",
    "norm": "norm of the added vectors, last layer",
    "gradxattention": "gradient × attention",
    "gradxinput": "gradient × input",
    "integrated": "integrated gradients",
    "occlusion": "occlusion: words masked in turn",
    "diagonal": "the diagonal, which ignores the words",
    "random": "chance",
}
BETTER = ("rollout", "norm", "gradxinput")
"""Types of maps that are claimed to be more precise than raw attention. Each has a verdict of its
own."""

CLAUSES = 3
"""Number of clauses per sentence. With one clause, attention in the last layer is correct for 97 to
100 % of the words, so no map could be more precise."""

MARGIN = 0.02
"""Distance from the limits of the precision scale within which a map counts as at the limit. It is
about three standard errors near 1 with 500 words."""

OTHERS = {
    "tatoeba-de-en": "names and numbers, German to English",
    "shapes": "objects in images, by the words of a caption",
    "digits": "digits in recordings, by the time they are spoken",
}
"""Included models whose maps were measured in the same way, with the source of their ground
truth."""


class MapsExperiment(Experiment):
    hypothesis = (
        "Raw attention is misleading: the mean attention of the last layer points at the wrong "
        "word more often than each of three maps that also consider how the model uses attention "
        "(rollout, norms of the added vectors, gradient × input)."
    )
    method = (
        "A small translator is trained on an artificial language. Its translation rules reorder, "
        "merge and split words, so the source of every target word is known. For each target "
        "word of unseen sentences, a map assigns a weight to every source word. Precision is the "
        "proportion of target words for which the source word with the largest weight is correct.",
        "The best single head is selected on half of the sentences and evaluated on the other "
        "half.",
    )
    control = (
        "Random maps, shuffled maps and a head selected in an untrained model must be no "
        "more precise than chance. The head selected in the trained model must be far above chance."
    )
    literature = (
        Citation("Kobayashi et al. 2020", "Norms of the weighted vectors align words better than "
                 "the attention weights alone.", part="norm"),
        Citation("Abnar, Zuidema 2020", "Attention traced through all layers agrees better with "
                 "ablation than raw attention does.", part="agreement"),
        Citation("Jain, Wallace 2019", "Attention weights often do not correlate with gradients, "
                 "and can be changed without changing the output.", "differs"),
    )  # fmt: skip
    pieces = (2, 2)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        bed = datasets.make_pairs(partial(datasets.grammar, clauses=CLAUSES),
                       bench.choose(3000, 12000), bench.choose(60, 400), bench.seed)  # fmt: skip
        train, valid = bed.columns()
        run = bench.train(
            "translator", "translate", train, valid=valid,
            settings={
                "model.block_layout": "pre", "train.lr": 6e-3, "train.warmup": 30,
                "model.d_model": bench.choose(48, 128), "model.d_ff": bench.choose(96, 256),
                "model.n_layers": bench.choose(2, 4), "train.steps": bench.choose(600, 2500),
                "train.batch_tokens": bench.choose(768, 1024), "decode.beam": 1,
            },
        )  # fmt: skip
        few = bench.choose(10, 80)
        found = bench.cached(
            "maps", lambda: measure_run(run.opened.inspection_copy(), bed.valid, few, bench.seed)
        )
        return {"loss": run.scores["loss"], "bleu": run.scores["bleu"], **found,
                "others": other_models()}  # fmt: skip

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        chance = mean(found, "chance")
        scale = Bounds(low=chance, high=1.0, margin=MARGIN)

        def arm(name: str) -> Arm:
            return Arm(name=NAMED[name], scores=per_seed(found, "p1", name))

        effects = {
            name: Effect.between(arm(name), arm("last"), scale,
                                 f"precision of {NAMED[name]} minus that of attention")
            for name in BETTER
        }  # fmt: skip
        ablated = Effect.over(
            [one["agreement"]["rollout"] - one["agreement"]["last"] for one in found],
            "rank correlation with occlusion, rollout minus attention",
        )  # fmt: skip
        words = {name: effects[name].above(0.0) for name in BETTER}
        word = all_of(*words.values())
        # A single map refutes the claim, so the reported effect is that of the first decisive map.
        effect = next(effects[name] for name in BETTER if words[name] == word)
        off = max(abs(one["p1"]["random"] - one["chance"]) / one["sigma"] for one in found)
        shuffled = max(abs(one["shuffled"] - one["chance"]) / one["sigma"] for one in found)
        fresh = max(one["fresh"] / one["chance"] for one in found)
        best = min(one["p1"]["picked"] / one["chance"] for one in found)
        controls = [
            Control(name="random weights are at chance", passed=off < 3.0,
                    said=f"the precision of a random map is at most {off:.1f} standard errors "
                    "from chance."),
            Control(name="shuffled attention is at chance", passed=shuffled < 3.0,
                    said="with shuffled columns, the precision of the selected head is at most "
                    f"{shuffled:.1f} standard errors from chance."),
            Control(name="an untrained model is at chance", passed=fresh < 2.0,
                    said="the precision of the head selected in a model with random weights is "
                    f"at most {fresh:.1f} times chance."),
            Control(name="trained attention contains the alignment", passed=best > 3.0,
                    said="the precision of the head selected in the trained model is at least "
                    f"{best:.1f} times chance."),
        ]  # fmt: skip
        more = [one for one in effects.values() if one is not effect]
        more.append(ablated)
        more += [
            Effect.over(per_seed(found, "p1", name), f"precision: {NAMED[name]}")
            for name in ("picked", "last", *BETTER, "occlusion")
        ]
        more.append(
            Effect.over([one["p1"]["picked"] - one["p1"]["last"] for one in found],
                        "precision of the selected head minus that of the last layer")
        )  # fmt: skip
        top = max(
            (name for name in found[0]["p1"] if name != "picked"),
            key=lambda name: mean(found, "p1", name),
        )
        answers = OutcomeSentences(
            supported="Not without care: three maps that also consider how the model uses "
            "attention point at the right word more often.",
            refuted="Raw attention is not the least reliable map: at least one of the maps that "
            "should be better points at the wrong word more often.",
            undecided="These runs do not show whether other maps point at the right word more "
            "often than raw attention.",
            numbers="Raw attention finds the correct source word for "
            f"{mean(found, 'p1', 'last'):.0%} of the target words, the best map ({NAMED[top]}) "
            f"for {mean(found, 'p1', top):.0%}, and random choice for {chance:.0%}.",
            changes="The answer may differ for another model, because the most precise head and "
            "the best map differ between models. Measure the precision of a map with `headway "
            "truth` before you rely on it.",
        )
        parts = {**words, "agreement": ablated.above(0.0)}
        return decide(word, effect, answers, controls, more, parts)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        p1 = found[0]["p1"]
        names = sorted(p1, key=lambda name: -mean(found, "p1", name))
        layers, n_heads = len(found[0]["heads"]), len(found[0]["heads"][0])
        grid = [[mean(found[:1], "heads", layer, head) for head in range(n_heads)]
                for layer in range(layers)]  # fmt: skip
        return [
            BarChart(
                title="Precision of each map", most=1.0,
                hint="Share of target words whose source word with the largest weight is "
                "correct; low and high are the range over seeds.",
                bars=interval_bars([(NAMED[name], per_seed(found, "p1", name)) for name in names]),
            ),
            Heatmap(
                title="Precision of single heads",
                values=grid, low=0.0, high=1.0, label="precision",
                rows=[f"layer {layer + 1}" for layer in range(layers)],
                columns=[f"head {head + 1}" for head in range(n_heads)],
                hint="Cross-attention of the first seed's model. Which heads are precise differs "
                "between trainings.",
            ),
            TableFigure(
                title="Agreement with occlusion", columns=["map", "rank correlation", "precision"],
                hint="Mean correlation with the loss in probability when a word is masked. A map "
                "that agrees with another one is not necessarily right.",
                rows=[[NAMED[name], mean(found, "agreement", name), mean(found, "p1", name)]
                      for name in found[0]["agreement"]],
            ),
            TableFigure(
                title="The same for included models",
                columns=["model", "truth", "last layer", "selected head", "rollout", "norm",
                         "chance"],
                hint="Measured by `headway truth` when the models were trained.",
                rows=found[0]["others"],
            ),
        ]  # fmt: skip


EXPERIMENT = MapsExperiment()


def measure_run(
    run: LoadedRun, known: Sequence[AlignedPair], few: int, seed: int
) -> dict[str, Any]:  # fmt: skip
    """Measure the precision of every map, of heads in an untrained model, and of the best head with
    shuffled columns."""
    cases = alignment_cases(run, known)
    methods = ("heads", "mean", "rollout", "norm", "flow", "gradients", "integrated", "occlusion")
    found = measure_accuracy(run, cases, methods, few=few)
    plain = measure_accuracy(with_fresh_weights(run), cases, ("heads",))
    assert found.best is not None
    assert plain.best is not None
    draws = torch.Generator().manual_seed(seed)
    name = found.best.name
    mixed = measure_accuracy(run, cases, maker=lambda run, case: [shuffled(run, case, name, draws)])
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


def by_name(found: MapAccuracy, n_layers: int) -> dict[str, float]:
    assert found.best is not None
    layers = {"last": f"cross.{n_layers - 1}.mean", "first": "cross.0.mean",
              "norm": f"cross.{n_layers - 1}.norm"}  # fmt: skip
    rest = ("rollout", "flow", "gradxattention", "gradxinput", "integrated", "occlusion",
            "diagonal", "random")  # fmt: skip
    p1 = {name: found.maps[layers.get(name, name)].p1 for name in (*layers, *rest)}
    return {"picked": found.best.p1, **p1}


def shuffled(run: LoadedRun, case: Case, name: str, draws: torch.Generator) -> Map:
    """Return the map of a head, with the columns shuffled separately in each row."""
    [map_] = [one for one in maps.make(run, trace(run, case.reading), ["heads"])
              if one.name == name]  # fmt: skip
    weights_RS = map_.weights_RS
    places = [place for places in case.columns for place in places]
    mixed_RS = weights_RS.clone()
    for row in range(len(weights_RS)):
        order = torch.randperm(len(places), generator=draws)
        mixed_RS[row, places] = weights_RS[row, torch.tensor(places)[order]]
    return replace(map_, name="shuffled", weights_RS=mixed_RS)


def agreements(run: LoadedRun, cases: Sequence[Case], n_layers: int) -> dict[str, float]:
    """Return the mean rank correlation of each type of map with occlusion, over the words of the
    source."""
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


def other_models() -> list[list[Any]]:
    """Return table rows with the stored precisions for the included models."""
    rows = []
    for name, what in OTHERS.items():
        truth = MapAccuracy.load(run_folders([name])[0] / "truth.json")
        last = max(one for one in truth.maps if one.startswith("cross.") and one.endswith(".mean"))
        norm = last.replace(".mean", ".norm")
        picked = None if truth.best is None else truth.best.p1
        rows.append([name, what, truth.maps[last].p1, picked, truth.maps["rollout"].p1,
                     truth.maps[norm].p1, truth.chance])  # fmt: skip
    return rows
