"""What was asked for, and where it came from."""

from __future__ import annotations

import pickle
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.settings.overrides import FROM_PYTHON, Overrides
from headway.settings.run import RunSettings, load_run_settings, overrides_of, resolved_toml
from headway.settings.toml import comments_of
from headway.settings.train import TrainSettings

RECIPE = """# Something
task = "translate"

[train]
lr = 1e-3
steps = 7
betas = [
  1,
]
"""


def test_every_way_in_records_the_origin_of_a_setting(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    asked = Overrides.from_file(path)
    assert asked["train.lr"] == 1e-3
    assert asked.origin("train.lr").text == "recipe.toml, line 5"
    assert asked.origin("train.betas").text == "recipe.toml, line 7"
    asked |= Overrides.from_flags(
        {"data.valid_text": ["a"], "start.run": "b"}, {"start.run": "--from"}
    )
    asked |= Overrides.from_arguments(["train.lr=2e-3", "decode.max_len=none"])
    asked |= Overrides({"train": {"seed": 3}, "model.d_model": 8}, FROM_PYTHON)
    assert (asked["train.lr"], asked["decode.max_len"]) == (2e-3, "none")
    assert {key: asked.origin(key).text for key in asked} == {
        "task": "recipe.toml, line 2",
        "train.lr": "train.lr=2e-3",
        "train.steps": "recipe.toml, line 6",
        "train.betas": "recipe.toml, line 7",
        "data.valid_text": "--valid-text",
        "start.run": "--from",
        "decode.max_len": "decode.max_len=none",
        "train.seed": "train(settings=…)",
        "model.d_model": "train(settings=…)",
    }
    assert pickle.loads(pickle.dumps(asked)).origin("train.lr").text == "train.lr=2e-3"


def test_merging_leaves_the_first_settings_unchanged() -> None:
    one = Overrides({"train.lr": 1.0, "model.image.patch": 4, "model.d_model": 8})
    other = one | Overrides({"train.lr": 2.0})
    assert (one["train.lr"], other["train.lr"]) == (1.0, 2.0)
    assert one.section("model") == {"image.patch": 4, "d_model": 8}
    assert dict(one.without("model.image", "train")) == {"model.d_model": 8}
    with pytest.raises(ConfigError, match=r"'train\.lr'"):
        Overrides.from_arguments(["train.lr"])


def test_settings_made_in_python_count_as_set_by_the_user() -> None:
    settings = RunSettings(task="tag", train=TrainSettings(lr=1e-4, seed=1))
    assert dict(overrides_of(settings)) == {"task": "tag", "train.lr": 1e-4, "train.seed": 1}
    untouched = replace(settings, train=replace(TrainSettings(), lr=1e-4))  # gives every name
    assert dict(overrides_of(untouched)) == {"task": "tag", "train.lr": 1e-4}
    assert overrides_of(settings).origin("train.lr").text == "train(settings=…)"


def test_a_run_records_the_origin_of_its_settings(tmp_path: Path) -> None:
    """Also after it was written, with values that look like comments."""
    recipe, config = tmp_path / "mine.toml", tmp_path / "config.toml"
    recipe.write_text('task = "translate"\n[data]\nsource_field = "a  # b"\n')
    words = ["data.target_field=c  # d", "train.lr=0.5"]
    settings = load_run_settings(recipe, words, {"data.max_len": 9}, is_recipe=True)
    config.write_text(resolved_toml(settings))
    again = load_run_settings(config, [])
    assert again == settings
    assert {key: again.asked.origin(key).text for key in again.asked} == {
        "task": "mine.toml, line 1",
        "data.source_field": "mine.toml, line 3",
        "data.max_len": "--max-len",
        "data.target_field": "data.target_field=c  # d",
        "train.lr": "train.lr=0.5",
    }


def test_only_comments_after_values_are_read() -> None:
    text = '[a]\nb = "c  # d"\ne = 1  # why\n# f = 2  # not\n[a.g]\nh = "i  # j"  # k\n'
    assert comments_of(text) == {"a": {"e": "why"}, "a.g": {"h": "k"}}


def test_a_comment_ends_with_its_line() -> None:
    asked = Overrides.from_arguments(["data.encoding=a\nb"])
    text = resolved_toml(RunSettings(task="complete", asked=asked))
    assert "# data.encoding=a b\n" in text
    assert tomllib.loads(text)["asked"] == {"data.encoding": "a\nb"}
