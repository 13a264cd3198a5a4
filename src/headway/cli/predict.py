"""`headway predict`: answers of a trained model, line by line, whatever its task."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from headway.cli import completion
from headway.cli.data_arguments import (
    Device,
    Engine,
    RunNames,
    check_decoding,
    check_engine,
    files_and_settings,
    media_files,
    one_file,
    run_folders,
    settings_of,
    tell,
)
from headway.cli.flags import ANSWERS, DECODING, Flag, Named, check_fits, in_sections
from headway.errors import DataError, UserError, visible
from headway.progress import SILENT, Progress, Stage
from headway.settings.run import RunSettings
from headway.tasks.specs import spec_of

if TYPE_CHECKING:
    from headway.tasks.answers import Answer, Show

TEXT = Flag(
    "text", "A text to answer, instead of a file; repeatable.", "answers",
    lambda spec: spec.modality == "text", "TEXT", several=True,
)  # fmt: skip
FLAGS = (TEXT, *ANSWERS, *DECODING)
_tell = partial(tell, "predict")


def predict(
    run: RunNames,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]... [KEY=VALUE]...",
            help="Text; pictures, recordings or a list of them; decode.* settings.",
            autocompletion=completion.to_ask,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
    engine: Engine = "torch",
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights in 8 bits, on a CPU: quicker, nearly the same.")
    ] = False,
    device: Device = "auto",
    encoding: Annotated[str, typer.Option(help="Of the input; the output is UTF-8.")] = "utf-8",
    out: Annotated[str, typer.Option(metavar="FILE", help="Where the text goes.")] = "-",
    *,
    named: Named,
) -> int:
    """Answer a file or standard input, line by line: translate, continue, fill, classify, tag. Of
    pictures and recordings the lines are paths, or files are named one after another.

    `headway predict RUN --help` shows what this run can be told.
    """
    check_engine(engine, device)
    files, overrides = files_and_settings(words or [])
    decode, options = in_sections(named)
    text = options.pop("text", None)
    folders = run_folders(run, options.get("with", ()))
    if int8 and engine != "torch":
        raise UserError(
            f"--int8 has no effect with --engine {engine}, which runs what was exported: "
            f"headway export RUN --to {engine} --int8"
        )
    settings = settings_of(
        folders[0], overrides, {"precision": "int8"} | decode if int8 else decode
    )
    if int8 and settings.decode.precision != "int8":
        raise UserError(
            f"--int8 and decode.precision={settings.decode.precision} do not go together. Leave "
            "one of them out."
        )
    settings = replace(settings, data=replace(settings.data, encoding=encoding))
    names = media_files(settings, files, text)
    path = "-" if names is not None else one_file(files, text)
    spec = spec_of(settings)
    check_fits(named, FLAGS, spec)
    check_decoding(settings, overrides)
    if len(folders) > 1 and "with" not in spec.options:
        raise UserError(f"a run of the task {spec.name} answers alone; {len(folders)} are given.")
    if as_json and "format" in options:
        raise UserError(
            f"--format {options['format']} and --json do not go together: JSON has the texts with "
            "their times. Leave one of them out."
        )
    if "stream" in options:
        if as_json or out != "-":
            other = "--json" if as_json else "--out"
            raise UserError(
                f"--stream shows text while it is written; it does not go with {other}."
            )
        options["stream"] = _show_piece
    from headway.data.files import count_lines, is_stream
    from headway.run import Run
    from headway.tasks.answers import Show

    progress = Progress()
    given_lines = names or text
    live = not given_lines and is_stream(path)
    with progress.stage("reading the model"):
        model = Run(folders, device=device, engine=engine, settings=settings)
        lines = given_lines or _lines(settings, path)
        answers = model.ask(lines, {**options, "json": as_json}, progress=progress, live=live)
    for note in () if model.opened.engine is None else model.opened.engine.notes:
        _tell(note)
    for name in names or ():
        _tell_columns(name, settings)
    n_lines = None if given_lines else count_lines(path)
    # On a terminal the answers show how far it is; and who feeds a pipe knows what it waits for.
    watched = SILENT if out == "-" and sys.stdout.isatty() else progress
    stage = watched.stage("answering", n_lines, beats=bool(given_lines) or n_lines is not None)
    show = Show(
        "scores" in options, settings.decode.n_best > 1, "alignments" in options,
        options.get("top"), options.get("format", "text"),
    )  # fmt: skip
    with _output(out) as file, stage:
        failed = _print(answers, file, None if as_json else show, live=live, stage=stage)
    _tell(answers.summary())
    return 2 if failed else 0


def _lines(settings: RunSettings, path: str) -> Iterator[Any]:
    """Of a file what was text in training; a stream holds a text (or the name of a file) a line."""
    from headway.data.files import is_stream, open_lines
    from headway.data.prediction_files import questions

    if is_stream(path):
        return open_lines(path, settings.data.encoding)
    return questions(path, spec_of(settings).reads, settings, lambda note: _tell(f"{note}."))


def _tell_columns(name: str, settings: RunSettings) -> None:
    """What the columns of a list of files are taken for; what is no list says nothing."""
    from headway.data.prediction_files import columns_taken
    from headway.data.readers.media import is_list

    if is_list(Path(name)) and Path(name).is_file():
        with suppress(DataError):  # which is said in its place, beside the answers of the others
            _tell(f"{name}: {columns_taken(name, settings.data, spec_of(settings).modality)}.")


def _print(
    answers: Iterable[Answer], file: TextIO, show: Show | None, *, live: bool, stage: Stage
) -> int:
    """How many could not be answered: what is wrong with each goes to standard error. Without
    `show` they are printed as JSON."""
    from headway.tasks.answers import LabelAnswer, VectorAnswer

    failed = 0
    for number, answer in enumerate(answers, 1):
        if show is None:
            shown = json.dumps(answer.to_dict(), ensure_ascii=False)
        else:
            shown = answer.lines(show, number)
        file.write((visible(shown) if file.isatty() else shown) + "\n")
        stage.advance()
        if live:
            file.flush()
        if answer.error:
            failed += 1
            _tell(answer.error)
        if isinstance(answer, LabelAnswer | VectorAnswer):  # of others the summary tells
            for note in answer.notes:
                _tell(note)
    return failed


def _show_piece(piece: str) -> None:
    sys.stdout.write(visible(piece) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


@contextmanager
def _output(out: str) -> Iterator[TextIO]:
    if out == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        stream = Path(out).open("w", encoding="utf-8", newline="\n")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}.") from error
    with stream:
        yield stream
