"""Settings of a run, written and read again."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from headway.settings.run import Resolved, load_resolved, resolved_toml


def read_back(settings: Resolved) -> Resolved:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(resolved_toml(settings), encoding="utf-8")
        return load_resolved(path)
