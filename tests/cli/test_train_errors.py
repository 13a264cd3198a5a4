"""`headway train` given what it cannot use: a clear line, code 2, and nothing lost."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from headway.api import train
from headway.cli.main import main
from headway.cli.train import AGAIN
from headway.errors import UserError
from headway.settings.folder import load_run
from headway.training import arguments
from tests.data.conftest import sentences

SETTINGS = [
    "model.preset=transformer-test",
    "tokenizer.kind=words",
    "train.steps=2",
    "train.batch_tokens=200",
    "train.metric=loss",
    "data.valid_size=10",
    "decode.max_len=6",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a run of two steps, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    for name, side in zip(("de", "en"), zip(*sentences(), strict=True), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    place = Path.cwd()
    os.chdir(folder)  # so that the command is the same wherever the folder is copied to
    try:
        assert main(command()) == 0
    finally:
        os.chdir(place)
    return folder


def command(*more: str, source: str = "de", target: str = "en", out: str = "run") -> list[str]:
    files = ["--source", source, "--target", target, "--device", "cpu", "--out", out]
    return ["train", "translate", *files, *SETTINGS, *more]


@pytest.fixture
def here(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the data and the finished run in it."""
    shutil.copytree(finished, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


Refused = Callable[..., str]


@pytest.fixture
def refused(here: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must end with code 2 and change no file; returns what it says."""

    def run(*words: str) -> str:
        before = files_in(here)
        capsys.readouterr()
        assert main(list(words)) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "Traceback" not in shown.err
        assert files_in(here) == before
        return shown.err.split("error: ")[-1]

    return run


def files_in(folder: Path) -> dict[str, bytes]:
    """Without what was prepared from the data, which can be made again."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "data" not in path.relative_to(folder).parts
    }


def test_a_setting_of_decoding_that_the_task_does_not_read_is_refused(refused: Refused) -> None:
    said = refused("train", "classify", "--text", "de", "--out", "new", "decode.beam=7")
    assert "decode.beam has no effect on a run of the task classify" in said


# Files


def test_a_missing_file_is_named(refused: Refused) -> None:
    assert "there is no file nowhere.de" in refused(*command(source="nowhere.de", out="new"))


def test_a_folder_in_the_place_of_a_file_is_named(refused: Refused, here: Path) -> None:
    (here / "folder").mkdir()
    assert "folder is a folder" in refused(*command(source="folder", out="new"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(refused: Refused, here: Path) -> None:
    (here / "secret").write_text("x\n")
    (here / "secret").chmod(0)
    try:
        assert "cannot read secret" in refused(*command(source="secret", out="new"))
    finally:
        (here / "secret").chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_unequal_lengths_are_said_with_both_counts(refused: Refused, here: Path) -> None:
    lines = (here / "en").read_text().splitlines(keepends=True)
    (here / "short").write_text("".join(lines[:390]))
    said = refused(*command(target="short", out="new"))
    assert "de has 400 lines but short has 390" in said


def test_bytes_that_are_no_text_are_said_with_their_place(refused: Refused, here: Path) -> None:
    content = (here / "de").read_bytes().splitlines(keepends=True)
    content[6] = content[6][:4] + b"\xe4" + content[6][4:]
    (here / "latin").write_bytes(b"".join(content))
    said = refused(*command(source="latin", out="new"))
    assert "latin, line 7" in said
    assert "0xe4" in said
    assert "--encoding" in said


def test_another_encoding_can_be_given(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (here / "de").read_text(encoding="utf-8")
    (here / "de").write_bytes(text.encode("latin-1"))
    (here / "en").write_bytes((here / "en").read_text(encoding="utf-8").encode("latin-1"))
    assert main(command("--encoding", "latin-1", out="new")) == 0
    kept = (here / "new/data/valid.jsonl").read_text()
    assert all(json.loads(line)["source"] in text for line in kept.splitlines())
    capsys.readouterr()


def test_an_empty_file_is_refused(refused: Refused, here: Path) -> None:
    (here / "empty").touch()
    said = refused(*command(source="empty", target="empty", out="new"))
    assert "no pairs" in said or "empty" in said


def test_pairs_that_are_all_the_same_are_refused(refused: Refused, here: Path) -> None:
    (here / "a").write_text("Guten Tag\n" * 300)
    (here / "b").write_text("Good day\n" * 300)
    said = refused(*command(source="a", target="b", out="new"))
    assert "all the same; there is nothing to learn" in said


def test_one_endless_line_is_refused_with_its_place(refused: Refused, here: Path) -> None:
    (here / "long").write_bytes(b"short\n" + b"x" * 11_000_000 + b"\n")
    said = refused(*command(source="long", out="new"))
    assert "long, line 2" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not the JSON of a tokenizer"), (None, "there is no")],
)
def test_a_tokenizer_file_that_is_none_is_named(
    refused: Refused, here: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (here / "t.json").write_text(content)
    assert message in refused(*command("tokenizer.file=t.json", out="new"))


def test_a_tokenizer_that_does_not_fit_the_model_is_refused(
    here: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command("tokenizer.vocab_size=20", out="other")) == 0
    shutil.copy(here / "other/tokenizer.json", here / "run/tokenizer.json")
    config = here / "run/config.toml"
    lines = config.read_text().splitlines(keepends=True)  # as one who means the change
    config.write_text("".join(line for line in lines if not line.startswith("# sha256")))
    (here / "in.txt").write_text("Ein Hund.\n")
    said = refused("predict", "run", "in.txt")
    assert "tokenizer" in said
    assert "20" in said


def test_going_on_puts_the_right_tokenizer_back(here: Path) -> None:
    right = (here / "run/tokenizer.json").read_bytes()
    for damage in (lambda p: p.unlink(), lambda p: p.write_text("{}")):
        damage(here / "run/tokenizer.json")
        assert main(command()) == 0
        assert (here / "run/tokenizer.json").read_bytes() == right


# The run folder


def test_the_same_command_again_is_no_mistake(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_in(here / "run")
    assert main(command()) == 0
    assert "going on from step 2" in capsys.readouterr().err
    after = files_in(here / "run")
    for name in before:
        if name not in ("metrics.jsonl", "report.html"):
            assert after[name] == before[name], name
    kinds = [json.loads(line)["kind"] for line in after["metrics.jsonl"].splitlines()]
    assert kinds.count("end") == 1


def test_other_settings_are_refused_by_name(refused: Refused) -> None:
    said = refused(*command("train.lr=0.5", "train.ema=0.9"))
    assert "train.lr: not set then, 0.5 now" in said
    assert "train.ema: not set then, 0.9 now" in said
    assert "--restart" in said
    words = [word for word in command("--budget", "10m") if word != "train.steps=2"]
    said = refused(*words)
    assert 'budget: not set then, "10m" now' in said


def test_restart_removes_the_run_and_nothing_else(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "run/notes.txt").write_text("mine")
    (here / "run/bad-batch.json").write_text("{}")
    assert main(command("train.steps=1", "--restart")) == 0
    assert (here / "run/notes.txt").read_text() == "mine"
    assert not (here / "run/bad-batch.json").exists()
    assert [path.name for path in (here / "run/checkpoints").iterdir()] == ["step-1"]
    entries = [json.loads(x) for x in (here / "run/metrics.jsonl").read_text().splitlines()]
    assert {entry["step"] for entry in entries} == {1}
    capsys.readouterr()


def test_changed_data_is_refused(refused: Refused, here: Path) -> None:
    path = here / "de"
    before = path.read_bytes()
    path.write_bytes(before.replace(b"Hund", b"Wolf"))
    said = refused(*command())
    assert "the data files are not those that run was trained on" in said
    assert main(["predict", "run", "de"]) == 0  # the model there is as it was
    path.write_bytes(before)
    assert main(command()) == 0


def test_a_run_of_another_task_is_refused(refused: Refused, here: Path) -> None:
    config = here / "run/config.toml"
    config.write_text(config.read_text().replace('task = "translate"', 'task = "caption"'))
    said = refused(*command())
    assert "run holds a run of the task caption" in said
    assert "--restart" in said


def test_a_model_without_a_run_is_refused(refused: Refused, here: Path) -> None:
    (here / "run/config.toml").write_text('[model]\nfamily = "decoder"\n')
    assert "run holds a run of the task none" in refused(*command())


@pytest.mark.parametrize("text", ["task = ", "task = 'translate'\n[train]\nlrr = 3\n"])
def test_settings_that_cannot_be_read_are_named(refused: Refused, here: Path, text: str) -> None:
    (here / "run/config.toml").write_text(text)
    said = refused(*command())
    assert "run/config.toml" in said
    assert "--restart" in said
    assert main(command("--restart")) == 0


@pytest.mark.parametrize("more", [[], ["--restart"]])
@pytest.mark.parametrize(
    "name", ["thesis.tex", "data/corpus.de", "checkpoints/other.pt", "data/sub/x", "config.toml x"]
)
def test_a_folder_with_other_things_is_left_alone(
    refused: Refused, here: Path, name: str, more: list[str]
) -> None:
    for part in name.split():
        path = here / "mine" / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[tool]\nmine = 1\n")
    kept = (here / "mine").rglob("*")
    before = {path: path.read_bytes() for path in kept if path.is_file()}
    said = refused(*command(*more, out="mine"))
    if name == "config.toml x" and not more:
        assert "holds a run of the task none" in said
    else:
        assert "mine is not empty and no run folder" in said
        assert name.split()[-1].removesuffix("/x") in said
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("more", [[], ["--restart"]])
def test_a_file_of_ones_own_among_those_of_a_run_is_not_lost(
    refused: Refused, here: Path, more: list[str]
) -> None:
    """What is prepared from the data is made anew at will, and all of it removed before."""
    (here / "run/data/mine.de").write_text("precious")
    assert "it holds data/mine.de" in refused(*command(*more))
    assert (here / "run/data/mine.de").read_text() == "precious"


def test_the_folder_of_the_data_is_not_taken_for_a_runs(refused: Refused, here: Path) -> None:
    """`data` is also the name of a part of a run folder, which is made anew at will."""
    (here / "project/data").mkdir(parents=True)
    for name in ("de", "en"):
        shutil.copy(here / name, here / "project/data" / name)
    said = refused(*command(source="project/data/de", target="project/data/en", out="project"))
    assert "it holds data/de, data/en" in said
    assert (here / "project/data/de").exists()


@pytest.mark.parametrize(
    "leftover", ["data.tmp/x", "input.tmp/standard-input", "data/train.source.tokens"]
)
def test_what_a_killed_start_left_is_no_obstacle(here: Path, leftover: str) -> None:
    path = here / "new" / leftover
    path.parent.mkdir(parents=True)
    path.write_text("half")
    assert main(command(out="new")) == 0
    assert not (here / "new/data.tmp").exists()
    assert not (here / "new/input.tmp").exists()


def test_a_file_in_the_place_of_the_folder_is_named(refused: Refused, here: Path) -> None:
    (here / "taken").touch()
    assert "taken is a file, and --out names a folder" in refused(*command(out="taken"))
    assert "taken is a file, and --out names a folder" in refused(*command(out="taken/run"))
    assert "null is no folder, and --out names a folder" in refused(*command(out="/dev/null"))
    (here / "link").symlink_to("gone")
    assert "link is a link to gone, which is not there" in refused(*command(out="link"))
    assert "link is a link to gone, which is not there" in refused(*command(out="link/run"))


def test_a_folder_that_cannot_be_written_to_is_named(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by root, whom only a read-only file system stops."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert "run cannot be written to. Choose another --out." in refused(*command())


def test_two_runs_in_one_folder_are_refused(refused: Refused, here: Path) -> None:
    lock = os.open(here / "run", os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another process is training in run" in refused(*command())
    finally:
        os.close(lock)
    assert main(command()) == 0


# Words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "translat"], "unknown task 'translat'. Did you mean 'translate'?"),
        (
            ["train"],
            "name a task (translate, complete, fill, classify, tag, embed, caption, ",
        ),
        (
            ["train", "translate", "x"],
            "there is no file 'x'. Settings are key=value, as",
        ),
        (["train", "--recipe", "multi30k"], "unknown recipe 'multi30k'"),
        (["train", "--recipe", "mine.toml"], "unknown recipe 'mine.toml'"),
        (["train", "translate", "--data", "."], "--data says where the files of a --recipe are."),
        (["train", "translate", "--out", "x"], "behind the task, or --source FILE"),
        (["train", "translate", "--source", "de", "--out", "x"], "data.target is missing"),
        (command()[: -len(SETTINGS) - 2], "--out is missing: the folder for this run"),
        (command("train.lrr=1"), "unknown setting 'train.lrr'. Did you mean 'lr'?"),
        (command("model.vocab_size=5", out="y"), "model.vocab_size follows from the tokenizer"),
        (command("model.preset=gpt2", out="y"), "needs a model of the seq2seq family"),
        (command("train.weight_decay=0.1", out="y"), "train.weight_decay=0.1 has no effect"),
        (command("--budget", "soon", out="y"), "--budget 'soon' is no length of time"),
        (command("--budget", "9m", out="y"), "train.steps=2 and --budget 9m both say how long to"),
        (command("--device", "gpu", out="y"), "unknown device 'gpu'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_word_is_named(
    refused: Refused, words: list[str], message: str, here: Path
) -> None:
    said = refused(*words)
    assert message in said
    assert said.count("\n") == 1
    shutil.rmtree(here / "y", ignore_errors=True)


# A stop


@pytest.mark.parametrize(
    "place", ["headway.tasks.translate.prepare", "headway.training.run.choose"]
)
def test_an_interrupt_ends_it_with_75_and_the_same_command_goes_on(
    here: Path, place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = place.rpartition(".")
    plain: Callable[..., Any] = getattr(import_module(module), name)

    def interrupted(*words: Any, **more: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return plain(*words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(place, interrupted)
        assert main(command(out="new")) == AGAIN
    said = capsys.readouterr().err
    assert "stopped by SIGINT; the same command goes on from here" in said
    assert "Traceback" not in said
    assert main(command(out="new")) == 0
    for name in ("model.safetensors", "tokenizer.json"):
        assert (here / "new" / name).read_bytes() == (here / "run" / name).read_bytes()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_data_that_is_refused_is_said_once_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.tsv").write_text("text\tlabel\n" + "hello you\ta\n" * 3, encoding="utf-8")
    (tmp_path / "mine").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "given").mkdir()  # as a run would call it
    for out in ("runs/new", "mine", "mine/new", "notes"):
        assert main(["train", "classify", "one.tsv", "--out", out]) == 2
        said = capsys.readouterr().err
        assert said.count("every label is 'a'") == 1
        assert said.count("repeats an earlier one") == 1
        assert "nothing to remark" not in said
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert there == {"one.tsv", "mine", "notes", "notes/given"}


def test_rows_in_memory_that_are_refused_leave_no_folder(tmp_path: Path) -> None:
    rows = {"source": ["ja"], "target": ["yes"]}
    with pytest.raises(UserError, match="1 usable pair cannot"):
        train("translate", rows, out=tmp_path / "a" / "b", quiet=True)
    assert not list(tmp_path.iterdir())


def test_pictures_that_cannot_be_read_are_listed_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for label in "ab":
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (8, 8), (i, 9, 9)).save(f"pictures/{label}/{i}.png")
    Path("pictures/a/0.png").write_bytes(b"no picture")
    assert main(["train", "classify", "pictures", "--out", "run"]) == 2
    said = capsys.readouterr().err
    assert said.count("too many to go on") == 1
    assert said.count("pictures/a/0.png") == 2  # its place, and the reason that names it
    assert said.index("too many to go on") < said.index("pictures/a/0.png")


def test_a_run_begun_with_steps_beside_a_budget_goes_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As older versions took them; what begins now, or anew, is refused."""
    words = command("--budget", "1s", out="old")
    with monkeypatch.context() as older:
        older.setattr(arguments, "_check_length", lambda settings, budget: None)
        assert main(words) == 0
    asked = load_run(here / "old").asked
    assert (asked["budget"], asked["train.steps"]) == ("1s", 2)
    (here / "old" / "model.safetensors").unlink()
    assert main(words) == 0
    assert (here / "old" / "model.safetensors").is_file()
    assert "going on from step" in capsys.readouterr().err
    for again in ([*words, "--restart"], command("--budget", "1s", out="new")):
        assert main(again) == 2
        assert "train.steps=2 and --budget 1s both say" in capsys.readouterr().err
    assert (here / "old" / "model.safetensors").is_file()
