"""Trainings with several labels per text, and with numbers, from the command to the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway
from headway.settings.folder import load_run
from headway.tasks.history import read_history

SMALL: dict[str, Any] = {
    "model.n_layers": 1, "model.d_model": 32, "model.n_heads": 2, "model.d_ff": 48,
    "tokenizer.kind": "words", "train.batch_tokens": 256, "train.threads": 1, "train.steps": 30,
    "train.eval_every": 15, "train.lr": 1e-2, "train.precision": "fp32",
}  # fmt: skip
WORDS = ("film", "plot", "the", "a", "actor", "music", "scene", "and", "of", "long")
LABELS = {"red": "colour", "cat": "animal", "ten": "number"}


def rows(n: int = 160) -> list[dict[str, Any]]:
    """Each label, rarer than not, has a word of its own; the number is the sum of their places."""
    random = np.random.default_rng(3)
    found = []
    for _ in range(n):
        there = [word for word in LABELS if random.random() < 0.2]
        text = [*random.choice(WORDS, 4), *there]
        random.shuffle(text)
        value = sum(list(LABELS).index(word) + 1.5 for word in there)
        found.append({"text": " ".join(text), "labels": [LABELS[w] for w in there], "value": value})
    return found


def trained(folder: Path, answer: str, **changes: Any) -> headway.Run:
    label = {"labels": "labels", "number": "value"}[answer]
    data = [{"text": row["text"], "label": row[label]} for row in rows()]
    settings = SMALL | {"classify.answer": answer, "data.valid_size": 16} | changes
    return headway.train(
        "classify", data, out=folder, settings=settings, device="cpu", quiet=True, start="none"
    )


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> headway.Run:
    return trained(tmp_path_factory.mktemp("several") / "run", "labels")


def test_the_threshold_is_fitted_kept_and_used(several: headway.Run) -> None:
    end = read_history(several.folder).last
    threshold = end["fitted"]["classify.threshold"]
    assert load_run(several.folder).classify.threshold == threshold
    assert "classify.threshold" not in load_run(several.folder).asked
    found = several([row["text"] for row in rows()[:40]])
    for one in found:
        named = {label for label, p in one.probabilities.items() if p >= threshold}
        assert set(one.labels) == named


def test_a_set_threshold_is_kept(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "labels", **{"classify.threshold": 0.8, "train.steps": 15})
    assert "fitted" not in read_history(run.folder).last
    assert load_run(run.folder).classify.threshold == 0.8


@pytest.mark.parametrize(("answer", "metric"), [("labels", "micro_f1"), ("number", "mae")])
def test_the_closing_table_has_a_bag_of_words(
    answer: str, metric: str, several: headway.Run, tmp_path: Path
) -> None:
    run = several if answer == "labels" else trained(tmp_path / "run", answer)
    baselines = read_history(run.folder).last["baselines"]
    bag, usual = baselines["bag of words"], next(iter(baselines.values()))
    if answer == "labels":
        assert bag[metric] > 90.0 > usual[metric]
    else:
        assert bag[metric] < 0.7 * usual[metric]
    path = tmp_path / "test.jsonl"
    name = {"labels": "labels", "number": "value"}[answer]
    lines = [json.dumps({"text": row["text"], "label": row[name]}) for row in rows(40)]
    path.write_text("\n".join(lines))
    scores = run.evaluate(str(path))
    assert set(scores.facts["baselines"]) == set(baselines)
