"""How far a piece of work is: a bar on a terminal, a line now and then elsewhere. Always on stderr.

A command has one `Progress` and passes it down. Training is shown from its first step. Whatever
else may keep people waiting opens a `stage`: what is done within two seconds shows nothing, and
what takes longer says what it is, how far, and how long it will take.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from headway.errors import visible

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PATIENCE = 2.0
"""Seconds that people wait before they want to know what for."""

LINE_EVERY = 10.0
"""Seconds between lines where there is no terminal."""

BEAT = 0.5
"""Seconds between looks at the clock while a stage says nothing."""

BAR, NARROW_BAR = 24, 6
SPARED = ("grad_norm", "lr", "chrf", "cider", "padding", "tokens_per_s")
"""What a narrow terminal does without, the first first."""

SHOWN = {
    "loss": "loss {:.3f}",
    "bleu": "BLEU {:.1f}",
    "chrf": "chrF {:.1f}",
    "cider": "CIDEr {:.2f}",
    "lr": "lr {:.1e}",
    "grad_norm": "|g| {:.2f}",
    "padding": "padding {:.0%}",
}

OnProgress = Callable[[int, int], None]
"""Told now and then how much is done, and of how much. The `update` of a stage is one."""


def unheard(done: int, total: int) -> None:
    """For those who do not ask how far it is."""


class Progress:
    """`note` for a line of text, `stage` for work that may take a while; for training `start`, and
    `update` after each step with the newest numbers.

    A number stays on show until it is given anew. Without rich there are lines on a terminal too.
    Silent ranks pass `enabled=False`. `heard` is called whenever a stage says how far it is, shown
    or not: between two batches. `beat=None` leaves it to the caller to `tick`.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] | None = None,
        beat: float | None = BEAT,
        heard: OnProgress | None = None,
    ) -> None:
        self.enabled, self.heard = enabled, heard
        self.stream = sys.stderr if stream is None else stream
        self.clock = time.monotonic if clock is None else clock
        self.stages: list[Stage] = []
        """Those that are open; the last is the innermost, which is what one waits for."""

        self._training = Stage(self, "step", total=0, patience=0.0, beats=False)
        self._bar: RichProgress | None = None
        self._beat = beat
        self._heart: _Heart | None = None
        self._lock = threading.RLock()

    def start(self, total_steps: int, done: int = 0) -> None:
        """Training begins; `done` steps lie behind already, in an earlier run of the same."""
        self._training = Stage(
            self, "step", total=total_steps, done=done, patience=0.0, beats=False
        )
        if self.enabled:
            self.stages.append(self._training)
            if self._on_terminal():
                self._draw(self._training)

    def update(self, step: int, **numbers: float) -> None:
        self._training.update(step, None, **numbers)

    def stage(
        self,
        what: str,
        total: int | None = None,
        unit: str = "",
        *,
        done: int = 0,
        beats: bool = True,
    ) -> Stage:
        """A context in which one piece of work is done; `total` in `unit`, if it is known. `done`
        of it lies behind already, and says nothing about how long the rest takes.

        With `beats` it is also shown while it says nothing."""
        return Stage(self, what, total=total, done=done, unit=unit, beats=beats)

    def expect(self, total_steps: int) -> None:
        """There are to be more steps, or fewer, than was thought."""
        with self._lock:
            self._training.total = total_steps

    def note(self, text: str) -> None:
        """A line that stays: above the bar, or among the other lines."""
        if not self.enabled:
            return
        text = visible(text)
        with self._lock:
            if self._bar is None:
                self._write(text)
            else:
                self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def tick(self) -> None:
        """Look at the clock: what one waits for may have to be shown though it says nothing."""
        with self._lock:
            if self.stages and self.stages[-1].beats:
                self._show(self.stages[-1])

    def close(self) -> None:
        """Leave the terminal as it was; may be called more than once."""
        with self._lock:
            self.stages.clear()
            self._still()
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _enter(self, stage: Stage) -> None:
        with self._lock:
            self.stages.append(stage)
            if self._beat is not None and self._heart is None:
                self._heart = _Heart(self.tick, self._beat)

    def _leave(self, stage: Stage) -> None:
        with self._lock:
            if stage not in self.stages:
                return  # it was closed before
            self.stages.remove(stage)
            if self._bar is not None and stage.task is not None:
                self._bar.remove_task(stage.task)
            if not self.stages:
                self.close()
            elif self.stages == [self._training]:
                self._still()

    def _still(self) -> None:
        if self._heart is not None:
            self._heart.stop()
            self._heart = None

    def _show(self, stage: Stage) -> None:
        now = self.clock()
        if now - stage.opened < stage.patience:
            return
        if self._on_terminal():
            # What is told thousands of times a second need not be drawn as often.
            if stage is self._training or now - stage.shown_at >= 0.1:
                stage.shown_at = now
                self._draw(stage)
        elif stage.line_is_due(now):
            stage.shown_at, stage.shown_done = now, stage.done
            self._write(stage.line())

    def _on_terminal(self) -> bool:
        """Whether there is a bar, which is made when it is first needed."""
        if self._bar is None and self.stream.isatty():
            # That of training stays when it is done; others leave nothing behind.
            self._bar = _rich_bar(self.stream, transient=self._training not in self.stages)
            if self._bar is not None:
                self._bar.start()
        return self._bar is not None

    def _draw(self, stage: Stage) -> None:
        assert self._bar is not None
        text = visible(stage.line(room=self._bar.console.width - NARROW_BAR - 1))
        if stage.task is None:
            stage.task = self._bar.add_task("", total=stage.total, completed=stage.done, line=text)
        self._bar.update(stage.task, completed=stage.done, total=stage.total, line=text)

    def _write(self, text: str) -> None:
        print(visible(text), file=self.stream, flush=True)


