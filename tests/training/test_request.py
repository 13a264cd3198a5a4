"""A request is the same on the command line and in Python, and records origins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headway
from headway.cli.main import main
from headway.errors import ConfigError, UserError
from headway.settings.overrides import OriginKind, Overrides
from headway.settings.run import load_run_settings, resolved_toml
from headway.training.request import RequestedRun, TrainRequest


class Caught(Exception):
    pass


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TrainRequest]:
    """The requests of commands and calls, which end there, in a folder with data."""
    monkeypatch.chdir(tmp_path)
    Path("reviews.tsv").write_text("review\tstars\n" + "good\t1\nbad\t0\n" * 8)
    Path("more.tsv").write_text("review\tstars\n" + "fine\t1\n" * 4)
    Path("pairs.tsv").write_text("source\ttarget\n" + "eins\tone\n" * 8)
    for name in ("a.de", "a.en"):
        Path(name).write_text("one\ntwo\n" * 8)
    Path("mine.toml").write_text('task = "translate"\n\n[train]\nlr = 1e-3\n')
    found: list[TrainRequest] = []

    def catch(self: TrainRequest) -> RequestedRun:
        found.append(self)
        raise Caught

    monkeypatch.setattr(TrainRequest, "resolve", catch)
    return found


SAME: dict[str, tuple[str, Callable[[], object]]] = {
    "columns": (
        "train classify reviews.tsv --text review --label stars --valid more.tsv --epochs 3 "
        "decode.max_len=none --out run",
        lambda: headway.train(
            "classify", ["reviews.tsv"], text="review", label="stars", valid=["more.tsv"],
            epochs=3, settings={"decode": {"max_len": None}}, out="run",
        ),
    ),
    "files": (
        "train translate --source a.de --target a.en --budget 10m --from tatoeba-de-en --out run "
        "--restart",
        lambda: headway.train(
            "translate", source=["a.de"], target=["a.en"], budget="10m", start="tatoeba-de-en",
            out="run", restart=True,
        ),
    ),
    "recipe": (
        "train --recipe mine.toml pairs.tsv train.lr=2 --out run",
        lambda: headway.train(
            recipe="mine.toml", data=["pairs.tsv"], settings={"train.lr": 2}, out="run"
        ),
    ),
    "check": (
        "check distil pairs.tsv --teacher tatoeba-de-en",
        lambda: headway.check("distil", ["pairs.tsv"], teacher="tatoeba-de-en"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_both_edges_build_the_same_request(name: str, requests: list[TrainRequest]) -> None:
    words, call = SAME[name]
    for build in (lambda: main(words.split()), call):
        with pytest.raises(Caught):
            build()
    typed, called = requests
    assert typed == called
    assert {typed.overrides.origin(key).kind for key in typed.overrides} <= {OriginKind.SETTING}
    assert {called.overrides.origin(key).kind for key in called.overrides} <= {OriginKind.PYTHON}


def test_origins_survive_in_the_config_of_a_run(tmp_path: Path) -> None:
    """From every way in: what was implied, found, and said, over a recipe."""
    data, recipe, config = tmp_path / "a.tsv", tmp_path / "mine.toml", tmp_path / "config.toml"
    data.write_text("review\tlabel\n" + "good\t1\nbad\t0\n" * 8)
    recipe.write_text('task = "classify"\n[train]\nlr = 1e-3\nseed = 5\n')
    request = TrainRequest(
        task=None, recipe=recipe, data=[data], columns={"text": "review"}, budget="5m",
        overrides=Overrides.from_arguments(["train.lr=2e-3"]),
    )  # fmt: skip
    found = request.resolve()
    assert (found.budget_s, dict(found.tables)) == (300.0, {})
    config.write_text(resolved_toml(found.settings))
    again = load_run_settings(config, [])
    assert {key: again.asked.origin(key).text for key in again.asked} == {
        "task": "mine.toml, line 1",
        "train.lr": "train.lr=2e-3",
        "train.seed": "mine.toml, line 4",
        "data.text": "train(data)",
        "data.text_field": "train(data)",
        "budget": "train(budget=…)",
    }
    assert (again.train.lr, again.train.seed, again.data.text_field) == (2e-3, 5, "review")


def test_steps_with_a_budget_are_an_error_except_from_a_recipe(
    tmp_path: Path,
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'task = "complete"\n[data]\ntext = ["{recipe}"]\n[train]\nsteps = 5\n')
    request = TrainRequest(task=None, recipe=recipe, budget="5m")
    assert request.resolve().budget_s == 300.0
    found = Overrides.from_arguments(["train.steps=5"])
    with pytest.raises(ConfigError, match=r"train\.steps=5"):
        TrainRequest(task=None, recipe=recipe, budget="5m", overrides=found).resolve()


def test_a_request_without_a_task_names_a_recipe_where_there_is_one() -> None:
    for command, is_named in (("train", True), ("check", False)):
        with pytest.raises(UserError) as caught:
            TrainRequest(command=command, task=None).resolve()  # type: ignore[arg-type]
        assert ("recipe" in str(caught.value)) is is_named
