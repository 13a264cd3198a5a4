"""`headway prune`: a smaller run that works like any other, and mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from headway.cli.main import main
from headway.inside.capture.forward import run_reading
from headway.inside.capture.reading import read
from headway.inside.measure.pruning import prune_heads
from headway.inside.measure.pruning_curve import load_head_analysis
from headway.models.summary import count_parameters
from headway.settings.folder import load_run
from headway.tasks.loaded_run import open_plain
from tests.facts import figures, missing

from ..interop.padded_runs import tiny_run

PAIRS = [("ba de", "go"), ("fi ko ga", "ba ba de"), ("de de ba", "mo pu"), ("ka ke", "ki ko da")]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A translator of 12 heads, and a test set beside it."""
    (tmp_path / "a.txt").write_text("".join(f"{a}\n" for a, _ in PAIRS))
    (tmp_path / "b.txt").write_text("".join(f"{b}\n" for _, b in PAIRS))
    return tiny_run(tmp_path / "run", "translate", "as-published")


def test_set(run: Path) -> list[str]:
    return ["--source", str(run.parent / "a.txt"), "--target", str(run.parent / "b.txt")]


test_set.__test__ = False  # type: ignore[attr-defined]


def test_a_share_of_the_heads_goes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run.parent / "small"
    assert main(["prune", str(run), "--heads", "40%", "--out", str(out), *test_set(run)]) == 0
    printed = capsys.readouterr()
    names = {line.split()[0] for line in printed.out.splitlines() if line[:1].isalpha()}
    assert {"parameters", "heads", "loss", "BLEU", "prediction", "forward"} <= names
    assert len(re.findall(r"(?:cross|encoder|decoder) \d\.\d", printed.out)) == 5
    assert figures(printed.err.splitlines()[0]) == ["4"]
    before, after = open_plain(run), open_plain(out)
    assert after.shape.n_kept_heads == 12 - 5
    head = 4 * before.shape.d_model * before.shape.head_width
    assert count_parameters(before.model) - count_parameters(after.model) == 5 * head
    assert {path.name for path in out.iterdir()} == {
        "config.toml", "model.safetensors", "tokenizer.json",
    }  # fmt: skip