class Stage:
    """One piece of work. Tell it how far it is with `update`, or say nothing: the clock goes on."""

    def __init__(
        self,
        progress: Progress,
        what: str,
        *,
        total: int | None,
        done: int = 0,
        unit: str = "",
        patience: float = PATIENCE,
        beats: bool = True,
    ) -> None:
        self.progress, self.what, self.unit = progress, what, unit
        self.patience, self.beats = patience, beats
        self.total, self.done = total, done
        self.numbers: dict[str, float] = {}
        self.opened = progress.clock()
        self.shown_at, self.shown_done = float("-inf"), -1
        self.task: TaskID | None = None
        self._since, self._heard = (self.opened, done), self.opened

    def __enter__(self) -> Stage:
        self.opened = self._heard = self.progress.clock()
        self._since = (self.opened, self.done)
        if self.progress.enabled:
            self.progress._enter(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.progress._leave(self)

    def update(self, done: int, total: int | None = None, **numbers: float) -> None:
        """`total` where it was not known before, or is another: then the count begins anew."""
        if self.progress.heard is not None:
            self.progress.heard(done, total or 0)
        if not self.progress.enabled:
            return
        with self.progress._lock:
            if done < self.done or (total is not None and total != self.total):
                self._since = (self._heard, 0)
            self.done, self._heard = done, self.progress.clock()
            self.total = self.total if total is None else total
            self.numbers |= numbers
            self.progress._show(self)

    def advance(self, n: int = 1) -> None:
        self.update(self.done + n)

    def line_is_due(self, now: float) -> bool:
        """Now and then, and once for the last step of training."""
        is_end = not self.patience and self.done == self.total != self.shown_done
        return is_end or now - self.shown_at >= LINE_EVERY

    def line(self, room: int | None = None) -> str:
        """Where it stands; where room is short, the least important numbers stay out."""
        unit = f" {self.unit}" * bool(self.unit)
        # The bar of training needs no name.
        name = "" if room is not None and not self.patience else f"{self.what} "
        if self.total is not None:
            place = f"{name}{self.done:,}/{self.total:,}{unit}"
        else:
            place = f"{name}{self.done:,}{unit}" if self.done else name.strip()
        for kept in range(len(SPARED) + 1):
            left_out = SPARED[:kept]
            shown = [_text(name, n) for name, n in self.numbers.items() if name not in left_out]
            line = "  ".join([place, *shown, self._time()])
            if room is None or len(line) <= room:
                break
        return line

    def _time(self) -> str:
        now, (begun, before) = self.progress.clock(), self._since
        if self.total is None:
            return f"{duration(now - self.opened)} so far"
        made = self.done - before
        if made <= 0:
            return "? left"
        # The mean of everything so far: evaluations and saves come again too.
        return f"{duration((now - begun) / made * max(0, self.total - self.done))} left"


class _Heart:
    """Calls a function now and then from a thread of its own."""

    def __init__(self, call: Callable[[], None], every: float) -> None:
        self._ended = threading.Event()

        def beat() -> None:
            while not self._ended.wait(every):
                call()

        threading.Thread(target=beat, name="progress", daemon=True).start()

    def stop(self) -> None:
        """It may call once more, and then not again."""
        self._ended.set()


SILENT = Progress(enabled=False)
"""For who does not want to be told."""


def duration(seconds: float) -> str:
    """The two largest units: 45s, 3m 20s, 2h 05m, 3d 04h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d {hours % 24:02}h"


def _text(name: str, value: float) -> str:
    if name == "tokens_per_s":
        return f"{value / 1000:,.1f}k tokens/s" if value >= 1000 else f"{value:,.0f} tokens/s"
    return SHOWN.get(name, f"{name} {{:.4g}}").format(value)


def _rich_bar(stream: TextIO, *, transient: bool) -> RichProgress | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    return RichProgress(
        BarColumn(bar_width=BAR),
        TextColumn("{task.fields[line]}", markup=False),
        console=Console(file=stream),
        refresh_per_second=4,
        transient=transient,
        redirect_stdout=False,  # stdout carries results, and nothing may touch it
    )
