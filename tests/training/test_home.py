"""A run goes on with the same command; its files of text may lie elsewhere meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.data.fingerprint import wanted_inputs
from headway.errors import FolderError
from headway.settings.run import RunSettings, run_settings
from headway.training.run_folder import Home


def asked(path: Path, **train: object) -> RunSettings:
    values = {"task": "classify", "data": {"text": [str(path)]}, "train": train}
    return run_settings(values)


def test_files_may_have_been_moved_but_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, other = (tmp_path / name for name in ("a.tsv", "b.tsv", "c.tsv"))
    for path, text in ((old, "x"), (new, "x"), (other, "y")):
        path.write_text(text)
    home = Home(tmp_path / "run")
    (home.path / "data").mkdir(parents=True)
    home.config.write_text("")
    inputs = wanted_inputs(asked(old))
    (home.path / "data" / "manifest.json").write_text(json.dumps({"inputs": inputs}))
    before = SimpleNamespace(asked=asked(old).asked)
    monkeypatch.setattr(Home, "stored", lambda home, task: before)
    home.check(asked(new), restart=False)
    for changed in (asked(other), asked(tmp_path / "gone.tsv"), asked(new, steps=3)):
        with pytest.raises(FolderError, match=r"data\.text: .* then"):
            home.check(changed, restart=False)
