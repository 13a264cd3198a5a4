"""Training for so many passes over the data, whatever the task."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headway.config.run import RunSettings, load_run_settings
from headway.training.run import Training


class Seven:
    """A task with seven steps in an epoch, and 500 of them where nobody asks."""

    def resolve(self, settings: RunSettings, prepared: Any, device: Any) -> RunSettings:
        assert settings.train.epochs is None
        steps = settings.train.steps or 500
        return replace(settings, train=replace(settings.train, steps=steps, eval_every=steps + 1))

    def task(self, settings: RunSettings, prepared: Any) -> Any:
        return SimpleNamespace(epoch=lambda number: range(7))


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ([], 500),
        (["train.epochs=3"], 21),
        (["train.epochs=0.5"], 4),
        (["train.epochs=0.01"], 1),
        (["train.steps=9"], 9),
    ],
)
def test_epochs_become_steps_and_all_that_follows_from_these(words: list[str], steps: int) -> None:
    run = Training.__new__(Training)
    run.settings = load_run_settings(None, words, {"task": "translate"})
    run.kind = Seven()  # type: ignore[assignment]
    run.ranks = SimpleNamespace(device=None)  # type: ignore[assignment]
    found = run._chosen(None)  # type: ignore[arg-type]
    assert (found.train.steps, found.train.eval_every) == (steps, steps + 1)
    assert found.train.epochs is None
    assert list(found.asked) == ["task", *(word.partition("=")[0] for word in words)]
