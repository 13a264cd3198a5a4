"""What stands on the line behind a command: a task or runs, files, and settings."""

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
from headway.errors import ConfigError, UserError, visible
from headway.settings.asked import Asked
from headway.settings.folder import CONFIG, RUNS, file_in, run_folder
from headway.settings.run import Resolved, RunSettings, load_resolved
from headway.tasks import engines
from headway.tasks.specs import ALIASES, SPECS, spec_of

COLUMNS = tuple(
    f"data.{name}_field" for name in ("text", "other", "label", "source", "target", "path")
)
"""Settings that say where the columns of a file are, if not where those of training were."""

BAD = "data.bad"
"""Whether lines that cannot be read end it, or are answered as empty ones. No score leaves any out.
"""

RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run folder or shipped model.", autocompletion=completion.runs
    ),
]
RunNames = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run folder or shipped model; several with commas.",
        autocompletion=completion.runs,
    ),
]  # fmt: skip
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1; auto: a GPU if any.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Engine = Annotated[
    str,
    typer.Option(
        metavar="torch|ctranslate2|onnx", help="What computes; others run an exported folder.",
        autocompletion=completion.of_value("torch|ctranslate2|onnx"),
    ),
]  # fmt: skip
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="decode.* settings.", autocompletion=completion.to_ask
    ),
]
FromRun = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="RUN", help="Start from the weights of a run.",
        autocompletion=completion.runs,
    ),
]  # fmt: skip
Teacher = Annotated[
    str | None,
    typer.Option(
        metavar="RUN", help="For distil: the run to learn from.", autocompletion=completion.runs
    ),
]
Valid = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Validation data like FILES; else a part is split off."),
]
Encoding = Annotated[str | None, typer.Option(help="Of the text files; UTF-8.")]


def is_setting(word: str) -> bool:
    """Whether it is `key=value`, and not a sentence with that sign, a file, or a run."""
    key, sign, _ = word.partition("=")
    if not sign or " " in key:
        return False
    # Path.exists raises for names that are too long for the file system.
    return not (os.path.exists(word) or os.path.isfile(RUNS / word / CONFIG))  # noqa: PTH110, PTH113


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files and settings: the words that are no `key=value` name files."""
    settings = [word for word in words if is_setting(word)]
    return [word for word in words if word not in settings], settings


def task_files_settings(
    words: Sequence[str], task: str | None = None, *, recipe: bool = False
) -> tuple[str | None, list[str], list[str]]:
    """`translate pairs.tsv train.lr=1e-3 …`: the task, where one is named, files, and the rest."""
    rest, settings = split_words(words)
    if task is None and rest and (rest[0] in (*SPECS, *ALIASES) or not recipe):
        task, *rest = rest
        if task not in (*SPECS, *ALIASES) and Path(task).is_file():
            raise ConfigError(f"{task} is a file. Say first what it is for: {', '.join(SPECS)}.")
    if task is not None:
        from headway.training.arguments import check_word

        check_word(task)
    for word in rest:
        if word != "-" and not Path(word).exists():
            raise ConfigError(
                f"there is no file {word!r}. Settings are key=value, as train.lr=1e-3."
            )
    alone = task in SPECS and SPECS[task].reads == "pairs" and len(rest) == 2
    if alone and all(Path(word).is_file() and not _is_table(word) for word in rest):
        one, other = map(shlex.quote, rest)
        raise ConfigError(
            f"{rest[0]} and {rest[1]} are no tables. Files that are lines of one another go to "
            f"--source {one} --target {other}"
        )
    return task, rest, settings


def _is_table(path: str) -> bool:
    """Whether its first line has columns."""
    if any(end in path for end in (".gz", ".jsonl", ".json", ".parquet", ".csv", ".zst", ".xz")):
        return True
    with Path(path).open("rb") as file:
        return b"\t" in file.readline(1 << 20)


def run_folders(run: str, more: Sequence[str] = ()) -> list[Path]:
    """`a,b` is an ensemble of two, unless a folder is called that."""
    names = [run] if Path(run).is_dir() else run.split(",")
    return [run_folder(name.strip()) for name in [*names, *more]]


def settings_of(folder: Path, words: Sequence[str], decode: Mapping[str, Any]) -> Resolved:
    """What the run says, changed by options, changed by `decode.key=value` words."""
    options = Asked.from_flags({f"decode.{name}": value for name, value in decode.items()})
    if "beam" in decode and "sample" not in decode:
        # Who names a beam wants a search, also of a run that samples.
        options |= Asked({"decode.sample": False}, f"--beam {decode['beam']}")
    return load_resolved(file_in(folder, CONFIG), list(words), options)


def files_and_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The same of what asks a model that is there."""
    files, overrides = split_words(words)
    check_settings([word for word in overrides if word.partition("=")[0] != BAD])
    return files, overrides


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


def check_decoding(settings: RunSettings, words: Sequence[str]) -> None:
    """Refuse settings of decoding that such a run does not read."""
    spec = spec_of(settings)
    for word in words:
        key = word.partition("=")[0]
        section, _, name = key.partition(".")
        if section == "decode" and name not in spec.decode:
            raise UserError(f"{key} has no effect on a run of the task {spec.name}.")


def only_decoding(words: Sequence[str]) -> list[str]:
    for word in words:
        if not word.startswith("decode.") or "=" not in word:
            raise ConfigError(f"{word!r} has no effect here: only decode.* settings have.")
    return list(words)


def check_engine(name: str, device: str) -> None:
    engines.check_engine(name)
    if name != "torch" and device not in ("auto", "cpu"):
        raise UserError(
            f"--device {device} does not go with --engine {name}, which computes on the CPU here. "
            "Leave it out, or use --engine torch with the run."
        )


def text_files(files: Sequence[str]) -> list[str]:
    """Files of text, also of patterns and folders, as `train` takes them; without any it is
    standard input."""
    from headway.data.files import parts

    # A question mark at the end of a typed text is a pattern, too.
    missing = [one for one in files if one != "-" and not Path(one).exists()
               and not glob.glob(one, recursive=True)]  # noqa: PTH207 (any path) # fmt: skip
    if missing and (len(missing) == len(files) > 1 or any(map(_is_text, missing))):
        raise UserError(
            f"there is no file {missing[0]!r}. A text that you type goes behind --text: --text "
            f"{shlex.quote(' '.join(files))}"
        )
    if "-" in files and len(files) > 1:
        raise UserError("standard input (-) is answered alone, without other files.")
    return parts(files) if files else ["-"]


def check_alone(files: Sequence[str], named: Mapping[str, Any]) -> None:
    """Files behind a run that are there, and named in one way only."""
    if files and named:
        raise UserError(
            f"--{next(iter(named))} and a file ({files[0]}) do not go together: give one of them."
        )
    for file in files:
        if file != "-" and not Path(file).exists():
            raise UserError(f"there is no file {file!r}.")


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
    if list(files) == ["-"]:
        return []
    from headway.data.files import parts

    return parts(files, folders=False)


def say(text: str) -> None:
    """Print a line for people on standard error: standard output carries results only."""
    print(visible(text), file=sys.stderr, flush=True)


def tell(command: str, text: str) -> None:
    """The same, with the name of the command before it."""
    say(f"headway {command}: {text}")
