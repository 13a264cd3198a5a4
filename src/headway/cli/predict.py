"""`headway predict`: answers of a trained model, line by line, whatever its task."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from headway.errors import ConfigError, DataError, UserError, suggest
from headway.progress import SILENT, Progress, Stage
from headway.settings.folder import CONFIG, file_in, run_folder
from headway.settings.run import Resolved, RunSettings, load_resolved
from headway.tasks.specs import Spec, spec_of

if TYPE_CHECKING:
    from headway.tasks.answers import Answer, Show

COLUMNS = tuple(
    f"data.{name}_field" for name in ("text", "other", "label", "source", "target", "path")
)
"""Settings that say where the columns of a file are, if not where those of training were."""

BAD = "data.bad"
"""Whether lines that cannot be read end it, or are answered as empty ones. No score leaves any out.
"""


def predict(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run folder or shipped model; several with commas."),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]... [KEY=VALUE]...",
            help="Text; pictures, recordings or a list of them; decode.* settings.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="A text to answer, instead of a file; repeatable.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept; 1 is greedy.")] = None,
    n_best: Annotated[int | None, typer.Option(help="Outputs a line.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
    scores: Annotated[bool, typer.Option("--scores", help="Put scores before the text.")] = False,
    more: Annotated[
        list[str] | None, typer.Option("--with", metavar="RUN", help="One more run: an ensemble.")
    ] = None,
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments", help="translate: word alignments; caption: where each word looked."
        ),
    ] = False,
    on_long: Annotated[
        str | None,
        typer.Option(metavar="split|cut|error", help="translate: what becomes of over-long lines."),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="translate: what each output begins with, by line."),
    ] = None,
    constraints: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.jsonl", help='translate: {"required": [...], "banned": [...]} a line.'
        ),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="complete: show the text while it is written.")
    ] = False,
    shots: Annotated[
        str | None,
        typer.Option(metavar="FILE.jsonl", help="complete: examples put before every prompt."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="complete: choose the likeliest of these answers."),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="complete: the field to write, where there are fields."),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="complete: a small model that guesses ahead."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="FILE.npy", help="embed, identify: where vectors go.")
    ] = None,
    nearest: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="embed: print the nearest lines of this file."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Of media: likeliest classes; embed: nearest lines."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="identify: is it who speaks here? Of a list of paths and labels: who is it?",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="text|srt|vtt", help="transcribe: subtitles, or text."),
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens (times beam) computed together.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="torch|ctranslate2|onnx", help="What computes; others run an exported folder."
        ),
    ] = "torch",
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights in 8 bits, on a CPU: quicker, nearly the same.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; auto: a GPU if any.")] = "auto",
    encoding: Annotated[str, typer.Option(help="Of the input; the output is UTF-8.")] = "utf-8",
    out: Annotated[str, typer.Option(metavar="FILE", help="Where the text goes.")] = "-",
) -> int:
    """Answer a file or standard input, line by line: translate, continue, fill, classify, tag. Of
    pictures and recordings the lines are paths, or files are named one after another."""
    check_engine(engine, device)
    files, overrides = files_and_settings(words or [])
    folders = run_folders(run, more or [])
    if int8 and engine != "torch":
        raise UserError(
            f"--int8 has no effect with --engine {engine}, which runs what was exported: "
            f"headway export RUN --to {engine} --int8"
        )
    given: dict[str, Any] = {"beam": beam, "n_best": n_best, "batch_tokens": batch_tokens}
    if int8:
        given["precision"] = "int8"
    settings = settings_of(folders[0], overrides, given)
    if int8 and settings.decode.precision != "int8":
        raise UserError(
            f"--int8 and decode.precision={settings.decode.precision} do not go together. Leave "
            "one of them out."
        )
    options: dict[str, Any] = {
        "with": more, "alignments": alignments, "on_long": on_long, "prefix": prefix,
        "constraints": constraints, "stream": stream, "shots": shots, "labels": labels,
        "field": field, "draft": draft, "to": to, "nearest": nearest, "top": top,
        "against": against, "format": form, "scores": scores, "json": as_json,
    }  # fmt: skip
    settings = replace(settings, data=replace(settings.data, encoding=encoding))
    names = media_files(settings, files, text)
    path = "-" if names is not None else one_file(files, text)
    from headway.data.files import count_lines, is_stream
    from headway.tasks.answers import Show

    spec = spec_of(settings)
    check_options(spec, options, len(folders))
    check_decoding(spec, [*_named(given), *(word.partition("=")[0] for word in overrides)])
    if stream and (as_json or out != "-"):
        other = "--json" if as_json else "--out"
        raise UserError(f"--stream shows text while it is written; it does not go with {other}.")
    if stream:
        options["stream"] = _show_piece
    progress = Progress()
    given_lines = names or text
    live = not given_lines and is_stream(path)
    from headway.run import Run

    with progress.stage("reading the model"):
        model = Run(tuple(map(str, folders)), device=device, engine=engine, settings=settings)
        lines = given_lines if given_lines else _lines(settings, path)
        answers = model.ask(lines, options, progress=progress, live=live)
    for note in () if model.opened.engine is None else model.opened.engine.notes:
        _tell(note)
    for name in names or ():
        _tell_columns(name, settings)
    n_lines = None if given_lines else count_lines(path)
    # On a terminal the answers show how far it is; and who feeds a pipe knows what it waits for.
    watched = SILENT if out == "-" and sys.stdout.isatty() else progress
    stage = watched.stage("answering", n_lines, beats=bool(given_lines) or n_lines is not None)
    several = settings.decode.n_best > 1
    show = Show(scores, several, alignments, top, form or "text")
    with _output(out) as file, stage:
        failed = _print(answers, file, None if as_json else show, live=live, stage=stage)
    _tell(answers.summary())
    return 2 if failed else 0


def _lines(settings: RunSettings, path: str) -> Iterator[Any]:
    """Of a file what was text in training; a stream holds a text (or the name of a file) a line."""
    from headway.data.files import is_stream, open_lines
    from headway.data.unlabelled import questions

    if is_stream(path):
        return open_lines(path, settings.data.encoding)
    return questions(path, spec_of(settings).reads, settings, lambda note: _tell(f"{note}."))


def _tell_columns(name: str, settings: RunSettings) -> None:
    """What the columns of a list of files are taken for; what is no list says nothing."""
    from headway.data.media.manifest import columns_taken, is_manifest

    if is_manifest(Path(name)) and Path(name).is_file():
        with suppress(DataError):  # which is said in its place, beside the answers of the others
            _tell(f"{name}: {columns_taken(name, settings.data)}.")


def _tell(text: str) -> None:
    print(f"headway predict: {text}", file=sys.stderr)


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
        file.write(shown + "\n")
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
    sys.stdout.write(piece)
    sys.stdout.flush()


def check_engine(name: str, device: str) -> None:
    from headway.tasks.engines import ENGINES

    if name not in ENGINES:
        raise UserError(f"--engine has no choice {name!r}.{suggest(name, ENGINES)}")
    if name != "torch" and device not in ("auto", "cpu"):
        raise UserError(
            f"--device {device} does not go with --engine {name}, which computes on the CPU here. "
            "Leave it out, or use --engine torch with the run."
        )


def check_options(spec: Spec, options: Mapping[str, Any], n_runs: int) -> None:
    """Refuse what would have no effect."""
    for name, value in options.items():
        if value and name not in spec.options and name != "json":
            raise UserError(
                f"--{name.replace('_', '-')} has no effect on a run of the task {spec.name}."
            )
    if n_runs > 1 and "with" not in spec.options:
        raise UserError(f"a run of the task {spec.name} answers alone; {n_runs} are given.")


def _named(given: Mapping[str, Any]) -> list[str]:
    return [f"decode.{name}" for name, value in given.items() if value is not None]


def check_decoding(spec: Spec, keys: Sequence[str]) -> None:
    """The same for settings of decoding."""
    for key in keys:
        section, _, name = key.partition(".")
        if section == "decode" and name not in spec.decode:
            raise UserError(f"{key} has no effect on a run of the task {spec.name}.")


def run_folders(run: str, more: Sequence[str]) -> list[Path]:
    """`a,b` is an ensemble of two, unless a folder is called that."""
    names = [run] if Path(run).is_dir() else run.split(",")
    return [run_folder(name.strip()) for name in [*names, *more]]


def files_and_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that are no `key=value` name files."""
    overrides = [word for word in words if _is_setting(word) and not Path(word).exists()]
    files = [word for word in words if word not in overrides]
    check_settings([word for word in overrides if word.partition("=")[0] != BAD])
    return files, overrides


