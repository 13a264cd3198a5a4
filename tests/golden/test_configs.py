"""Settings that older versions wrote can still be read and have the same meaning.

`configs/` has the config.toml of tiny runs in format 1, which does not state its format (commit
06b66eb). These files are never changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.specs.tasks import SPECS

from . import seams
from .compare import differences

CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.toml"))

RENAMED_TASKS = {"see": ("classify", "image"), "watch": ("classify", "video")}
"""Former names of tasks: today's task and its `classify.modality`."""


def with_new_names(old: dict[str, Any]) -> dict[str, Any]:
    """The settings of an old file by the keys that are written today."""
    if old["task"] not in RENAMED_TASKS:
        return old
    task, what = RENAMED_TASKS[old["task"]]
    sections = {f"{old['task']}.": f"{task}.", f"asked.{old['task']}.": f"asked.{task}."}
    found = dict(old)
    for then, now in sections.items():
        found = {key.replace(then, now, 1) if key.startswith(then) else key: value
                 for key, value in found.items()}  # fmt: skip
    tasks = {key: task for key in ("task", "asked.task") if key in found}
    return found | tasks | {f"{task}.modality": what}


def lost(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One line per old setting that is missing or has another value. New settings are ignored."""
    old = with_new_names(old)
    return list(differences(old, {key: new[key] for key in old if key in new}))


def test_the_files_cover_every_task() -> None:
    texts = [path.read_text(encoding="utf-8") for path in CONFIGS]
    tasks = {with_new_names(seams.settings_of_text(text))["task"] for text in texts}
    assert len(CONFIGS) == 33
    assert tasks == set(SPECS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_old_config_keeps_its_meaning(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    assert lost(seams.settings_of_text(text), seams.reread(tmp_path)) == []
