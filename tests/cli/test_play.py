"""`headway play`: lines from a pipe and from a terminal, commands, mistakes, leaving."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from headway.cli.main import main
from tests.decode.test_writer import save_run as save_translator
from tests.decode.writing import save_run as save_writer
from tests.facts import missing

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_translator(tmp_path_factory.mktemp("runs") / "copy")


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_writer(tmp_path_factory.mktemp("runs") / "writer")


def played(
    words: list[str], lines: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> tuple[str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert main(["play", *words]) == 0
    printed = capsys.readouterr()
    return printed.out, printed.err


def test_each_line_is_answered(
    translator: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    out, err = played([str(translator)], "ba de\n\nfi ko ga", monkeypatch, capsys)
    assert (out, err) == ("ba de\n\nfi ko ga\n", "")


def test_text_is_streamed_and_settings_change(
    writer: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    lines = "one two\n/set decode.max_len=1\n/set\none two\n/quit\nnever read\n"
    out, err = played([str(writer), "decode.beam=1"], lines, monkeypatch, capsys)
    first, second = out.splitlines()
    assert first == "one two three four five six."
    assert first.startswith(second)
    assert len(second) < len(first)
    assert err == "decode.beam=1 decode.max_len=1\n"


def test_play_continues_after_a_mistake(
    translator: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    lines = "/help\n/sett\n/set model.d_model=3\n/set decode.beem=2\n/set decode.beam=0\n//\ngo\n"
    out, err = played([str(translator)], lines, monkeypatch, capsys)
    assert out.splitlines()[1:] == ["go"]
    *_, command, other, unknown, value = err.splitlines()
    assert not missing(err, "/help /quit decode.temperature=0.7")
    assert not missing(command, "/sett /set")
    assert not missing(other, "model.d_model=3 decode.*")
    assert not missing(unknown, "decode.beem beam")
    assert not missing(value, "decode.beam=0 1")


def test_errors_of_loading_come_before_the_first_line(
    tmp_path: Path, translator: Path, capsys: Output
) -> None:
    assert main(["play", str(tmp_path / "nowhere")]) == 2
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    assert main(["play", str(translator), "beam=2"]) == 2
    assert not missing(capsys.readouterr().err, "beam=2 decode.*")


def in_terminal(run: Path, typed: list[bytes], *, interrupt: bool = False) -> tuple[str, int]:
    """What a terminal shows, and the exit code."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headway.cli.main", "play", str(run), "--device", "cpu"]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": "dumb", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    for line in [*typed, b""]:
        wanted, limit = shown.count(b"> ") + 1, time.monotonic() + 300
        while shown.count(b"> ") < wanted and time.monotonic() < limit:
            shown += os.read(ours, 4096)
        if line:
            os.write(ours, line)
    if interrupt:
        # The prompt is written a little before the terminal is listened to: one may go unheard.
        time.sleep(0.5)
        for _ in range(10):
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
                break
    else:
        os.write(ours, b"\x04")
    try:
        code = process.wait(300)
    finally:
        process.kill()
        os.close(ours)
    return shown.decode(), code


def test_a_terminal_has_a_prompt_and_both_ways_out_are_clean(translator: Path) -> None:
    shown, code = in_terminal(translator, [b"fi ko ga\n"])
    assert not missing(shown, "translate /help", translator)
    assert shown.count("fi ko ga") == 2  # as typed, and the answer
    assert code == 0
    shown, code = in_terminal(translator, [], interrupt=True)
    assert "Traceback" not in shown
    assert code == 0
