"""`headway predict`: predict with a trained model of any task, line by line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from headway.cli import completion
from headway.cli.data_arguments import (
    DeviceOption,
    EngineOption,
    RunsArgument,
    check_decoding,
    check_engine,
    files_and_settings,
    media_files,
    print_note,
    run_folders,
    settings_of,
    text_files,
)
from headway.cli.flags import (
    ANSWERS,
    COLUMNS,
    DECODING,
    Flag,
    OptionValues,
    check_fits,
    in_sections,
)
from headway.errors import DataError, MissingColumnError, UserError, columns_by_option, visible
from headway.progress import SILENT, Progress, ProgressStage
from headway.settings.run import Resolved, RunSettings
from headway.settings.task_rows import spec_of
from headway.specs.tasks import Spec

if TYPE_CHECKING:
    from headway.data.predict_input import InputFile
    from headway.tasks.answer_tables import AnswerTable
    from headway.tasks.answers import Answer
    from headway.tasks.format import PrintOptions

TEXT = Flag(
    "text", "An input text, repeatable. With FILES: the column of the text.", "answers",
    lambda spec: spec.is_text, "TEXT", several=True,
)  # fmt: skip
NAMED = ("other", "source", "words", "image", "video", "audio")
COLUMNS_READ = tuple(flag for flag in COLUMNS if flag.name in NAMED)
FLAGS = (TEXT, *COLUMNS_READ, *ANSWERS, *DECODING)
_print_note = partial(print_note, "predict")


def predict(
    run: RunsArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|KEY=VALUE",
            help="Text files; media files or lists of their paths; decode.* settings.",
            autocompletion=completion.to_ask,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    engine: EngineOption = "torch",
    int8: Annotated[
        bool, typer.Option("--int8", help="8-bit weights: faster on a CPU, almost the same output.")
    ] = False,
    device: DeviceOption = "auto",
    encoding: Annotated[
        str, typer.Option(help="Encoding of the input. Output is UTF-8.")
    ] = "utf-8",
    out: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Output file. .csv, .tsv, .jsonl and .parquet keep the columns of the input.",
        ),
    ] = "-",
    *,
    named: OptionValues,
) -> int:
    """Predict for files or standard input, line by line.

    The task of the run decides what is predicted: a translation, a continuation, a label, tags.
    For images, video and audio, name the files, or give their paths line by line.

    Tables are read by the column names of training. Options such as --text and --source name
    other columns. `headway predict RUN --help` shows the options of a run.
    """
    check_engine(engine, device, int8=int8)
    files, overrides = files_and_settings(words or [])
    decode, options = in_sections(named)
    text, needs = _texts_and_columns(options, files)
    folders = run_folders(run, options.get("with", ()))
    settings = settings_of(
        folders[0], overrides, {"precision": "int8"} | decode if int8 else decode
    )
    if int8 and settings.decode.precision != "int8":
        raise UserError(
            f"--int8 cannot be combined with decode.precision={settings.decode.precision}. Leave "
            "one of them out."
        )
    settings = replace(settings, data=replace(settings.data, encoding=encoding))
    names = media_files(settings, files, text)
    paths = text_files(files) if names is None and not text else []
    spec = spec_of(settings)
    check_fits(named, FLAGS, spec)
    check_decoding(settings, overrides)
    if len(folders) > 1 and "with" not in spec.options:
        raise UserError(
            f"runs of the task {spec.name} cannot form an ensemble. Give one run, not "
            f"{len(folders)}."
        )
    if as_json and "format" in options:
        raise UserError(
            f"--format {options['format']} cannot be combined with --json, whose output already "
            "contains the times. Leave one of them out."
        )
    if "stream" in options:
        if as_json or out != "-":
            other = "--json" if as_json else "--out"
            raise UserError(
                f"--stream prints text piece by piece and cannot be combined with {other}. Leave "
                "one of them out."
            )
        options["stream"] = _show_piece
    from headway.data.files import count_lines, is_stream
    from headway.run import Run
    from headway.tasks.answer_tables import is_table
    from headway.tasks.format import PrintOptions

    progress = Progress()
    table = is_table(out) and not (as_json and out.endswith(".jsonl"))
    if table and as_json:
        raise UserError(f"--json cannot be combined with --out {out}, which is a table. Choose an "
                        "output file that ends in .jsonl, or leave --json out.")  # fmt: skip
    _check_out(out, [*paths, *(names or ())])
    settings = _with_path(settings, needs)
    given = _given(settings, text, names, paths, needs, table=table)
    if table and not given.columns:
        raise UserError(
            f"{paths[0]} has one word per line, but {out} would have one row per sentence. "
            "Choose an output file that ends in .conll or .txt."
        )
    live = not text and not names and all(map(is_stream, paths or ["-"]))
    with progress.stage("loading the model"):
        model = Run(folders, device=device, engine=engine, settings=settings)
        answers = model.ask(
            given.inputs, {**options, "json": as_json}, progress=progress, live=live
        )
    for note in () if model.opened.engine is None else model.opened.engine.notes:
        _print_note(note)
    for name in () if table else names or ():
        _report_columns(name, settings)
    n_lines = (
        _sum(None if Path(one).is_dir() else count_lines(one) for one in paths)
        if paths and not live
        else None
    )
    # On a terminal, the answers themselves show the progress. In a pipe, the number of inputs is
    # unknown.
    watched = SILENT if out == "-" and sys.stdout.isatty() else progress
    beats = bool(text or names) or n_lines is not None
    stage = watched.stage("predicting", n_lines, beats=beats)
    show = PrintOptions(
        "scores" in options, settings.decode.n_best > 1, "alignments" in options,
        options.get("top"), options.get("format", "text"), "stream" in options,
    )  # fmt: skip
    if table:
        n_best = max(options.get("top") or 1, settings.decode.n_best if spec.writes else 1)
        with _table(out, given.columns, spec, n_best) as rows, stage:
            failed = _write_rows(answers, rows, n_best, stage)
        if said := rows.summary():
            _print_note(f"{said}.")
    else:
        with _Output(out) as file, stage:
            failed = _print(answers, file, None if as_json else show, live=live, stage=stage)
    _print_note(answers.summary())
    return 2 if failed else 0


def _texts_and_columns(
    options: dict[str, Any], files: Sequence[str]
) -> tuple[list[str] | None, dict[str, str]]:
    """Return the input texts (None if none are given), and the columns that options name. `--text`
    names a column if files are given."""
    needs: dict[str, str] = {}
    for flag in COLUMNS_READ:
        value = options.pop(flag.name, None)
        if value is not None:
            needs[flag.name] = _only(flag.name, value if isinstance(value, list) else [value])
    text = options.pop("text", None)
    if files and text:
        needs["text"], text = _only("text", text), None
    if needs and not files:
        raise UserError(
            f"--{next(iter(needs))} names a column of FILES, but no file is given. Name a file."
        )
    return text, needs


def _only(name: str, values: Sequence[str]) -> str:
    if len(values) > 1:
        raise UserError(
            f"--{name} names one column of FILES, but {len(values)} values are given: "
            f"{', '.join(values)}."
        )
    return str(values[0])


def _with_path(settings: Resolved, needs: dict[str, str]) -> Resolved:
    """Return the settings with the column of media paths that an option names, if any."""
    if spec_of(settings).is_text or not needs:
        return settings
    (name,) = needs.values()
    return replace(settings, data=replace(settings.data, path_field=name))


def _given(
    settings: Resolved, text: list[str] | None, names: list[str] | None, paths: Sequence[str],
    needs: dict[str, str], *, table: bool,
) -> InputFile:  # fmt: skip
    """Return the inputs in files or on standard input. Files are read with the column names of the
    training data. A stream has one text or path per line."""
    from headway.data.files import is_stream, open_lines
    from headway.data.predict_input import InputFile, InputRow, input_words, open_inputs

    unknown = next((word for word in needs if word not in input_words(settings)), None)
    if unknown is not None:
        raise UserError(
            f"--{unknown} names a column that this run does not use. This run uses "
            f"{', '.join(f'--{word}' for word in sorted(input_words(settings)))}."
        )
    if needs and any(map(is_stream, paths)):
        raise UserError(
            f"--{next(iter(needs))} names a column, but standard input and pipes have no columns. "
            "Give a file."
        )

    def note(said: str) -> None:
        _print_note(f"{said}.")

    if names and table:
        return open_inputs(names, settings, note)
    if paths and paths != ["-"]:
        try:
            with columns_by_option(paths):
                return open_inputs(paths, settings, note, needs=needs, rows=table)
        except MissingColumnError as error:
            if "text" not in needs:
                raise
            raise DataError(f"{error}. With FILES, --text names a column.") from error
    lines: Iterable[str] = text or names or open_lines("-", settings.data.encoding)
    name = "path" if names is not None else "text"
    return InputFile((name,), (InputRow(line, {name: line}) for line in lines))


SPREADSHEETS = frozenset({".xlsx", ".xls", ".ods"})


def _check_out(out: str, inputs: Sequence[str]) -> None:
    """Raise `UserError` if the output cannot be written, before anything is computed."""
    path = Path(out)
    if out == "-":
        return
    if path.suffix.lower() in SPREADSHEETS:
        raise UserError(
            f"cannot write {out}: {path.suffix} files are not supported. Write .csv instead: "
            f"--out {path.with_suffix('.csv')}"
        )
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"the folder {path.parent} does not exist"
        raise UserError(f"cannot write {out}: {why}.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UserError(f"cannot write {out}: permission denied.")
    if any(one != "-" and Path(one).exists() and path.exists() and path.samefile(one)
           for one in inputs):  # fmt: skip
        raise UserError(f"--out {out} would overwrite an input. Choose another output file.")


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(one or 0 for one in known)


def _table(out: str, columns: Sequence[str], spec: Spec, n_best: int) -> AnswerTable:
    """Return a table of the input columns followed by the columns of the answers."""
    from headway.tasks.answer_tables import AnswerTable
    from headway.tasks.format import cell_names

    return AnswerTable(out, columns, cell_names(spec, n_best))


def _write_rows(
    answers: Iterable[Answer], rows: AnswerTable, n_best: int, stage: ProgressStage
) -> int:  # fmt: skip
    """Write one table row per answer, and return the number of inputs that failed."""
    from headway.tasks.format import to_cells

    failed = 0
    for answer in answers:
        rows.write(answer.row, to_cells(answer, n_best))
        stage.advance()
        if answer.error:
            failed += 1
            _print_note(answer.error)
        for note in answer.notes:
            _print_note(note)
    return failed


def _report_columns(name: str, settings: RunSettings) -> None:
    """Print how the columns of a list of media files are interpreted. Other kinds of files are
    skipped."""
    from headway.data.predict_input import describe_media_columns
    from headway.data.sniff import is_table_file

    if is_table_file(Path(name)) and Path(name).is_file():
        what = spec_of(settings).media
        assert what is not None
        with suppress(DataError):  # reported later, among the answers
            _print_note(f"{name}: {describe_media_columns(name, settings.data, what)}.")


def _print(
    answers: Iterable[Answer],
    file: _Output,
    show: PrintOptions | None,
    *,
    live: bool,
    stage: ProgressStage,
) -> int:
    """Print answers, and return the number of inputs that failed. Errors are printed on standard
    error. Without `show`, answers are printed as JSON."""
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
            _print_note(answer.error)
        if isinstance(
            answer, LabelAnswer | VectorAnswer
        ):  # the summary covers the notes of other answers
            for note in answer.notes:
                _print_note(note)
    return failed


def _show_piece(piece: str) -> None:
    sys.stdout.write(visible(piece) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


class _Output:
    """Standard output, or a file. The file is created when the first line is written, so a command
    that fails earlier leaves none."""

    def __init__(self, out: str) -> None:
        self.out = out
        self.file: TextIO | None = sys.stdout if out == "-" else None

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.write("")
            self.flush()
        if self.file not in (None, sys.stdout):
            self.file.close()

    def write(self, text: str) -> None:
        if self.file is None:
            try:
                self.file = Path(self.out).open("w", encoding="utf-8", newline="\n")  # noqa: SIM115
            except OSError as error:
                raise UserError(f"cannot write {self.out}: {error.strerror}.") from error
        self.file.write(text)

    def flush(self) -> None:
        if self.file is not None:
            self.file.flush()

    def isatty(self) -> bool:
        return self.file is not None and self.file.isatty()
