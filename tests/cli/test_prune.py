"""`headway prune`: a smaller run that works like any other, and clear words for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headway.cli.main import main
from headway.inside.capture.forward import say
from headway.inside.capture.reading import read
from headway.inside.measure.pruning import prune_heads
from headway.inside.measure.pruning_curve import load_found
from headway.models.summary import count
from headway.settings.folder import load_run
from headway.tasks.opened import open_plain

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
    said = capsys.readouterr()
    for word in ("parameters", "heads", "loss", "BLEU", "prediction", "forward", "heads out:"):
        assert word in said.out
    assert "importance of the heads from 4 texts" in said.err
    before, after = open_plain(run), open_plain(out)
    assert after.shape.n_kept_heads == 12 - 5
    head = 4 * before.shape.d_model * before.shape.head_width
    assert count(before.model) - count(after.model) == 5 * head
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
    assert say(small, reading).scores_RC.isfinite().all()


def test_heads_of_one_kind_alone(run: Path) -> None:
    out = run.parent / "small"
    given = ["--heads", "2", "--kind", "cross", "--importance-from", str(run.parent / "a.txt")]
    assert main(["prune", str(run), "--out", str(out), *given]) == 0
    kept = load_run(out).model.kept_heads  # type: ignore[union-attr]
    assert kept.encoder is None
    assert kept.decoder is None
    assert [len(heads) for heads in kept.cross] == [2]


def test_a_pruned_run_predicts_is_looked_at_and_trains_on(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, more = run.parent / "small", run.parent / "more"
    assert main(["prune", str(run), "--heads", "cross 1.1", "--out", str(out)]) == 0
    assert "heads out: cross 1.1\n" in capsys.readouterr().out
    assert main(["predict", str(out), str(run.parent / "a.txt")]) == 0
    assert main(["evaluate", str(out), *test_set(run)]) == 0
    capsys.readouterr()
    assert main(["info", str(out)]) == 0
    assert "11 of 12 are left" in capsys.readouterr().out
    command = ["train", "translate", "--from", str(out), "--out", str(more), *test_set(run)]
    assert main([*command, "train.steps=2", "train.eval_every=2", "data.valid_size=1"]) == 0
    assert load_run(more).model.kept_heads == load_run(out).model.kept_heads  # type: ignore[union-attr]
    assert main(["average", str(more), "--last", "1"]) == 0
    assert open_plain(more).shape.n_kept_heads == 11


def test_the_curve_is_measured_and_kept_for_later(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", str(run), "--curve", *test_set(run)]) == 0
    said = capsys.readouterr()
    assert "heads out" in said.out
    assert "kept for `headway look`" in said.err
    found = load_found(run)
    assert found is not None
    assert found[1] is not None
    assert {(p.order, p.kind) for p in found[1].points} == {
        ("importance", "all"), ("importance", "encoder"), ("importance", "decoder"),
        ("importance", "cross"), ("random", "all"),
    }  # fmt: skip


BAD = [
    (["--heads", "0%"], "takes none of the 12 heads out"),
    (["--heads", "0"], "takes none of the 12 heads out"),
    (["--heads", "1%"], "takes none of the 12 heads out"),
    (["--heads", "-3"], "takes none of the 12 heads out"),
    (["--heads", "100%"], "12 of the 12 heads out, but every attention keeps at least one: 9 can"),
    (["--heads", "10"], "9 can go, which is 75 %"),
    (["--heads", "999999999999"], "9 can go"),
    (["--heads", "nan%"], "is no share"),
    (["--heads", "inf%"], "is no share"),
    (["--heads", "some"], "is no share (40%), no number (12), and no list"),
    (["--heads", "cross.1.9"], "no head 9 in layer 1 of cross attention. That layer has heads 1"),
    (["--heads", "cross.5.1"], "no head 1 in layer 5 of cross attention. It has layers 1 to 1"),
    (["--heads", "self.1.1"], "kinds of attention are encoder, decoder, cross"),
    (["--heads", "cross.1"], "--heads 'cross.1' names no head"),
    (["--heads", "cross.1.x"], "'cross.1.x' counts from 1, and 'x' is no such number"),
    (["--heads", "cross.0.1"], "'cross.0.1' counts from 1, and '0' is no such number"),
    (["--heads", "cross.1.1,cross.1.2,cross.1.3,cross.1.4"], "no head of cross layer 1 would be"),
    (["--heads", "50%", "--kind", "self"], "has the attention encoder, decoder, cross"),
    (["--heads", "4", "--kind", "cross"], "3 can go, which is 75 %"),
    (["--heads", "cross.1.1", "--kind", "cross"], "has no effect where --heads names"),
    (["--heads", "40%"], "keeps no data to judge heads by: give FILES, or --source FILE --targ"),
    (["--heads", "40%", "--text", "x"], "--text has no effect on a run of the task translate"),
]


@pytest.mark.parametrize(("given", "said"), BAD)
def test_what_cannot_be_pruned_is_said_in_one_line(
    given: list[str], said: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", str(run), *given, "--out", str(run.parent / "small")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not (run.parent / "small").exists()


def test_other_mistakes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, said in (
        ([], "say how many heads shall go"),
        (["--heads", "40%"], "go together"),
        (["--out", "x"], "say how many"),
        (["--curve"], "--curve needs a test set"),
        (["--heads", "cross.1.1", "--out", str(run)], "is not empty"),
        (["--heads", "cross.1.1", "--out", str(run.parent / "a.txt")], "is a file"),
    ):
        assert main(["prune", str(run), *given]) == 2
        assert said in capsys.readouterr().err
    assert main(["prune", str(run.parent / "none"), "--heads", "2", "--out", "x"]) == 2
