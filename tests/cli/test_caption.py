"""Captions from the command line: train, predict, evaluate, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headway.cli.main import main
from tests.facts import figures, missing
from tests.training.captioned import COLOURS, scene, write_manifest, write_scenes

Output = pytest.CaptureFixture[str]

SETTINGS = [
    "tokenizer.kind=words", "model.d_model=32", "model.n_layers=1", "model.decoder.n_layers=1",
    "model.n_heads=2", "model.d_ff=64", "model.dropout=0.0", "model.image.patch=4",
    "train.batch_tokens=96", "train.steps=50", "train.eval_every=50", "train.lr=2e-2",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned which colour is left of which."""
    folder = tmp_path_factory.mktemp("caption")
    media = [str(write_scenes(folder, 120)), str(write_scenes(folder, 20, 1, "valid"))]
    words = ["train", "caption", "--media", media[0], "--valid-media", media[1]]
    assert main([*words, "--out", str(folder / "run"), "--device", "cpu", *SETTINGS]) == 0
    return folder


def write_image(path: Path, first: str, second: str) -> str:
    from PIL import Image

    Image.fromarray(scene(first, second)[0]).save(path)
    return str(path)


def test_images_get_their_captions(folder: Path, capsys: Output) -> None:
    names = [
        write_image(folder / f"{one}-{other}.png", one, other)
        for one in COLOURS
        for other in COLOURS
    ]
    capsys.readouterr()
    assert main(["predict", str(folder / "run"), *names]) == 0
    printed = capsys.readouterr()
    expected = [f"{one} left of {other}" for one in COLOURS for other in COLOURS]
    assert printed.out.splitlines() == expected
    assert "9" in figures(printed.err)


def test_words_attend_to_the_object_that_they_name(folder: Path, capsys: Output) -> None:
    name = write_image(folder / "look.png", "red", "blue")
    words = ["predict", str(folder / "run"), name, "--alignments"]
    assert main([*words, "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    assert facts["file"] == name
    assert facts["text"] == "red left of blue"
    assert facts["size"] == [8, 8]
    [output] = facts["outputs"]
    assert output["finished"]
    assert len(output["token_log_probs"]) == 5
    looks = output["looks"]
    assert [look["word"] for look in looks] == ["red", "left", "of", "blue"]
    for look in looks:
        grid = np.array(look["grid"])
        assert grid.shape == (1, 2, 2)
        assert grid.sum() == pytest.approx(1.0, abs=1e-3)
        left, top, right, bottom = look["box"]
        assert (right - left, bottom - top) == (4, 4)
        assert grid[0, top // 4, left // 4] == pytest.approx(look["share"], abs=1e-4)
    assert main(words) == 0
    text, boxes = capsys.readouterr().out.rstrip("\n").split("\t")
    assert text == "red left of blue"
    assert [box.split(":")[0] for box in boxes.split(" ")] == text.split()


def test_several_captions_come_with_scores(folder: Path, capsys: Output) -> None:
    name = write_image(folder / "best.png", "red", "blue")
    words = ["--beam", "4", "--n-best", "3", "--scores"]
    assert main(["predict", str(folder / "run"), name, name, *words]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "2", "2"]
    assert rows[0][2] == "red left of blue"
    assert float(rows[0][1]) > float(rows[1][1]) > float(rows[2][1])


def test_a_bad_file_costs_only_its_own_answer(folder: Path, capsys: Output) -> None:
    good = write_image(folder / "good.png", "green", "red")
    bad = folder / "bad.png"
    bad.write_bytes(Path(good).read_bytes()[:40])
    assert main(["predict", str(folder / "run"), good, str(bad), good]) == 2
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["green left of red", "", "green left of red"]
    assert str(bad) in printed.err


def test_runs_answer_together(folder: Path, capsys: Output) -> None:
    name = write_image(folder / "two.png", "blue", "green")
    run = str(folder / "run")
    assert main(["predict", run, name, "--with", run]) == 0
    assert capsys.readouterr().out == "blue left of green\n"


def test_an_evaluation_knows_all_references(folder: Path, capsys: Output) -> None:
    path = folder / "several.npy"
    np.save(path, np.stack([scene("red", "blue")[0], scene("green", "red")[0]]))
    lines = [
        {"path": path.name, "index": 0, "text": ["blue on the right", "red left of blue"]},
        {"path": path.name, "index": 1, "text": "something else altogether"},
    ]
    media = write_manifest(folder / "several.jsonl", lines)
    words = ["evaluate", str(folder / "run"), "--media", str(media)]
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["n"] == 2
    assert facts["captions"] == 3
    assert facts["exact_match"] == 50.0
    assert facts["loss"] > 0
    assert facts["baselines"]["most frequent caption"]["exact_match"] <= 50.0
    assert facts["baselines"]["token frequencies"]["loss"] > 0
    assert main(words) == 0
    assert not missing(capsys.readouterr().out, "50.00 CIDEr-D")


def test_videos_are_captioned_too(tmp_path: Path, capsys: Output) -> None:
    """Two frames: what was left is right then."""
    draw = np.random.default_rng(0)
    frames, lines = [], []
    for number in range(40):
        one, other = (list(COLOURS)[i] for i in draw.choice(3, 2, replace=False))
        pair = [scene(one, other)[0], scene(other, one)[0]]
        frames.append(np.stack(pair) + draw.integers(0, 9, (2, 8, 8, 3)).astype(np.uint8))
        text = f"{one} and {other} change places"
        lines.append({"path": "videos.npy", "index": number, "text": text})
    np.save(tmp_path / "videos.npy", np.stack(frames))
    media = str(write_manifest(tmp_path / "videos.jsonl", lines))
    words = ["train", "caption", "--media", media, "--out", str(tmp_path / "run")]
    settings = [word for word in SETTINGS if not word.startswith(("train.steps", "train.eval"))]
    more = ["caption.modality=video", "train.steps=2", "train.eval_every=2", "--device", "cpu"]
    assert main([*words, *more, *settings]) == 0
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), media, "--json", "--alignments"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 40
    for look in answers[0]["outputs"][0]["looks"]:
        assert np.array(look["grid"]).shape == (1, 2, 2)
        assert look["frames"] == [0, 2]


def test_the_loss_of_an_ensemble_does_not_depend_on_the_order(
    folder: Path, tmp_path: Path, capsys: Output
) -> None:
    other = tmp_path / "other"
    data = ["--media", str(folder / "scenes.jsonl"), "--valid-media", str(folder / "valid.jsonl")]
    quick = ["--device", "cpu", *SETTINGS, "train.steps=5", "train.eval_every=5", "train.seed=2"]
    assert main(["train", "caption", *data, "--out", str(other), *quick]) == 0
    capsys.readouterr()
    media = str(folder / "valid.jsonl")
    losses = []
    for names in ((folder / "run", other), (other, folder / "run")):
        runs = ",".join(map(str, names))
        assert main(["evaluate", runs, "--media", media, "--json"]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
