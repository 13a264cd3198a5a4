"""`headway models`: list the shipped models and the user's own runs."""

from __future__ import annotations

import json
import re
import struct
import time
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.data_arguments import JsonOption, print_note
from headway.cli.print_table import show_table
from headway.errors import UserError
from headway.settings.folder import (
    RUNS,
    SHIPPED,
    WEIGHTS,
    checkpoints_in,
    engines_in,
    load_run,
    runs_in,
    shipped_names,
)
from headway.settings.task_rows import spec_of
from headway.specs.metrics import METRICS

CARD = "README.md"
DAMAGED = "damaged"
SCALE = ".row_scale"
"""Suffix of tensors with the scales of 8-bit weights. They do not count as parameters."""


@dataclass(frozen=True)
class RunInfo:
    name: str
    task: str
    parameters: int
    bytes: int
    metric: str = ""
    score: float | None = None
    date: str = ""
    state: str = ""
    """Reason why the run cannot be used as it is: not finished, exported or damaged. Empty if it
    can."""

    trouble: str = ""
    """Message of the error that prevented loading; empty if there was none."""


def models(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FOLDER",
            help="Folders to search, instead of runs/ and the current folder.",
            exists=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List available runs with task, size, score and date.

    Their names work wherever a RUN is needed."""
    for folder in folders or ():
        if not folder.is_dir():
            raise UserError(f"no such folder: {folder}.")
    own = [path for folder in folders or (RUNS, Path()) for path in runs_in(folder)]
    shipped = [] if folders else [SHIPPED / name for name in shipped_names()]
    found = [
        _found(path, path.name if path.parent in (RUNS, SHIPPED) else str(path))
        for path in (*shipped, *own)
    ]
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False))
        return
    show_table(
        ["name", "task", "parameters", "MB", "score", "date"], list(map(_row, found)),
        {"parameters", "MB"},
    )  # fmt: skip
    for one in found:
        if one.state == DAMAGED:
            print_note("models", one.trouble)


def _found(folder: Path, name: str) -> RunInfo:
    """Return facts about a run, which are read without loading its weights. An incomplete folder
    raises no error."""
    from headway.run import load

    try:
        run = load(folder)
        task, known, spec = run.task, run.scores, spec_of(run.settings)
    except UserError as error:
        return _without_weights(folder, name, str(error))
    card = _card(folder)
    metric = next((one for one in spec.metrics if one.name in known), None)
    score = known[metric.name] if metric else None
    if metric is None:
        metric = next((one for one in METRICS.values() if one.label in card), None)
        score = float(card[metric.label]) if metric else None
    weights = folder / WEIGHTS
    day = card.get("date") or time.strftime("%Y-%m-%d", time.localtime(weights.stat().st_mtime))
    return RunInfo(
        name, task, _parameters(weights), weights.stat().st_size, metric.name if metric else "",
        score, day,
    )  # fmt: skip


def _without_weights(folder: Path, name: str, trouble: str) -> RunInfo:
    try:
        settings = load_run(folder)
    except UserError:
        return RunInfo(name, "", 0, 0, state=DAMAGED, trouble=trouble)
    engines, steps = engines_in(folder), checkpoints_in(folder)
    if (folder / WEIGHTS).is_file():
        state = DAMAGED
    elif engines:
        state = f"for --engine {engines[0]}"
    elif steps:
        state = f"not finished: step {max(steps):,} of {settings.train.steps:,}"
    else:
        state = "not finished"
    return RunInfo(name, settings.task, 0, 0, state=state, trouble=trouble)


def _card(folder: Path) -> dict[str, str]:
    """Return the numbers in the tables of a model card, by the name in the column before them."""
    path = folder / CARD
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    rows = re.findall(r"^\| ([\w ]+) \| \**([\d.-]+)", text, re.MULTILINE)
    return {name: figure.rstrip(".") for name, figure in rows}


def _parameters(weights: Path) -> int:
    """Return the number of parameters, read from the header of the weights file."""
    with weights.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        tensors = json.loads(file.read(size))
    return sum(prod(one["shape"]) for name, one in tensors.items()
               if name != "__metadata__" and not name.endswith(SCALE))  # fmt: skip


def _row(one: RunInfo) -> tuple[str, ...]:
    if one.state:
        return one.name, one.task, "", "", one.state, ""
    score = ""
    if one.score is not None:
        metric = METRICS.get(one.metric)
        score = f"{metric.label} {metric.shown(one.score)}" if metric else f"{one.score:g}"
    return (one.name, one.task, f"{one.parameters:,}", f"{one.bytes / 1e6:.1f}", score, one.date)
