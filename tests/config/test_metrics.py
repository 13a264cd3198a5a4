"""The table of scores: every task has its own, and no other can be asked for."""

from __future__ import annotations

import pytest

from headway.config.metrics import METRICS, METRICS_OF, metrics_of
from headway.config.run import TASKS, load_run_settings
from headway.errors import ConfigError


def test_every_task_names_its_scores_and_each_has_a_record() -> None:
    assert {name.split()[0] for name in METRICS_OF} == set(TASKS)
    for task, names in METRICS_OF.items():
        assert set(names) <= set(METRICS), task
        assert "loss" in names, task
        assert len(set(names)) == len(names), task


def test_what_counts_mistakes_is_better_when_it_is_less() -> None:
    less = {name for name, metric in METRICS.items() if metric.lower}
    assert less == {"loss", "ppl", "bits_per_byte", "wer", "cer"}
    assert METRICS["wer"].better(3.0, 4.0)
    assert METRICS["bleu"].better(4.0, 3.0)
    assert METRICS["wer"].shown(12.345) == "12.35 %"
    assert METRICS["loss"].shown(0.12345) == "0.123"


@pytest.mark.parametrize("task", TASKS)
def test_a_score_of_another_task_is_refused_before_any_file_is_read(task: str) -> None:
    names = metrics_of(task)
    for name in METRICS:
        given = {"task": task, "data.text": ["nowhere.txt"], "train.metric": name}
        if name in names:
            assert load_run_settings(None, [], given).train.metric == name
        else:
            with pytest.raises(ConfigError, match=f"{name!r} is no score of the task {task}"):
                load_run_settings(None, [], given)


@pytest.mark.parametrize("task", TASKS)
def test_a_typing_mistake_gets_the_nearest_name(task: str) -> None:
    for name in metrics_of(task):
        with pytest.raises(ConfigError, match=f"Did you mean '{name}'"):
            load_run_settings(None, [f"train.metric={name}s"], {"task": task})


def test_fill_has_other_scores_for_pictures_than_for_text() -> None:
    text, media = {"task": "fill"}, {"task": "fill", "data.media": ["pictures"]}
    with pytest.raises(ConfigError, match="'explained' is no score"):
        load_run_settings(None, ["train.metric=explained"], text)
    assert load_run_settings(None, ["train.metric=explained"], media).train.metric == "explained"
    with pytest.raises(ConfigError, match="'ppl' is no score"):
        load_run_settings(None, ["train.metric=ppl"], media)
