"""`headway lab`: an experiment from its question to a folder with a verdict, also when it is
stopped, short of time or data, or asked for wrongly."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headway.cli.main import main
from headway.errors import ConfigError, DataError, FolderError, Stopped, UserError
from headway.lab import catalogue, datasets
from headway.lab.catalogue import EXPERIMENTS, ExperimentEntry, find
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, per_seed
from headway.lab.figures import BarChart, Figure, Heatmap, LineChart, TableFigure
from headway.lab.runner import Result, machine, run_experiment
from headway.lab.verdict import (
    Control,
    Effect,
    OutcomeSentences,
    Verdict,
    decide,
    smallest_detectable,
)
from headway.lab.workspace import OutOfTime, Workspace
from headway.web.pack import unpack

ENTRY = ExperimentEntry(name="planted", number=1, question="Is it so?", quick=0.1, full=60,
on_gpu=5,
              data="a text file")  # fmt: skip
OTHER = ExperimentEntry(name="other", number=2, question="And this?", quick=0.1, full=0.2)


class Planted(Experiment):
    """Measures what it was told to; may train a model so small that it takes no time."""

    hypothesis, method, control = "It is so.", ("We looked.",), "It could be otherwise."
    literature = (Citation("A. Body 2020", "It is so."),)
    pieces = (2, 2)

    def __init__(self) -> None:
        self.truth = 1.0
        self.measured: list[int] = []
        self.trains = False
        self.fails_at: int | None = None

    def measure(self, bench: Workspace) -> SeedMeasurements:
        if bench.data is not None:
            bench.lines(bench.data, 100, "lines")
        first = bench.cached("first", lambda: self._look(bench))
        if self.fails_at == bench.seed:
            raise Stopped
        return {"gap": first, "second": bench.cached("second", lambda: bench.seed)}

    def _look(self, bench: Workspace) -> float:
        self.measured.append(bench.seed)
        return self.truth + 0.01 * bench.seed

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        effect = Effect.over(per_seed(found, "gap"), "gap", "nats")
        control = Control(name="sane", passed=True, said="it was.")
        answers = OutcomeSentences(supported="It is so.", refuted="It is not so.")
        return decide(effect.above(0.5), effect, answers, [control])

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        return [
            LineChart(title="L", hint="h", series=[("a", [(1.0, 2.0), (2.0, None)])], x="x", y="y"),
            BarChart(title="B", hint="h", bars=[("a", 1.0, 0.5, 1.5)]),
            TableFigure(title="T", hint="h", columns=["a"], rows=[["b"]]),
            Heatmap(title="H", hint="h", values=[[0.0, 1.0]], rows=["r"], columns=["c", "d"]),
        ]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    experiment = Planted()
    for name in ("planted", "other"):
        module = ModuleType(f"headway.lab.{name}")
        module.EXPERIMENT = experiment  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {"planted": ENTRY, "other": OTHER})
    monkeypatch.setattr("headway.cli.lab.EXPERIMENTS", {"planted": ENTRY, "other": OTHER})
    return experiment


def conduct(out: Path, **more: Any) -> Result:
    return run_experiment("planted", out, quiet=True, **{"seeds": 3, **more})


def test_small_effects_get_five_seeds(planted: Planted, tmp_path: Path) -> None:
    facts = run_experiment("planted", tmp_path / "x", quiet=True).facts
    assert facts["seeds"] == facts["effect"]["seeds"] == 5
    assert facts["effect"]["detectable"] == pytest.approx(
        smallest_detectable(5) * facts["effect"]["spread"]
    )


def test_it_leaves_a_verdict_the_numbers_and_a_page(planted: Planted, tmp_path: Path) -> None:
    result = conduct(tmp_path / "x")
    assert (result.verdict, result.answer) == ("supported", result.facts["answer"])
    facts = json.loads((tmp_path / "x" / "verdict.json").read_text())
    assert facts["effect"]["seeds"] == 3
    assert facts["effect"]["spread"] == pytest.approx(0.01)
    assert {"machine", "versions", "date", "size", "literature", "minutes"} <= set(facts)
    numbers = json.loads((tmp_path / "x" / "numbers.json").read_text())
    assert [one["gap"] for one in numbers["seeds"]] == [1.0, 1.01, 1.02]
    assert facts["literature"] == [["A. Body 2020", "It is so.", "agrees"]]
    page = unpack(result.page.read_text())
    section = page["looks"][0]["sections"]["lab"]
    assert [one["kind"] for one in section["figures"]] == ["lines", "bars", "table", "heatmap"]
    assert (section["answer"], section["measured"]) == (result.answer, result.measured)
    assert "://" not in result.page.read_text()


@pytest.mark.parametrize(("truth", "verdict"), [(1.0, "supported"), (0.0, "refuted")])
def test_the_verdict_follows_the_planted_truth(
    planted: Planted, tmp_path: Path, truth: float, verdict: str
) -> None:
    planted.truth = truth
    result = conduct(tmp_path / "x")
    assert result.verdict == verdict
    stance = "agrees" if verdict == "supported" else "disagrees"
    assert [one[2] for one in result.facts["literature"]] == [stance]


def test_a_stopped_experiment_resumes_and_more_seeds_are_added(
    planted: Planted, tmp_path: Path
) -> None:
    planted.fails_at = 1
    with pytest.raises(Stopped):
        conduct(tmp_path / "x")
    assert planted.measured == [0, 1]
    planted.fails_at = None
    conduct(tmp_path / "x")
    assert planted.measured == [0, 1, 2]
    assert conduct(tmp_path / "x", seeds=4).facts["seeds"] == 4
    assert planted.measured == [0, 1, 2, 3]


def test_seeds_that_were_measured_in_folders_of_their_own_are_put_together(
    planted: Planted, tmp_path: Path
) -> None:
    for seed in (7, 8, 9):
        conduct(tmp_path / str(seed), seeds=1, first_seed=seed)
    whole = tmp_path / "whole"
    for seed in (7, 8, 9):
        shutil.copytree(tmp_path / str(seed), whole, dirs_exist_ok=True)
    facts = conduct(whole, first_seed=7).facts
    assert planted.measured == [6, 7, 8]
    assert (facts["seeds"], facts["verdict"]) == (3, "supported")
    assert facts["effect"]["value"] == pytest.approx(1.07)


def test_a_doubt_is_repeated_when_the_experiment_runs_again(
    planted: Planted, tmp_path: Path
) -> None:
    text = tmp_path / "few.txt"
    text.write_text("a\nb\n")
    for _ in range(2):
        few = conduct(tmp_path / "x", data=text)
        assert few.verdict == "undecided"
        assert re.search(r"few\.txt\D*\b2\b", few.measured)


def test_fresh_seeds_begin_at_the_first_seed(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conduct(tmp_path / "lab" / "planted")
    facts = conduct(tmp_path / "lab" / "planted", first_seed=7).facts
    assert planted.measured == [0, 1, 2, 6, 7, 8]
    assert (facts["seeds"], facts["first_seed"]) == (3, 7)
    assert facts["effect"]["value"] == pytest.approx(1.07)
    # Those of a folder that were measured are kept, and others are not taken for them.
    again = ["lab", "--all", "--seeds", "3", "--out", str(tmp_path / "lab"), "--json"]
    assert main(again) == 0
    assert planted.measured == [0, 1, 2, 6, 7, 8, 0, 1, 2]
    assert conduct(tmp_path / "lab" / "planted").facts["effect"]["value"] == pytest.approx(1.01)
    assert main([*again, "--first-seed", "7"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[0]["effect"]["value"] > 1.06
    with pytest.raises(ConfigError, match="first_seed=0"):
        conduct(tmp_path / "y", first_seed=0)


def test_the_machine_has_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.data.workers.cores", lambda: 1)
    assert machine("cpu").startswith("1 core, ")


def test_too_little_time_or_data_is_undecided_with_a_reason(
    planted: Planted, tmp_path: Path
) -> None:
    none = conduct(tmp_path / "time", budget_s=0.0)
    assert none.verdict == "undecided"
    assert re.search(r"\b0s\D*\b0\b\D*\b3\b", none.measured)
    assert none.page.is_file()
    assert conduct(tmp_path / "time").verdict == "supported"  # the same goes on
    text = tmp_path / "few.txt"
    text.write_text("a\nb\n")
    few = conduct(tmp_path / "data", data=text)
    assert few.verdict == "undecided"
    assert re.search(r"few\.txt\D*\b2\b\D*\b100\b", few.measured)
    one = conduct(tmp_path / "one", seeds=1)
    assert (one.verdict, one.facts["literature"][0][2]) == ("undecided", "open")


def test_when_time_is_over_the_seeds_that_were_measured_are_judged(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = {0: 0.0, 1: 0.0, 2: 99.0}  # time is over when the third seed begins
    monkeypatch.setattr(Workspace, "_check_deadline", lambda bench: _in_time(ticks[bench.seed]))
    two = conduct(tmp_path / "x", budget_s=60.0)
    assert (two.verdict, two.facts["seeds"], two.facts["doubts"]) == ("supported", 2, [])
    assert re.search(r"\b1m 00s\D*\b2\b\D*\b3\b", two.measured)
    ticks[1] = 99.0
    one = conduct(tmp_path / "y", budget_s=60.0)
    assert one.verdict == "undecided"
    assert "--seeds" in one.measured
    assert re.search(r"\b1m 00s\D*\b1\b\D*\b3\b", one.measured)


def _in_time(now: float) -> None:
    if now > 60:
        raise OutOfTime


def test_fewer_seeds_than_are_there_do_not_take_a_verdict_back(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conduct(tmp_path / "x", seeds=4)
    assert main(["lab", "planted", "--seeds", "1", "--out", str(tmp_path / "x")]) == 0
    shown = capsys.readouterr()
    assert "supported" in shown.out
    assert re.search(r"\bquick\b.*\b4 seeds\b", shown.out)
    assert re.search(r"\b4 seeds\b", shown.err)
    assert main(["lab", "planted", "--seeds", "1", "--out", str(tmp_path / "y")]) == 0
    assert re.search(r"\bquick\b.*\b1 seed\b", capsys.readouterr().out)


def test_a_folder_in_which_nothing_was_measured_is_free(planted: Planted, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="/folder"):  # a text file was meant
        conduct(tmp_path / "x", data=tmp_path / "folder")
    text = tmp_path / "t.txt"
    text.write_text("a\n" * 100)
    assert conduct(tmp_path / "x", data=text).verdict == "supported"
    with pytest.raises(FolderError, match=r"(?=.*--out)(?=.*/t\.txt)"):
        conduct(tmp_path / "x")


def test_one_that_fails_does_not_end_the_others(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def broken(bench: Workspace) -> SeedMeasurements:
        raise ValueError("no such luck")

    module = ModuleType("headway.lab.planted")
    module.EXPERIMENT = Planted()  # type: ignore[attr-defined]
    monkeypatch.setattr(module.EXPERIMENT, "measure", broken)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert main(["lab", "--all", "--out", str(tmp_path / "lab"), "--json"]) == 2
    printed = capsys.readouterr()
    assert [one.get("verdict") for one in json.loads(printed.out)] == [None, "supported"]
    assert re.search(r"\b1\b.*\b2\b.*\bplanted\b.*no such luck", printed.err)


def test_a_folder_of_something_else_is_an_error(planted: Planted, tmp_path: Path) -> None:
    conduct(tmp_path / "x", seeds=1)
    with pytest.raises(FolderError, match=r"'planted'.*'other'"):
        run_experiment("other", tmp_path / "x", quiet=True)
    with pytest.raises(FolderError, match=r"\bquick\b.*\bfull\b"):
        conduct(tmp_path / "x", full=True)
    (tmp_path / "t.txt").write_text("a")
    with pytest.raises(FolderError, match=r"(?=.*--out)(?=.*/t\.txt)"):
        conduct(tmp_path / "x", data=tmp_path / "t.txt")
    with pytest.raises(FolderError, match=rf"{re.escape(str(tmp_path))} .*--out"):
        conduct(tmp_path)
    with pytest.raises(FolderError, match=r"/t\.txt .*--out"):
        conduct(tmp_path / "t.txt")
    with pytest.raises(UserError, match=r"'other'.*--data"):
        run_experiment("other", tmp_path / "y", data=tmp_path / "t.txt")
    with pytest.raises(FolderError, match=r"--data \S*/nowhere\b"):
        conduct(tmp_path / "y", data=tmp_path / "nowhere")


def test_what_was_kept_and_is_damaged_is_named(planted: Planted, tmp_path: Path) -> None:
    conduct(tmp_path / "x", seeds=1)
    seed = tmp_path / "x" / "seed-1"
    (seed / "seed.json").write_text("{")
    with pytest.raises(FolderError, match=r"/seed\.json"):
        conduct(tmp_path / "x", seeds=1)
    (seed / "seed.json").unlink()
    (seed / "measured" / "first.json").write_text("{")
    with pytest.raises(FolderError, match=r"/first\.json"):
        conduct(tmp_path / "x", seeds=1)


@pytest.mark.parametrize(
    ("word", "name"), [("planted", "planted"), ("1", "planted"), ("E2", "other"), ("e1", "planted")]
)
def test_experiments_are_found_by_name_and_number(planted: Planted, word: str, name: str) -> None:
    assert find(word).name == name


def test_an_unknown_one_is_answered_with_the_nearest(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "plantd"]) == 2
    printed = capsys.readouterr().err
    assert re.search("'plantd'.*'planted'", printed)
    assert main(["lab", "99"]) == 2
    assert re.search(r"'99'.*\b1\b.*\b2\b", capsys.readouterr().err)


def test_the_command_lists_runs_and_makes_an_index(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["lab"]) == 0
    listed = capsys.readouterr().out
    assert "Is it so?" in listed
    assert "1h 00m" in listed
    assert main(["lab", "planted"]) == 0
    shown = capsys.readouterr()
    assert re.search(r"\bsupported\b.*It is so\.\n.*\b1\.02 nats", shown.out)
    assert (tmp_path / "lab" / "planted" / "lab.html").is_file()
    measured = len(planted.measured)
    assert main(["lab", "--all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in found] == ["supported", "supported"]
    assert len(planted.measured) == measured + 5  # what has a verdict is not done again
    rows = unpack((tmp_path / "lab" / "index.html").read_text())["looks"][0]["sections"]["labindex"]
    assert [row["page"] for row in rows["rows"]] == ["planted/lab.html", "other/lab.html"]
    assert main(["lab"]) == 0
    assert capsys.readouterr().out.count("supported") == 2
    assert main(["lab", "planted", "--all"]) == 2
    assert main(["lab", "--all", "--data", "x"]) == 2


def test_ctrl_c_prints_how_to_resume(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted.fails_at = 1
    assert main(["lab", "planted", "--out", str(tmp_path / "x")]) == 130
    assert "lab planted" in capsys.readouterr().err
    planted.fails_at = None
    assert main(["lab", "planted", "--out", str(tmp_path / "x")]) == 0
    assert planted.measured == [0, 1, 2, 3, 4]


def test_full_without_a_gpu_prints_how_long_it_takes_and_continues(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "1", "--full", "--device", "cpu", "--out", str(tmp_path / "x")]) == 0
    printed = capsys.readouterr().err
    assert re.search("planted --full.*1h 00m.*5m 00s", printed)
    assert main(["lab", "2", "--full", "--device", "cpu", "--out", str(tmp_path / "y")]) == 0
    printed = capsys.readouterr().err
    assert re.search("other --full.*12s", printed)
    assert "5m 00s" not in printed  # a GPU does not help


@pytest.mark.parametrize(
    ("word", "near"),
    [("position", ["shift", "frequencies", "concatenate", "slow-tail", "order"]),
     ("residual", ["residuals"]), ("overfiting", ["overfitting"]), ("bert", []), ("at", [])],
)  # fmt: skip
def test_nearest_are_words_of_a_question_before_names_that_look_alike(
    word: str, near: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        find(word)
    assert re.findall(r"'([\w-]+)'", str(error.value)) == [word, *near]


def test_every_experiment_is_there_and_complete() -> None:
    numbers = [entry.number for entry in EXPERIMENTS.values()]
    assert numbers == sorted(set(numbers))
    for entry in EXPERIMENTS.values():
        experiment = entry.load()
        assert experiment.hypothesis.endswith(".")
        assert experiment.control.endswith(".")
        assert experiment.method
        assert experiment.literature
        assert entry.question.endswith("?")
        assert min(experiment.pieces) >= 1


def test_a_custom_text_must_be_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("a short line\n" * 100)
    bench = Workspace(folder=tmp_path, seed=0, quick=True, data=path)
    assert bench.text(lambda: "usual").startswith("a short line")
    [doubt] = bench.doubts
    assert re.search(r"mine\.txt.*\b1,299\b.*\b100,000\b", doubt)
    assert Workspace(folder=tmp_path, seed=0, quick=True).text(lambda: "usual") == "usual"
    with pytest.raises(DataError, match=r"\b5\b.*\b800\b"):
        datasets.speeches(10, 1, size=400, text="short")
    with pytest.raises(DataError, match="/nowhere"):
        bench.lines(tmp_path / "nowhere", 1, "lines")


def test_a_training_of_the_bench_resumes_and_is_opened_when_done(tmp_path: Path) -> None:
    texts = {"text": [f"the {a} sat by the {b} door" for a in "abcdefg" for b in "hijklm"]}
    settings = {
        "model.d_model": 8, "model.n_heads": 1, "model.d_ff": 8, "model.n_layers": 1,
        "tokenizer.kind": "characters", "complete.context": 16, "train.steps": 4,
        "train.batch_tokens": 64, "data.valid_size": 4,
    }  # fmt: skip
    bench = Workspace(folder=tmp_path, seed=0, quick=True)
    run = bench.train("a", "complete", texts, settings=settings)
    made = (run.folder / "model.safetensors").stat().st_mtime_ns
    again = bench.train("a", "complete", texts, settings=settings)
    assert (again.folder / "model.safetensors").stat().st_mtime_ns == made
    assert again.scores["loss"] == run.scores["loss"]
    assert run.settings.train.seed == 1
    # What a start brings with its weights is not said again.
    later = bench.train("b", "complete", texts, settings=settings | {"model.dropout": 0.2},
                        start=run.folder)  # fmt: skip
    assert (later.settings.model.d_model, later.settings.model.dropout) == (8, 0.2)
