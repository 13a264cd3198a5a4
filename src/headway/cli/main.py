"""The `headway` command. Torch is imported only by the subcommands that compute."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any

import typer

from headway import __version__
from headway.cli.average import average
from headway.cli.check import check
from headway.cli.data_arguments import print_to_stderr
from headway.cli.evaluate import FLAGS as EVALUATE
from headway.cli.evaluate import TEST_SET, evaluate
from headway.cli.export import export
from headway.cli.factors import FLAGS as FACTORS
from headway.cli.factors import factors
from headway.cli.flags import UsageError, add_command
from headway.cli.import_ import import_
from headway.cli.info import info
from headway.cli.lab import lab
from headway.cli.look import FLAGS as LOOK
from headway.cli.look import look
from headway.cli.make import make
from headway.cli.models import models
from headway.cli.play import play
from headway.cli.predict import FLAGS as PREDICT
from headway.cli.predict import predict
from headway.cli.presets import presets
from headway.cli.prune import prune
from headway.cli.recipes import recipes
from headway.cli.score import score
from headway.cli.serve import serve
from headway.cli.train import FLAGS as TRAIN
from headway.cli.train import train
from headway.cli.truth import FLAGS as TRUTH
from headway.cli.truth import truth
from headway.errors import Edge, UserError, called_by, out_of_memory
from headway.settings.renamed import RenamedSettingWarning
from headway.settings.synonyms import NOTHING, option_here

TAKES = {
    **dict.fromkeys(
        ("train", "check"),
        ("train", "model", "data", "tokenizer", "decode", "start", "lora", "classify"),
    ),
    **dict.fromkeys(("predict", "evaluate", "play"), ("decode",)),
}
"""Sections of settings that each command accepts as `key=value`, the most likely section first."""

app = typer.Typer(
    name="headway",
    help="Train, use, serve and inspect Transformers.",
    rich_markup_mode=None,  # plain text: the help reads the same in a pipe
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_command(app, check, TRAIN, by_task=True)
add_command(app, train, TRAIN, by_task=True)
add_command(app, predict, PREDICT)
app.command()(play)
add_command(app, evaluate, EVALUATE)
for command in (score, average, models, recipes, presets, info):
    app.command()(command)
app.command("import")(import_)
app.command()(export)
app.command()(serve)
app.command(
    hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)(make)
add_command(app, look, LOOK)
add_command(app, truth, TRUTH)
add_command(app, prune, TEST_SET)
add_command(app, factors, FACTORS)
app.command()(lab)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show the traceback of an error. May come before or after COMMAND."
        ),
    ] = False,
) -> None:
    """Handle `--version` and a missing command. `--debug` is declared here only for the help,
    because `main` removes it first."""
    if version:
        print(f"headway {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code, which is 2 for an error that the user can fix.

    Results go to stdout and everything else to stderr, in plain text, so that both can be piped.
    """
    words, debug = _take_debug(sys.argv[1:] if argv is None else argv)
    try:
        with called_by(Edge.COMMAND_LINE), _notes_of_renamed(words):
            result = _parser()(words, prog_name="headway", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (UserError, UsageError) as error:
        return _fail(2, words, _message(error, words), debug)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader has left, as `head` does
        _close_stdout()
        return 141
    except OSError as error:
        code = _fail(1, words, str(error), debug)
        _close_stdout()
        return code
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return _fail(1, words, _no_room(error), debug)


@contextmanager
def _notes_of_renamed(words: list[str]) -> Iterator[None]:
    """Print warnings about earlier names of settings as one-line notes."""
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, RenamedSettingWarning):
            print_to_stderr(f"{_name(words)}: note: {message}")
        else:
            show(message, category, *place)

    warnings.showwarning = note  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = show


def _fail(code: int, words: list[str], message: str, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print_to_stderr(f"{_name(words)}: error: {message}")
    return code


@cache
def _parser() -> Any:
    """Return the parser of all commands. It is cached because building it is slow: typer reads the
    type hints of every command."""
    return typer.main.get_command(app)


def _no_room(error: BaseException) -> str:
    said = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    return (
        f"out of memory ({said}). Use smaller batches (decode.batch_tokens=1024 for predict and "
        "evaluate, train.micro_tokens=512 for train), shorter inputs or a smaller model."
    )


def _close_stdout() -> None:
    """Discard buffered output. Otherwise Python would report the broken pipe a second time on
    exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _take_debug(words: list[str]) -> tuple[list[str], bool]:
    """Return the arguments without `--debug`, and whether it was given. It may come before or after
    the command."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return kept + words[end:], len(kept) < end


def _name(words: list[str]) -> str:
    command = next((word for word in words if not word.startswith("-")), "")
    known = [entry.name or entry.callback.__name__
             for entry in app.registered_commands if entry.callback]  # fmt: skip
    return f"headway {command}" if command in known else "headway"


def _message(error: Exception, words: list[str]) -> str:
    if isinstance(error, UsageError):
        message = str(error.format_message())  # type: ignore[attr-defined]
        if option := getattr(error, "option_name", None):
            here = _called_here(str(option), words)
            if here is not None:
                reason = here.removeprefix(NOTHING)
                said = f"Use {here}" if reason == here else f"Leave it out: {reason}"
                return f"No such option: {option}. {said}."
        if wrong := re.search(r"Input should be a valid (integer|number)", message):
            return f"{_given(error, words)} must be a {NUMBERS[wrong[1]]}."
        stop = "" if message.endswith((".", "?")) else "."
        return f"{message}{stop} See `{_name(words)} --help`."
    return str(error)


NUMBERS = {"integer": "whole number", "number": "number"}


def _given(error: Exception, words: list[str]) -> str:
    """Return the option that an error is about, with its value as typed."""
    names = tuple(getattr(getattr(error, "param", None), "opts", ()))
    place = next((i for i, word in enumerate(words) if word.split("=")[0] in names), None)
    if place is None:
        return " ".join(names[:1])
    return " ".join(words[place : place + 1 + ("=" not in words[place])]).replace("=", " ")


def _called_here(option: str, words: list[str]) -> str | None:
    """Return the headway equivalent of an option that is known from another tool; None if there is
    none."""
    from headway.settings.model import FAMILY_SETTINGS
    from headway.settings.run import SETTINGS
    from headway.specs.values import setting_types

    command = _name(words).partition(" ")[2]
    if command not in TAKES:
        return None
    own = {
        section: list(setting_types(SETTINGS[section]))
        for section in TAKES[command]
        if section in SETTINGS
    }
    if "model" in TAKES[command]:
        own["model"] = [name for kind in FAMILY_SETTINGS.values() for name in setting_types(kind)]
    place = next((i for i, word in enumerate(words) if word.split("=")[0] == option), None)
    value = ""
    if place is not None:
        value = words[place].partition("=")[2] or next(iter(words[place + 1 :]), "")
    value = "" if value.startswith("-") else value
    params = _parser().commands[command].params
    return option_here(command, option, value, own, {name for p in params for name in p.opts})


if __name__ == "__main__":
    sys.exit(main())
