"""`headway play`: try a trained model line by line in the terminal, whatever its task."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.data_arguments import (
    Device,
    RunNames,
    Settings,
    only_decoding,
    run_folders,
    settings_of,
)
from headway.errors import UserError, suggest
from headway.settings.run import Resolved
from headway.tasks.specs import spec_of

if TYPE_CHECKING:
    from headway.tasks.opened import Opened
    from headway.tasks.task import Predictor

PROMPT = "> "
HELP = """\
Type a line and the model answers it, as `headway predict` does.
  /set decode.temperature=0.7   change how it decodes; several settings at a time are fine
  /set                          show what is changed
  /help                         this
  /quit                         leave, as the end of input (Ctrl-D) and Ctrl-C do
A line that begins with // is a line that begins with /."""

COMMANDS = ("/help", "/set", "/quit")


def play(
    run: RunNames,
    words: Settings = None,
    device: Device = "auto",
) -> None:
    """Try a model: type a line, see its answer. `/help` says what else there is."""
    folders = run_folders(run)
    changes = only_decoding(words or [])
    settings = settings_of(folders[0], changes, {})
    player = Player(folders, changes, settings, device)
    player.predictor  # noqa: B018  what cannot be loaded is said before the first line
    if sys.stdin.isatty():
        note(f"{settings.task} with {run}. /help says what there is to do.")
    try:
        for line in _lines():
            if not player.take(line):
                break
    except KeyboardInterrupt:
        print()


class Player:
    """Answers lines and does what `/commands` say."""

    def __init__(
        self,
        folders: Sequence[Path],
        changes: Sequence[str],
        settings: Resolved,
        device: str,
    ) -> None:
        self.folders, self.changes, self.settings = folders, list(changes), settings
        self.device = device
        self._opened: Opened | None = None
        self._predictor: Predictor | None = None
        self.shown = False
        self.number = 0
        """Of the last line since then."""

    @property
    def predictor(self) -> Predictor:
        """Made anew after every change of a setting."""
        if self._predictor is None:
            from headway.tasks.task import Use, find_task

            use = Use(self.opened, self.settings, self._options())
            self._predictor, self.number = find_task(self.settings).predictor(use), 0
        return self._predictor

    @property
    def opened(self) -> Opened:
        """Opened anew only where weights are to be held in another precision."""
        precision = self.settings.decode.precision
        if self._opened is None or self._opened.precision != precision:
            from headway.tasks.opened import open_run

            self._opened = open_run(*self.folders, device=self.device, settings=self.settings)
        return self._opened

    def _options(self) -> dict[str, Any]:
        known = spec_of(self.settings).options
        options: dict[str, Any] = dict.fromkeys([*known, "scores", "json"])
        decode = self.settings.decode
        if "stream" in known and decode.n_best == decode.beam == 1:
            options["stream"] = self._show
        return options

    def _show(self, piece: str) -> None:
        self.shown = True
        print(piece, end="", flush=True)

    def take(self, line: str) -> bool:
        """One line; False when it was the last. A mistake in it ends nothing."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                return self._command(line)
            self._answer(line[1:] if line.startswith("//") else line)
        except UserError as error:
            note(f"error: {error}")
        return True

    def _answer(self, line: str) -> None:
        from headway.tasks.answers import Show

        self.shown = False
        try:
            for answer in self.predictor.answers([line]):
                self.number += 1
                show = Show(numbered=self.settings.decode.n_best > 1)
                print("" if self.shown else answer.lines(show, self.number), flush=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print()
            note("stopped.")

    def _command(self, line: str) -> bool:
        name, *words = line.split()
        if name == "/quit":
            return False
        if name == "/set":
            self._set(words)
        elif name == "/help":
            note(HELP)
        else:
            raise UserError(f"there is no command {name}.{suggest(name, COMMANDS)}")
        return True

    def _set(self, words: Sequence[str]) -> None:
        if not words:
            note(" ".join(self.changes) or "everything is as the run has it.")
            return
        changes = [*self.changes, *only_decoding(words)]
        latest = {word.split("=", 1)[0]: word for word in changes}
        changes = list(latest.values())
        self.settings = settings_of(self.folders[0], changes, {})
        self.changes, self._predictor = changes, None


def note(text: str) -> None:
    """For people: results alone go to standard output."""
    print(text, file=sys.stderr, flush=True)


def _lines() -> Iterator[str]:
    """What is typed, with a prompt and a history; or what comes from a pipe."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    with suppress(ImportError):
        import readline  # noqa: F401  gives `input` its history
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            print()
            return
        yield line
