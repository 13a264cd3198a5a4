"""Where the files of a model folder are, and its settings. Reading them needs no torch."""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from headway.errors import FolderError, UserError, suggest
from headway.settings.data import FILES
from headway.settings.listed import listed
from headway.settings.model import ModelSettings
from headway.settings.run import (
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
"""The tokenizer of a run in an export, whose `tokenizer.json` is for the library `tokenizers`."""

IMPORTED = "import.json"
CHAT_TEMPLATE = "chat_template.jinja"
"""How messages become a prompt, where a model was made for that."""
"""Where the weights came from, if they are not our own."""

EXPORTED = {"ctranslate2": "model.bin", "onnx": "*.onnx"}
"""The files by which a folder that was exported for an engine is recognised."""

NOT_BEGUN = " Its training ended before the first step. The command that began it goes on."
IMPORT_IT = " If it is a model of Hugging Face, make a run of it: headway import {folder} --out RUN"

SEAL = "# sha256 "
OF_ALL = "of all lines below; delete this one if you change them by hand"
SEALED = re.compile(f"{SEAL}({HEX}) {OF_ALL}\n".encode())
"""The first line of settings that headway wrote."""

SHIPPED = Path(__file__).parent.parent / "shipped"
"""Models that come with the package; they answer to their name."""


def shipped_names() -> list[str]:
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def is_shipped(folder: Path) -> bool:
    """Whether it is in the package, where nothing is written."""
    return SHIPPED in folder.parents


EXAMPLE = "example.*"
"""The file of a model folder that holds one input to try the model on."""


def example_of(folder: Path) -> Path | None:
    """The example input that comes with a model, if there is one."""
    return next(iter(sorted(folder.glob(EXAMPLE))), None)


RUNS = Path("runs")
"""Where people keep their runs: those too answer to their names."""

MOST = 20
"""Names that an error lists."""


def runs_in(folder: Path) -> list[Path]:
    """It may be one itself."""
    if (folder / CONFIG).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))


def own_names() -> list[str]:
    """What the runs of `runs` and of this folder answer to."""
    return [path.name for path in runs_in(RUNS)] + [str(path) for path in runs_in(Path())]


Names = str | Path | Iterable[str | Path]
"""One run or several."""


def run_folder(name: str | Path) -> Path:
    """A folder as it is given, the one of that name in `runs`, or the shipped model that is called
    so; the first of these that is a run. A folder of data is none."""
    path, name = Path(name), str(name)
    if any((path / file).is_file() for file in (CONFIG, WEIGHTS)):
        return path
    if not path.is_absolute() and (RUNS / path / CONFIG).is_file():
        return RUNS / path
    if name in shipped_names():
        return SHIPPED / name
    if not path.exists() and not path.parent.name:
        raise FolderError(
            f"there is no run folder {name}, and no model of that name comes with headway."
            + _other_names(name)
        )
    return path


def _other_names(name: str) -> str:
    """The nearest of those that there are, or all of them."""
    own, shipped = own_names(), shipped_names()
    if close := difflib.get_close_matches(name, [*own, *shipped], n=1):
        return f" Did you mean {close[0]!r}?"
    some = ", ".join(own[:MOST]) + ", …" * (len(own) > MOST)
    return f" Yours here: {some or 'none'}. With headway come: {', '.join(shipped) or 'none'}."


def run_folders(names: Names) -> list[Path]:
    """Several, at least one; one alone is a list of one."""
    found = [run_folder(name) for name in listed(names)]
    if not found:
        raise FolderError("an empty list of runs. Name a run folder or a shipped model.")
    return found


def load_run(folder: str | Path) -> Resolved:
    """All settings of a finished run."""
    return load_resolved(file_in(run_folder(folder), CONFIG))


def load_settings(folder: str | Path, overrides: Sequence[str] = ()) -> ModelSettings:
    return load_model_settings(file_in(run_folder(folder), CONFIG), list(listed(overrides)))


def find_settings(name: str, overrides: Sequence[str] = ()) -> ModelSettings:
    """Of a preset, which wins over a folder, and a folder over a shipped model of the same name; or
    of a .toml file."""
    from headway.settings.presets import PRESETS

    path = Path(name)
    if name in PRESETS:
        return load_model_settings(None, [f"model.preset={name}", *overrides])
    if path.suffix == ".toml" and not path.is_dir():
        return load_model_settings(path, list(overrides))
    with suppress(FolderError):
        path = run_folder(name)
    if not path.is_dir():
        near = suggest(name, [*own_names(), *PRESETS, *shipped_names()])
        raise UserError(f"{name!r} is no preset, run folder, shipped model or .toml file.{near}")
    return load_settings(path, overrides)


