"""Find and check the files of a run folder, and load its settings, without importing torch."""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from headway.errors import FolderError, Option, UserError, suggest
from headway.settings.data import FILES
from headway.settings.listed import ensure_list
from headway.settings.model import ModelSettings
from headway.settings.run import (
    FORMAT,
    Resolved,
    RunSettings,
    load_model_settings,
    load_resolved,
    load_run_settings,
)
from headway.settings.toml import toml_value
from headway.storage import HEX, identity, replace_text

CONFIG = "config.toml"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
OWN_TOKENIZER = "tokenizer.headway.json"
"""Name of headway's own tokenizer file in an exported folder, where `tokenizer.json` is in the
format of the `tokenizers` library."""

IMPORTED = "import.json"
"""Name of the file that records the origin of imported weights."""

CHAT_TEMPLATE = "chat_template.jinja"
"""Name of the file with the template that turns chat messages into a prompt. Only chat models have
it."""

EXPORTED = {"ctranslate2": "model.bin", "onnx": "*.onnx"}
"""Patterns of the files that identify a folder exported for an engine."""

NOT_STARTED = " Its training stopped before the first step. Run the same command again to resume."
IMPORT_IT = " If it is a Hugging Face model, import it first: headway import {folder} --out RUN"

SEAL = "# sha256 "
OF_ALL = "of all lines below; delete this one if you change them by hand"
SEALED = re.compile(f"{SEAL}({HEX}) {OF_ALL}\n".encode())
"""Pattern of the checksum line at the top of a `config.toml` that headway wrote."""

FORMAT_LINE = re.compile(rb"^format *= *(\d+)", re.MULTILINE)
TASK_LINE = re.compile(rb"^task *=", re.MULTILINE)

SHIPPED = Path(__file__).parent.parent / "shipped"
"""Folder of the pretrained models in the package. They are loaded by name."""


def shipped_names() -> list[str]:
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def is_shipped(folder: Path) -> bool:
    """Whether a folder belongs to the installed package, where nothing may be written."""
    return SHIPPED in folder.parents


EXAMPLE = "example.*"
"""Pattern of the file with the example input that comes with a model."""


def example_of(folder: Path) -> Path | None:
    """Return the path of the example input of a model; None if there is none."""
    return next(iter(sorted(folder.glob(EXAMPLE))), None)


RUNS = Path("runs")
"""Default folder of runs. Its runs are loaded by name."""

MOST = 20
"""Maximum number of names that an error lists, about a screen."""


def runs_in(folder: Path) -> list[Path]:
    """Return the run folders inside a folder, or the folder itself if it is a run."""
    if (folder / CONFIG).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))


def local_run_names() -> list[str]:
    """Return the names of the runs in `runs` and in the current folder."""
    return [path.name for path in runs_in(RUNS)] + [str(path) for path in runs_in(Path())]


NamesOrPaths = str | Path | Iterable[str | Path]
"""Type of an argument that accepts one or several runs, by name or path."""


def run_folder(name: str | Path) -> Path:
    """Return the folder of a run. The argument is tried as a path, as a name in `runs`, and as the
    name of a shipped model, in this order. Folders without settings or weights, such as folders of
    data, are skipped."""
    path, name = Path(name), str(name)
    if any((path / file).is_file() for file in (CONFIG, WEIGHTS)):
        return path
    if not path.is_absolute() and (RUNS / path / CONFIG).is_file():
        return RUNS / path
    if name in shipped_names():
        return SHIPPED / name
    if not path.exists() and not path.parent.name:
        raise FolderError(
            f"unknown run {name!r}: no run folder or shipped model has this name."
            + _other_names(name)
        )
    return path


def _other_names(name: str) -> str:
    """Return the closest known name or all names, as the end of an error."""
    own, shipped = local_run_names(), shipped_names()
    if close := difflib.get_close_matches(name, [*own, *shipped], n=1):
        return f" Did you mean {close[0]!r}?"
    some = ", ".join(own[:MOST]) + ", …" * (len(own) > MOST)
    return f" Your runs: {some or 'none'}. Shipped models: {', '.join(shipped) or 'none'}."


