"""`headway train` with wrong arguments: one line, code 2, and nothing lost."""

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
from tests.data.conftest import sentences
from tests.facts import figures, missing, naming

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


Failing = Callable[..., str]


@pytest.fixture
def error_of(here: Path, capsys: pytest.CaptureFixture[str]) -> Failing:
    """Run a command that must end with code 2 and change no file; returns its message."""

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


def test_a_decoding_setting_of_another_task_is_an_error(error_of: Failing) -> None:
    printed = error_of("train", "classify", "--text", "de", "--out", "new", "decode.beam=7")
    assert not missing(printed, "decode.beam classify")


# Files


def test_a_missing_file_is_named(error_of: Failing) -> None:
    assert not missing(error_of(*command(source="nowhere.de", out="new")), "nowhere.de")


def test_a_folder_in_the_place_of_a_file_is_named(error_of: Failing, here: Path) -> None:
    (here / "corpus.d").mkdir()
    assert not missing(error_of(*command(source="corpus.d", out="new")), "corpus.d")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(error_of: Failing, here: Path) -> None:
    (here / "secret").write_text("x\n")
    (here / "secret").chmod(0)
    try:
        assert not missing(error_of(*command(source="secret", out="new")), "secret")
    finally:
        (here / "secret").chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_unequal_lengths_are_an_error_with_both_counts(error_of: Failing, here: Path) -> None:
    lines = (here / "en").read_text().splitlines(keepends=True)
    (here / "short").write_text("".join(lines[:390]))
    printed = error_of(*command(target="short", out="new"))
    assert not missing(printed, "de 400 short 390")


def test_bytes_in_another_encoding_are_located(error_of: Failing, here: Path) -> None:
    content = (here / "de").read_bytes().splitlines(keepends=True)
    content[6] = content[6][:4] + b"\xe4" + content[6][4:]
    (here / "latin").write_bytes(b"".join(content))
    printed = error_of(*command(source="latin", out="new"))
    assert not missing(printed, "latin 7 0xe4 --encoding")