def _is_setting(word: str) -> bool:
    """A sentence may hold the sign too."""
    key, sign, _ = word.partition("=")
    return bool(sign) and " " not in key


def check_settings(words: Sequence[str]) -> None:
    """Refuse settings that change nothing about a model that is there."""
    for word in words:
        if word.partition("=")[0] == BAD:
            raise ConfigError(
                f"{word!r} has no effect here: a score is one of every line. Mend those that "
                "cannot be read, or take them out of the file."
            )
        if not word.startswith("decode.") and word.partition("=")[0] not in COLUMNS:
            raise ConfigError(
                f"{word!r} has no effect here: only decode.* settings have, and those that name "
                f"columns ({', '.join(COLUMNS)})."
            )


def one_file(files: Sequence[str], texts: Sequence[str] | None = None) -> str:
    """Of text; without one it is standard input."""
    if texts and files:
        raise UserError(f"--text and a file ({files[0]}) do not go together: give one of them.")
    missing = [file for file in files if file != "-" and not Path(file).exists()]
    if missing and (len(missing) == len(files) > 1 or any(map(_is_text, missing))):
        raise UserError(
            f"there is no file {missing[0]!r}. A text that you type goes behind --text: --text "
            f"{shlex.quote(' '.join(files))}"
        )
    if len(files) > 1:
        raise UserError(f"one file at a time, but there are {len(files)}: {', '.join(files)}.")
    return files[0] if files else "-"


def _is_text(word: str) -> bool:
    """Whether a word that names no file looks like something to answer."""
    return " " in word or not (Path(word).suffix or Path(word).parent.name)


def media_files(
    settings: RunSettings, files: Sequence[str], texts: Sequence[str] | None
) -> list[str] | None:
    """The files that a run on pictures or recordings is to answer, none of them: standard input
    names them; None for a run on text."""
    if spec_of(settings).modality == "text":
        return None
    if texts:
        raise UserError(
            f"--text has no effect on a run of the task {settings.task}, which is given files: "
            "headway predict RUN FILE"
        )
    if not files and sys.stdin.isatty():
        raise UserError(
            f"name the files that this run of the task {settings.task} is to answer, or a TSV, CSV "
            "or JSONL file of paths."
        )
    return [] if list(files) == ["-"] else list(files)


def settings_of(folder: Path, overrides: Sequence[str], given: Mapping[str, Any]) -> Resolved:
    """What the run says, changed by options, changed by `decode.key=value` words."""
    options = {f"decode.{name}": value for name, value in given.items() if value is not None}
    if "decode.beam" in options:  # who names a beam wants a search, also of a run that samples
        options["decode.sample"] = False
    return load_resolved(file_in(folder, CONFIG), list(overrides), options)


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
