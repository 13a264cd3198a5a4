"""Options of other tools and files of other formats: the error names the fix, in one line."""

from __future__ import annotations

import bz2
import io
import json
import os
import pty
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

from headway.cli.evaluate import files_of_test
from headway.cli.flags import with_settings
from headway.cli.main import TAKES, _called_here, _parser, main
from headway.errors import FolderError
from headway.settings.data import DataSettings
from headway.settings.folder import WEIGHTS, file_in
from headway.settings.run import RunSettings, load_run_settings, resolved_toml
from headway.settings.synonyms import OF_TRAIN, OF_USE, OPTIONS
from tests.facts import figures, missing, naming

Output = pytest.CaptureFixture[str]


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("a.txt", "text")
    return made.getvalue()


FILES = {
    "a.de": b"ein Haus\n" * 20,
    "a.en": b"a house\n" * 20,
    "good.tsv": b"good film\tpos\nbad film\tneg\n" * 20,
    "x.parquet": b"PAR1\x15\x04PAR1",
    "x.feather": b"ARROW1\0\0",
    "x.xlsx": zipped(),
    "x.tsv.bz2": bz2.compress(b"good\tpos\n"),
    "x.pdf": b"%PDF-1.7",
    "utf16.tsv": "gut\tpos\nschlecht\tneg\n".encode("utf-16"),
    "lines.json": b'[\n{"text": "good", "label": "pos"},\n{"text": "bad", "label": "neg"}\n]\n',
    "array.json": json.dumps([{"text": "good", "label": "pos"}] * 3).encode(),
    "file": b"",
    "comma.txt": b"Hello, this is text\nand more\tpos\n" * 9,
    "named.csv": b"review,stars\na good film,1\na bad film,0\n" * 9,
    "bad.tsv": b"".join(b"good %d\tpos\nbad %d\tneg\n" % (i, i) for i in range(9))
    + b"alone\na\tb\tc\n",
    "bad.jsonl": b'{"text": "a", "label": "b"}\n{"text":\n',
    "bad.conll": b"Rome B-LOC\n\nalone\n\nis O\nso O x\n",
    "pairs.tsv": b"ein Haus\ta house\nallein\n",
}

