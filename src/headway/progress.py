"""Progress display on stderr: a bar on a terminal, and a line every few seconds elsewhere.

A command creates one `Progress` and passes it to the functions that it calls. Training is shown
from its first step. Other work that may take long is a `stage`. It shows nothing for the first two
seconds, then its name, its progress and the estimated time left.
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
"""Time in seconds before a stage is shown, so that fast stages do not flicker."""

LINE_EVERY = 10.0
"""Time in seconds between lines if the output is not a terminal. The log of several hours stays
readable."""

BEAT = 0.5
"""Time in seconds between redraws while a stage reports no progress, short enough to look alive."""

BAR, NARROW_BAR = 24, 6
"""Width of the progress bar in characters, on a normal and on a narrow terminal."""

SPARED = ("grad_norm", "lr", "chrf", "cider", "padding", "tokens_per_s")
"""Numbers that are left out if the line is too long for the terminal, in this order."""

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
"""Type of a progress callback, which is called with the amount done and the total."""


def no_progress(done: int, total: int) -> None:
    """Progress callback that does nothing."""


class Progress:
    """Progress display of one command.

    `note` prints a line, and `stage` shows work that may take long. Training calls `start`, then
    `update` after each step with the current numbers. A number stays visible until it is updated.
    Without the package rich, lines are printed on terminals, too.

    `enabled=False`: print nothing, as in all but one process of distributed training. `on_update`:
    function to call on every update of a stage, even if nothing is shown. `beat=None`: the caller
    has to call `tick`.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] | None = None,
        beat: float | None = BEAT,
        on_update: OnProgress | None = None,
    ) -> None:
        self.enabled, self.on_update = enabled, on_update
        self.stream = sys.stderr if stream is None else stream
        self.clock = time.monotonic if clock is None else clock
        self.stages: list[ProgressStage] = []
        """Open stages. The last one is the innermost, which is shown."""

        self._training = ProgressStage(self, "step", total=0, patience=0.0, beats=False)
        self._bar: RichProgress | None = None
        self._beat = beat
        self._heart: _Heart | None = None
        self._lock = threading.RLock()

    def start(self, total_steps: int, done: int = 0) -> None:
        """Show the progress of training. `done`: number of steps made before training was
        resumed."""
        self._training = ProgressStage(
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
    ) -> ProgressStage:
        """Return a context that shows the progress of one piece of work.

        `total`: its amount in `unit`. None: unknown. `done`: amount that is already done, which
        does not count in the estimate of the time left. `beats`: show the stage even while it
        reports no progress.
        """
        return ProgressStage(self, what, total=total, done=done, unit=unit, beats=beats)

    def expect(self, total_steps: int) -> None:
        """Change the total number of training steps."""
        with self._lock:
            self._training.total = total_steps

    def note(self, text: str) -> None:
        """Print a permanent line, which appears above the progress bar if there is one."""
        if not self.enabled:
            return
        text = visible(text)
        with self._lock:
            if self._bar is None:
                self._write(text)
            else:
                self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def tick(self) -> None:
        """Show the innermost stage if an update is due, even if it reports no progress."""
        with self._lock:
            if self.stages and self.stages[-1].beats:
                self._show(self.stages[-1])

    def close(self) -> None:
        """Restore the terminal. The method may be called more than once."""
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

    def _enter(self, stage: ProgressStage) -> None:
        with self._lock:
            self.stages.append(stage)
            if self._beat is not None and self._heart is None:
                self._heart = _Heart(self.tick, self._beat)

    def _leave(self, stage: ProgressStage) -> None:
        with self._lock:
            if stage not in self.stages:
                return  # `close` removed it already
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

    def _show(self, stage: ProgressStage) -> None:
        now = self.clock()
        if now - stage.opened < stage.patience:
            return
        if self._on_terminal():
            # A stage may be updated thousands of times per second; redraw at most ten times.
            if stage is self._training or now - stage.shown_at >= 0.1:
                stage.shown_at = now
                self._draw(stage)
        elif stage.line_is_due(now):
            stage.shown_at, stage.shown_done = now, stage.done
            self._write(stage.line())

    def _on_terminal(self) -> bool:
        """Whether the output is a progress bar. The bar is created on first use."""
        if self._bar is None and self.stream.isatty():
            # The bar of training stays on the terminal after training ends; other bars are removed.
            self._bar = _rich_bar(self.stream, transient=self._training not in self.stages)
            if self._bar is not None:
                self._bar.start()
        return self._bar is not None

    def _draw(self, stage: ProgressStage) -> None:
        assert self._bar is not None
        text = visible(stage.line(room=self._bar.console.width - NARROW_BAR - 1))
        if stage.task is None:
            stage.task = self._bar.add_task("", total=stage.total, completed=stage.done, line=text)
        self._bar.update(stage.task, completed=stage.done, total=stage.total, line=text)

    def _write(self, text: str) -> None:
        print(visible(text), file=self.stream, flush=True)


class ProgressStage:
    """Progress of one piece of work, which is reported with `update`. Without a total, the elapsed
    time is shown."""

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
        self._since, self._on_update = (self.opened, done), self.opened

    def __enter__(self) -> ProgressStage:
        self.opened = self._on_update = self.progress.clock()
        self._since = (self.opened, self.done)
        if self.progress.enabled:
            self.progress._enter(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.progress._leave(self)

    def update(self, done: int, total: int | None = None, **numbers: float) -> None:
        """Report the amount done so far. A changed `total` restarts the estimate of the time
        left."""
        if self.progress.on_update is not None:
            self.progress.on_update(done, total or 0)
        if not self.progress.enabled:
            return
        with self.progress._lock:
            if done < self.done or (total is not None and total != self.total):
                self._since = (self._on_update, 0)
            self.done, self._on_update = done, self.progress.clock()
            self.total = self.total if total is None else total
            self.numbers |= numbers
            self.progress._show(self)

    def advance(self, n: int = 1) -> None:
        self.update(self.done + n)

    def line_is_due(self, now: float) -> bool:
        """Whether a line should be printed: every `LINE_EVERY` seconds, and for the last training
        step."""
        is_end = not self.patience and self.done == self.total != self.shown_done
        return is_end or now - self.shown_at >= LINE_EVERY

    def line(self, room: int | None = None) -> str:
        """Return a line with the progress, the numbers and the time left. `room`: maximum width in
        characters, for which the least important numbers are left out. None: unlimited."""
        unit = f" {self.unit}" * bool(self.unit)
        # Training has a bar without a name.
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
        # The speed is averaged over the whole stage, because evaluations and saves recur, too.
        return f"{duration((now - begun) / made * max(0, self.total - self.done))} left"


class _Heart:
    """Thread that calls a function at regular intervals."""

    def __init__(self, call: Callable[[], None], every: float) -> None:
        self._ended = threading.Event()

        def beat() -> None:
            while not self._ended.wait(every):
                call()

        threading.Thread(target=beat, name="progress", daemon=True).start()

    def stop(self) -> None:
        """End the thread. The function may still be called once."""
        self._ended.set()


SILENT = Progress(enabled=False)
"""Progress display that prints nothing."""


def duration(seconds: float) -> str:
    """Return a duration as text, in its two largest units: 45s, 3m 20s, 2h 05m, 3d 04h."""
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
        redirect_stdout=False,  # stdout carries results
    )
