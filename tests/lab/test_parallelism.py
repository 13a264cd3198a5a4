"""E13 with a planted truth: times in which the lead is there or not, and clocks that are rigged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.lab import parallelism
from headway.lab.parallelism import EXPERIMENT, crossing, in_turns, shape, speeds, width_of
from headway.models.summary import count_parameters, meta_model

LENGTHS = ("16", "64", "1024")


def seed(
    *leads: float, again: float = 1.0, learned: float = 1.0, jitter: float = 0.0
) -> dict[str, Any]:
    """Times as fast as the LSTM, by length."""
    own = dict.fromkeys(LENGTHS, 0.1)
    slow = {n: 0.1 * (lead + jitter) for n, lead in zip(LENGTHS, leads, strict=True)}
    return {
        "device": "one core", "n_tokens": 1024, "layers": 2,
        "seconds": {"transformer": own, "lstm": slow, "gru": slow, "convolution": own,
                    "again": {n: again * value for n, value in own.items()}},
        "parameters": dict.fromkeys(("transformer", "lstm", "gru", "convolution"), 1000.0),
        "learned": {"transformer": learned, "lstm": learned},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(0.8, 1.5, 6.0, jitter=0.01 * i) for i in range(3)], "supported"),
        ([seed(1.0, 0.6, 0.1, jitter=0.01 * i) for i in range(3)], "refuted"),
        ([seed(3.0, 2.5, 2.0, jitter=0.01 * i) for i in range(3)], "refuted"),
        ([seed(0.8, 1.0, 1.2, jitter=0.5 * i) for i in range(3)], "undecided"),
        ([seed(0.8, 1.5, 6.0)], "undecided"),
        ([seed(0.8, 1.5, 6.0, again=1.6, jitter=0.01 * i) for i in range(3)], "undecided"),
        ([seed(0.8, 1.5, 6.0, learned=0.0, jitter=0.01 * i) for i in range(3)], "undecided"),
    ],
    ids=["there", "slower", "lead shrinks", "noisy", "one seed", "busy machine", "learns nothing"],
)
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    assert EXPERIMENT.judge(given).verdict == verdict
    assert EXPERIMENT.figures(given)[0].data()["series"]


def test_the_crossing_is_where_the_lead_stays() -> None:
    assert crossing([seed(0.8, 1.5, 6.0)], LENGTHS) == "64"
    assert crossing([seed(1.8, 0.5, 6.0)], LENGTHS) == "1024"
    assert crossing([seed(1.8, 1.5, 0.6)], LENGTHS) is None


def test_what_is_timed_has_no_dropout() -> None:
    """That of attention costs a Transformer most of its time on long sequences."""
    for body in ("transformer", "sha-rnn"):
        assert shape(body, 32).attention_dropout == shape(body, 32).dropout == 0


def test_bodies_have_as_many_parameters() -> None:
    n = count_parameters(meta_model(shape("transformer", 32)))
    for body in ("lstm", "gru", "convolution", "sha-rnn"):
        there = count_parameters(meta_model(shape(body, width_of(body, n))))
        assert abs(there / n - 1) < 0.15, body


def test_steps_are_timed_in_turns_and_the_first_round_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(parallelism, "now", lambda device: clock[0])
    calls: list[str] = []

    def taking(name: str, seconds: float) -> Any:
        def step() -> None:
            clock[0] += seconds + (100.0 if len(calls) < 2 else 0.0)
            calls.append(name)

        return step

    steps = {"a": taking("a", 1.0), "b": taking("b", 3.0)}
    found = in_turns(steps, 3, torch.device("cpu"))
    assert calls == ["a", "b"] * 4
    assert found == {"a": pytest.approx([1.0] * 3), "b": pytest.approx([3.0] * 3)}


def test_all_that_is_measured_can_be_judged() -> None:
    found = speeds((8, 16), 32, 16, 1, torch.device("cpu"), 0)
    assert min(found["learned"].values()) > 0
    assert set(found["seconds"]["lstm"]) == {"8", "16"}
    assert EXPERIMENT.judge([found]).verdict == "undecided"
