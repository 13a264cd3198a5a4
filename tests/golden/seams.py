"""All uses of headway's internals by the golden tests.

The rest of the folder uses the command line only. When an internal is renamed or moved, change this
file; the expected values stay as they are.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .integers import fractions

CPU = torch.device("cpu")


def command(*words: str) -> str:
    """Standard output of `headway WORDS`, run in this process."""
    from headway.cli.main import main

    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    keyboard = sys.stdin
    sys.stdin = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(list(words))
    finally:
        sys.stdin = keyboard
    assert code == 0, f"headway {' '.join(words)} ended with {code}: {err.getvalue()}"
    out.flush()
    return out.buffer.getvalue().decode()


@dataclass(frozen=True)
class Run:
    """A run folder with prepared data and initial weights, before training."""

    folder: Path
    settings: Any
    prepared: Any


def make_run(given: dict[str, Any], folder: Path) -> Run:
    """Prepare data, resolve settings, and write the files that `train` leaves in a run folder."""
    from headway.models.build import build_model
    from headway.models.folder import model_weights, save_weights
    from headway.progress import SILENT
    from headway.settings.run import load_run_settings, resolved_toml
    from headway.tasks.task import find_task
    from headway.training.resolve import resolve_run

    settings = load_run_settings(None, [], given)
    prepared = find_task(settings).prepare(settings, folder, SILENT)
    settings = resolve_run(settings, prepared, CPU)
    settings = dataclasses.replace(settings, fingerprint=prepared.fingerprint)
    (folder / "config.toml").write_text(resolved_toml(settings), encoding="utf-8")
    if prepared.vocab is not None:
        prepared.save_tokenizer(folder / "tokenizer.json")
    assert settings.model is not None
    model = build_model(settings.model)
    fill_weights(model)
    save_weights(folder, model_weights(model))
    return Run(folder, settings, prepared)


@torch.no_grad()
def fill_weights(model: nn.Module) -> None:
    """Set every weight to numbers that depend only on its name, not on torch's generator."""
    for name, weight in model.named_parameters():
        drawn = fractions(name, weight.numel()).reshape(weight.shape)
        if weight.ndim > 1:
            fan_in = weight[0].numel()
            drawn = drawn * (1.0 if "tokens" in name else (3.0 / fan_in) ** 0.5)
        else:
            drawn = 0.25 * drawn + (1.0 if name.endswith("weight") else 0.0)
        weight.copy_(torch.from_numpy(drawn.astype(np.float32)))


def trained(run: Run, steps: int, folder: Path) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Train from `fill_weights`. Returns the weights after `steps` and the rows of the log."""
    from headway.models.folder import model_weights
    from headway.progress import Progress
    from headway.training.checkpoint import Checkpoints
    from headway.training.log import RunLog

    assert run.settings.train.steps == steps
    worker = _worker(run)
    folder.mkdir()
    log = RunLog(folder, Progress(enabled=False))
    checkpoints = Checkpoints(folder, 1, lambda text: None)
    worker.loop(checkpoints, log, lambda: False, folder).run()
    logged = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return model_weights(worker.model), [json.loads(line) for line in logged]


def in_training(run: Run) -> tuple[Any, Any, nn.Module]:
    """The objective, the loss function of the training loop (distillation included), the model."""
    worker = _worker(run)
    return worker.objective, worker.loss_of, worker.model


def _worker(run: Run) -> Any:
    from headway.training.distributed import Distributed
    from headway.training.trainer import Trainer

    worker = Trainer(run.settings, run.prepared, Distributed(), None)
    fill_weights(worker.model)
    return worker


def shipped_folder(name: str) -> Path:
    from headway.settings.folder import run_folder

    return run_folder(name)


def settings_of_text(text: str) -> dict[str, Any]:
    """The settings in the text of a config.toml, by dotted keys."""
    from headway.settings.overrides import flatten

    values = tomllib.loads(text)
    values.pop("format", None)  # describes the file, is not a setting
    return flatten(values)


def reread(folder: Path) -> dict[str, Any]:
    """Load a run folder's config.toml and write it again. Returns the settings by dotted keys."""
    from headway.settings.folder import load_run
    from headway.settings.run import resolved_toml

    return settings_of_text(resolved_toml(load_run(folder)))