def write_config(folder: Path, text: str) -> None:
    """Write the settings, with checksums of themselves and of the tokenizer beside them, which has
    a format that leaves no room for one. They come last: a folder that has them is complete."""
    words = folder / TOKENIZER
    if words.is_file():
        text += f"\n{SEAL}{identity(words)['sha256']} {TOKENIZER}\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    replace_text(folder / CONFIG, f"{SEAL}{digest} {OF_ALL}\n{text}")


def check_config(path: Path) -> None:
    """Refuse settings that have changed since they were written. Those without a checksum, of an
    older version or by hand, are taken as they are."""
    data = path.read_bytes()
    first = data[: data.find(b"\n") + 1 or None]
    seal = SEALED.fullmatch(first)
    if seal is None:
        has_one = first.startswith(SEAL.encode()) or re.search(HEX.encode(), first)
        if not has_one and not SEAL.encode().startswith(first):
            return
    elif hashlib.sha256(data[len(first) :]).hexdigest() == seal[1].decode():
        return
    raise FolderError(
        f"{path} has changed since it was written. If nobody did that on purpose it is damaged: "
        "copy it again from its source. To keep a change by hand, delete its first line, the one "
        f"with {SEAL.strip()!r}."
    )


def check_tokenizer(path: Path) -> None:
    """Refuse a tokenizer that is not the one that the settings beside it were written with."""
    config = path.with_name(CONFIG)
    if not config.is_file():
        return
    check_config(config)
    line = f"^{SEAL}({HEX}) {re.escape(TOKENIZER)}\n"
    found = re.search(line.encode(), config.read_bytes(), re.MULTILINE)
    if found and found[1].decode() != identity(path)["sha256"]:
        raise FolderError(
            f"{path} is damaged, or not the one that {config} was written with: its SHA-256 is "
            "another. Copy it again from its source. To keep a change by hand, delete the lines "
            f"with {SEAL.strip()!r} in {CONFIG}."
        )


CHECKS = {CONFIG: check_config, TOKENIZER: check_tokenizer}


def file_in(folder: Path, name: str) -> Path:
    """A file of the folder, checked, or an error that lists what is there."""
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
                f"{folder} is an exported model without {WEIGHTS}. Use --engine {engines[0]}."
            )
        settings = load_run_settings(folder / CONFIG, [])
        if "task" in settings.asked:
            raise FolderError(_unfinished(folder, settings))
    if folder.is_dir():
        raise FolderError(
            f"there is no {name} in {folder}, which holds: {_listing(folder)}."
            + (IMPORT_IT.format(folder=folder) if name == CONFIG and _is_theirs(folder) else "")
            + (NOT_BEGUN if name == CONFIG and (folder / "data").is_dir() else "")
        )
    if folder.is_file():
        raise FolderError(
            f"{folder} is a file, and a run is a folder (or the name of one of "
            f"{', '.join(shipped_names())}). The run comes before the files."
        )
    near = folder.absolute().parent
    while not near.is_dir():
        near = near.parent
    beside = folder.absolute().parent == near
    names = [one.name for one in near.iterdir() if one.is_dir()] if beside else []
    close = difflib.get_close_matches(folder.name, names, n=1)
    meant = f" Did you mean '{folder.with_name(close[0])}'?" if close else ""
    raise FolderError(f"there is no folder {folder}.{meant} {near} holds: {_listing(near)}.")


def engines_in(folder: Path) -> list[str]:
    """Those that a folder was exported for."""
    return [name for name, mark in EXPORTED.items() if any(folder.glob(mark))]


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """What whole checkpoints list of themselves, by their steps."""
    return {
        int(path.parent.name.removeprefix("step-")): path
        for path in (folder / "checkpoints").glob("step-*/manifest.json")
    }


def _unfinished(folder: Path, settings: RunSettings) -> str:
    """A run whose training has not ended: how to go on, and what can be used already."""
    found = checkpoints_in(folder)
    text = f"{folder} is not finished: it has no {WEIGHTS} yet"
    if found:
        text += f", and its newest checkpoint is of step {max(found):,} of {settings.train.steps:,}"
    text += f". The command that began it goes on: {again(settings, folder)}"
    # One that a stop has left behind is only there to go on from.
    if any('"passing": true' not in path.read_text(encoding="utf-8") for path in found.values()):
        text += f". To use what is there: headway average {folder} --last 1 --out {folder}-so-far"
    return text


def again(settings: RunSettings, folder: Path) -> str:
    """The command that a run was begun with, as far as the run knows."""
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


def _is_theirs(folder: Path) -> bool:
    """Whether it looks like a folder of Hugging Face or sentence-transformers."""
    return any((folder / name).is_file() for name in ("config.json", "modules.json"))


def _listing(folder: Path, limit: int = 10) -> str:
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + more
