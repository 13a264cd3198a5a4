"""Command-line options that depend on the task, generated from the task table and the settings
classes.

A command function has parameters for the options of all tasks that it handles itself. Any other
options that were given are passed to it as `named`. All options are parsed, so that each mistake
gets a specific error. The help shows only the options that apply to the run or task in the first
argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from headway.cli import completion
from headway.errors import ConfigError, UserError
from headway.settings.data import INPUTS
from headway.settings.decode import DecodeSettings
from headway.settings.effects import (
    OF_CALL,
    OF_RUN,
    CallFacts,
    RunFacts,
    no_effect,
    on_task,
    tasks_that,
    word_of,
)
from headway.settings.field_docs import documented
from headway.settings.folder import load_run
from headway.settings.renamed import current, report
from headway.settings.synonyms import training_setting
from headway.settings.task_rows import spec_of
from headway.settings.toml import toml_value
from headway.specs.needs import MEDIA
from headway.specs.options import OPTIONS, SCORING, CallOption
from headway.specs.tasks import ALIASES, SPECS, Spec
from headway.specs.values import setting_types, without_none

if TYPE_CHECKING:
    from headway.settings.run import Resolved

# typer carries its own copy of click; this is the way to its error that depends on neither.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

OptionValues = Mapping[str, Any]
"""Type of the options that were given: values by name."""

FlagSection = Literal["columns", "files", "answers", "decoding", "scores", "page", "cases"]

TITLES: dict[FlagSection, str] = {
    "columns": "Columns of FILES",
    "files": "Data files, instead of FILES",
    "answers": "Answers",
    "decoding": "Decoding (also as decode.NAME=VALUE)",
    "scores": "Scores",
    "page": "Contents of the page",
    "cases": "Test data",
}


@dataclass(frozen=True)
class Flag:
    name: str
    help: str
    section: FlagSection
    fits: Callable[[Spec], bool]
    """Predicate that returns whether the option applies to a row of the task table."""

    takes: str = ""
    """Metavar in the help: a placeholder for the value that the option takes."""

    type: Any = str
    several: bool = False

    @property
    def key(self) -> str:
        """Name of the function parameter for the option. The prefix avoids clashes: `with` is a
        Python keyword, and commands have a parameter `words`."""
        return f"said_{self.name}"

    @property
    def word(self) -> str:
        """The option as it is typed, such as `--valid-text`."""
        return f"--{self.name.replace('_', '-')}"

    def parameter(self) -> inspect.Parameter:
        words = [self.word]
        hint: Any = self.type | None
        if self.type is bool:
            setting = self.section == "decoding"  # which may be true already
            words = [f"{self.word}/--no-{self.word[2:]}"] if setting else words
        elif self.several:
            hint = list[self.type] | None  # type: ignore[name-defined]
        option = typer.Option(
            *words, help=self.help, metavar=self.takes or None,
            autocompletion=completion.of_value(self.takes),
        )  # fmt: skip
        return inspect.Parameter(
            self.key, inspect.Parameter.KEYWORD_ONLY, default=None,
            annotation=Annotated[hint, option],
        )  # fmt: skip


def _has(need: str) -> Callable[[Spec], bool]:
    return lambda spec: need in {one.name for one in spec.needs}


def _seen(kind: str) -> Callable[[Spec], bool]:
    return lambda spec: spec.modality == kind


def _has_text(spec: Spec) -> bool:
    return _has("text")(spec) or spec.reads_lines


HELP = {
    "text": "Column of the text. Without FILES: files of plain text, JSONL, TSV, CSV or CoNLL.",
    "other": "Column of the second text, for tasks on pairs of texts.",
    "label": "Column of the label: one class, a list of classes, or a number.",
    "source": "Column of the source. Without FILES: text files, one source per line.",
    "target": "Column of the target. Without FILES: text files, line by line with --source.",
    "words": "Column of the words (a list).",
    "tags": "Column of the tags, one per word.",
}
"""Help texts of the options that name columns. Without FILES, some of these options name files."""


def _columns() -> tuple[Flag, ...]:
    """Return one option for each column that tasks read. A column of media paths is named after its
    modality: `--image`, `--video`, `--audio`."""
    needs = (need for spec in SPECS.values() for row in spec.rows for need in row.needs)
    fits = {need.name: _has(need.name) for need in needs} | {"text": _has_text}
    del fits["path"]
    fits |= {kind: _seen(kind) for kind in MEDIA}
    return tuple(
        Flag(
            name,
            HELP.get(name, f"Column of the path of the {name}, relative to the table or absolute."),
            "columns", one, "NAME", several=name in INPUTS,
        )
        for name, one in fits.items()
    )  # fmt: skip


MANY = "Repeatable; `-` is standard input."
COLUMNS = _columns()
FILES = (
    Flag("media", "Images, videos or audio: one folder per class, or a TSV/JSONL list of paths.",
         "files", lambda spec: spec.is_media, "PATH", several=True),
    Flag("pairs", "TSV or JSONL files with source and target.", "files", _has("source"),
         "FILE", several=True),
)  # fmt: skip
VALID_FILES = tuple(
    Flag(
        f"valid_{name}",
        f"Validation data, like --{name}. {MANY}",
        "files",
        fits,
        "FILE",
        several=True,
    )
    for name, fits in {
        "text": lambda spec: spec.reads_lines,
        "media": FILES[0].fits,
        "source": _has("source"),
        "target": _has("source"),
        "pairs": _has("source"),
    }.items()
)


def _of_options(options: Mapping[str, CallOption], section: FlagSection) -> tuple[Flag, ...]:
    def flag(one: CallOption) -> Flag:
        scoring = section == "scores"
        kind = int if one.number else str if one.takes else bool

        def fits(spec: Spec) -> bool:
            return not OF_CALL.missing(word_of(one.name), CallFacts(row=spec, scoring=scoring))

        return Flag(one.name, one.help, section, fits, one.takes, kind, one.several)

    return tuple(map(flag, options.values()))


def _of_decoding() -> tuple[Flag, ...]:
    """Return one option for each decoding setting."""

    def flag(name: str, hint: Any) -> Flag:
        if type(None) in get_args(hint):
            hint = without_none(hint)
        choices = "|".join(get_args(hint)) if get_origin(hint) is Literal else ""
        several = get_origin(hint) is tuple
        kind = str if several or choices else hint
        takes = choices or {int: "N", float: "NUMBER", str: "TEXT"}.get(kind, "")
        said = documented(DecodeSettings).get(name, "")
        return Flag(
            name, said, "decoding",
            lambda spec: not OF_RUN.missing(f"decode.{name}", RunFacts(row=spec)),
            takes, kind, several,
        )  # fmt: skip

    return tuple(flag(name, hint) for name, hint in setting_types(DecodeSettings).items())


ANSWERS = _of_options(OPTIONS, "answers")
SCORES = _of_options(SCORING, "scores")
DECODING = _of_decoding()


def in_sections(named: OptionValues) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the given options into decoding settings and other options."""
    names = {flag.name for flag in DECODING}
    decode = {name: value for name, value in named.items() if name in names}
    return decode, {name: value for name, value in named.items() if name not in names}


