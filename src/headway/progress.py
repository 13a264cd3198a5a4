"""How far training is: a bar on a terminal, a line now and then elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LINE_EVERY = 10.0
"""Seconds between lines where there is no terminal."""

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


class Progress:
    """`start`, then `update` after each step with the newest numbers, `note` for a line of text.

    A number stays on show until it is given anew. Without rich there are lines on a terminal too.
    Silent ranks pass `enabled=False`.
    """

    def __init__(
        self, *, enabled: bool = True, stream: TextIO | None = None, unit: str = "step"
    ) -> None:
        self.enabled, self.unit = enabled, unit
        self.stream = sys.stderr if stream is None else stream
        self.numbers: dict[str, float] = {}
        self.total = self.done = self.step = 0
        self._begun = time.monotonic()
        self._last_line, self._shown_step = float("-inf"), -1
        self._bar: RichProgress | None = None

    def start(self, total_steps: int, done: int = 0) -> None:
        """`done` steps lie behind already, in an earlier run of the same training."""
        self.total, self.done, self.step = total_steps, done, done
        self._begun = time.monotonic()
        if self.enabled and self.stream.isatty():
            self._bar = _rich_bar(self.stream)
        if self._bar is not None:
            self._bar.add_task("training", total=total_steps, completed=done, line="")
            self._bar.start()

    def update(self, step: int, **numbers: float) -> None:
        self.step = step
        self.numbers |= numbers
        if not self.enabled:
            return
        if self._bar is not None:
            text = self._line(room=self._bar.console.width - NARROW_BAR - 1)
            self._bar.update(self._bar.task_ids[0], completed=step, line=text)
        elif self._line_is_due():
            self._last_line, self._shown_step = time.monotonic(), step
            self._write(f"{self.unit} {self._line()}")

    def note(self, text: str) -> None:
        """A line that stays: above the bar, or among the other lines."""
        if not self.enabled:
            return
        if self._bar is None:
            self._write(text)
        else:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was; may be called more than once."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _line_is_due(self) -> bool:
        """Now and then, and once for the last step."""
        is_end = self.step == self.total != self._shown_step
        return is_end or time.monotonic() - self._last_line >= LINE_EVERY

    def _line(self, room: int | None = None) -> str:
        """Where the run stands; where room is short, the least important numbers stay out."""
        for kept in range(len(SPARED) + 1):
            left_out = SPARED[:kept]
            shown = [_text(name, n) for name, n in self.numbers.items() if name not in left_out]
            line = "  ".join([f"{self.step:,}/{self.total:,}", *shown, f"{self._eta()} left"])
            if room is None or len(line) <= room:
                break
        return line

    def _eta(self) -> str:
        made = self.step - self.done
        if made <= 0:
            return "?"
        # The mean of everything so far: evaluations and saves come again too.
        return duration((time.monotonic() - self._begun) / made * (self.total - self.step))

    def _write(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


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


def _rich_bar(stream: TextIO) -> RichProgress | None:
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
        redirect_stdout=False,  # stdout carries results, and nothing may touch it
    )
