"""Where labels are few: nearest neighbours, draws, and the curve that the report shows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import headway
from headway.metrics.baselines import NearestNeighbours, sample_per_class
from headway.tasks.few_labels import curve, is_few


def test_the_nearest_vectors_say_the_class() -> None:
    known_KD = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9], [0.2, 1]])
    near = NearestNeighbours.fit(known_KD, np.array([0, 0, 1, 1, 1]), 3)
    assert near.predict(np.array([[5, 1], [1, 7.0]])).tolist() == [0, 1]


def test_one_label_alone_is_everybodys_neighbour() -> None:
    near = NearestNeighbours.fit(np.array([[1.0, 0.0]]), np.array([2]), 3)
    assert near.predict(np.array([[0.0, 1.0]])).tolist() == [2]


def test_fewer_are_among_more_and_no_class_is_left_out() -> None:
    labels_N = np.array([0] * 50 + [1] * 3 + [2] * 20)
    few, more = (set(sample_per_class(labels_N, each, seed=4).tolist()) for each in (2, 10))
    assert few < more
    assert np.bincount(labels_N[sorted(more)]).tolist() == [10, 3, 10]


def test_a_curve_ends_with_all_labels() -> None:
    rng = np.random.default_rng(1)
    labels_N = np.repeat([0, 1], 20)
    vectors_ND = rng.normal(size=(40, 4)) + 9 * np.eye(4)[labels_N]
    texts = [("good film" if label else "bad film", "") for label in labels_N]
    rows = curve((texts, vectors_ND, labels_N), (texts, vectors_ND, labels_N))
    assert [(row["each"], row["labels"]) for row in rows] == [(8, 16), (20, 40)]
    assert all(one == 100 for row in rows for one in row["right"].values())
    assert is_few(labels_N)
    assert not is_few(np.repeat([0, 1], 500))


def test_a_training_on_few_labels_shows_what_fewer_would_do(tmp_path: Path) -> None:
    rows = {
        "text": [f"a {'good' if i % 2 else 'bad'} film number {i} of many" for i in range(60)],
        "label": ["yes" if i % 2 else "no" for i in range(60)],
    }
    settings = {"train.steps": 1, "data.valid_size": 10}
    for start, shown in (("base-en", True), ("none", False)):
        out = tmp_path / start
        headway.train("classify", rows, out=out, start=start, settings=settings, quiet=True)
        [end] = [
            row
            for line in (out / "metrics.jsonl").read_text().splitlines()
            if (row := json.loads(line))["kind"] == "end"
        ]
        assert ("few" in end) == shown
        if shown:
            assert end["few"][0]["each"] == 8
            assert 50 <= end["few"][-1]["labels"] < 60
