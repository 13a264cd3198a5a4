"""`headway predict`: translate lines with a trained model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from headway.config.decode import DecodeSettings
from headway.config.folder import CONFIG, file_in, run_folder
from headway.config.run import load_run_settings
from headway.errors import ConfigError, DataError, UserError, suggest

if TYPE_CHECKING:
    from headway.decode.translator import Output, TextWish, Translation

ENGINES = ("torch",)
LONG = ("split", "cut", "error")

Show = Callable[["Translation"], Iterable[str]]


def predict(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run folder or shipped model; several with commas."),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE] [KEY=VALUE]...", help="Text, and decode.* settings."),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept; 1 is greedy.")] = None,
    n_best: Annotated[int | None, typer.Option(help="Outputs a line.")] = None,
    more: Annotated[
        list[str] | None, typer.Option("--with", metavar="RUN", help="One more run: an ensemble.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Add word alignments (i-j, source-target).")
    ] = False,
    scores: Annotated[bool, typer.Option("--scores", help="Put scores before the text.")] = False,
    on_long: Annotated[
        str, typer.Option(metavar="split|cut|error", help="What becomes of over-long lines.")
    ] = "split",
    prefix: Annotated[
        str | None, typer.Option(metavar="FILE", help="What each output begins with, line by line.")
    ] = None,
    constraints: Annotated[
        str | None,
        typer.Option(metavar="FILE.jsonl", help='{"required": [...], "banned": [...]} a line.'),
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Source tokens times beam decoded together.")
    ] = None,
    engine: Annotated[str, typer.Option(metavar="torch", help="What computes.")] = "torch",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; auto: a GPU if any.")] = "auto",
    encoding: Annotated[str, typer.Option(help="Of the input; the output is UTF-8.")] = "utf-8",
    out: Annotated[str, typer.Option(metavar="FILE", help="Where the text goes.")] = "-",
) -> None:
    """Translate a file or standard input, line by line."""
    _check_choice("--on-long", on_long, LONG)
    _check_choice("--engine", engine, ENGINES)
    path, overrides = file_and_settings(words or [])
    folders = run_folders(run, more or [])
    given = {"beam": beam, "n_best": n_best, "batch_tokens": batch_tokens}
    settings = decode_settings(folders[0], overrides, given)
    from headway.data.files import is_stream, open_lines
    from headway.decode.translator import Translator
    from headway.train.ranks import pick_device

    translator = Translator.load(
        folders,
        settings,
        device=pick_device(device),
        on_long=on_long,  # type: ignore[arg-type]
        align=alignments,
    )
    show = _json_line if as_json else _plain(settings.n_best, alignments, scores)
    live = is_stream(path)
    lines, wishes = open_lines(path, encoding), _wishes(prefix, constraints)
    with _output(out) as stream:
        for found in translator.translate(lines, wishes, live=live):
            stream.writelines(line + "\n" for line in show(found))
            if live:
                stream.flush()
    print(f"headway predict: {translator.summary.text()}", file=sys.stderr)


def run_folders(run: str, more: Sequence[str]) -> list[Path]:
    """`a,b` is an ensemble of two, unless a folder is called that."""
    names = [run] if Path(run).is_dir() else run.split(",")
    return [run_folder(name.strip()) for name in [*names, *more]]


def file_and_settings(words: Sequence[str]) -> tuple[str, list[str]]:
    """The words that are no `key=value` name the file; without one it is standard input."""
    overrides = [word for word in words if "=" in word and not Path(word).exists()]
    files = [word for word in words if word not in overrides]
    if len(files) > 1:
        raise UserError(f"one file at a time, but there are {len(files)}: {', '.join(files)}.")
    for word in overrides:
        if not word.startswith("decode."):
            raise ConfigError(f"{word!r} has no effect here: only decode.* settings have.")
    return files[0] if files else "-", overrides


def decode_settings(
    folder: Path, overrides: Sequence[str], given: Mapping[str, Any]
) -> DecodeSettings:
    """What the run says, changed by options, changed by `decode.key=value` words."""
    options = {f"decode.{name}": value for name, value in given.items() if value is not None}
    return load_run_settings(file_in(folder, CONFIG), list(overrides), options).decode


def _check_choice(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UserError(f"{option} has no choice {value!r}.{suggest(value, known)}")


def _wishes(prefix: str | None, constraints: str | None) -> Iterator[TextWish] | None:
    from headway.data.files import open_lines
    from headway.decode.translator import TextWish

    if prefix is None and constraints is None:
        return None
    if constraints is None:
        return (TextWish(prefix=line) for line in open_lines(prefix or ""))
    asked = (
        _constraint(line, f"{constraints}, line {number:,}")
        for number, line in enumerate(open_lines(constraints), 1)
    )
    if prefix is None:
        return (TextWish(**words) for words in asked)
    both = zip(open_lines(prefix), asked, strict=False)  # too few are noticed further on
    return (TextWish(**{"prefix": line, **words}) for line, words in both)


def _constraint(line: str, where: str) -> dict[str, Any]:
    """One line of constraints: an object, or an empty line for none."""
    if not line.strip():
        return {}
    try:
        found = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise DataError(f'{where} must be an object such as {{"required": ["a phrase"]}}.')
    known = {"prefix": str, "required": list, "banned": list}
    for key, value in found.items():
        if key not in known:
            raise DataError(f"{where}: unknown key {key!r}.{suggest(key, known)}")
        if not isinstance(value, known[key]) or not all(isinstance(text, str) for text in value):
            kind = "a text" if known[key] is str else "a list of texts"
            raise DataError(f"{where}: {key!r} must be {kind}, not {json.dumps(value)}.")
    return {key: tuple(value) if known[key] is list else value for key, value in found.items()}


def _plain(n_best: int, alignments: bool, scores: bool) -> Show:
    """A line an output; with `scores` the score before it, with `alignments` the pairs behind it.

    With several outputs a line, each has the number of its line in front.
    """
    from headway.decode.align import pharaoh

    def columns(output: Output) -> list[str]:
        found = [f"{output.score:.4f}", output.text] if scores else [output.text]
        return [*found, pharaoh(output.alignment or [])] if alignments else found

    number = 0

    def show(found: Translation) -> Iterator[str]:
        nonlocal number
        number += 1
        for output in found.outputs:
            before = [str(number)] if n_best > 1 else []
            line = [*before, *columns(output)]
            yield "\t".join(text.replace("\t", " ") for text in line) if len(line) > 1 else line[0]

    return show


def _json_line(found: Translation) -> Iterator[str]:
    outputs = [
        {
            "text": output.text,
            "score": output.score,
            "log_prob": output.log_prob,
            "tokens": output.tokens,
            "token_log_probs": output.token_log_probs,
            "finished": output.finished,
            **({} if output.alignment is None else {"alignment": output.alignment}),
        }
        for output in found.outputs
    ]
    facts = {"source": found.source, "outputs": outputs, "parts": found.parts, "cut": found.cut}
    yield json.dumps(facts, ensure_ascii=False)


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
