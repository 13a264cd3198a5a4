"""Effects with intervals over seeds, and what follows from them."""

from __future__ import annotations

import json
import math
import random

import pytest

from headway.lab.catalogue import SEEDS
from headway.lab.verdict import (
    Arm,
    Bounds,
    Control,
    Effect,
    OutcomeSentences,
    Verdict,
    VerdictLabel,
    all_of,
    capitalised,
    decide,
    power,
    rounded,
    smallest_detectable,
)

ANSWERS = OutcomeSentences(supported="yes", refuted="no", changes="more data")


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


def test_the_effect_is_shown_with_its_interval() -> None:
    assert judged([0.5, 0.52, 0.48]).measured == "Gap: 0.500 nats (95 % interval 0.450 to 0.550)."
    assert judged([0.5]).verdict == "undecided"
    assert f"--seeds {SEEDS}" in judged([0.5]).measured


def test_the_answer_follows_the_verdict() -> None:
    failed = Control(name="learns", passed=False, said="it did not.")
    assert judged([0.5, 0.52, 0.48]).answer == ANSWERS.supported
    assert judged([0.01, 0.0, 0.02]).answer == ANSWERS.refuted
    assert judged([0.5, -0.3, 0.1]).answer == ANSWERS.undecided
    others = [judged([0.5, 0.52, 0.48], failed), judged([0.5]), judged([math.nan])]
    assert len({ANSWERS.undecided, *(verdict.answer for verdict in others)}) == 4


@pytest.mark.parametrize(
    ("text", "capital"), [("gap of a", "Gap of a"), ("chrF of a", "chrF of a"), ("", "")]
)
def test_a_name_begins_a_sentence(text: str, capital: str) -> None:
    assert capitalised(text) == capital


def test_arithmetic_needs_one_seed_alone() -> None:
    effect = Effect.over([1e-7], "error", exact=True)
    verdict = decide(effect.below(1e-5), effect, ANSWERS)
    assert (verdict.verdict, verdict.measured) == ("supported", "Error: 1.0e−07.")


def test_a_failed_control_takes_the_verdict_back() -> None:
    control = Control(name="learns", passed=False, said="the usual model learned nothing.")
    verdict = judged([0.5, 0.52, 0.48], control)
    assert verdict.verdict == "undecided"
    assert control.said.lower() in verdict.measured.lower()
    passed = Control(name="learns", passed=True, said="it did.")
    assert judged([0.5, 0.52, 0.48], passed).verdict == "supported"


def test_as_good_as_none_is_a_claim_of_its_own() -> None:
    assert Effect.over([0.01, -0.01, 0.0], "x").within(0.1) == "supported"
    assert Effect.over([0.3, 0.31, 0.32], "x").within(0.1) == "refuted"
    assert Effect.over([-0.3, -0.31, -0.32], "x").within(0.1) == "refuted"
    assert Effect.over([0.3, -0.3, 0.1], "x").within(0.1) == "undecided"
    assert Effect.over([0.3, 0.31, 0.32], "x").below(0.1) == "refuted"
    assert Effect.over([0.01, -0.01, 0.0], "x").below(0.1) == "supported"


PERCENT = Bounds(low=0.0, high=100.0, margin=1.0)


def compared(one: float, other: float, noise: float = 0.1) -> Effect:
    arms = [Arm(name=name, scores=[mean + noise * i for i in (-1, 0, 1)])
            for name, mean in (("usual", one), ("changed", other))]  # fmt: skip
    return Effect.between(*arms, PERCENT, "right, usual less changed", "points")