TRANSLATE = ["train", "translate", "--source", "a.de", "--target", "a.en", "--out", "run"]
PREDICT = ["predict", "tatoeba-de-en", "a.de"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    for label in "ab":
        (tmp_path / "junk" / label).mkdir(parents=True)
        (tmp_path / "junk" / label / "1.png").write_bytes(b"no image")
    for split in ("test", "train"):
        folder = tmp_path / "photos" / split / "cat"
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "a.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def classify(name: str) -> list[str]:
    return ["train", "classify", "--text", name, "--out", "run"]


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ([*TRANSLATE, "--learning-rate=1e-3"], "--learning-rate train.lr=1e-3"),
        ([*TRANSLATE, "--num-epochs", "3"], "--num-epochs train.epochs=3"),
        ([*TRANSLATE, "--batch-size", "32"], "--batch-size train.batch_tokens"),
        ([*TRANSLATE, "--config", "a.toml"], "--config --recipe"),
        (["predict", "r", "--config", "a.toml"], "--config decode.beam=4"),
        ([*TRANSLATE, "--hidden-size", "64"], "--hidden-size model.d_model=64"),
        ([*TRANSLATE, "--class-weights", "balanced"], "--class-weights classify.balance=true"),
        ([*TRANSLATE, "class_weights=balanced"], "class_weights classify.balance"),
        ([*TRANSLATE, "--freeze"], "--freeze start.freeze=… -1"),
        ([*TRANSLATE, "--freeze", "2"], "--freeze start.freeze=2 -1"),
        ([*TRANSLATE, "freeze=2"], "freeze start.freeze"),
        ([*TRANSLATE, "--lora"], "--lora lora.rank=…"),
        ([*TRANSLATE, "--lora", "8"], "--lora lora.rank=8"),
        ([*TRANSLATE, "lora=8"], "lora 8 rank alpha targets"),
        ([*TRANSLATE, "--cv", "5"], "--cv --valid --out data.valid_size"),
        ([*TRANSLATE, "--gpus", "2"], "--gpus --device torchrun --nproc-per-node headway train"),
        ([*TRANSLATE, "--proba"], "--proba `headway predict RUN --top`"),
        ([*PREDICT, "--proba"], "--proba --scores --top"),
        ([*PREDICT, "--beam", "2", "--beam", "3"], "--beam 2 3"),
        (["train", "classify", "good.tsv", "--label", "a", "--label=b"], "--label 2 a b"),
        (
            ["check", "classify", "good.tsv", "--label", "a", "--label", "a"],
            "--label 2 data.label_separator classify.answer=labels",
        ),
        (
            ["train", "classify", "good.tsv", "--out", "run", "--from", "none", "lora.rank=4"],
            "lora.rank --from",
        ),
        ([*TRANSLATE, "start.freeze=2"], "start.freeze --from"),
        ([*TRANSLATE, "--resume"], "--resume"),
        ([*TRANSLATE, "--nonsense", "3"], "--nonsense `headway train --help`"),
        (["play", "stories", "--temp", "0.5"], "--temp decode.temperature=0.5 decode.sample=true"),
        ([*PREDICT, "--batch-size", "8"], "--batch-size --batch-tokens"),
        ([*PREDICT, "--model", "x"], "--model"),
        ([*PREDICT, "--lr", "3"], "--lr `headway predict --help`"),
        (["evaluate", "shapes", "data.on_bad_row=skip"], "data.on_bad_row=skip"),
        ([*TRANSLATE, "train.learning_rate=1"], "train.learning_rate train.lr"),
        ([*TRANSLATE, "learning_rate=1"], "learning_rate train.lr"),
        ([*TRANSLATE, "model.num_layers=3"], "model.num_layers model.n_layers"),
        ([*TRANSLATE, "train.epochs=0"], "epochs=0"),
        ([*TRANSLATE, "train.epochs=2", "train.steps=9"], "epochs=2 steps=9"),
        (["play", "tatoeba-de-en", "--num-beams", "3"], "--num-beams decode.beam=3"),
        (["evaluate", "tatoeba-de-en", "--file", "x"], "--file `headway evaluate RUN FILE`"),
        ([*TRANSLATE, "--device", "mps"], "--device mps cpu"),
        (classify("x.parquet"), "x.parquet Parquet"),
        (classify("x.feather"), "x.feather pandas.read_feather('x.feather')"),
        (classify("x.xlsx"), "x.xlsx ZIP CSV"),
        (classify("x.tsv.bz2"), "bzip2 `bunzip2 x.tsv.bz2`"),
        (classify("x.pdf"), "PDF `pdftotext x.pdf`"),
        (classify("utf16.tsv"), "utf16.tsv `--encoding utf-16`"),
        (classify("lines.json"), "lines.json 1 JSON"),
        (classify("array.json"), "array.json 1 python json.load(sys.stdin)"),
        (classify("comma.txt"), "comma.txt label data.label_field"),
        (["check", "classify", "comma.txt"], "comma.txt --label"),
        (
            ["check", "classify", "named.csv", "--text", "revew"],
            "named.csv `--text revew` review",
        ),
        (
            ["check", "classify", "named.csv", "data.text_field=revew"],
            "named.csv data.text_field='revew' review",
        ),
        (["check", "caption", "named.csv", "--image", "x"], "named.csv `--image x` review stars"),
        (["check", "classify", "junk"], "junk/a/1.png PNG"),
        (["train"], "translate identify --recipe"),
        (classify("bad.tsv"), "bad.tsv 19 'alone' 2 data.on_bad_row=skip"),
        (classify("bad.jsonl"), "bad.jsonl 2 JSON data.on_bad_row=skip"),
        (
            ["train", "tag", "--text", "bad.conll", "--out", "run"],
            "bad.conll 3 'alone' 2 data.on_bad_row=skip",
        ),
        (
            ["check", "translate", "--pairs", "pairs.tsv"],
            "pairs.tsv 2 'allein' data.on_bad_row=skip",
        ),
        (["check", "complete", "--text", "a.de", "data.on_bad_row=skip"], "data.on_bad_row"),
        (["train", "classify", "god.tsv"], "'god.tsv' train.lr=1e-3"),
        (["check", "translate", "a.de", "a.en"], "`--source a.de --target a.en`"),
        (["train", "classify", "good.tsv", "--text", "a", "--text", "b"], "--text 2"),
        (["train", "classify", "good.tsv", "--tags", "b"], "--tags classify label image"),
        (["train", "tag", "good.tsv", "--pairs", "b"], "--pairs good.tsv"),
        (["check", "tag", "good.tsv", "--valid-text", "b"], "--valid-text good.tsv --valid"),
        ([*TRANSLATE, "--valid", "a.de"], "--valid --valid-text --valid-source --valid-target"),
        (["train", "classify", "--train-file", "x"], "--train-file `headway train TASK FILE`"),
        (["train", "good.tsv"], "good.tsv translate identify"),
        (["predict", "a.de"], "a.de digits stories"),
        ([*PREDICT, "--beam", "0"], "`--beam 0` 1"),
        ([*PREDICT, "--n-best", "9"], "`--n-best 9` n_best=9 beam=4"),
        ([*PREDICT, "decode.n_best=9"], "decode.n_best=9 beam=4 beam=9"),
        ([*PREDICT, "--beam=foo"], "`--beam foo`"),
        (["predict", "digits", "a.wav", "--format", "vtt", "--json"], "--format vtt --json"),
        ([*PREDICT, "--precision", "x"], "`--precision x` fp32 int8"),
        ([*classify("good.tsv")[:-1], "file"], "file --out"),
        ([*classify("good.tsv")[:-1], "file/run"], "file --out"),
        (
            ["train", "classify", "--media", "photos", "--out", "run"],
            "`headway train TASK photos/train` `headway evaluate RUN photos/test`",
        ),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_the_error_names_the_mistake_and_its_fix(
    words: list[str], facts: str, here: Path, capsys: Output
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert not missing(shown.err, facts)
    assert ("--help" in shown.err) == ("--help" in facts)  # only where there is no better hint
    assert "Traceback" not in shown.err


def test_skipping_bad_lines_in_evaluation_has_its_own_error(here: Path, capsys: Output) -> None:
    errors = []
    for setting in ("data.on_bad_row=skip", "data.unit=line"):
        assert main(["evaluate", "shapes", setting]) == 2
        errors.append(capsys.readouterr().err)
    assert ["decode.*" in error for error in errors] == [False, True]


@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        (["--epochs", "3"], "train.epochs", "3"),
        (["--epochs=3"], "train.epochs", "3"),
        (["epochs=3"], "train.epochs", "3"),
        (["--lr", "1e-3"], "train.lr", "1e-3"),
        (["--weight-decay", "0.1"], "train.weight_decay", "0.1"),
    ],
    ids=" ".join,
)
def test_settings_of_training_need_no_section(typed: list[str], key: str, value: str) -> None:
    params = _parser().commands["train"].params
    words = ["classify", "good.tsv", *typed, "--out", "run"]
    expected = ["classify", "good.tsv", f"{key}={value}", "--out", "run"]
    assert with_settings(params, words) == expected


