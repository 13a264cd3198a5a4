"""Settings of runs from before the renames of settings have the same meaning.

`configs/` has the config.toml of tiny runs in format 2 with the earlier names. These files are
never changed.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from headway.settings.overrides import flatten
from headway.settings.renamed import RenamedSettingWarning, rename
from headway.specs.tasks import SPECS

from . import seams
from .compare import differences

CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.toml"))


def test_the_files_cover_every_task() -> None:
    assert len(CONFIGS) == 33
    assert {tomllib.loads(path.read_text())["task"] for path in CONFIGS} == set(SPECS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_from_before_the_renames_keeps_its_meaning(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    with pytest.warns(RenamedSettingWarning):
        new = seams.reread(tmp_path)
    with pytest.warns(RenamedSettingWarning):
        old = flatten(rename(tomllib.loads(text), str(path)))
    assert old.pop("format") == 2
    assert list(differences(old, {key: new[key] for key in old if key in new})) == []
