"""One large request does not keep small ones waiting, and none is accepted that cannot be done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from torch import Tensor

from headway.decode.steps import Seq2SeqSteps
from headway.run import Run
from headway.serve.cost import LatencyEstimator, cost_of
from headway.serve.limits import Limits
from headway.serve.worker import InferenceWorker
from headway.settings.decode import DecodeSettings
from headway.settings.task_rows import spec_of
from headway.tasks import dataset

from .conftest import Here, serving, wait_for
from .test_faults import open_raw, settled, text_of

SENTENCE = "Ich gehe nach Hause. "
NAME = "tatoeba-de-en"


@contextmanager
def counted_steps(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[list[int]]:
    """Rows of each decoding step; each takes longer."""
    real, seen = Seq2SeqSteps.step, []

    def step(self: Seq2SeqSteps, tokens_BW: Tensor) -> Tensor:
        seen.append(tokens_BW.numel())
        time.sleep(seconds)
        return real(self, tokens_BW)

    with monkeypatch.context() as patch:
        patch.setattr(Seq2SeqSteps, "step", step)
        yield seen


class FixedPace(LatencyEstimator):
    def __init__(self, seconds_per_unit: float) -> None:
        super().__init__()
        self._measured.append(seconds_per_unit)

    def record(self, cost: float, seconds: float) -> None:
        pass


@contextmanager
def fixed_pace(worker: InferenceWorker, seconds_per_unit: float) -> Iterator[None]:
    """Estimates that do not depend on the machine that runs the tests."""
    before, worker.latency_estimator = worker.latency_estimator, FixedPace(seconds_per_unit)
    try:
        yield
    finally:
        worker.latency_estimator = before


def test_a_small_request_is_answered_between_two_steps_of_a_large_one(
    here: Here, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = SENTENCE * 100  # one batch, below the limits of old
    body = {"model": NAME, "input": long, "options": {"beam": 8}}
    short = {"model": NAME, "input": "Ja."}
    want, want_long = runs[NAME]("Ja.").text, runs[NAME](long, beam=8).text
    worker = here.service.workers[NAME]
    with fixed_pace(worker, 1e-3), ThreadPoolExecutor(1) as pool:
        with counted_steps(monkeypatch, 0.03) as seen:
            running = pool.submit(here.post, "/v1/predict", body)
            wait_for(lambda: len(seen) > 1)
            for _ in range(3):
                before = len(seen)
                assert text_of(here.post("/v1/predict", short)) == want
                large_steps = [rows for rows in seen[before:] if rows > 4]
                assert len(large_steps) < 30
                assert worker.accepted == 1  # the large one is not done
        assert text_of(running.result()) == want_long


def test_a_large_request_that_was_cancelled_ends_at_the_next_step(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = here.service.workers[NAME]
    with fixed_pace(worker, 1e-3), counted_steps(monkeypatch, 0.05) as seen:
        raw = open_raw(here, {"model": NAME, "input": SENTENCE * 100, "options": {"beam": 8}})
        wait_for(lambda: len(seen) > 1)
        raw.close()
        assert settled(here)
        ended = len(seen)
        time.sleep(0.2)
        assert len(seen) == ended < 15


def test_the_large_request_has_its_share_of_the_time(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small requests come all the time, and the large one is answered all the same."""
    worker = here.service.workers[NAME]
    body = {"model": NAME, "input": SENTENCE * 100, "options": {"beam": 8}}
    slow = counted_steps(monkeypatch, 0.005)
    with fixed_pace(worker, 1e-3), ThreadPoolExecutor(4) as pool, slow:
        running = pool.submit(here.post, "/v1/predict", body)
        wait_for(lambda: worker.accepted)

        def ask_on() -> int:
            n = 0
            while not running.done():
                assert text_of(here.post("/v1/predict", {"model": NAME, "input": "Ja."}))
                n += 1
            return n

        others = [pool.submit(ask_on) for _ in range(2)]
        assert running.result().status_code == 200
        assert min(one.result() for one in others) > 1


