"""Shell completion of tasks, runs, recipes, presets and settings. Nothing here imports torch, so
completions appear immediately."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from headway.settings.effects import data_settings
from headway.settings.folder import CONFIG, RUNS, runs_in, shipped_names
from headway.settings.model import FAMILY_SETTINGS
from headway.settings.run import SETTINGS, TASK_SECTIONS
from headway.settings.task_rows import spec_of
from headway.settings.toml import toml_value
from headway.specs.tasks import ALIASES, SPECS
from headway.specs.values import setting_types

Complete = Callable[[str], list[str]]


def runs(incomplete: str) -> list[str]:
    """Return completions for the names of runs, and for folders that contain runs."""
    names = [*shipped_names(), *(path.name for path in runs_in(RUNS))]
    *before, last = incomplete.split(",")  # several answer together
    found = [name for name in names if name.startswith(last)]
    for path in _paths(last):
        if Path(path, CONFIG).is_file():
            found.append(path)
        elif any(Path(path).glob(f"*/{CONFIG}")):
            found.append(f"{path}/")
    return [",".join([*before, name]) for name in dict.fromkeys(found)]


def recipes(incomplete: str) -> list[str]:
    from headway.settings.recipes import recipe_names

    return [*_starting(recipe_names(), incomplete), *_files(incomplete, ".toml")]


def models(incomplete: str) -> list[str]:
    """Return completions for the names of presets and runs."""
    return [*_starting(_presets(), incomplete), *runs(incomplete)]


def families(incomplete: str) -> list[str]:
    return _starting(FAMILY_SETTINGS, incomplete)


def of_value(takes: str) -> Complete | None:
    """Return the completion function for an option with this metavar. None lets the shell complete
    files."""
    if takes.split("|")[0] == "RUN":
        return runs
    if "|" in takes:
        return lambda incomplete: _starting(takes.split("|"), incomplete)
    return None


def to_train(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions for a task, then for files and the settings of that task."""
    words = _words(ctx)
    task = next((word for word in words if word in (*SPECS, *ALIASES)), None)
    if task is None and not words and not ctx.params.get("recipe"):
        return _starting([*SPECS, *ALIASES], incomplete)
    return settings(words, incomplete, dict(_of_training(task)))


def to_ask(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions for files and decoding settings, which follow a run."""
    return settings(_words(ctx), incomplete, dict(_leaves(SETTINGS["decode"], "decode")))


def settings(words: list[str], incomplete: str, leaves: dict[str, Any]) -> list[str]:
    """Return completions for `key=value` words.

    bash splits words at `=`: for `train.lr=1`, it completes `1` after the words `train.lr` and `=`.
    Other shells complete the whole word.
    """
    alone = words[-2] if words[-1:] == ["="] and len(words) > 1 else (words or [""])[-1]
    if alone in leaves:
        return _starting(_values(alone, leaves[alone]), incomplete)
    key, sign, value = incomplete.partition("=")
    if sign:
        found = _starting(_values(key, leaves[key]), value) if key in leaves else []
        return [f"{key}={one}" for one in found]
    keys = _starting(leaves, incomplete) if incomplete else []
    if len(keys) == 1:  # with a single completion the shell would append a space
        return [f"{keys[0]}=", *(f"{keys[0]}={one}" for one in _values(keys[0], leaves[keys[0]]))]
    return [*(f"{key}=" for key in keys), *_files(incomplete)]


def _words(ctx: typer.Context) -> list[str]:
    return list(ctx.params.get("words") or [])


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _paths(incomplete: str) -> list[str]:
    """Return the paths that start with an incomplete path."""
    folder, slash, start = incomplete.rpartition("/")
    there = Path(f"{folder}{slash}")
    names = sorted(path.name for path in there.iterdir()) if there.is_dir() else []
    hidden = start.startswith(".")
    return [
        f"{folder}{slash}{name}" for name in _starting(names, start)
        if hidden or not name.startswith(".")
    ]  # fmt: skip


def _files(incomplete: str, ending: str = "") -> list[str]:
    return [
        f"{path}/" if Path(path).is_dir() else path
        for path in _paths(incomplete)
        if path.endswith(ending) or Path(path).is_dir()
    ]


def _presets() -> list[str]:
    from headway.settings.presets import PRESETS

    return list(PRESETS)


def _of_training(task: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the settings that a run of the task reads: dotted key, and a pair of type and default
    value. None: the settings of all tasks."""
    named = task in SPECS or (task in ALIASES and bool(ALIASES[task].task))
    spec = spec_of(task) if task and named else None
    for section, cls in SETTINGS.items():
        if section in TASK_SECTIONS and (spec is None or section != spec.name):
            continue
        for key, leaf in _leaves(cls, section):
            name = key.partition(".")[2]
            known = {"data": spec and data_settings(spec), "decode": spec and spec.decode}
            if not known.get(section) or name in known[section]:  # type: ignore[operator]
                yield key, leaf
    yield "model.preset", (str, None)
    for family in FAMILY_SETTINGS if spec is None else spec.all_families:
        yield from _leaves(FAMILY_SETTINGS[family], "model")


def _leaves(cls: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key of each setting in a class, with a pair of its type and default
    value."""
    usual = cls()
    hints = setting_types(cls)
    for one in fields(cls):
        value = getattr(usual, one.name)
        if is_dataclass(value):
            yield from _leaves(type(value), f"{where}.{one.name}")
        else:
            yield f"{where}.{one.name}", (hints[one.name], value)


def _values(key: str, leaf: tuple[Any, Any]) -> list[str]:
    """Return all values of a choice or boolean. For other types, return the default as an
    example."""
    if key == "model.preset":
        return _presets()
    hint, usual = leaf
    choices = [one for part in (hint, *get_args(hint)) if get_origin(part) is Literal
               for one in get_args(part)]  # fmt: skip
    if choices or hint is bool:
        return choices or ["true", "false"]
    return [toml_value(usual).strip('"')] if usual not in ("", ()) else []
