"""Effects with intervals over seeds, and what follows from them."""

from __future__ import annotations

import json
import math

import pytest

from headway.lab.verdict import Answers, Control, Effect, Verdict, decide, said

ANSWERS = Answers(supported="yes: {effect}", refuted="no: {effect}", changes="more data")


def judged(values: list[float], *controls: Control) -> Verdict:
    effect = Effect.over(values, "gap", "nats")
    return decide(effect.above(0.1), effect, ANSWERS, controls)


def test_the_interval_is_students() -> None:
    effect = Effect.over([1.0, 2.0, 3.0], "x")
    assert (effect.value, effect.spread) == (2.0, 1.0)
    assert effect.high - 2 == pytest.approx(4.303 / math.sqrt(3))
    many = Effect.over([1.0, 3.0] * 20, "x")
    assert many.high - 2 == pytest.approx(1.96 * many.spread / math.sqrt(40))


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([0.5, 0.52, 0.48], "supported"),
        ([0.01, 0.0, 0.02], "refuted"),
        ([-0.5, -0.52, -0.48], "refuted"),
        ([0.5, -0.3, 0.1], "undecided"),
        ([0.5], "undecided"),
        ([0.5, math.nan, 0.5], "undecided"),
        ([], "undecided"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(values: list[float], word: str) -> None:
    assert judged(values).verdict == word


def test_sentences_say_the_effect_with_its_interval() -> None:
    assert judged([0.5, 0.52, 0.48]).sentence == "yes: 0.500 nats (0.450 to 0.550)"
    assert "One seed cannot tell" in judged([0.5]).sentence
    assert "--seeds 3" in judged([0.5]).sentence


def test_arithmetic_needs_one_seed_alone() -> None:
    effect = Effect.over([1e-7], "error", exact=True)
    verdict = decide(effect.below(1e-5), effect, ANSWERS)
    assert (verdict.verdict, verdict.sentence) == ("supported", "yes: 1.0e−07")


def test_a_failed_control_takes_the_verdict_back() -> None:
    control = Control(name="learns", passed=False, said="the usual model learned nothing.")
    verdict = judged([0.5, 0.52, 0.48], control)
    assert verdict.verdict == "undecided"
    assert "the usual model learned nothing" in verdict.sentence
    passed = Control(name="learns", passed=True, said="it did.")
    assert judged([0.5, 0.52, 0.48], passed).verdict == "supported"


def test_as_good_as_none_is_a_claim_of_its_own() -> None:
    assert Effect.over([0.01, -0.01, 0.0], "x").within(0.1) == "supported"
    assert Effect.over([0.3, 0.31, 0.32], "x").within(0.1) == "refuted"
    assert Effect.over([-0.3, -0.31, -0.32], "x").within(0.1) == "refuted"
    assert Effect.over([0.3, -0.3, 0.1], "x").within(0.1) == "undecided"
    assert Effect.over([0.3, 0.31, 0.32], "x").below(0.1) == "refuted"
    assert Effect.over([0.01, -0.01, 0.0], "x").below(0.1) == "supported"


def test_what_is_no_number_is_none_in_json() -> None:
    text = json.dumps(judged([0.5]).as_json(), allow_nan=False)
    assert json.loads(text)["effect"]["low"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.123"), (12.34, "12.3"), (1234.5, "1,234"), (-1.5, "−1.50"), (1e-7, "1.0e−07"),
     (0.0, "0.000"), (math.inf, "?")],
)  # fmt: skip
def test_numbers_are_said_as_people_do(value: float, text: str) -> None:
    assert said(value) == text
