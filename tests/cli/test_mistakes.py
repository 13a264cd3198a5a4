"""Mistakes that people make who come from other tools or bring other files: each is answered with
the way out, in one line."""

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
        (tmp_path / "junk" / label / "1.png").write_bytes(b"no picture")
    for split in ("test", "train"):
        folder = tmp_path / "photos" / split / "cat"
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "a.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def classify(name: str) -> list[str]:
    return ["train", "classify", "--text", name, "--out", "run"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*TRANSLATE, "--learning-rate=1e-3"], "Write train.lr=1e-3."),
        ([*TRANSLATE, "--num-epochs", "3"], "Write train.epochs=3."),
        ([*TRANSLATE, "--batch-size", "32"], "Write train.batch_tokens=… (tokens of a step, not"),
        ([*TRANSLATE, "--config", "a.toml"], "Write --recipe FILE.toml."),
        (["predict", "r", "--config", "a.toml"], "Leave it out: the run has its settings"),
        ([*TRANSLATE, "--hidden-size", "64"], "Write model.d_model=64."),
        ([*TRANSLATE, "--class-weights", "balanced"], "Write classify.balance=true (each class"),
        ([*TRANSLATE, "class_weights=balanced"], "Did you mean 'classify.balance'?"),
        ([*TRANSLATE, "--freeze"], "Write start.freeze=… (the first layers, as a number; -1: all"),
        ([*TRANSLATE, "--freeze", "2"], "Write start.freeze=2 ("),
        ([*TRANSLATE, "freeze=2"], "Did you mean 'start.freeze'?"),
        ([*TRANSLATE, "--lora"], "Write lora.rank=… ("),
        ([*TRANSLATE, "--lora", "8"], "Write lora.rank=8 ("),
        ([*TRANSLATE, "lora=8"], "it must be a section: rank, alpha, targets"),
        ([*TRANSLATE, "--cv", "5"], "Train once for each fold, with --valid FOLD"),
        ([*TRANSLATE, "--gpus", "2"], "torchrun --nproc-per-node N -m headway train"),
        ([*TRANSLATE, "--proba"], "headway predict RUN --top N"),
        ([*PREDICT, "--proba"], "Write --scores for the probability of the answer, or --top N"),
        ([*PREDICT, "--beam", "2", "--beam", "3"], "--beam takes one value, and 2 are given: 2, 3"),
        (
            ["train", "classify", "good.tsv", "--label", "a", "--label=b"],
            "--label takes one value, and 2 are given: a, b.",
        ),
        (
            ["check", "classify", "good.tsv", "--label", "a", "--label", "a"],
            "classify.answer=labels",
        ),
        (
            ["train", "classify", "good.tsv", "--out", "run", "--from", "none", "lora.rank=4"],
            "lora.rank is about the weights of another run",
        ),
        ([*TRANSLATE, "start.freeze=2"], "start.freeze is about the weights of another run"),
        ([*TRANSLATE, "--resume"], "Leave it out: the same command goes on"),
        ([*TRANSLATE, "--nonsense", "3"], "See `headway train --help`."),
        (["play", "stories", "--temp", "0.5"], "Write decode.temperature=0.5 (with decode.sample="),
        ([*PREDICT, "--batch-size", "8"], "Write --batch-tokens."),
        ([*PREDICT, "--model", "x"], "Leave it out: the run is the first word."),
        ([*PREDICT, "--lr", "3"], "No such option: --lr"),
        (["evaluate", "shapes", "data.bad=skip"], "a score is one of every line. Mend those that"),
        ([*TRANSLATE, "train.learning_rate=1"], "'train.learning_rate'. Here it is train.lr."),
        ([*TRANSLATE, "learning_rate=1"], "Did you mean 'train.lr'?"),
        ([*TRANSLATE, "model.num_layers=3"], "Here it is model.n_layers."),
        ([*TRANSLATE, "train.epochs=0"], "epochs=0 must be more than 0."),
        ([*TRANSLATE, "train.epochs=2", "train.steps=9"], "Leave one of them out."),
        (["play", "tatoeba-de-en", "--num-beams", "3"], "--num-beams. Write decode.beam=3."),
        (["evaluate", "tatoeba-de-en", "--file", "x"], "the file behind the run: headway evaluate"),
        ([*TRANSLATE, "--device", "mps"], "--device mps: headway computes on CPUs and on CUDA"),
        (classify("x.parquet"), "x.parquet cannot be read as"),
        (classify("x.feather"), "pandas.read_feather('x.feather')"),
        (classify("x.xlsx"), "x.xlsx is no text but a ZIP archive"),
        (classify("x.tsv.bz2"), "bunzip2 x.tsv.bz2"),
        (classify("x.pdf"), "pdftotext x.pdf"),
        (classify("utf16.tsv"), "utf16.tsv is in UTF-16. Say so: --encoding utf-16"),
        (classify("lines.json"), "lines.json, line 1 begins a JSON array"),
        (classify("array.json"), "Make lines of it: python -c 'import json, sys;"),
        (classify("comma.txt"), "which column is the label? Name it, or give its number: data.lab"),
        (["check", "classify", "comma.txt"], "label? Name it, or give its number: --label NAME. "),
        (
            ["check", "classify", "named.csv", "--text", "revew"],
            "error: --text 'revew': named.csv ",
        ),
        (
            ["check", "classify", "named.csv", "data.text_field=revew"],
            "data.text_field='revew': named.csv has no such column. Did you mean 'review'?",
        ),
        (["check", "caption", "named.csv", "--image", "x"], "error: --image 'x': named.csv has no"),
        (
            ["check", "classify", "junk"],
            "at can be read. The first: junk/a/1.png is no picture of a",
        ),
        (["train"], "classify, tag, embed, caption, transcribe, identify), or a --recipe NAME."),
        (classify("bad.tsv"), "'alone'. 2 lines of this file are like that. Mend that, or, "),
        (classify("bad.jsonl"), "leave such lines out: data.bad=skip"),
        (
            ["train", "tag", "--text", "bad.conll", "--out", "run"],
            "like that. Mend that, or, where nothing is scored, leave such sentences out: data.",
        ),
        (["check", "translate", "--pairs", "pairs.tsv"], "leave such lines out: data.bad=skip"),
        (["check", "complete", "--text", "a.de", "data.bad=skip"], "data.bad has no effect here"),
        (["train", "classify", "god.tsv"], "no file 'god.tsv'. Settings are key=value, as train."),
        (["check", "translate", "a.de", "a.en"], "one another go to --source a.de --target a.en"),
        (["train", "classify", "good.tsv", "--text", "a", "--text", "b"], "--text names a column"),
        (
            ["train", "classify", "good.tsv", "--tags", "b"],
            "'tags' is not a column",
        ),
        (["train", "tag", "good.tsv", "--pairs", "b"], "--pairs and files without an option (good"),
        (["check", "tag", "good.tsv", "--valid-text", "b"], "validation data goes to --valid."),
        ([*TRANSLATE, "--valid", "a.de"], "have theirs: --valid-text, --valid-source and --valid"),
        (["train", "classify", "--train-file", "x"], "Write the file behind the task: headway tr"),
        (["train", "good.tsv"], "good.tsv is a file. Say first what it is for: translate, comp"),
        (["predict", "a.de"], "a.de is a file, and a run is a folder"),
        ([*PREDICT, "--beam", "0"], "predict: error: --beam 0: beam=0 must be at least 1."),
        ([*PREDICT, "--n-best", "9"], "error: --n-best 9: n_best=9 hypotheses need a beam of at"),
        ([*PREDICT, "decode.n_best=9"], "beam=4. Set beam=9 too, or a lower n_best."),
        ([*PREDICT, "--beam=foo"], "predict: error: --beam foo must be a whole number."),
        (["predict", "digits", "a.wav", "--format", "vtt", "--json"], "--format vtt and --json do"),
        ([*PREDICT, "--precision", "x"], "error: --precision x: decode.precision = "),
        ([*classify("good.tsv")[:-1], "file"], "file is a file, and --out names a folder"),
        ([*classify("good.tsv")[:-1], "file/run"], "file is a file, and --out names a folder"),
        (
            ["train", "see", "--media", "photos", "--out", "run"],
            "Give them apart: headway train TASK photos/train (and then, to score it: headway "
            "evaluate RUN photos/test)",
        ),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_a_mistake_is_answered_with_the_way_out(
    words: list[str], said: str, here: Path, capsys: Output
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert "Traceback" not in shown.err


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


def test_what_is_no_setting_of_training_is_left_as_typed(here: Path) -> None:
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
def test_nobody_is_sent_to_an_option_that_the_command_lacks(command: str) -> None:
    own = {name for param in _parser().commands[command].params for name in param.opts}
    for option in {**OPTIONS, **OF_TRAIN, **OF_USE}:
        here = _called_here(f"--{option}", [command, f"--{option}", "x"])
        if here is not None and here.startswith("-"):
            assert here.split()[0] in own, (option, here)


def test_a_score_is_one_of_every_line_whatever_the_run_left_out_in_training() -> None:
    for task, named in (("translate", {"pairs": ["x"]}), ("classify", {"text": ["x"]})):
        run = RunSettings(task=task, data=DataSettings(bad="skip"))
        assert files_of_test(run, [], named, None).bad == "error"
        assert files_of_test(run, ["x"], {}, None).bad == "error"


def test_a_name_of_the_hub_needs_no_owner(
    here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    assert main(["import", "bert-base-uncased", "--out", "run"]) == 2
    said = capsys.readouterr().err
    assert "there is no folder bert-base-uncased. To fetch a model of that name" in said
    assert "pip install 'headway[hub]'" in said


def test_bad_lines_are_left_out_counted_and_listed_where_one_says_so(
    here: Path, capsys: Output
) -> None:
    words = ["--text", "bad.tsv", "data.bad=skip", "data.valid_size=4"]
    assert main(["check", "classify", *words]) == 0
    said = capsys.readouterr().out
    assert "2 labels: neg 9 (50.0%), pos 9 (50.0%)" in said
    assert "2 of 20 examples could not be read and are left out" in said
    assert "bad.tsv, line 19 has 1 column" in said


def test_an_unfinished_run_says_how_it_goes_on(here: Path) -> None:
    folder = here / "half"
    (folder / "data").mkdir(parents=True)
    with pytest.raises(
        FolderError, match=r"before the first step\. The command that began it goes"
    ):
        file_in(Path("half"), "config.toml")
    made = {"task": "translate", "data.source": ["my a.de"], "data.target": ["a.en"]}
    settings = load_run_settings(None, ["train.steps=90", "model.preset=transformer-test"], made)
    (folder / "config.toml").write_text(resolved_toml(settings))
    command = "headway train translate --source 'my a.de' --target a.en --out half train.steps=90"
    with pytest.raises(FolderError) as caught:
        file_in(Path("half"), WEIGHTS)
    said = str(caught.value)
    assert "half is not finished: it has no model.safetensors yet. The command" in said
    assert command in said
    for step, passing in ((40, "false"), (50, "true")):
        place = folder / "checkpoints" / f"step-{step}"
        place.mkdir(parents=True)
        (place / "manifest.json").write_text(f'{{"passing": {passing}}}')
    with pytest.raises(FolderError) as caught:
        file_in(Path("half"), WEIGHTS)
    said = str(caught.value)
    assert "its newest checkpoint is of step 50 of 90" in said
    assert "To use what is there: headway average half --last 1 --out half-so-far" in said
    (folder / "model.onnx").touch()  # an export has the settings of its run, and no training
    with pytest.raises(FolderError, match=r"exported model without .*Use --engine onnx\.$"):
        file_in(Path("half"), WEIGHTS)


def test_labels_that_stand_first_are_suspected(here: Path, capsys: Output) -> None:
    lines = (f"{'pos' if i % 2 else 'neg'}\tfilm number {i}\n" for i in range(40))
    Path("first.tsv").write_text("".join(lines))
    main(["check", "classify", "--text", "first.tsv"])
    assert "If it stands first: data.text_field=2 data.label_field=1" in capsys.readouterr().out
    main(["check", "classify", "first.tsv"])
    assert "If it stands first: --text 2 --label 1" in capsys.readouterr().out
    main(["check", "classify", "first.tsv", "--text", "2", "--label", "1"])
    assert "2 labels: neg 20 (50.0%), pos 20 (50.0%)" in capsys.readouterr().out
    main(["check", "classify", "--text", "first.tsv", "data.text_field=2", "data.label_field=1"])
    assert "2 labels: neg 20 (50.0%), pos 20 (50.0%)" in capsys.readouterr().out


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
