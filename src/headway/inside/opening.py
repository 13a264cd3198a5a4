"""A run to look into: its settings, its model, its vocabulary."""

from __future__ import annotations

from pathlib import Path

from headway.interop.run import LoadedRun, load_run_for_export

__all__ = ["LoadedRun", "load"]


def load(name: str | Path) -> LoadedRun:
    """A run folder, or a shipped model by its name. `training.stage_at` has its checkpoints."""
    return load_run_for_export(name)