def check_fits(named: Iterable[str], flags: Sequence[Flag], spec: Spec) -> None:
    """Raise an error for an option that would have no effect on runs of this task."""
    known = {flag.name: flag for flag in flags}
    for flag in (known[name] for name in named):
        if not flag.fits(spec):
            raise no_effect(flag.word, tasks_that(flag.fits), on_task(spec))


class TaskCommand(TyperCommand):
    """A command whose options depend on its first argument."""

    flags: ClassVar[Mapping[str, Flag]] = {}
    by_task: ClassVar[bool] = False
    """Whether the first argument is a task rather than a run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.by_task:
            args = with_settings(self.params, args)
        args = with_current_names(self.flags.values(), args)
        check_given_once(self.flags.values(), args)
        ctx.meta["headway.first"] = self._first(ctx, args)
        return super().parse_args(ctx, args)

    def _first(self, ctx: Any, args: list[str]) -> str:
        """Return the first positional argument, which the help needs before all arguments are
        parsed. Empty if there is none."""
        try:
            values = self.make_parser(ctx).parse_args(list(args))[0]
        except UsageError:  # which will be said when that is parsed
            return ""
        first = values.get(self.params[0].name)
        words = first if isinstance(first, list | tuple) else [first]
        return str(words[0]) if words and words[0] else ""

    def _rows(self, first: str) -> tuple[tuple[Spec, ...], Resolved | None]:
        """Return the rows of the task table for the task or run in the first argument, and the
        settings of the run. The settings are None for a task."""
        if not self.by_task:
            settings = load_run(first.split(",")[0]) if first else None
            return ((spec_of(settings),) if settings else ()), settings
        if first in SPECS:
            return SPECS[first].rows, None
        return ((spec_of(first),) if first in ALIASES and ALIASES[first].task else ()), None

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return completions for the options that apply to the task or run in the first
        argument."""
        rows: tuple[Spec, ...] = ()
        with suppress(UserError):
            rows, _ = self._rows(ctx.meta.get("headway.first", ""))
        flags = self.flags.values() if rows else ()
        unfit = {flag.word for flag in flags if not self._fits(flag, rows)}
        return [one for one in super().shell_complete(ctx, incomplete) if one.value not in unfit]

    def _fits(self, flag: Flag, rows: Sequence[Spec]) -> bool:
        """Whether the option applies to any of the given rows. If none are given, whether it
        applies to all tasks."""
        if rows:
            return any(map(flag.fits, rows))
        return all(flag.fits(row) for spec in SPECS.values() for row in spec.rows)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows, settings = self._rows(ctx.meta.get("headway.first", ""))
        parts: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            flag = self.flags.get(param.name)
            record = param.get_help_record(ctx)
            if record is None or (flag is not None and not self._fits(flag, rows)):
                continue
            title = "Arguments" if param.param_type_name == "argument" else "Options"
            if flag is not None:
                title = TITLES[flag.section]
                if flag.section == "decoding" and settings is not None:
                    value = _shown(getattr(settings.decode, flag.name))
                    record = record[0], f"{record[1]} [{value}]"
            parts.setdefault(title, []).append(record)
        for title, records in parts.items():
            with formatter.section(title):
                formatter.write_dl(records)
        kind = rows[0].settings if rows and self.by_task else None
        if kind is not None:
            with formatter.section(f"Settings of this task, as {rows[0].name}.NAME=VALUE"):
                said = documented(kind)
                formatter.write_dl([
                    (one.name, f"{said.get(one.name, '')} [{_shown(one.default)}]")
                    for one in fields(kind)
                ])  # fmt: skip
        if not rows:
            with formatter.section(f"More options by task (details: headway {self.name} "
                                   f"{'TASK' if self.by_task else 'RUN'} --help)"):  # fmt: skip
                formatter.write_dl(list(self.by_tasks().items()))

    def by_tasks(self) -> dict[str, str]:
        """Return a text that lists the options of each task. Decoding settings are left out,
        because there are too many."""
        found = {}
        for name, spec in SPECS.items():
            words = [
                flag.word for flag in self.flags.values()
                if flag.section != "decoding"
                and any(map(flag.fits, spec.rows))
                and not self._fits(flag, ())
            ]  # fmt: skip
            decoding = any(flag.section == "decoding" for flag in self.flags.values())
            if decoding and spec.writes:
                words.append("and every decode.* setting, such as --beam")
            found[name] = " ".join(words)
        return {name: said for name, said in found.items() if said}


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value)) or "none"
    return toml_value(value).strip('"') or "empty"