def test_a_middle_sized_request_does_not_wait_for_the_largest(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = here.service.workers[NAME]
    largest = {"model": NAME, "input": SENTENCE * 200, "options": {"beam": 16}}
    middle = {"model": NAME, "input": SENTENCE * 20}
    with fixed_pace(worker, 2e-3), counted_steps(monkeypatch, 0.02) as seen:
        raw = open_raw(here, largest)
        wait_for(lambda: len(seen) > 1)
        assert here.post("/v1/predict", middle).status_code == 200
        assert worker.accepted == 1
        raw.close()
        assert settled(here)


def test_a_batch_of_an_encoder_on_a_cpu_is_short(
    here: Here, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dataset.READ_AT_ONCE["cpu"] <= 1024
    worker = here.service.workers["base-en"]
    long = "The dog sleeps in the house. " * 250
    want = runs["base-en"]("Yes.").vector
    with fixed_pace(worker, 1e-3), ThreadPoolExecutor(1) as pool:
        running = pool.submit(here.post, "/v1/predict", {"model": "base-en", "inputs": [long] * 4})
        wait_for(lambda: worker.accepted)
        response = here.post("/v1/predict", {"model": "base-en", "input": "Yes."}).json()
        assert worker.accepted == 1
        assert response["answer"]["vector"] == pytest.approx(want, abs=1e-5)
        assert running.result().status_code == 200


def test_what_cannot_be_done_before_the_deadline_is_rejected_at_once(
    runs: dict[str, Run],
) -> None:
    with serving(runs[NAME], limits=Limits(seconds=20)) as here:
        worker = here.service.workers[NAME]
        wait_for(worker.ready.is_set)
        with fixed_pace(worker, 1e-3):
            for beam, status in ((1, 200), (16, 413)):
                body = {"input": SENTENCE * 200, "options": {"beam": beam}}
                response = here.post("/v1/predict", body)
                assert response.status_code == status
            assert response.json()["error"]["code"] == "too_expensive"
            assert not worker.accepted
        assert worker._expected_seconds == 0


def test_a_request_that_would_wait_beyond_the_deadline_gets_retry_after(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(runs[NAME], limits=Limits(seconds=20)) as here:
        worker = here.service.workers[NAME]
        wait_for(worker.ready.is_set)
        body = {"input": SENTENCE * 150, "options": {"beam": 16}}  # 12.6 s by the estimate
        with fixed_pace(worker, 1e-3), counted_steps(monkeypatch, 0.05) as seen:
            raw = open_raw(here, body)
            wait_for(lambda: len(seen) > 1)
            response = here.post("/v1/predict", body)
            assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
            assert int(response.headers["Retry-After"]) >= 1
            assert here.post("/v1/predict", {"input": "Ja."}).status_code == 200
            raw.close()
            assert settled(here)
        assert worker._expected_seconds == 0


def test_a_model_whose_texts_grow_together_has_an_estimate_before_its_first_request(
    here: Here,
) -> None:
    """Its beam searches run alone, and the first one must let small requests in between."""
    assert here.service.workers["stories"].latency_estimator.seconds(1e6) > 0


def test_cost_is_tokens_times_beams(runs: dict[str, Run]) -> None:
    spec = spec_of(runs[NAME].settings)
    text = "x" * 400
    one = cost_of([text], spec, DecodeSettings(beam=1), None)
    assert cost_of([text], spec, DecodeSettings(beam=16), None) == 16 * one
    assert cost_of([text] * 3, spec, DecodeSettings(beam=1), None) == 3 * one
    read = spec_of(runs["base-en"].settings)
    assert cost_of([text], read, DecodeSettings(beam=16), None) == one
    assert cost_of([{"a": text, "b": [text]}], read, DecodeSettings(), None) > 1.9 * one


def test_the_quickest_of_the_last_batches_is_the_pace_of_the_machine() -> None:
    pace = LatencyEstimator()
    pace.guess_from_size(1_000_000)
    assert not pace.is_measured
    assert pace.seconds(1000) > 0
    pace.record(10, 5.0)  # too small to be measured
    assert not pace.is_measured
    for seconds in (4.0, 2.0, 8.0):
        pace.record(1000, seconds)
    assert pace.seconds(1000) == pytest.approx(2.0)
    assert [pace.rank(cost) for cost in (1, 125, 400, 1600)] == [0, 0, 1, 2]
    for _ in range(20):
        pace.record(1000, 6.0)
    assert pace.seconds(1000) == pytest.approx(6.0)
