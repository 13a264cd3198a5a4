"""Positional arguments of commands: a task or runs, files, and settings."""

from __future__ import annotations

import glob
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli import completion
from headway.errors import ConfigError, Option, UserError, visible
from headway.settings.effects import OF_RUN, CallFacts, RunFacts, check_options
from headway.settings.folder import CONFIG, RUNS, file_in, run_folder
from headway.settings.overrides import Origin, Overrides
from headway.settings.renamed import key_of
from headway.settings.run import Resolved, RunSettings, load_resolved
from headway.settings.task_rows import spec_of
from headway.tasks import engines

COLUMNS = tuple(
    f"data.{name}_field" for name in ("text", "other", "label", "source", "target", "path")
)
"""Settings that name columns of a file. They are needed if the names differ from those in the
training data."""

BAD = "data.on_bad_row"
"""Setting that decides whether unreadable lines stop the command or get an empty answer. It is
rejected when scoring, because scores cover every line."""

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run folder or shipped model.", autocompletion=completion.runs
    ),
]
RunsArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run folder or shipped model; separate several by commas.",
        autocompletion=completion.runs,
    ),
]  # fmt: skip
DeviceOption = Annotated[
    str, typer.Option(help="cpu, cuda, cuda:1; auto uses a GPU if there is one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
EngineOption = Annotated[
    str,
    typer.Option(
        metavar="torch|ctranslate2|onnx", help="The runtime; all but torch need an exported run.",
        autocompletion=completion.of_value("torch|ctranslate2|onnx"),
    ),
]  # fmt: skip
SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="decode.* settings.", autocompletion=completion.to_ask
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="RUN", help="Fine-tune: start from the weights of this run.",
        autocompletion=completion.runs,
    ),
]  # fmt: skip
TeacherOption = Annotated[
    str | None,
    typer.Option(
        metavar="RUN", help="For distil: the teacher model.", autocompletion=completion.runs
    ),
]
ValidOption = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Validation data like FILES. Default: split off from FILES."),
]
EncodingOption = Annotated[
    str | None, typer.Option(help="Encoding of the text files. Default: UTF-8.")
]


def is_setting(word: str) -> bool:
    """Whether a word is `key=value` rather than a sentence with `=`, a file or a run."""
    key, sign, _ = word.partition("=")
    if not sign or " " in key:
        return False
    # Path.exists raises for names that are too long for the file system.
    return not (os.path.exists(word) or os.path.isfile(RUNS / word / CONFIG))  # noqa: PTH110, PTH113


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into files and `key=value` settings."""
    settings = [word for word in words if is_setting(word)]
    return [word for word in words if word not in settings], settings


def run_folders(run: str, more: Sequence[str] = ()) -> list[Path]:
    """Return the folders of the given runs. `a,b` is an ensemble of two runs, unless a folder has
    that name."""
    names = [run] if Path(run).is_dir() else run.split(",")
    return [run_folder(name.strip()) for name in [*names, *more]]


def settings_of(folder: Path, words: Sequence[str], decode: Mapping[str, Any]) -> Resolved:
    """Return the settings of a run, changed first by options and then by `decode.key=value`
    words."""
    options = Overrides.from_flags({f"decode.{name}": value for name, value in decode.items()})
    if "beam" in decode and "sample" not in decode:
        # `--beam` selects beam search, even if the run samples by default.
        options |= Overrides(
            {"decode.sample": False}, Origin.implied(Option("beam", decode["beam"]))
        )
    return load_resolved(file_in(folder, CONFIG), list(words), options)


def files_and_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files and the settings among the words, for a command that uses a trained model.
    Raise an error for settings that such a command does not accept."""
    files, overrides = split_words(words)
    check_settings([word for word in overrides if key_of(word) != BAD])
    return files, overrides


