"""E16 with planted truths, and the data whose order counts or does not."""

from __future__ import annotations

from typing import Any

import pytest

from headway.lab.order import EXPERIMENT, TASKS, questions


def seeds(
    *, encoder: float = 0.6, decoder: float = 0.1, there: float = 0.0, first: float = 0.05,
    noise: float = 0.01,
) -> list[Any]:  # fmt: skip
    """What positions are worth to an encoder that is asked for the order, and to a decoder."""
    made = []
    for i in (-1, 0, 1):
        with_ = {**dict.fromkeys(TASKS, 0.1), "first": first, "letters": 2.3}
        lost = {**dict.fromkeys(TASKS, 0.3), "first": encoder, "letters": decoder, "there": there}
        without = {task: with_[task] + lost[task] + noise * i for task in TASKS}
        made.append({"with": with_, "without": without, "unigram": 3.3})
    return made


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (seeds(), "supported"),
        (seeds(encoder=0.0), "refuted"),
        (seeds(decoder=0.9), "refuted"),
        (seeds(decoder=0.4), "refuted"),
        (seeds(noise=0.5, there=-0.5), "undecided"),
        (seeds(there=0.5), "undecided"),
        (seeds(first=0.69), "undecided"),
        (seeds()[:1], "undecided"),
    ],
    ids=["as held", "the encoder sees it", "the decoder loses", "more than a little", "noisy",
         "a bag is not enough", "never learned", "one seed"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(found: list[Any], verdict: str) -> None:
    assert EXPERIMENT.judge(found).verdict == verdict
    assert len(EXPERIMENT.figures(found)[0].data()["bars"]) == len(TASKS)


def test_questions_have_the_answers_that_their_words_say() -> None:
    train, valid = questions("first", 100, 50, 0)
    for text, label in zip(train["text"], train["label"], strict=True):
        words = text.split()
        assert label == ("one" if words.index("one") < words.index("two") else "two")
    train, valid = questions("there", 100, 50, 0)
    assert [("one" in text.split()) == (label == "yes")
            for text, label in zip(*valid.values(), strict=True)] == [True] * 50  # fmt: skip
