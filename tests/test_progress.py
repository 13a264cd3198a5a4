"""What a person sees while a run works: on stderr, and never on stdout."""

from __future__ import annotations

import io
import re
import sys
import threading
from itertools import count
from types import SimpleNamespace

import pytest

from headway import progress as module
from headway.progress import Progress, duration
from tests.facts import figures, missing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    # The module's name for it alone: other threads of these tests, as a server's, go by the clock.
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
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
    assert [figures(line)[0] for line in lines] == [
        f"{step}/100" for step in (51, 61, 71, 81, 91, 100)
    ]
    assert figures(lines[0]) == ["51/100", "1.051", "12.3k", "0%", "49s"]
    assert figures(lines[1]) == ["61/100", "1.061", "12.3k", "0%", "31.2", "39s"]
    assert not missing(lines[1], "loss tokens/s padding BLEU")


def test_a_plan_that_changes_changes_how_many_steps_are_left(clock: list[float]) -> None:
    lines, bar = io.StringIO(), Terminal()
    for stream in (lines, bar):
        clock[0] = 0.0
        progress = Progress(stream=stream)
        progress.start(20)
        for step in range(1, 41):
            clock[0] += 1.0
            if step == 15:
                progress.expect(40)
            progress.update(step)
        progress.close()
    assert [figures(line) for line in lines.getvalue().splitlines()] == [
        ["1/20", "19s"], ["11/20", "9s"], ["21/40", "19s"], ["31/40", "9s"], ["40/40", "0s"],
    ]  # fmt: skip
    assert "40/40" in bar.getvalue()
    assert "40/20" not in bar.getvalue()


