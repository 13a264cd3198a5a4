"""The page docs/reference/flags.md, made from the commands and from docs/commands.toml."""

from __future__ import annotations

import io
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer
from page_parts import MADE, prose, table

from headway.cli.flags import COLUMNS, DECODING, FILES, VALID_FILES, Flag
from headway.cli.main import app, main
from headway.specs.tasks import SPECS

TEXTS = Path(__file__).with_name("commands.toml")

INTRO = """
```
$ headway --help
{help}
```

- Results go to stdout, everything else to stderr. In a pipe, tables are plain text. Work that takes
  longer than two seconds reports its progress: a bar in a terminal, lines elsewhere.
- `RUN` is a run folder, the name of a run in `runs/`, or a shipped model: `tatoeba-de-en`,
  `tatoeba-en-de`, `stories`, `shapes`, `digits`, `base-en`.
- `KEY=VALUE` is a [setting](index.md#words). Those of training need no section: `epochs=3` and
  `--epochs 3` mean `train.epochs=3`.
- `headway train classify --help` lists what applies to that task, and `headway predict RUN --help`
  what applies to that run, with its present values. An option without effect is an error.
- `headway --install-completion` installs tab completion of commands, runs, settings and values for
  bash, zsh, fish and PowerShell.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | a failure of the system, such as a full disk; the last line tells what was saved |
| 2 | an error that you can fix: one line on stderr; `--debug` adds the traceback |
| 75 | training was interrupted and has saved; the same command resumes |
| 130 | interrupted by Ctrl-C |
| 141 | the reader of a pipe has closed it |

"""
SHARED_INTRO = """## Shared options

Several commands have these options with the same meaning; below, each command only names them.

"""
COLUMNS_INTRO = """### Columns and files

With files, these options name their columns if the names differ from the usual ones. Columns and
their usual names are listed by [task](tasks.md).

"""
DECODING_INTRO = """### Decoding options

Each setting of [`[decode]`](settings.md#decode) is also an option: `--beam 8` means
`decode.beam=8`. They apply to {tasks}, unless a row names other tasks.
[Decoding](../tasks/decoding.md) explains them.

"""

GROUPS = {
    "[columns and files](#columns-and-files)": (*COLUMNS, *FILES, *VALID_FILES),
    "[decoding options](#decoding-options)": DECODING,
}
"""Options that depend on the task and are described once, for all commands."""


def command_line_page() -> str:
    group: Any = typer.main.get_command(app)
    commands = {name: one for name, one in group.commands.items() if not one.hidden}
    texts = tomllib.loads(TEXTS.read_text(encoding="utf-8"))
    if texts.keys() != commands.keys():
        raise SystemExit(f"{TEXTS}: not the commands: {sorted(texts.keys() ^ commands.keys())}")
    shared = shared_rows(commands.values())
    parts = ["# Command line\n\n", MADE, INTRO.format(help=help_text()), SHARED_INTRO]
    parts.append(table(["option", "meaning"], shared))
    parts += [COLUMNS_INTRO, flags_table((*COLUMNS, *FILES)), valid_note()]
    usual = common_tasks(DECODING)
    parts += [DECODING_INTRO.format(tasks=listed(usual)), flags_table(DECODING, usual)]
    for name, command in commands.items():
        first = prose(" ".join(command.help.split("\n\n")[0].split()))
        parts += [f"## `headway {name}`\n\n{first}\n\n`{usage(name, command)}`\n"]
        parts += [f"\n{texts[name]['text'].strip()}\n\n"]
        parts += command_options(command, shared)
    return "".join(parts)


def help_text() -> str:
    """Output of `headway --help` in a terminal of 80 columns."""
    before, printed = os.environ.get("COLUMNS"), io.StringIO()
    os.environ["COLUMNS"] = "80"
    try:
        with redirect_stdout(printed):
            main(["--help"])
    finally:
        os.environ.pop("COLUMNS")
        os.environ |= {} if before is None else {"COLUMNS": before}
    return printed.getvalue().rstrip()


def usage(name: str, command: Any) -> str:
    words = ["headway", name]
    for param in command.params:
        if param.param_type_name == "argument":
            word = param.metavar or param.name.upper()
            bare = not param.required and "[" not in word
            words.append(f"[{word}]{'...' * (param.nargs != 1)}" if bare else word)
    return " ".join([*words, "[OPTIONS]"])


TYPES = {"<list[str]>": "TEXT", "<str>": "TEXT", "<path>": "PATH", "<int range>": "N", "<int>": "N"}
"""Types as help shows them, and the words of the page."""


def records(command: Any) -> Iterator[tuple[Any, str, str]]:
    """Parameters as help shows them: the words with what they take, and what they mean."""
    context = command.context_class(command)
    for param in command.params:
        record = param.get_help_record(context)
        if record is not None and param.name != "help":
            words, said = (" ".join(one.split()) for one in record)
            if param.param_type_name == "argument":
                words = words.partition(" <")[0]
            for shown, word in TYPES.items():
                words = words.replace(shown, word)
            yield param, prose(f"`{words}`"), prose(said)


def shared_rows(commands: Iterable[Any]) -> list[tuple[str, str]]:
    """Options with the same meaning in three commands or more."""
    found = Counter(
        (words, said)
        for command in commands
        for param, words, said in records(command)
        if param.name not in getattr(command, "flags", {}) and param.param_type_name == "option"
    )
    return [row for row, times in found.items() if times > 2]


def command_options(command: Any, shared: list[tuple[str, str]]) -> Iterator[str]:
    flags: dict[str, Flag] = getattr(command, "flags", {})
    known = {(one.key, said_once(one)): title for title, group in GROUPS.items() for one in group}
    also, own, by_task = [], [], []
    for param, words, said in records(command):
        title = known.get((param.name, said))
        if title:
            also += [title] * (title not in also)
        elif (words, said) in shared:
            also.append(f"`{words.strip('`').partition(' ')[0]}`")
        elif param.name in flags:
            by_task.append((words, said, listed(tasks_of(flags[param.name]))))
        elif words.startswith(("`RUN", "`KEY=VALUE")):
            continue
        else:
            own.append((words, said))
    if own:
        yield table(["argument or option", "meaning"], own)
    if by_task:
        yield table(["option", "meaning", "tasks"], by_task)
    if also:
        yield f"Also: {', '.join(also)}.\n\n"


def said_once(flag: Flag) -> str:
    return prose(" ".join(flag.help.split()))


def tasks_of(flag: Flag) -> list[str]:
    return [name for name, spec in SPECS.items() if any(map(flag.fits, spec.rows))]


def common_tasks(flags: Iterable[Flag]) -> list[str]:
    [(most, _)] = Counter(tuple(tasks_of(flag)) for flag in flags).most_common(1)
    return list(most)


def listed(tasks: list[str]) -> str:
    return ", ".join(tasks) if len(tasks) < len(SPECS) else "all"


def flags_table(flags: Iterable[Flag], usual: list[str] | None = None) -> str:
    rows = (
        (prose(f"`{flag.word}{f' {flag.takes}' if flag.takes else ''}`"), said_once(flag),
         "" if tasks_of(flag) == usual else listed(tasks_of(flag)))
        for flag in flags
    )  # fmt: skip
    return table(["option", "meaning", "tasks"], rows)


def valid_note() -> str:
    words = ", ".join(f"`{flag.word}`" for flag in VALID_FILES)
    return f"Training without files after the task takes its validation data from {words}.\n\n"
