"""`headway play`: try a trained model of any task interactively in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from headway.cli.data_arguments import (
    DeviceOption,
    RunsArgument,
    SettingsArgument,
    only_decoding,
    print_to_stderr,
    run_folders,
    settings_of,
)
from headway.errors import UserError, suggest, visible
from headway.settings.renamed import key_of
from headway.settings.task_rows import spec_of

if TYPE_CHECKING:
    from headway.run import Run
    from headway.tasks.task import Predictor

PROMPT = "> "
HELP = """\
Type a line to see the prediction of the model, as from `headway predict`.
  /set decode.temperature=0.7   change one or more decoding settings
  /set                          show the changed settings
  /help                         show this help
  /quit                         leave (also Ctrl-D or Ctrl-C)
To type a text that starts with /, start it with //."""

COMMANDS = ("/help", "/set", "/quit")


def play(
    run: RunsArgument,
    words: SettingsArgument = None,
    device: DeviceOption = "auto",
) -> None:
    """Try a model interactively: type a line, see the prediction. `/help` lists commands."""
    from headway.run import Run

    folders, changes = run_folders(run), only_decoding(words or [])
    settings = settings_of(folders[0], changes, {})
    player = Player(Run(folders, device=device, settings=settings), changes)
    player.predictor  # noqa: B018  loading errors appear before the first prompt
    if sys.stdin.isatty():
        print_to_stderr(
            f"loaded {run} for the task {settings.task}. Type /help to list the commands."
        )
    try:
        for line in _lines():
            if not player.process(line):
                break
    except KeyboardInterrupt:
        print()


class Player:
    """Interactive session that answers input lines and executes `/commands`."""

    def __init__(self, run: Run, changes: Sequence[str]) -> None:
        self.run, self.changes = run, list(changes)
        self._predictor: Predictor | None = None
        self.shown = False
        self.number = 0
        """Number of lines processed since the predictor was created."""

    @property
    def predictor(self) -> Predictor:
        """Predictor of the run. After a change of settings, it is created again."""
        if self._predictor is None:
            self._predictor, self.number = self.run.predictor(self._options()), 0
        return self._predictor

    def _options(self) -> dict[str, object]:
        known, decode = spec_of(self.run.settings).options, self.run.settings.decode
        options: dict[str, object] = dict.fromkeys([*known, "scores", "json"])
        if "stream" in known and decode.n_best == decode.beam == 1:
            options["stream"] = self._show
        return options

    def _show(self, piece: str) -> None:
        self.shown = True
        print(visible(piece), end="", flush=True)

    def process(self, line: str) -> bool:
        """Process one line. Return False after `/quit`, otherwise True. Errors that the user can
        fix are printed."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                return self._command(line)
            self._answer(line[1:] if line.startswith("//") else line)
        except UserError as error:
            print_to_stderr(f"error: {error}")
        return True

    def _answer(self, line: str) -> None:
        from headway.tasks.format import PrintOptions

        self.shown = False
        try:
            for answer in self.predictor.answers([line]):
                self.number += 1
                several = self.run.settings.decode.n_best > 1
                show = PrintOptions(numbered=several, streamed=self.shown)
                print(visible(answer.lines(show, self.number)), flush=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print()
            print_to_stderr("stopped.")

    def _command(self, line: str) -> bool:
        name, *words = line.split()
        if name == "/quit":
            return False
        if name == "/set":
            self._set(words)
        elif name == "/help":
            print_to_stderr(HELP)
        else:
            raise UserError(f"no such command: {name}.{suggest(name, COMMANDS)}")
        return True

    def _set(self, words: Sequence[str]) -> None:
        if not words:
            print_to_stderr(" ".join(self.changes) or "No settings are changed.")
            return
        changes = [*self.changes, *only_decoding(words)]
        changes = list({key_of(word): word for word in changes}.values())
        self.run = self.run.with_settings(settings_of(self.run.folder, changes, {}))
        self.changes, self._predictor = changes, None


def _lines() -> Iterator[str]:
    """Yield input lines, either typed at a prompt with history or read from a pipe."""
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
