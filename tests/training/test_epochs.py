"""Training for so many passes over the data, whatever the task."""

from __future__ import annotations

import pytest

from headway.settings.facts import DatasetStats, DeviceInfo
from headway.settings.run import load_run_settings
from headway.training.resolve import resolve


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ([], 200),
        (["train.epochs=3"], 21),
        (["train.epochs=0.5"], 4),
        (["train.epochs=0.01"], 1),
        (["train.steps=9"], 9),
    ],
)
def test_epochs_become_steps_and_all_that_follows_from_these(words: list[str], steps: int) -> None:
    settings = load_run_settings(None, words, {"task": "translate"})
    facts = DatasetStats(n=100, n_tokens=1100, vocab_size=300, epoch_steps=7)
    found = resolve(settings, facts, DeviceInfo())
    assert (found.train.steps, found.train.eval_every) == (steps, -(-steps // 20))
    assert found.train.epochs is None
    assert list(found.asked) == ["task", *(word.partition("=")[0] for word in words)]
