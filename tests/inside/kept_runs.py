"""Tiny runs with checkpoints, as training leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from headway.models.folder import load_model, model_weights
from headway.training.checkpoint import Checkpoints
from headway.training.snapshot import Snapshot

from ..interop.padded_runs import tiny_run

STEPS = (10, 20, 30)
KEPT = "average of the last 2"
"""What a run records about the weights it kept."""


def kept_run(
    folder: Path,
    task: str = "translate",
    steps: tuple[int, ...] = STEPS,
    variant: str | None = None,
) -> Path:
    """Its weights grow from near nothing to what they are in the end."""
    tiny_run(folder, task, variant, n_layers=2)
    final = model_weights(load_model(folder))
    checkpoints = Checkpoints(folder, 99, lambda line: None)
    for number, step in enumerate(steps, 1):
        weights = _shrunk(final, number / (len(steps) + 1))
        assert checkpoints.save(Snapshot(step, {"model": weights}, {})) is not None
    lines = [{"kind": "train", "step": step, "loss": 9.0 / step} for step in steps]
    lines += [{"kind": "valid", "step": steps[-1], "loss": 0.5}]
    lines += [{"kind": "end", "step": steps[-1], "kept": KEPT}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def _shrunk(weights: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(0)
    return {
        name: weight * share + 0.02 * torch.randn(weight.shape, generator=noise)
        for name, weight in weights.items()
    }
