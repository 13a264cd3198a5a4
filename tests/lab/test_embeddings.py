"""E7 with a planted truth: losses, and a language whose words are known to be alike."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from headway.lab.embeddings import (
    EXPERIMENT,
    cooccurrence_vectors,
    read_back,
    relative_change,
    shuffle,
    write_vectors,
)


def seed(gain: float, much: float = 0.0, wrong: float = 0.0, best: float = 0.5) -> dict[str, Any]:
    few = {"random": 4.0, "tuned": 4.0 - gain, "frozen": 4.0, "shuffled": 4.0 - wrong,
           "loud": 4.0, "taught": 4.0 - best}  # fmt: skip
    all_ = {"random": 3.0, "tuned": 3.0 - much, "frozen": 3.1}
    return {
        "words": 100, "sizes": [500, 4000], "loss": {"500": few, "4000": all_},
        "drift": {"500": 0.3, "4000": 0.8},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(0.2 + 0.01 * i) for i in range(3)], "supported"),
        ([seed(0.001 * i) for i in range(3)], "refuted"),
        ([seed(-0.1 - 0.01 * i) for i in range(3)], "refuted"),
        ([seed(0.1 * i) for i in range(3)], "undecided"),
        ([seed(0.2)], "undecided"),
        ([seed(0.2 + 0.01 * i, wrong=0.2) for i in range(3)], "undecided"),
        ([seed(0.001 * i, best=0.0) for i in range(3)], "undecided"),
    ],
    ids=["there", "absent", "it hurts", "noisy", "one seed", "wrong vectors help too",
         "no vectors help"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    assert EXPERIMENT.judge(given).verdict == verdict
    assert EXPERIMENT.figures(given)[0].data()["series"]


def test_the_sentence_depends_on_whether_the_gain_fades() -> None:
    fading = EXPERIMENT.judge([seed(0.2 + 0.01 * i, much=0.01) for i in range(3)])
    lasting = EXPERIMENT.judge([seed(0.2 + 0.01 * i, much=0.2) for i in range(3)])
    # They differ in more than their numbers.
    assert re.sub(r"[\d.]+", "", fading.answer) != re.sub(r"[\d.]+", "", lasting.answer)
    assert "0.010" in fading.measured
    assert "0.200" in lasting.measured


def test_words_in_the_same_places_get_similar_vectors() -> None:
    picks = Random(1)
    beasts, food = ["dog", "cat", "cow"], ["bread", "soup", "rice"]
    texts = [f"the {picks.choice(beasts)} runs home ." for _ in range(100)]
    texts += [f"some {picks.choice(food)} tastes good !" for _ in range(100)]
    vectors = cooccurrence_vectors(texts, 4)

    def alike(one: str, other: str) -> float:
        return float(torch.cosine_similarity(vectors[one], vectors[other], dim=0))

    assert alike("dog", "cat") > 0.7 > 0.3 > alike("dog", "soup")
    known = {"the", "runs", "home", ".", "some", "tastes", "good", "!"}
    assert set(vectors) == {*known, *beasts, *food}


def test_vectors_are_written_as_they_are_read(tmp_path: Path) -> None:
    vectors = {word: torch.randn(3) for word in ("one", "two", "three", "four", "five")}
    write_vectors(tmp_path / "v" / "v.txt", vectors)
    again = read_back(tmp_path / "v" / "v.txt")
    assert list(again) == list(vectors)
    torch.testing.assert_close(again["two"], vectors["two"], rtol=1e-4, atol=1e-5)
    wrong = shuffle(vectors, 1)
    assert list(wrong) == list(vectors)
    assert any(not wrong[word].equal(vectors[word]) for word in vectors)


def test_vectors_that_stay_have_not_moved() -> None:
    before = {
        str(i): torch.randn(16, generator=torch.Generator().manual_seed(i)) for i in range(50)
    }
    spread = torch.stack(list(before.values())).std()
    kept = {word: vector / (4 * spread) for word, vector in before.items()}
    assert relative_change(kept, before) == pytest.approx(0, abs=1e-6)
    assert relative_change(
        {word: -vector for word, vector in kept.items()}, before
    ) == pytest.approx(2)