def run_folders(names: NamesOrPaths) -> list[Path]:
    """Return the folders of one or several runs. An empty list is an error."""
    found = [run_folder(name) for name in ensure_list(names)]
    if not found:
        raise FolderError("the list of runs is empty. Name a run folder or a shipped model.")
    return found


def load_run(folder: str | Path) -> Resolved:
    """Load all settings of a run, given by name or path."""
    return load_resolved(file_in(run_folder(folder), CONFIG))


def load_settings(folder: str | Path, overrides: Sequence[str] = ()) -> ModelSettings:
    return load_model_settings(file_in(run_folder(folder), CONFIG), list(ensure_list(overrides)))


def find_settings(name: str, overrides: Sequence[str] = ()) -> ModelSettings:
    """Return the model settings with this name: those of a preset, a run folder or a shipped model
    (in this order), or those in a .toml file."""
    from headway.settings.presets import PRESETS

    path = Path(name)
    if name in PRESETS:
        return load_model_settings(None, [f"model.preset={name}", *overrides])
    if path.suffix == ".toml" and not path.is_dir():
        return load_model_settings(path, list(overrides))
    with suppress(FolderError):
        path = run_folder(name)
    if not path.is_dir():
        near = suggest(name, [*local_run_names(), *PRESETS, *shipped_names()])
        raise UserError(f"{name!r} is not a preset, run folder, shipped model or .toml file.{near}")
    return load_settings(path, overrides)


def write_config(folder: Path, text: str) -> None:
    """Write `config.toml` with checksums of its own content and of the tokenizer file.

    The format of the tokenizer file has no room for a checksum, so it is stored in `config.toml`.
    This file is written last: a folder that has it is complete.
    """
    words = folder / TOKENIZER
    if words.is_file():
        text += f"\n{SEAL}{identity(words)['sha256']} {TOKENIZER}\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    replace_text(folder / CONFIG, f"{SEAL}{digest} {OF_ALL}\n{text}")


def check_config(path: Path) -> None:
    """Raise an error if the `config.toml` of a run does not match its checksum or has another
    format version. Files without a checksum are accepted."""
    data = path.read_bytes()
    if not _is_intact(data):
        raise FolderError(
            f"{path} does not match its checksum: it was edited or is damaged. To keep a "
            f"deliberate edit, delete its first line, which begins with {SEAL.strip()!r}. "
            "Otherwise restore the original file."
        )
    number = _format(data)
    if number not in (None, FORMAT):
        raise FolderError(
            f"{path} has format {number}, but this version of headway opens only format {FORMAT}. "
            "Train the model again, or use the version of headway that wrote it."
        )


def _format(data: bytes) -> int | None:
    """Return the format version of a run's settings; None if the file contains only model
    settings."""
    if found := FORMAT_LINE.search(data):
        return int(found[1])
    return 1 if TASK_LINE.search(data) else None


def _is_intact(data: bytes) -> bool:
    """Whether a file is unchanged: its first line is the checksum of the rest, or no checksum at
    all."""
    first = data[: data.find(b"\n") + 1 or None]
    seal = SEALED.fullmatch(first)
    if seal is not None:
        return hashlib.sha256(data[len(first) :]).hexdigest() == seal[1].decode()
    has_one = first.startswith(SEAL.encode()) or re.search(HEX.encode(), first)
    return not has_one and not SEAL.encode().startswith(first)


def check_tokenizer(path: Path) -> None:
    """Raise an error if a tokenizer file does not match its checksum in `config.toml`."""
    config = path.with_name(CONFIG)
    if not config.is_file():
        return
    check_config(config)
    line = f"^{SEAL}({HEX}) {re.escape(TOKENIZER)}\n"
    found = re.search(line.encode(), config.read_bytes(), re.MULTILINE)
    if found and found[1].decode() != identity(path)["sha256"]:
        raise FolderError(
            f"{path} does not match its checksum in {config}: it was edited or is damaged. To keep "
            f"a deliberate edit, delete the lines that contain {SEAL.strip()!r} in {CONFIG}. "
            "Otherwise restore the original file."
        )


CHECKS = {CONFIG: check_config, TOKENIZER: check_tokenizer}


