"""Images from the command line: check, train, predict, evaluate, and mistakes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from headway.cli.main import main
from headway.web.pack import unpack
from tests.facts import figures, missing
from tests.training.shown import SIDES, write_images, write_list, write_speakers

Output = pytest.CaptureFixture[str]

SETTINGS = [
    "model.n_layers=1", "model.d_model=32", "model.n_heads=2", "model.d_ff=64",
    "train.batch_tokens=160", "train.steps=50", "train.eval_every=25", "train.optimizer=adamw",
    "train.lr=5e-3", "train.average=2", "data.valid_size=12",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows left, right and top."""
    folder = tmp_path_factory.mktemp("see")
    media = write_images(folder / "image")
    words = ["train", "classify", "--media", media, "--device", "cpu", *SETTINGS]
    assert main([*words, "--out", str(folder / "run")]) == 0
    return folder


def files(folder: Path, number: int = 3) -> list[str]:
    return [
        str(next((folder / "image" / side).glob("*.png"))) for side in SIDES
    ][:number]  # fmt: skip


def test_files_are_answered_in_their_order(folder: Path, capsys: Output) -> None:
    assert main(["predict", str(folder / "run"), *files(folder)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == list(SIDES)
    assert figures(printed.err) == ["3"]


def test_the_likeliest_classes_and_their_probabilities(folder: Path, capsys: Output) -> None:
    run, [name] = str(folder / "run"), files(folder, 1)
    assert main(["predict", run, name, "--top", "2"]) == 0
    first, much, second, less = capsys.readouterr().out.strip().split("\t")
    assert first == "left"
    assert second in SIDES
    assert float(much) > 0.5 > float(less)
    assert main(["predict", run, name, "--scores"]) == 0
    assert capsys.readouterr().out.strip() == f"left\t{much}"
    assert main(["predict", run, name, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["file"] == name
    assert facts["label"] == "left"
    assert sum(facts["probabilities"].values()) == pytest.approx(1.0, abs=1e-4)
    assert main(["predict", run, name, "--top", "0"]) == 2
    assert "--top 0" in capsys.readouterr().err


def test_paths_may_come_from_standard_input(
    folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f"{name}\n" for name in files(folder))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert main(["predict", str(folder / "run")]) == 0
    assert capsys.readouterr().out.splitlines() == list(SIDES)


def test_lists_folders_and_names_of_the_run(folder: Path, capsys: Output) -> None:
    run = folder / "run"
    lines = [{"path": name} for name in files(folder)]
    listed = write_list(folder / "list.jsonl", lines)
    assert main(["predict", str(run), listed]) == 0
    assert capsys.readouterr().out.splitlines() == list(SIDES)
    assert main(["predict", str(run), str(folder / "image" / "top")]) == 0
    assert set(capsys.readouterr().out.splitlines()) == {"top"}
    (run / "example.png").write_bytes(Path(files(folder, 2)[1]).read_bytes())
    assert main(["predict", str(run), "example.png"]) == 0
    assert capsys.readouterr().out == "right\n"


def test_a_list_in_another_encoding_is_read_by_its_column_names(
    folder: Path, capsys: Output
) -> None:
    named = folder / "köpfe.png"
    named.write_bytes(Path(files(folder, 1)[0]).read_bytes())
    listed = folder / "list.csv"
    listed.write_bytes(f"image,note\n{named},ü\n".encode("latin-1"))
    words = ["predict", str(folder / "run"), str(listed), "--encoding", "latin-1"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.out == "left\n"
    assert not missing(printed.err, "list.csv 'image'")


def test_an_unreadable_list_does_not_stop_the_rest(folder: Path, capsys: Output) -> None:
    (folder / "bad.tsv").write_text("foo\tbar\tbaz\na\tb\tc\n")
    left = files(folder, 1)[0]
    assert main(["predict", str(folder / "run"), left, str(folder / "bad.tsv"), left]) == 2
    printed = capsys.readouterr()
    assert printed.out.split("\n") == ["left", "", "left", ""]
    assert "bad.tsv" in printed.err


def test_unreadable_files_do_not_stop_the_rest(folder: Path, capsys: Output) -> None:
    (folder / "broken.png").write_bytes(Path(files(folder, 1)[0]).read_bytes()[:60])
    write_speakers(folder / "audio", {"ada": 300.0}, 1)
    audio = str(folder / "audio" / "ada" / "0.wav")
    left, right, top = files(folder)
    words = [left, str(folder / "broken.png"), right, "missing.png", audio, top]
    assert main(["predict", str(folder / "run"), *words]) == 2
    printed = capsys.readouterr()
    assert printed.out.split("\n") == ["left", "", "right", "", "", "top", ""]
    errors = printed.err.splitlines()
    assert "broken.png" in errors[0]
    assert "missing.png" in errors[1]
    assert audio in errors[2]
    assert figures(errors[3]) == ["6", "3"]
    assert main(["predict", str(folder / "run"), *words[:3], "--json"]) == 2
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "broken.png" in facts[1]["error"]
    assert facts[2]["label"] == "right"


def test_scores_on_a_test_set(folder: Path, capsys: Output) -> None:
    media = write_images(folder / "test", 30, seed=7)
    words = ["evaluate", str(folder / "run"), "--media", media]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "100.00" in printed
    counts = [line.split()[1:] for line in printed.splitlines()[-3:]]
    assert counts == [["10", "0", "0"], ["0", "10", "0"], ["0", "0", "10"]]
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["accuracy"] == 100.0
    assert facts["n"] == 30
    (folder / "test" / "top").rename(folder / "test" / "bottom")
    assert main(words) == 2
    assert not missing(capsys.readouterr().err, "'bottom' 'left' 'right' 'top'")


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["evaluate", "RUN"], "FILES"),
        (["evaluate", "RUN", "--text", "a.tsv"], "--text classify"),
        (["evaluate", "RUN", "--media", "nowhere"], "nowhere"),
        (["predict", "RUN", "a.png", "--beam", "4"], "--beam classify"),
        (["predict", "RUN", "a.png", "--against", "b.png"], "--against classify"),
        (["predict", "RUN", "a.png", "model.n_layers=2"], "model.n_layers=2 decode.*"),
        (["predict", "shapes", "--with", "RUN", "a.png"], "/shapes caption RUN classify"),
        (["predict", "RUN", "--with", "shapes", "a.png"], "RUN classify /shapes caption"),
        (["train", "classify", "--out", "x"], "FILES"),
        (
            ["train", "classify", "--media", "FOLDER/image/left", "--out", "x"],
            "FOLDER/image/left path label",
        ),
        (["check", "classify", "--media", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output,
    words: list[str], facts: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    places = {"RUN": str(folder / "run"), "FOLDER": str(folder)}
    for name, path in places.items():
        words = [word.replace(name, path) for word in words]
        facts = facts.replace(name, path)
    assert main(words) == 2
    assert not missing(capsys.readouterr().err, facts)


def test_labels_that_differ_between_splits_are_found(folder: Path, capsys: Output) -> None:
    valid = write_images(folder / "valid", 9, seed=3)
    (folder / "valid" / "top").rename(folder / "valid" / "bottom")
    media = str(folder / "image")
    assert main(["check", "classify", "--media", media, "--valid-media", valid]) == 2
    assert "bottom" in capsys.readouterr().out


def test_the_data_check_and_the_model_are_shown(folder: Path, capsys: Output) -> None:
    assert main(["check", "classify", "--media", str(folder / "image")]) == 0
    assert not missing(capsys.readouterr().out, "60 left 20 right 20 top 20 (33.3%)")
    assert main(["info", str(folder / "run")]) == 0
    assert "8 × 8" in capsys.readouterr().out


def test_a_run_with_other_settings_needs_a_restart(folder: Path, tmp_path: Path) -> None:
    words = ["train", "classify", "--media", str(folder / "image"), "--out", str(tmp_path / "run"),
             *SETTINGS, "train.steps=1"]  # fmt: skip
    assert main(words) == 0
    assert main([*words, "train.lr=1e-3"]) == 2
    assert main([*words, "train.lr=1e-3", "--restart"]) == 0
    assert "lr = 0.001" in (tmp_path / "run" / "config.toml").read_text()


def test_the_report_shows_images(folder: Path) -> None:
    page = unpack((folder / "run" / "report.html").read_text())["looks"][0]["sections"]
    assert page["answers"]["figures"]["examples"]["right"][0]["image"].startswith("data:image/")
    assert page["curves"]["charts"]


@pytest.mark.parametrize("column", [["data.path_field=1"], ["--image", "1"]])
def test_a_header_of_few_images_is_seen_above_the_column_that_is_counted(
    column: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        Image.new("RGB", (8, 8), (60 * i, 9, 9)).save(f"{i}.png")
    rows = [f"{i}.png,{'ab'[i % 2]}\n" for i in range(4)]
    Path("named.csv").write_text("datei,klasse\n" + "".join(rows), encoding="utf-8")
    Path("plain.csv").write_text("".join(rows), encoding="utf-8")
    for file, names in (("named.csv", ["datei", "klasse"]), ("plain.csv", ["1", "2"])):
        assert main(["check", "classify", file, *column, "--label", "2"]) == 0
        first, *columns, images = capsys.readouterr().out.splitlines()[:4]
        assert not missing(first, file, "4")
        assert [line.split()[:3] for line in columns] == [
            [name, "→", role] for name, role in zip(names, ("image", "label"), strict=True)
        ]
        assert figures(images) == ["4"]


def test_a_setting_makes_a_table_a_list_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        Image.new("RGB", (8, 8), (60 * i, 9, 9)).save(f"{i}.png")
    rows = [f"{i}.png,{'ab'[i % 2]}\n" for i in range(4)]
    Path("a.csv").write_text("file,label\n" + "".join(rows), encoding="utf-8")
    words = ["check", "classify", "a.csv", "--valid", "a.csv", "classify.modality=image"]
    assert main(words) == 0
    assert figures(capsys.readouterr().out.splitlines()[3]) == ["4", "4"]
    assert main(["check", "classify", "a.csv", "classify.modality=image"]) == 0
    assert figures(capsys.readouterr().out.splitlines()[3]) == ["4"]
    assert main(["check", "classify", "a.csv", "--image", "file", "data.path_field=1"]) == 2
    assert "data.path_field" in capsys.readouterr().err