def test_another_encoding_can_be_given(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (here / "de").read_text(encoding="utf-8")
    (here / "de").write_bytes(text.encode("latin-1"))
    (here / "en").write_bytes((here / "en").read_text(encoding="utf-8").encode("latin-1"))
    assert main(command("--encoding", "latin-1", out="new")) == 0
    kept = (here / "new/data/valid.jsonl").read_text()
    assert all(json.loads(line)["source"] in text for line in kept.splitlines())
    capsys.readouterr()


def test_an_empty_file_is_an_error(error_of: Failing, here: Path) -> None:
    (here / "empty").touch()
    printed = error_of(*command(source="empty", target="empty", out="new"))
    assert "pairs" in printed
    assert figures(printed) == []


def test_equal_pairs_are_an_error(error_of: Failing, here: Path) -> None:
    (here / "a").write_text("Guten Tag\n" * 300)
    (here / "b").write_text("Good day\n" * 300)
    printed = error_of(*command(source="a", target="b", out="new"))
    assert figures(printed)[:2] == ["300", "300"]


def test_one_endless_line_is_an_error_with_its_place(error_of: Failing, here: Path) -> None:
    (here / "long").write_bytes(b"short\n" + b"x" * 11_000_000 + b"\n")
    printed = error_of(*command(source="long", out="new"))
    assert not missing(printed, "long 2 10,000,000")


@pytest.mark.parametrize(
    ("content", "facts"),
    [("{", "t.json JSON char"), (None, "t.json")],
)
def test_a_wrong_tokenizer_file_is_named(
    error_of: Failing, here: Path, content: str | None, facts: str
) -> None:
    if content is not None:
        (here / "t.json").write_text(content)
    assert not missing(error_of(*command("tokenizer.file=t.json", out="new")), facts)


def test_a_tokenizer_that_does_not_fit_the_model_is_an_error(
    here: Path, error_of: Failing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command("tokenizer.vocab_size=20", out="other")) == 0
    shutil.copy(here / "other/tokenizer.json", here / "run/tokenizer.json")
    config = here / "run/config.toml"
    lines = config.read_text().splitlines(keepends=True)  # a change on purpose
    config.write_text("".join(line for line in lines if not line.startswith("# sha256")))
    (here / "in.txt").write_text("Ein Hund.\n")
    printed = error_of("predict", "run", "in.txt")
    assert not missing(printed, "run/tokenizer.json 20")


def test_resuming_restores_the_tokenizer(here: Path) -> None:
    right = (here / "run/tokenizer.json").read_bytes()
    for damage in (lambda p: p.unlink(), lambda p: p.write_text("{}")):
        damage(here / "run/tokenizer.json")
        assert main(command()) == 0
        assert (here / "run/tokenizer.json").read_bytes() == right


# The run folder


def test_the_same_command_again_trains_nothing(here: Path) -> None:
    before = files_in(here / "run")
    assert main(command()) == 0
    after = files_in(here / "run")
    for name in before:
        if name not in ("metrics.jsonl", "report.html"):
            assert after[name] == before[name], name
    kinds = [json.loads(line)["kind"] for line in after["metrics.jsonl"].splitlines()]
    before_kinds = [json.loads(line)["kind"] for line in before["metrics.jsonl"].splitlines()]
    assert kinds.count("end") == 1
    assert kinds.count("train") == before_kinds.count("train")


def test_changed_settings_are_named(error_of: Failing) -> None:
    printed = error_of(*command("train.lr=0.5", "train.ema=0.9"))
    by_key = {line.partition(":")[0].strip(): line for line in printed.splitlines()}
    assert not missing(by_key["train.lr"], 0.5)
    assert not missing(by_key["train.ema"], 0.9)
    assert "--restart" in printed
    words = [word for word in command("--budget", "10m") if word != "train.steps=2"]
    printed = error_of(*words)
    by_key = {line.partition(":")[0].strip(): line for line in printed.splitlines()}
    assert not missing(by_key["budget"], '"10m"')


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


def test_changed_data_is_an_error(error_of: Failing, here: Path) -> None:
    path = here / "de"
    before = path.read_bytes()
    path.write_bytes(before.replace(b"Hund", b"Wolf"))
    printed = error_of(*command())
    assert not missing(printed, "run --out --restart")
    assert main(["predict", "run", "de"]) == 0  # the model there is as it was
    path.write_bytes(before)
    assert main(command()) == 0


def test_a_run_of_another_task_is_an_error(error_of: Failing, here: Path) -> None:
    config = here / "run/config.toml"
    config.write_text(config.read_text().replace('task = "translate"', 'task = "caption"'))
    printed = error_of(*command())
    assert not missing(printed, "run caption --restart")


def test_a_model_without_a_run_is_an_error(error_of: Failing, here: Path) -> None:
    (here / "run/config.toml").write_text('[model]\nfamily = "decoder"\n')
    assert not missing(error_of(*command()), "run --out --restart")


@pytest.mark.parametrize("text", ["task = ", "format = 2\ntask = 'translate'\n[train]\nlrr = 3\n"])
def test_settings_that_cannot_be_read_are_named(error_of: Failing, here: Path, text: str) -> None:
    (here / "run/config.toml").write_text(text)
    printed = error_of(*command())
    assert not missing(printed, "run/config.toml --restart")
    assert main(command("--restart")) == 0


@pytest.mark.parametrize("more", [[], ["--restart"]])
@pytest.mark.parametrize(
    "name", ["thesis.tex", "data/corpus.de", "checkpoints/other.pt", "data/sub/x", "config.toml x"]
)
def test_a_folder_with_other_files_is_not_changed(
    error_of: Failing, here: Path, name: str, more: list[str]
) -> None:
    for part in name.split():
        path = here / "mine" / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[tool]\nmine = 1\n")
    kept = (here / "mine").rglob("*")
    before = {path: path.read_bytes() for path in kept if path.is_file()}
    printed = error_of(*command(*more, out="mine"))
    has_config = name == "config.toml x" and not more
    assert not missing(printed, "mine --out")
    assert ("--restart" in printed) == has_config
    assert has_config or not missing(printed, name.split()[-1].removesuffix("/x"))
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("more", [[], ["--restart"]])
def test_a_foreign_file_in_a_run_folder_is_not_lost(
    error_of: Failing, here: Path, more: list[str]
) -> None:
    """Prepared data is removed and made again whenever that is needed."""
    (here / "run/data/mine.de").write_text("precious")
    assert not missing(error_of(*command(*more)), "run data/mine.de")
    assert (here / "run/data/mine.de").read_text() == "precious"


def test_the_folder_of_the_data_is_not_taken_for_a_runs(error_of: Failing, here: Path) -> None:
    """`data` is also the name of a part of a run folder, which may be removed at any time."""
    (here / "project/data").mkdir(parents=True)
    for name in ("de", "en"):
        shutil.copy(here / name, here / "project/data" / name)
    printed = error_of(*command(source="project/data/de", target="project/data/en", out="project"))
    assert not missing(printed, "project data/de data/en")
    assert (here / "project/data/de").exists()


@pytest.mark.parametrize(
    "leftover", ["data.tmp/x", "input.tmp/standard-input", "data/train.source.tokens"]
)
def test_files_of_a_killed_start_do_not_block_a_new_start(here: Path, leftover: str) -> None:
    path = here / "new" / leftover
    path.parent.mkdir(parents=True)
    path.write_text("half")
    assert main(command(out="new")) == 0
    assert not (here / "new/data.tmp").exists()
    assert not (here / "new/input.tmp").exists()


def test_a_file_in_the_place_of_the_folder_is_named(error_of: Failing, here: Path) -> None:
    (here / "taken").touch()
    assert not missing(error_of(*command(out="taken")), "taken --out")
    assert not missing(error_of(*command(out="taken/run")), "taken --out")
    assert not missing(error_of(*command(out="/dev/null")), "/dev/null --out")
    (here / "link").symlink_to("gone")
    assert not missing(error_of(*command(out="link")), "link gone --out")
    assert not missing(error_of(*command(out="link/run")), "link gone --out")


def test_a_folder_that_cannot_be_written_to_is_named(
    error_of: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for root, which only a read-only file system stops."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    error = error_of(*command())
    assert not missing(error, "run --out")
    assert "--restart" not in error


def test_two_runs_in_one_folder_are_refused(error_of: Failing, here: Path) -> None:
    lock = os.open(here / "run", os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = error_of(*command())
        assert not missing(error, "run")
        assert "--" not in error  # no option helps
    finally:
        os.close(lock)
    assert main(command()) == 0


# Words


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["train", "translat"], "translat translate"),
        (["train"], "translate caption --recipe"),
        (["train", "translate", "x"], "'x' train.lr=1e-3"),
        (["train", "--recipe", "multi30k"], "'multi30k' multi30k-en-fr"),
        (["train", "--recipe", "mine.toml"], "mine.toml mnist"),
        (["train", "translate", "--data", "."], "--data --recipe"),
        (["train", "translate", "--out", "x"], "FILES --source --target"),
        (["train", "translate", "--source", "de", "--out", "x"], "data.target --pairs"),
        (command()[: -len(SETTINGS) - 2], "--out"),
        (command("train.lrr=1"), "train.lrr lr"),
        (command("model.vocab_size=5", out="y"), "model.vocab_size tokenizer.vocab_size"),
        (command("model.preset=gpt2", out="y"), "translate seq2seq gpt2 model.preset"),
        (
            command("train.weight_decay=0.1", out="y"),
            "train.weight_decay=0.1 train.optimizer=adamw",
        ),
        (command("--budget", "soon", out="y"), "--budget soon 90s"),
        (command("--budget", "9m", out="y"), "train.steps=2 --budget 9m"),
        (command("--device", "gpu", out="y"), "'gpu' cpu cuda"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_word_is_named(error_of: Failing, words: list[str], facts: str, here: Path) -> None:
    printed = error_of(*words)
    assert not missing(printed, facts)
    assert printed.count("\n") == 1
    shutil.rmtree(here / "y", ignore_errors=True)


# A stop


@pytest.mark.parametrize(
    "place", ["headway.tasks.translate.prepare", "headway.training.run.load_final_weights"]
)
def test_an_interrupt_ends_with_75_and_the_same_command_resumes(
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
    printed = capsys.readouterr().err
    assert not missing(printed.splitlines()[-1], "SIGINT")
    assert "Traceback" not in printed
    assert main(command(out="new")) == 0
    for name in ("model.safetensors", "tokenizer.json"):
        assert (here / "new" / name).read_bytes() == (here / "run" / name).read_bytes()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_data_error_is_printed_once_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.tsv").write_text("text\tlabel\n" + "hello you\ta\n" * 3, encoding="utf-8")
    (tmp_path / "mine").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "given").mkdir()  # as a run would call it
    for out in ("runs/new", "mine", "mine/new", "notes"):
        assert main(["train", "classify", "one.tsv", "--out", out]) == 2
        printed = capsys.readouterr().err
        lines = printed.splitlines()
        assert len(set(lines)) == len(lines)
        [error] = [line for line in lines if "error: " in line]
        assert not missing(error, "'a'")
        assert len([line for line in lines if figures(line)[:2] == ["2", "3"]]) == 1  # repeated
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert there == {"one.tsv", "mine", "notes", "notes/given"}


def test_bad_rows_in_memory_leave_no_folder(tmp_path: Path) -> None:
    rows = {"source": ["ja"], "target": ["yes"]}
    with pytest.raises(UserError, match=naming(1, "valid=")):
        train("translate", rows, out=tmp_path / "a" / "b", quiet=True)
    assert not list(tmp_path.iterdir())


def test_images_that_cannot_be_read_are_listed_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for label in "ab":
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (8, 8), (i, 9, 9)).save(f"images/{label}/{i}.png")
    Path("images/a/0.png").write_bytes(b"no image")
    assert main(["train", "classify", "images", "--out", "run"]) == 2
    printed = capsys.readouterr().err
    [error] = [line for line in printed.splitlines() if "error: " in line]
    assert figures(error)[:2] == ["1", "4"]
    assert printed.count("images/a/0.png") == 2  # its place, and the reason that names it
    assert printed.index(error) < printed.index("images/a/0.png")


def test_a_budget_together_with_steps_is_an_error(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--restart"]):
        assert main([*command("--budget", "1s", out="new"), *more]) == 2
        assert not missing(capsys.readouterr().err, "train.steps=2 --budget 1s")
    assert not (here / "new").exists()
