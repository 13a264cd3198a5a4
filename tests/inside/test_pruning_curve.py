"""The pruning curve: scores of pruned runs as `headway evaluate` takes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import FolderError
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import examples
from headway.inside.measure import pruning_curve as compared
from headway.inside.measure.heads import heads
from headway.inside.measure.pruning import prune_heads, remaining_heads, save_pruned, select_heads
from headway.inside.measure.pruning_curve import (
    PruningCurve,
    PruningPoint,
    compare,
    curve,
    evaluate_quietly,
    load_head_analysis,
    main_score,
    mean_loss,
    measure_without,
    order_units,
    save_head_analysis,
)
from headway.models.summary import count_parameters
from headway.settings.data import DataSettings
from headway.settings.folder import load_run
from headway.tasks.loaded_run import open_plain

from ..interop.padded_runs import answers, lines_for, tiny_run

PAIRS = [("ba de", "go"), ("fi ko ga", "ba ba de"), ("de de ba", "mo pu"), ("ka ke", "ki ko da")]
GERMAN = [
    ("Ich habe Hunger.", "I'm hungry."),
    ("Das ist mein Bruder.", "This is my brother."),
    ("Wo wohnst du?", "Where do you live?"),
    ("Er kam gestern nicht.", "He didn't come yesterday."),
    ("Sie kann sehr gut singen.", "She can sing very well."),
    ("Wir müssen jetzt gehen.", "We have to go now."),
    ("Tom hat ein neues Auto gekauft.", "Tom bought a new car."),
    ("Ich weiß nicht, was ich tun soll.", "I don't know what to do."),
    ("Kannst du mir bitte helfen?", "Can you help me, please?"),
    ("Das Wetter ist heute schön.", "The weather is nice today."),
    ("Maria liest jeden Abend ein Buch.", "Mary reads a book every evening."),
    ("Der Hund schläft unter dem Tisch.", "The dog is sleeping under the table."),
]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds are measured in one round: no test asks how fast anything is."""
    monkeypatch.setattr(compared, "ROUNDS", 1)


def test_files(folder: Path, task: str) -> DataSettings:
    """Test data of a task, as `headway evaluate` takes it."""
    if task == "translate":
        (folder / "a").write_text("".join(f"{a}\n" for a, _ in PAIRS))
        (folder / "b").write_text("".join(f"{b}\n" for _, b in PAIRS))
        return DataSettings(source=(str(folder / "a"),), target=(str(folder / "b"),))
    labelled = [f"{a}\t{'O' if number % 2 else 'B-x'}\n" for number, (a, _) in enumerate(PAIRS)]
    lines = "".join(f"{a} {b} {a}\n" for a, b in PAIRS)
    forms = {
        "classify": ("t.tsv", "".join(labelled)),
        "tag": ("t.conll", "ba\tB-x\nde\tI-x\ngo\tO\n\nfi\tO\nko\tB-x\n\n"),
    }
    name, text = forms.get(task, ("t.txt", lines))
    (folder / name).write_text(text)
    return replace(load_run(folder / "run").data, text=(str(folder / name),))


test_files.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("task", ["translate", "complete", "fill", "classify", "tag", "embed"])
def test_the_curve_starts_at_the_score_of_the_run_itself(task: str, tmp_path: Path) -> None:
    run = open_plain(tiny_run(tmp_path / "run", task))
    files = test_files(tmp_path, task)
    readings = examples(run, Corpus.of_test_set(files, run))
    found = heads(run, readings)
    drawn = curve(run, files, found, shares=(0.0, 0.5), kinds=["all"], orders=("importance",))
    score = main_score(run.spec, evaluate_quietly(run.folder, files))
    assert drawn.points[0].score == score
    assert drawn.points[0].gone == 0
    half = select_heads(order_units(run.shape, found.importance()), drawn.points[1].gone, run.shape)
    assert len(half) == drawn.points[1].gone > 0
    save_pruned(run, half, tmp_path / "small", compact=False)
    found_loss = evaluate_quietly(tmp_path / "small", files).facts.get("loss")
    assert drawn.points[1].loss == found_loss
    assert found_loss is None or found_loss != drawn.points[0].loss
    lines = compare(run, run, readings, files)
    assert {line.name for line in lines} >= {"parameters", "heads", "forward", drawn.metric}
    timed = ("forward", "prediction")
    assert all(line.before == line.after for line in lines if line.name not in timed)