def test_other_words_are_left_as_typed(here: Path) -> None:
    params = _parser().commands["train"].params
    (here / "seed=1").write_bytes(b"")
    for words in (
        ["classify", "seed=1", "--text", "lr=2", "--out", "epochs=3"],  # a file, and two values
        ["classify", "good.tsv", "--epochs"],
        ["classify", "good.tsv", "--text", "", "decode.seed=3", "--", "epochs=3"],
        ["classify", "good.tsv", "--nonsense", "3"],
    ):
        assert with_settings(params, words) == words


def test_passes_may_be_counted_by_an_option(here: Path, capsys: Output) -> None:
    rows = (f"a{i} film\t{'pos' if i % 2 else 'neg'}\n" for i in range(60))
    (here / "many.tsv").write_text("".join(rows))
    words = ["train", "classify", "many.tsv", "--out", "run", "--from", "none", "--dry-run"]
    assert main([*words, "--epochs", "2", "model.d_model=16", "model.n_layers=1"]) == 0
    assert '"train.epochs" = 2' in capsys.readouterr().out


@pytest.mark.parametrize("command", TAKES)
def test_suggested_options_exist_in_the_command(command: str) -> None:
    own = {name for param in _parser().commands[command].params for name in param.opts}
    for option in {**OPTIONS, **OF_TRAIN, **OF_USE}:
        here = _called_here(f"--{option}", [command, f"--{option}", "x"])
        if here is not None and here.startswith("-"):
            assert here.split()[0] in own, (option, here)


def test_evaluation_rejects_bad_lines_even_if_training_skipped_them() -> None:
    for task, named in (("translate", {"pairs": ["x"]}), ("classify", {"text": ["x"]})):
        run = RunSettings(task=task, data=DataSettings(on_bad_row="skip"))
        assert files_of_test(run, [], named, None).on_bad_row == "error"
        assert files_of_test(run, ["x"], {}, None).on_bad_row == "error"