def test_the_bar_and_notes_go_to_the_terminal_they_were_given() -> None:
    stream = Terminal()
    with Progress(stream=stream) as progress:
        progress.start(10)
        progress.update(5, loss=2.5, bleu=12.0, tokens_per_s=900.0)
        progress.note("[bold]a note[/bold] of \x1b text")
        progress.update(10, loss=2.0)
    shown = stream.getvalue()
    note = "[bold]a note[/bold]"
    for wanted in ("10/10", "loss 2.000", "BLEU 12.0", "900 tokens/s", note):
        assert wanted in shown
    progress.note("late")
    assert stream.getvalue().endswith("late\n")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_narrow_terminal_shows_less_but_always_the_step(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    with Progress(stream=stream) as progress:
        progress.start(80_000)
        progress.update(12_345, loss=3.21, bleu=31.2, chrf=52.3, tokens_per_s=41_234.0, padding=0.0)
    shown = stream.getvalue()
    assert "12,345/80,000  loss 3.210  BLEU 31.2" in shown
    assert "…" not in shown
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


def test_a_silent_rank_prints_nothing() -> None:
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
    assert figures(stream.getvalue()) == ["1/1", "1.000", "0s"]
    assert stream.getvalue().count("\n") == 1


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


class Held:
    """A clock that the test holds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def in_a_pipe() -> tuple[Progress, Held, io.StringIO]:
    clock, stream = Held(), io.StringIO()
    return Progress(stream=stream, clock=clock, beat=None), clock, stream


def test_quick_work_shows_nothing() -> None:
    progress, clock, stream = in_a_pipe()
    with progress.stage("tokenising", 10, "pairs") as stage:
        for done in range(1, 11):
            clock.now += 0.19
            stage.update(done)
    assert stream.getvalue() == ""


def test_slow_work_has_a_line_after_two_seconds_and_then_every_ten() -> None:
    progress, clock, stream = in_a_pipe()
    with progress.stage("tokenising", 1000, "pairs") as stage:
        for second in range(1, 26):
            clock.now += 1.0
            stage.update(20 * second)
    lines = stream.getvalue().splitlines()
    assert [figures(line) for line in lines] == [
        ["40/1,000", "48s"], ["240/1,000", "38s"], ["440/1,000", "28s"],
    ]  # fmt: skip
    assert not any(missing(line, "tokenising pairs") for line in lines)


def test_earlier_work_does_not_count_for_the_time_left() -> None:
    progress, clock, stream = in_a_pipe()
    with progress.stage("translating", 100_000, done=90_000) as stage:
        clock.now += 20.0
        stage.update(92_000)
    assert figures(stream.getvalue()) == ["92,000/100,000", "1m", "20s"]


def test_work_without_updates_is_shown_by_the_clock() -> None:
    progress, clock, stream = in_a_pipe()
    with progress.stage("tokenizer"):
        for _ in range(14):
            clock.now += 1.0
            progress.tick()
    progress.tick()
    lines = stream.getvalue().splitlines()
    assert [(line.split()[0], *figures(line)) for line in lines] == [
        ("tokenizer", "2s"), ("tokenizer", "12s"),
    ]  # fmt: skip


def test_what_waits_for_its_input_is_silent_in_between() -> None:
    progress, clock, stream = in_a_pipe()
    with progress.stage("answering", beats=False) as stage:
        clock.now += 30.0
        progress.tick()
        assert stream.getvalue() == ""
        stage.advance(3)
        clock.now += 30.0
        progress.tick()
    assert figures(stream.getvalue()) == ["3", "30s"]
    assert stream.getvalue().startswith("answering ")


def test_an_evaluation_inside_training_has_its_own_lines_and_counts() -> None:
    progress, clock, stream = in_a_pipe()
    progress.start(100)
    progress.update(50, loss=2.0)
    with progress.stage("evaluating") as stage:
        clock.now += 4.0
        stage.update(10, 40)
        clock.now += 10.0
        stage.update(20, 200)  # the loss is known; now it translates
        clock.now += 10.0
        stage.update(50, 200)
    clock.now += 10.0
    progress.update(51, loss=1.9)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [figures(line) for line in lines] == [
        ["50/100", "2.000", "0s"],
        ["10/40", "12s"],
        ["20/200", "1m", "30s"],
        ["50/200", "1m", "00s"],
        ["51/100", "1.900", "33s"],
    ]
    assert [line.startswith("evaluating ") for line in lines] == [False, True, True, True, False]


def test_on_a_terminal_a_bar_comes_after_two_seconds_and_is_removed_at_the_end() -> None:
    clock, stream = Held(), Terminal()
    progress = Progress(stream=stream, clock=clock, beat=None)
    with progress.stage("reading", 8, "images") as stage:
        stage.update(1)
        assert stream.getvalue() == ""
        clock.now += 3.0
        stage.update(2)
        progress.note("odd: a.png")
        with progress.stage("closer"):
            clock.now += 3.0
            progress.tick()
        stage.update(8)
    shown = stream.getvalue()
    assert re.search(r"reading\b.*\b2/8\b.*\bimages\b.*\b9s\b", shown)
    assert "odd: a.png" in shown
    last = list(re.finditer(r"closer\b.*\b3s\b", shown))[-1]
    assert shown[last.end() :].count("\x1b[2K") == 2  # both lines are cleared
    progress.note("done")
    assert stream.getvalue().endswith("done\n")


def test_a_silent_one_has_silent_stages() -> None:
    stream = Terminal()
    progress = Progress(enabled=False, stream=stream, clock=Held(), beat=None)
    with progress.stage("reading", 2) as stage:
        progress.clock.now += 9.0  # type: ignore[attr-defined]
        stage.update(2)
        progress.tick()
    assert (stream.getvalue(), progress.stages) == ("", [])


def test_the_clock_is_looked_at_by_a_thread_that_ends_with_the_stage() -> None:
    told = threading.Event()

    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            told.set()
            return super().write(text)

    stream = Pipe()
    progress = Progress(stream=stream, clock=count(0, 3).__next__, beat=0.001)  # type: ignore[arg-type]
    with progress.stage("exporting"):
        assert told.wait(30.0)
    assert stream.getvalue().startswith("exporting  ")
    assert [thread for thread in threading.enumerate() if thread.name == "progress"] == [] or (
        progress._heart is None
    )