def test_named_heads_go_without_any_data(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run.parent / "small"
    command = ["prune", str(run), "--heads", "cross.1.4,encoder.1.2", "--out", str(out), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["heads"] == ["cross.0.3", "encoder.0.1"]  # data counts from 0
    assert [line["name"] for line in found["lines"]] == ["parameters", "heads", "bytes"]
    whole, small = open_plain(run), open_plain(out)
    want = prune_heads(whole.model, whole.shape, [("cross", 0, 3), ("encoder", 0, 1)])
    for name, weight in small.model.state_dict().items():
        assert torch.equal(weight, want.state_dict()[name])
    reading = read(small, "ba de go")
    assert run_reading(small, reading).scores_RC.isfinite().all()


def test_heads_of_one_kind_alone(run: Path) -> None:
    out = run.parent / "small"
    given = ["--heads", "2", "--kind", "cross", "--importance-from", str(run.parent / "a.txt")]
    assert main(["prune", str(run), "--out", str(out), *given]) == 0
    kept = load_run(out).model.kept_heads  # type: ignore[union-attr]
    assert kept.encoder is None
    assert kept.decoder is None
    assert [len(heads) for heads in kept.cross] == [2]


def test_a_translator_that_was_trained_on_pairs_takes_texts_for_importance(tmp_path: Path) -> None:
    texts = tmp_path / "a.tsv"
    texts.write_text("Er fährt.\tHe drives.\nEin Hund schläft.\tA dog sleeps.\n")
    given = ["--heads", "2", "--importance-from", str(texts), "--out", str(tmp_path / "small")]
    assert main(["prune", "tatoeba-de-en", *given]) == 0
    assert load_run(tmp_path / "small").model.kept_heads is not None  # type: ignore[union-attr]


def test_a_pruned_run_predicts_is_looked_at_and_trains_on(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, more = run.parent / "small", run.parent / "more"
    assert main(["prune", str(run), "--heads", "cross 1.1", "--out", str(out)]) == 0
    assert capsys.readouterr().out.endswith(" cross 1.1\n")
    assert main(["predict", str(out), str(run.parent / "a.txt")]) == 0
    assert main(["evaluate", str(out), *test_set(run)]) == 0
    capsys.readouterr()
    assert main(["info", str(out)]) == 0
    [heads] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("heads ")]
    assert figures(heads)[-2:] == ["11", "12"]
    command = ["train", "translate", "--from", str(out), "--out", str(more), *test_set(run)]
    assert main([*command, "train.steps=2", "train.eval_every=2", "data.valid_size=1"]) == 0
    assert load_run(more).model.kept_heads == load_run(out).model.kept_heads  # type: ignore[union-attr]
    assert main(["average", str(more), "--last", "1"]) == 0
    assert open_plain(more).shape.n_kept_heads == 11


def test_the_curve_is_measured_and_kept_for_later(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", str(run), "--curve", *test_set(run)]) == 0
    printed = capsys.readouterr()
    assert not missing(printed.out, "importance random cross 75% 9")
    assert str(run / "heads.json") in printed.err
    found = load_head_analysis(run)
    assert found is not None
    assert found[1] is not None
    assert {(p.order, p.kind) for p in found[1].points} == {
        ("importance", "all"), ("importance", "encoder"), ("importance", "decoder"),
        ("importance", "cross"), ("random", "all"),
    }  # fmt: skip


BAD = [
    (["--heads", "0%"], "`--heads 0%` 12"),
    (["--heads", "0"], "`--heads 0` 12"),
    (["--heads", "1%"], "`--heads 1%` 12"),
    (["--heads", "-3"], "`--heads -3` 12"),
    (["--heads", "100%"], "--heads 100% 12 9 75"),
    (["--heads", "10"], "--heads 10 12 9 75"),
    (["--heads", "999999999999"], "--heads 999999999999 12 9 75"),
    (["--heads", "nan%"], "--heads 'nan%' 40% 12"),
    (["--heads", "inf%"], "--heads 'inf%' 40% 12"),
    (["--heads", "some"], "--heads 'some' 40% 12 cross.2.4,encoder.1.1"),
    (["--heads", "cross.1.9"], "9 1 cross 4"),
    (["--heads", "cross.5.1"], "1 5 cross"),
    (["--heads", "self.1.1"], "1 self encoder decoder cross"),
    (["--heads", "cross.1"], "--heads 'cross.1' kind.layer.head"),
    (["--heads", "cross.1.x"], "'cross.1.x' 'x' 1"),
    (["--heads", "cross.0.1"], "'cross.0.1' '0' 1"),
    (["--heads", "cross.1.1,cross.1.2,cross.1.3,cross.1.4"], "cross 1"),
    (["--heads", "50%", "--kind", "self"], "`--kind self` encoder decoder cross"),
    (["--heads", "4", "--kind", "cross"], "--heads 4 cross 3 75"),
    (["--heads", "cross.1.1", "--kind", "cross"], "--kind --heads"),
    (["--heads", "40%"], "FILES --source --target --importance-from"),
    (["--heads", "40%", "--text", "x"], "--text translate"),
]


@pytest.mark.parametrize(("given", "facts"), BAD)
def test_heads_that_cannot_be_pruned_are_an_error(
    given: list[str], facts: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", str(run), *given, "--out", str(run.parent / "small")]) == 2
    error = capsys.readouterr().err
    assert not missing(error, facts)
    assert "Traceback" not in error
    assert not (run.parent / "small").exists()


def test_other_mistakes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, facts in (
        ([], "--heads 40% --curve"),
        (["--heads", "40%"], "--heads --out"),
        (["--out", "x"], "--heads 40% --curve"),
        (["--curve"], "--curve FILES --source --target"),
        (["--heads", "cross.1.1", "--out", str(run)], f"--out {run}"),
        (["--heads", "cross.1.1", "--out", str(run.parent / "a.txt")], f"--out {run.parent}/a.txt"),
    ):
        assert main(["prune", str(run), *given]) == 2
        assert not missing(capsys.readouterr().err, facts)
    assert main(["prune", str(run.parent / "none"), "--heads", "2", "--out", "x"]) == 2
