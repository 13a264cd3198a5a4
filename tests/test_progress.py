"""What a person sees while a run works: on stderr, and never on stdout."""

from __future__ import annotations

import io
import sys

import pytest

from headway import progress as module
from headway.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_lines_come_at_most_every_ten_seconds_and_at_the_end(clock: list[float]) -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream)
    progress.start(100, done=50)
    for step in range(51, 101):
        clock[0] += 1.0
        progress.update(step, loss=1.0 + step / 1000, tokens_per_s=12_345.0, padding=0.0)
        if step == 60:
            progress.update(step, bleu=31.24)
    progress.update(100, bleu=32.0)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        f"step {step}/100" for step in (51, 61, 71, 81, 91, 100)
    ]
    assert lines[0] == "step 51/100  loss 1.051  12.3k tokens/s  padding 0%  49s left"
    assert lines[1].endswith("loss 1.061  12.3k tokens/s  padding 0%  BLEU 31.2  39s left")


def test_the_bar_and_notes_go_to_the_terminal_they_were_given() -> None:
    stream = Terminal()
    with Progress(stream=stream) as progress:
        progress.start(10)
        progress.update(5, loss=2.5, bleu=12.0, tokens_per_s=900.0)
        progress.note("[bold]a note[/bold] of \x1b text")
        progress.update(10, loss=2.0)
    shown = stream.getvalue()
    for wanted in ("10/10", "loss 2.000", "BLEU 12.0", "900 tokens/s", "[bold]a note[/bold]"):
        assert wanted in shown
    progress.note("after the end")
    assert stream.getvalue().endswith("after the end\n")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_narrow_terminal_shows_less_but_always_where_the_run_stands(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    with Progress(stream=stream) as progress:
        progress.start(80_000)
        progress.update(12_345, loss=3.21, bleu=31.2, chrf=52.3, tokens_per_s=41_234.0, padding=0.0)
    shown = stream.getvalue()
    assert "12,345/80,000  loss 3.210  BLEU 31.2" in shown
    assert (" left" in shown, "…" in shown) == (True, False)
    assert ("tokens/s" in shown) == (columns >= 80)
    assert ("chrF" in shown) == (columns >= 120)


def test_nothing_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.start(2)
    progress.update(1, loss=1.0)
    progress.note("note")
    progress.close()
    progress.close()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "loss 1.000" in printed.err
    assert "note" in printed.err


def test_a_silent_rank_says_nothing() -> None:
    stream = Terminal()
    with Progress(enabled=False, stream=stream) as progress:
        progress.start(2)
        progress.update(2, loss=1.0)
        progress.note("note")
    assert stream.getvalue() == ""


def test_without_rich_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    stream = Terminal()
    with Progress(stream=stream) as progress:
        progress.start(1)
        progress.update(1, loss=1.0)
    assert stream.getvalue() == "step 1/1  loss 1.000  0s left\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (200, "3m 20s"),
        (3599.7, "1h 00m"),
        (7500, "2h 05m"),
        (86_399, "1d 00h"),
        (273_600, "3d 04h"),
    ],
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