def with_settings(params: Sequence[Any], args: Sequence[str]) -> list[str]:
    """Return the arguments with `--epochs 3` and `epochs=3` replaced by `train.epochs=3`. Training
    settings may be typed without their section, unless the command has an option of the same
    name."""
    options = {name: param for param in params for name in param.opts}
    found: list[str] = []
    rest = iter(args)
    for arg in rest:
        name, equals, value = arg.partition("=")
        key = None if name in options else training_setting(name)
        is_option = name.startswith("--")
        if arg == "--":
            return [*found, arg, *rest]
        if arg in options and not options[arg].is_flag:
            found += [arg, *islice(rest, 1)]
        elif key is None or not (equals or is_option) or (not is_option and Path(arg).exists()):
            found.append(arg)
        elif equals:
            found.append(f"{key}={value}")
        else:
            following = list(islice(rest, 1))
            is_value = following and not following[0].startswith("--")
            found += [f"{key}={following[0]}"] if is_value else [arg, *following]
    return found


def with_current_names(flags: Iterable[Flag], args: Sequence[str]) -> list[str]:
    """Return the arguments with earlier names of decoding options replaced, such as `--alpha 1` by
    `--length-penalty-alpha 1`."""
    known = {flag.name: flag.word for flag in flags}
    found = list(args)
    for place, arg in enumerate(args[: args.index("--") if "--" in args else None]):
        word, equals, value = arg.partition("=")
        key = f"decode.{word[2:].replace('-', '_')}"
        new = current(key).partition(".")[2]
        if word.startswith("--") and current(key) != key and new in known:
            report([key], {}, word)
            found[place] = f"{known[new]}{equals}{value}"
    return found