@pytest.mark.parametrize(
    ("one", "other", "above", "below", "within"),
    [
        (90.0, 70.0, "supported", "refuted", "refuted"),
        (90.0, 89.0, "refuted", "supported", "supported"),
        (99.9, 99.9, "cannot tell", "cannot tell", "cannot tell"),
        (0.1, 0.2, "cannot tell", "cannot tell", "cannot tell"),
        (99.9, 70.0, "supported", "refuted", "refuted"),
        (99.9, 95.0, "cannot tell", "cannot tell", "cannot tell"),
        (5.0, 0.1, "cannot tell", "cannot tell", "cannot tell"),
        (70.0, 99.9, "refuted", "supported", "refuted"),
    ],
    ids=["there", "not there", "both at the ceiling", "both at the floor", "one at the ceiling, "
         "large all the same", "one at the ceiling, small", "one at the floor, small", "opposite"],
)  # fmt: skip
def test_a_small_difference_at_a_limit_of_the_scale_is_unknown(
    one: float, other: float, above: VerdictLabel, below: VerdictLabel, within: VerdictLabel
) -> None:
    effect = compared(one, other)
    assert (effect.above(10.0), effect.below(10.0), effect.within(10.0)) == (above, below, within)


def test_the_arm_at_its_limit_is_named() -> None:
    effect = compared(99.9, 99.8)
    verdict = decide(effect.above(10.0), effect, ANSWERS)
    assert verdict.verdict == "cannot tell"
    assert len(effect.limits) == 2
    assert all(limit.lower() in verdict.measured.lower() for limit in effect.limits)
    assert compared(90.0, 80.0).limits == ()


def test_noise_across_the_bar_is_undecided_unless_both_arms_are_at_one_limit() -> None:
    apart = Effect.between(Arm(name="a", scores=[99.9, 100, 99.8]),
                           Arm(name="b", scores=[60, 95, 99]), PERCENT, "x")  # fmt: skip
    assert apart.above(10.0) == "undecided"
    assert compared(99.9, 99.9, 0.05).above(0.0) == "cannot tell"


def test_one_refuted_part_refutes_a_claim_and_a_part_at_its_limit_leaves_it_open() -> None:
    assert all_of("supported", "supported") == "supported"
    assert all_of("supported", "undecided", "cannot tell") == "cannot tell"
    assert all_of("cannot tell", "refuted") == "refuted"


def test_power_is_the_share_of_samples_whose_interval_excludes_the_bar() -> None:
    picks = random.Random(0)
    for seeds in (3, 5):
        found = [Effect.over([picks.gauss(1.7, 1.0) for _ in range(seeds)], "x").low > 0
                 for _ in range(4000)]  # fmt: skip
        assert power(1.7, seeds) == pytest.approx(sum(found) / 4000, abs=0.025)
    assert power(0.0, 5) == pytest.approx(0.025, abs=1e-3)
    assert power(smallest_detectable(5), 5) == pytest.approx(0.8, abs=1e-3)
    assert power(smallest_detectable(5), 3) < 0.4
    effect = Effect.over([1.0, 2.0, 3.0, 4.0, 5.0], "x")
    assert effect.detectable == pytest.approx(smallest_detectable(5) * effect.spread)
    assert Effect.over([1.0], "x").detectable == math.inf


def test_an_undecided_verdict_names_the_detectable_effect() -> None:
    verdict = judged([0.5, -0.3, 0.1])
    assert verdict.verdict == "undecided"
    assert rounded(verdict.effect.detectable) in verdict.measured
    assert rounded(verdict.effect.detectable) not in judged([0.5, 0.52, 0.48]).measured


def test_parts_of_a_claim_fall_with_a_failed_control() -> None:
    effect = Effect.over([0.5, 0.52, 0.48], "gap")
    failed = Control(name="learns", passed=False, said="it did not.")
    parts: dict[str, VerdictLabel] = {"first": "supported", "second": "refuted"}
    assert decide("refuted", effect, ANSWERS, parts=parts).parts == parts
    assert set(decide("refuted", effect, ANSWERS, [failed], parts=parts).parts.values()) == {
        "undecided"
    }


def test_missing_numbers_are_null_in_json() -> None:
    text = json.dumps(judged([0.5]).as_json(), allow_nan=False)
    assert json.loads(text)["effect"]["low"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.123"), (12.34, "12.3"), (1234.5, "1,234"), (-1.5, "−1.50"), (1e-7, "1.0e−07"),
     (0.0, "0.000"), (math.inf, "?")],
)  # fmt: skip
def test_numbers_are_formatted_for_people(value: float, text: str) -> None:
    assert rounded(value) == text
