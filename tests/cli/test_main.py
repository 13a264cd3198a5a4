"""The command: quick help, results on stdout, mistakes in one line on stderr with code 2."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import headway
import headway.settings.folder
from headway.cli.main import main
from tests.facts import missing


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail as a user's mistake does, and return stderr."""

    def run(*words: str) -> str:
        assert main(list(words)) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    return run


def in_new_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_help_is_quick_and_loads_no_torch() -> None:
    done = in_new_process(
        "import sys, time\n"
        "from headway.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "print('torch' in sys.modules, time.process_time())\n"
    )
    *help_lines, last = done.stdout.splitlines()
    assert help_lines[0].startswith("Usage: headway")
    has_torch, seconds = last.split()
    assert has_torch == "False"
    assert float(seconds) < 1.0  # about 0.15 on a quiet machine


def test_prediction_does_not_import_the_compiler() -> None:
    """Importing `torch._dynamo` takes more than a second, as long as the rest of a command."""
    done = in_new_process(
        "import sys\n"
        "from headway.cli.main import main\n"
        "main(['predict', 'tatoeba-de-en', '--text', 'Ja.'])\n"
        "print('torch' in sys.modules, 'torch._dynamo' in sys.modules)\n"
    )
    assert done.stdout.splitlines()[-1] == "True False"


@pytest.mark.parametrize("words", [["info", "gtp2"], ["info", "gpt2", "model.n_head=3"]])
def test_a_mistake_surfaces_before_torch_loads(words: list[str]) -> None:
    done = in_new_process(
        "import sys\n"
        "from headway.cli.main import main\n"
        f"print(main({words}), 'torch' in sys.modules)\n"
    )
    assert done.stdout == "2 False\n"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headway {headway.__version__}\n"


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    alone = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert alone == capsys.readouterr().out
    assert "presets" in alone
    assert "info" in alone


def test_running_the_package_is_running_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headway", "inf"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("headway: error: ")
    assert not missing(done.stderr, "inf info")


@pytest.mark.parametrize(
    ("words", "command", "facts"),
    [
        (["info", "gtp2"], "headway info", "gtp2 gpt2"),
        (["info", "gpt2", "model.n_head=3"], "headway info", "model.n_head n_heads"),
        (["info", "gpt2", "n_layers"], "headway info", "n_layers model.n_layers=4"),
        (["info"], "headway info", "MODEL `headway info --help`"),
        (["info", "gpt2", "--batch-tokens", "0"], "headway info", "--batch-tokens 1 --help"),
        (["presets", "--family", "dec"], "headway presets", "dec decoder"),
        (["--nothing"], "headway", "--nothing `headway --help`"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(
    fails: Callable[..., str], words: list[str], command: str, facts: str
) -> None:
    error = fails(*words)
    assert error.startswith(f"{command}: error: ")
    assert not missing(error, facts)
    assert error.count("\n") == 1


def test_a_long_message_is_not_wrapped(
    fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert fails("info", "gpt2", "model.activation=" + "x" * 300).count("\n") == 1


@pytest.mark.parametrize("words", [["--debug", "info", "gtp2"], ["info", "gtp2", "--debug"]])
def test_debug_shows_the_traceback_in_any_place(
    fails: Callable[..., str], words: list[str]
) -> None:
    found = fails(*words)
    assert found.startswith("Traceback (most recent call last):")
    last = found.splitlines()[-1]
    assert last.startswith("headway info: error: ")
    assert "'gtp2'" in last


def test_debug_after_two_dashes_is_an_argument(fails: Callable[..., str]) -> None:
    error = fails("info", "--", "--debug")
    assert error.startswith("headway info: error: ")
    assert "'--debug'" in error


def test_an_interrupt_exits_with_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.settings.folder.load_model_settings", interrupted)
    assert main(["info", "gpt2"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
                      "allocate memory: you tried to allocate 34 bytes. Error code 12"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)  # fmt: skip
def test_a_lack_of_memory_is_one_line_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception,
    is_one: bool,
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("headway.settings.folder.load_model_settings", fail)
    if not is_one:
        with pytest.raises(RuntimeError, match="mat1"):
            main(["info", "gpt2"])
        return
    assert main(["info", "gpt2"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("headway info: error: ")
    assert not missing(printed, "decode.batch_tokens=1024 train.micro_tokens=512")
    assert printed.count("\n") == 1


def with_stdout(stdout: int, command: str, unbuffered: str) -> subprocess.CompletedProcess[str]:
    """Python writes at once, or, with a buffer, when it ends: both must be quiet."""
    return subprocess.run(
        [sys.executable, "-m", "headway", *command.split()],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("command", "unbuffered"), [("recipes", ""), ("--help", ""), ("--help", "1")]
)
def test_a_closed_pipe_is_not_an_error(command: str, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = with_stdout(writing, command, unbuffered)
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode in (1, 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_an_error_in_one_line(unbuffered: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    done = with_stdout(full, "--version", unbuffered)
    os.close(full)
    assert done.returncode == 1
    assert done.stderr.startswith("headway: error: ")
    assert f"[Errno {errno.ENOSPC}]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_narrow_terminal_loses_no_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    shown = bytearray()

    def look() -> None:  # meanwhile: a terminal that nobody looks at takes a page and no more
        while chunk := read_until_closed(ours):
            shown.extend(chunk)

    looking = threading.Thread(target=look)
    looking.start()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as at:
        at.setattr(sys, "stdout", terminal)
        code = main(["presets", "--family", "encoder"])
    looking.join(300)
    assert code == 0
    (line,) = (line for line in shown.decode().splitlines() if line.startswith("bert-base "))
    assert line.split()[:8] == [
        "bert-base", "encoder", "12", "768", "12", "3,072", "30,522", "110,104,890",
    ]  # fmt: skip


def read_until_closed(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # Linux says so when the other side has closed
        return b""


NAMED = [
    ["predict", "{}", "--text", "a"],
    ["predict", "tatoeba-de-en", "--with", "{}", "--text", "a"],
    ["predict", "stories", "--draft", "{}", "--text", "a"],
    ["play", "{}"],
    ["evaluate", "{}", "--text", "text"],
    ["evaluate", "tatoeba-de-en", "--against", "{}", "--source", "text", "--target", "text"],
    ["score", "{}", "--source", "text", "--target", "text"],
    ["average", "{}"],
    ["export", "{}", "--to", "hf", "--out", "out"],
    ["look", "{}", "--text", "a"],
    ["look", "tatoeba-de-en", "--against", "{}", "--text", "a"],
    ["truth", "{}"],
    ["prune", "{}", "--heads", "10%", "--out", "out"],
    ["factors", "{}", "--text", "text", "--out", "out"],
    ["train", "complete", "--from", "{}", "--text", "text", "--out", "out"],
    ["train", "distil", "--teacher", "{}", "--text", "text", "--out", "out"],
]
"""Every option that takes a run."""


@pytest.mark.parametrize("words", NAMED, ids=lambda words: " ".join(words[:3]))
def test_every_command_finds_runs_by_the_same_names(
    words: list[str], fails: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one place knows (a folder, one in `runs`, one that ships), all know: they ask it."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("a b c\nd e f\n")
    error = fails(*(word.format("nosuch") for word in words))
    assert not missing(error, "nosuch stories tatoeba-de-en")
    monkeypatch.setattr(headway.settings.folder, "RUNS", tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "mine").mkdir(parents=True)
    (tmp_path / "elsewhere" / "mine" / "config.toml").write_text("task = 3\n")
    assert "elsewhere/mine" in fails(*(word.format("mine") for word in words))
