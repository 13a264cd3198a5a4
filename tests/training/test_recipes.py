"""Every shipped recipe resolves to complete settings on a CPU and on a GPU.

The settings that are chosen for them are in `tests/golden/chosen.json`:
`python -m tests.training.test_recipes` writes it again.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headway.settings.facts import DatasetStats, DeviceInfo, MediaFormat, ParentRun
from headway.settings.model import AudioSettings, ImageSettings
from headway.settings.overrides import flatten
from headway.settings.recipes import recipe_names, recipe_path
from headway.settings.run import (
    Resolved,
    RunSettings,
    load_run_settings,
    resolved_toml,
)
from headway.training.resolve import resolve
from tests.stored import read_back

CPU = DeviceInfo()
GPU = DeviceInfo(type="cuda", free_bytes=130 << 30, bf16=True)
DEVICES = {"cpu": CPU, "cuda": GPU}
GOLDEN = Path(__file__).parents[1] / "golden" / "chosen.json"
PARENTS = {"debian-detect": "debian-fields", "sentiment-distil": "sentiment-pretrain"}
"""Recipes for a run that starts from, or learns from, the run of another recipe."""


def loaded(name: str) -> RunSettings:
    return load_run_settings(recipe_path(name), [], is_recipe=True)


def resolved(name: str, device: DeviceInfo) -> Resolved:
    settings, parent = loaded(name), None
    if name in PARENTS:
        given = {"distil.teacher" if name.endswith("distil") else "start.run": PARENTS[name]}
        settings = load_run_settings(recipe_path(name), [], given, is_recipe=True)
        model = resolved(PARENTS[name], device).model
        parent = ParentRun(name=PARENTS[name], task=loaded(PARENTS[name]).task, model=model)
    front = getattr(settings.model, "image", None) or getattr(settings.model, "audio", None)
    has_text = front is None or settings.task in ("caption", "transcribe")
    facts = DatasetStats(
        n=20_000, n_tokens=1_000_000, longest=60, longest_text=12, labels=("a", "b", "c"),
        vocab_size=8192 if has_text else 0, front=front, stored=stored_as(front), parent=parent,
    )  # fmt: skip
    return resolve(settings, facts, device)


def stored_as(front: ImageSettings | AudioSettings | None) -> MediaFormat:
    if isinstance(front, ImageSettings):
        return MediaFormat(height=front.height, width=front.width, channels=front.channels,
                      frames=front.frames)  # fmt: skip
    return MediaFormat(rate=front.rate if front else 0)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_resolves(name: str, device: DeviceInfo) -> None:
    found = resolved(name, device)
    assert read_back(found) == found
    assert None not in (found.train.steps, found.train.batch_tokens, found.train.lr)
    written = flatten(tomllib.loads(resolved_toml(found)))
    asked = {key: value for key, value in loaded(name).asked.items() if key in written}
    assert asked
    assert {key: written[key] for key in asked} == asked
    assert loaded(name).asked.keys() - asked.keys() <= {"model.preset"}


def chosen(name: str, place: str) -> dict[str, Any]:
    """Settings of a recipe that are chosen automatically, by dotted key."""
    found = resolved(name, DEVICES[place])
    values = flatten(tomllib.loads(resolved_toml(found)))
    return {key: values[key] for key in sorted(found.why) if key in values}


@pytest.mark.parametrize("place", DEVICES)
@pytest.mark.parametrize("name", recipe_names())
def test_what_is_chosen_for_a_recipe_has_not_changed(name: str, place: str) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert chosen(name, place) == golden[name][place]
    assert golden.keys() == set(recipe_names())


if __name__ == "__main__":
    everything = {name: {place: chosen(name, place) for place in DEVICES}
                  for name in recipe_names()}  # fmt: skip
    GOLDEN.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