def check_given_once(flags: Iterable[Flag], args: Sequence[str]) -> None:
    """Raise an error if an option that takes one value is repeated. Otherwise the last value would
    be used without notice."""
    names = [arg.partition("=")[0] for arg in args[: args.index("--") if "--" in args else None]]
    for flag in flags:
        if flag.several or flag.type is bool or names.count(flag.word) < 2:
            continue
        places = [place for place, name in enumerate(names) if name == flag.word]
        values = [args[n].partition("=")[2] or "".join(args[n + 1 : n + 2]) for n in places]
        more = ""
        if flag.name == "label":
            more = (
                " For several labels per example, set classify.answer=labels and put the labels "
                "into one column: as a list, or as a;b (data.label_separator=;)."
            )
        raise ConfigError(
            f"{flag.word} takes one value, but {len(values)} are given: {', '.join(values)}. "
            f"Give only one.{more}"
        )


def add_command(
    app: typer.Typer, function: Callable[..., Any], flags: Sequence[Flag], *,
    by_task: bool = False,
) -> None:  # fmt: skip
    """Register a command with its own parameters and the given task-dependent options."""
    own = inspect.signature(function, eval_str=True)
    params = [param for name, param in own.parameters.items() if name != "named"]

    @wraps(function)
    def command(**given: Any) -> Any:
        named = {flag.name: given.pop(flag.key) for flag in flags}
        said = {name: one for name, one in named.items() if one is not None and one != []}
        return function(**given, named=said)

    command.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*params, *(flag.parameter() for flag in flags)]
    )
    members = {"flags": {flag.key: flag for flag in flags}, "by_task": by_task}
    app.command(cls=type(function.__name__.title(), (TaskCommand,), members))(command)


def columns_named(files: Sequence[str], named: OptionValues) -> dict[str, Any]:
    """Return data options as keyword arguments. With FILES they name columns, otherwise files."""
    if not files:
        return dict(named)
    wrong = next((flag for flag in (*FILES, *VALID_FILES) if flag.name in named), None)
    if wrong is not None:
        raise ConfigError(
            f"{wrong.word} cannot be combined with FILES ({files[0]}). Give one of them."
            f"{' With FILES, give validation data with --valid.' * (wrong in VALID_FILES)}"
        )
    for name, value in named.items():
        if isinstance(value, list) and len(value) > 1:
            raise ConfigError(
                f"--{name} names one column of FILES, but {len(value)} values are given: "
                f"{', '.join(map(str, value))}."
            )
    return {name: one[0] if isinstance(one, list) else one for name, one in named.items()}