def check_settings(words: Sequence[str]) -> None:
    """Raise `ConfigError` for settings that neither control decoding nor name columns."""
    for word in words:
        if key_of(word) == BAD:
            raise ConfigError(
                f"{word!r} is not accepted here: scores cover every line, so unreadable lines "
                "cannot be skipped. Correct these lines, or remove them from the file."
            )
        if not word.startswith("decode.") and key_of(word) not in COLUMNS:
            raise ConfigError(
                f"{word!r} is not accepted here. Use decode.* settings, or settings that name "
                f"columns ({', '.join(COLUMNS)})."
            )


def check_decoding(settings: RunSettings, words: Sequence[str]) -> None:
    """Raise an error for decoding settings that runs of this task do not use."""
    said = {key_of(word): word for word in words}
    decode = {key: word for key, word in said.items() if key.startswith("decode.")}
    OF_RUN.check(decode, RunFacts(row=spec_of(settings)), typed=lambda key, word: str(word))


def only_decoding(words: Sequence[str]) -> list[str]:
    for word in words:
        if not word.startswith("decode.") or "=" not in word:
            raise ConfigError(
                f"{word!r} is not accepted here. Use decode.* settings, for example decode.beam=4."
            )
    return list(words)


def check_engine(name: str, device: str, *, int8: bool = False) -> None:
    engines.check_engine(name)
    if int8 and name != "torch":
        raise UserError(
            f"--int8 cannot be combined with --engine {name}, which runs exported weights. Export "
            f"the run in 8 bits: headway export RUN --to {name} --int8"
        )
    if name != "torch" and device not in ("auto", "cpu"):
        raise UserError(
            f"--device {device} cannot be combined with --engine {name}, which runs on the CPU. "
            "Leave --device out, or use --engine torch."
        )


def text_files(files: Sequence[str]) -> list[str]:
    """Return the text files in folders and glob patterns, which `train` expands in the same way.
    Without arguments, return standard input (`-`)."""
    from headway.data.files import STDIN, parts

    # A text that ends with a question mark looks like a glob pattern, too.
    missing = [one for one in files if one != STDIN and not Path(one).exists()
               and not glob.glob(one, recursive=True)]  # noqa: PTH207 (any path) # fmt: skip
    if missing and (len(missing) == len(files) > 1 or any(map(_is_text, missing))):
        raise UserError(
            f"no such file: {missing[0]!r}. To give text instead of a file: --text "
            f"{shlex.quote(' '.join(files))}"
        )
    if STDIN in files and len(files) > 1:
        raise UserError(
            f"standard input (-) must be the only input, but {len(files)} inputs are given: "
            f"{', '.join(files)}."
        )
    return parts(files) if files else ["-"]


def check_alone(files: Sequence[str], named: Mapping[str, Any]) -> None:
    """Raise an error if a positional file does not exist, or if options name files as well."""
    if files and named:
        raise UserError(
            f"--{next(iter(named))} cannot be combined with a file ({files[0]}). Give one of them."
        )
    for file in files:
        if file != "-" and not Path(file).exists():
            raise UserError(f"no such file: {file!r}.")


def _is_text(word: str) -> bool:
    """Whether a word that is not an existing file looks like a text to predict rather than a
    path."""
    return " " in word or not (Path(word).suffix or Path(word).parent.name)


def media_files(
    settings: RunSettings, files: Sequence[str], texts: Sequence[str] | None
) -> list[str] | None:
    """Return the input files for a run that reads media. Empty if their paths come from standard
    input; None if the run reads text."""
    if spec_of(settings).is_text:
        return None
    if texts:
        check_options(CallFacts(row=spec_of(settings), options={"text": texts}))
    if not files and sys.stdin.isatty():
        raise UserError(
            f"no input given. This run of the task {settings.task} reads media files. Name the "
            "files, or a TSV, CSV or JSONL file that lists their paths."
        )
    if list(files) == ["-"]:
        return []
    from headway.data.files import parts

    return parts(files, folders=False)


def print_to_stderr(text: str) -> None:
    """Print a line on standard error, because standard output carries only results."""
    print(visible(text), file=sys.stderr, flush=True)


def print_note(command: str, text: str) -> None:
    """Print a line on standard error that starts with the name of the command."""
    print_to_stderr(f"headway {command}: {text}")