def file_in(folder: Path, name: str) -> Path:
    """Return the path of a file in a run folder, after checking it. A missing file raises an error
    that lists the contents of the folder."""
    if name == TOKENIZER and (folder / OWN_TOKENIZER).is_file():
        check_tokenizer(folder / OWN_TOKENIZER)
        return folder / OWN_TOKENIZER
    if (folder / name).is_file():
        if name in CHECKS:
            CHECKS[name](folder / name)
        return folder / name
    if name == WEIGHTS and (folder / CONFIG).is_file():
        engines = engines_in(folder)
        if engines:
            raise FolderError(
                f"{folder} is an exported model and has no {WEIGHTS}. Use "
                f"{Option('engine', engines[0])}."
            )
        settings = load_run_settings(folder / CONFIG, [])
        if "task" in settings.asked:
            raise FolderError(_unfinished(folder, settings))
    if folder.is_dir():
        raise FolderError(
            f"there is no {name} in {folder}, which contains: {_listing(folder)}."
            + (
                IMPORT_IT.format(folder=folder)
                if name == CONFIG and _is_hugging_face(folder)
                else ""
            )
            + (NOT_STARTED if name == CONFIG and (folder / "data").is_dir() else "")
        )
    if folder.is_file():
        raise FolderError(
            f"{folder} is a file, but a run folder or a shipped model "
            f"({', '.join(shipped_names())}) is needed here. Give the run first, then the files."
        )
    near = folder.absolute().parent
    while not near.is_dir():
        near = near.parent
    beside = folder.absolute().parent == near
    names = [one.name for one in near.iterdir() if one.is_dir()] if beside else []
    close = difflib.get_close_matches(folder.name, names, n=1)
    meant = f" Did you mean '{folder.with_name(close[0])}'?" if close else ""
    raise FolderError(f"there is no folder {folder}.{meant} {near} contains: {_listing(near)}.")


def engines_in(folder: Path) -> list[str]:
    """Return the names of the engines for which a folder was exported."""
    return [name for name, mark in EXPORTED.items() if any(folder.glob(mark))]


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Return the manifest files of the complete checkpoints of a run, by step number."""
    return {
        int(path.parent.name.removeprefix("step-")): path
        for path in (folder / "checkpoints").glob("step-*/manifest.json")
    }


def _unfinished(folder: Path, settings: RunSettings) -> str:
    """Return the error text for an unfinished run. It gives the command that resumes the run, and
    the checkpoint that is already usable."""
    found = checkpoints_in(folder)
    text = f"training of {folder} is not finished: there is no {WEIGHTS} yet"
    if found:
        text += f", and the newest checkpoint is at step {max(found):,} of {settings.train.steps:,}"
    text += f". To resume it: {start_command(settings, folder)}"
    # A checkpoint that was saved when training was stopped can only be used to resume.
    if any('"passing": true' not in path.read_text(encoding="utf-8") for path in found.values()):
        text += (
            f". To use the model so far: headway average {folder} --last 1 --out {folder}-so-far"
        )
    return text


def start_command(settings: RunSettings, folder: Path) -> str:
    """Return the command that started a run, as far as its settings record it."""
    if any(key.startswith("metrics.") for key in settings.asked):  # no command has those
        return f"headway.train(…, out={str(folder)!r})"
    if "model.parts" in settings.asked:
        return f"headway.train(…, parts=…, out={str(folder)!r})"
    words = ["headway train"]
    options: list[str] = []
    others: list[str] = []
    for key, value in settings.asked.items():
        name = key.removeprefix("data.")
        if key == "task":
            words.append(str(value))
        elif key == "budget":
            options.append(f"--budget {value}")
        elif key == "start.run":
            options.append(f"--from {value}")
        elif key == "distil.teacher":
            options.append(f"--teacher {value}")
        elif key != name and name in FILES:
            values = value if isinstance(value, list | tuple) else [value]
            options += [f"--{name.replace('_', '-')} {shlex.quote(str(one))}" for one in values]
        else:
            others.append(shlex.quote(f"{key}={_bare(value)}"))
    return " ".join([*words, *options, f"--out {folder}", *others])


def _bare(value: object) -> str:
    return value if isinstance(value, str) else toml_value(value)


def _is_hugging_face(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "modules.json"))


def _listing(folder: Path, limit: int = 10) -> str:
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + more