def test_kinds_of_a_translator_are_measured_by_themselves(tmp_path: Path) -> None:
    run = open_plain(tiny_run(tmp_path / "run", "translate", "as-published"))
    files = test_files(tmp_path, "translate")
    drawn = curve(
        run,
        files,
        heads(run, examples(run, Corpus.of_test_set(files, run))),
        shares=(0.0, 0.5, 1.0),
    )
    shown = [(p.order, p.kind, p.gone) for p in drawn.points]
    assert shown == [
        *[("importance", "all", gone) for gone in (0, 6, 9)],
        *[("importance", kind, n) for kind in ("encoder", "decoder", "cross") for n in (0, 2, 3)],
        *[("random", "all", gone) for gone in (0, 6, 9)],
    ]
    assert drawn.n_heads == 12


@pytest.mark.parametrize("task", ["translate", "complete", "fill", "classify", "tag", "embed"])
def test_a_pruned_run_is_a_run(task: str, tmp_path: Path) -> None:
    run = open_plain(tiny_run(tmp_path / "run", task, n_layers=2))
    gone = select_heads(
        order_units(run.shape, heads(run, lines_for("complete")[:2]).importance()), 2, run.shape
    )
    save_pruned(run, gone, tmp_path / "small")
    small = open_plain(tmp_path / "small")
    assert small.shape.kept_heads == remaining_heads(run.shape, gone)
    assert count_parameters(small.model) < count_parameters(run.model)
    assert len(answers(tmp_path / "small", lines_for(task))) == len(lines_for(task))
    assert load_run(tmp_path / "small").labels == run.settings.labels


def test_the_least_important_quarter_costs_less_than_the_most_important() -> None:
    """On the shipped translator, by the loss of held-out pairs."""
    run = open_plain("tatoeba-de-en")
    readings = examples(run, Corpus.of_lines([a for a, _ in GERMAN], [b for _, b in GERMAN]))
    found = heads(run, readings[:6])
    order = order_units(run.shape, found.importance())
    whole = mean_loss(run, readings[6:])
    costs = []
    for queue in (order, order[::-1]):
        small = prune_heads(run.model, run.shape, select_heads(queue, 8, run.shape))
        costs.append(mean_loss(run.with_model(small.eval()), readings[6:]) - whole)
    assert costs[0] < 0.5 < costs[1]
    assert "alignment" in found["cross.1.2"].roles


def test_measurements_are_stored_with_the_model(tmp_path: Path) -> None:
    run = open_plain(tiny_run(tmp_path / "run", "translate"))
    found = heads(run, ["ba de", "go ba"])
    drawn = PruningCurve(
        (PruningPoint("importance", "all", 0.0, 0, 31.2, None),), "BLEU", True, 12, "test.de"
    )
    assert load_head_analysis(run.folder) is None
    save_head_analysis(run.folder, found, drawn)
    assert load_head_analysis(run.folder) == (found, drawn)
    save_head_analysis(run.folder, found, None)
    assert load_head_analysis(run.folder) == (found, None)
    (run.folder / "heads.json").write_text(json.dumps({"heads": 3, "curve": None}))
    with pytest.raises(FolderError, match=r"/heads\.json"):
        load_head_analysis(run.folder)


def test_measuring_restores_the_model(tmp_path: Path) -> None:
    run = open_plain(tiny_run(tmp_path / "run", "complete"))
    files = test_files(tmp_path, "complete")
    before = sorted(path.name for path in run.folder.iterdir())
    score, loss = measure_without(run, files, [])
    assert score > 0
    assert loss is not None
    assert sorted(path.name for path in run.folder.iterdir()) == before