def test_a_hub_name_without_owner_is_not_a_folder(
    here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    assert main(["import", "bert-base-uncased", "--out", "run"]) == 2
    assert not missing(capsys.readouterr().err, "bert-base-uncased `pip install 'headway[hub]'`")


def test_skipped_bad_lines_are_counted_and_listed(here: Path, capsys: Output) -> None:
    words = ["--text", "bad.tsv", "data.on_bad_row=skip", "data.valid_size=4"]
    assert main(["check", "classify", *words]) == 0
    printed = capsys.readouterr().out
    assert "neg 9 (50.0%), pos 9 (50.0%)" in printed
    [warning] = [line for line in printed.splitlines() if "data.on_bad_row" in line]
    assert figures(warning)[:2] == ["2", "20"]
    assert [line for line in printed.splitlines() if not missing(line, "bad.tsv 19 1")]


def test_the_error_of_an_unfinished_run_names_the_command_that_resumes_it(here: Path) -> None:
    folder = here / "half"
    (folder / "data").mkdir(parents=True)
    with pytest.raises(FolderError, match=naming("half config.toml data/")):
        file_in(Path("half"), "config.toml")
    made = {"task": "translate", "data.source": ["my a.de"], "data.target": ["a.en"]}
    settings = load_run_settings(None, ["train.steps=90", "model.preset=transformer-test"], made)
    (folder / "config.toml").write_text(resolved_toml(settings))
    command = "headway train translate --source 'my a.de' --target a.en --out half train.steps=90"
    with pytest.raises(FolderError) as caught:
        file_in(Path("half"), WEIGHTS)
    found = str(caught.value)
    assert not missing(found, "half model.safetensors")
    assert command in found
    assert "headway average" not in found
    for step, passing in ((40, "false"), (50, "true")):
        place = folder / "checkpoints" / f"step-{step}"
        place.mkdir(parents=True)
        (place / "manifest.json").write_text(f'{{"passing": {passing}}}')
    with pytest.raises(FolderError) as caught:
        file_in(Path("half"), WEIGHTS)
    found = str(caught.value)
    assert not missing(found, "half model.safetensors 50 90")
    use = "headway average half --last 1 --out half-so-far"
    assert command in found
    assert use in found
    (folder / "model.onnx").touch()  # an export has the settings of its run, and no training
    with pytest.raises(FolderError, match=naming('half model.safetensors engine="onnx"')):
        file_in(Path("half"), WEIGHTS)


def test_labels_in_the_first_column_are_suspected(here: Path, capsys: Output) -> None:
    lines = (f"{'pos' if i % 2 else 'neg'}\tfilm number {i}\n" for i in range(40))
    Path("first.tsv").write_text("".join(lines))
    main(["check", "classify", "--text", "first.tsv"])
    assert not missing(capsys.readouterr().out, "data.text_field=2 data.label_field=1")
    main(["check", "classify", "first.tsv"])
    assert "--text 2 --label 1" in capsys.readouterr().out
    main(["check", "classify", "first.tsv", "--text", "2", "--label", "1"])
    assert "neg 20 (50.0%), pos 20 (50.0%)" in capsys.readouterr().out
    main(["check", "classify", "--text", "first.tsv", "data.text_field=2", "data.label_field=1"])
    assert "neg 20 (50.0%), pos 20 (50.0%)" in capsys.readouterr().out


EVIL = "\x1b]0;renamed\x07\x1b[2J\x9b31m"
"""Sequences that rename a terminal's window, clear the screen and change its colour."""


def printed_on_terminal(words: list[str], folder: Path) -> bytes:
    """Output of a command on a terminal: stdout and stderr."""
    ours, theirs = pty.openpty()
    code = f"import sys; from headway.cli.main import main; sys.exit(main({words!r}))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=theirs, stderr=theirs):
        os.close(theirs)
        found = b""
        with suppress(OSError):  # the other end is closed
            while piece := os.read(ours, 65536):
                found += piece
    os.close(ours)
    return found


def test_control_characters_of_data_do_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = "\n".join(f"a line {i} {EVIL} with more words" for i in range(40))
    (tmp_path / "evil.txt").write_text(evil, encoding="utf-8")
    (tmp_path / f"{EVIL}.txt").write_text("a\tb\n")
    for words in (
        ["check", "complete", "--text", "evil.txt", "--steps"],
        ["check", "classify", f"{EVIL}.txt"],
        ["predict", f"runs/{EVIL}", "--text", "x"],
        ["predict", "tatoeba-de-en", "--text", EVIL],
    ):
        shown = printed_on_terminal(words, tmp_path)
        assert shown
        for sequence in (b"\x1b]0;", b"\x1b[2J", "\x9b".encode(), b"\x07"):
            assert sequence not in shown, (words, shown)
