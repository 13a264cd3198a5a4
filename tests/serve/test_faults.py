"""What clients and models do to a server: they leave, are slow, are many, and break."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headway.decode.continuous import BatchMember, ContinuousBatch
from headway.decode.search.job import Hypothesis
from headway.decode.writer import Writer
from headway.errors import UserError
from headway.run import Run
from headway.serve import access
from headway.serve.application import RequestMiddleware
from headway.serve.keys import Keys
from headway.serve.limits import Limits
from headway.serve.server import TimeoutProtocol, bind
from headway.tasks.answer_stream import AnswerStream

from .conftest import Here, serving, wait_for

GREEDY = {"beam": 1, "sample": False, "max_len": 10}
PROMPTS = ["Once upon a time", "The dog", "Lily went to the park", "Mom said", "It was raining"]


def ask(here: Here, text: str, **more: Any) -> Any:
    body = {"model": "stories", "input": text, "options": GREEDY, **more}
    return here.post("/v1/predict", body)


def text_of(said: Any) -> str:
    return str(said.json()["answer"]["outputs"][0]["text"])


@contextmanager
def slow_steps(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[list[int]]:
    """Every step takes longer; how many rows each had."""
    real, seen = ContinuousBatch.step, []

    def step(self: ContinuousBatch) -> list[BatchMember]:
        time.sleep(seconds)
        found = real(self)
        seen.append(len(self.rows))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ContinuousBatch, "step", step)
        yield seen


@contextmanager
def held_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No step is computed until the event is set, which happens at the end at the latest."""
    go, real = threading.Event(), ContinuousBatch.step
    with monkeypatch.context() as patch:
        patch.setattr(ContinuousBatch, "step", lambda self: (go.wait(60), real(self))[1])
        try:
            yield go
        finally:
            go.set()


def settled(here: Here, seconds: float = 5.0) -> bool:
    """Whether nothing is accepted any more, soon."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not here.service.in_flight and not any(
            one.accepted for one in here.service.workers.values()
        ):
            return True
        time.sleep(0.01)
    return False


def held() -> tuple[int, int]:
    """Bytes and descriptors of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len([*Path("/proc/self/fd").iterdir()])


def open_raw(here: Here, body: dict[str, Any]) -> socket.socket:
    """A request whose answer nobody reads."""
    text = json.dumps(body).encode()
    raw = socket.create_connection(("127.0.0.1", int(here.url.rpartition(":")[2])), 10)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n"
    raw.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + text)
    return raw


# S9: neighbours


def test_requests_that_come_together_are_answered_as_alone(
    here: Here, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(0)
    asked = [(chance.choice(PROMPTS), chance.randint(2, 14)) for _ in range(30)]
    want = {
        pair: runs["stories"](pair[0], beam=1, sample=False, max_len=pair[1]).text
        for pair in set(asked)
    }
    with slow_steps(monkeypatch, 0.002) as rows, ThreadPoolExecutor(12) as pool:
        found = pool.map(
            lambda pair: text_of(ask(here, pair[0], options={**GREEDY, "max_len": pair[1]})), asked
        )
        assert [*found] == [want[pair] for pair in asked]
    assert max(rows) > 3


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_mixes_are_answered_as_alone(runs: dict[str, Run], part: int) -> None:
    chance, run = random.Random(part), runs["stories"]
    words = " ".join(PROMPTS).split()
    asked = [
        (" ".join(chance.choices(words, k=chance.randint(1, 30))), chance.randint(1, 60))
        for _ in range(50)
    ]
    with serving(run, limits=Limits(seconds=900)) as here, ThreadPoolExecutor(32) as pool:
        found = pool.map(
            lambda pair: text_of(ask(here, pair[0], options={**GREEDY, "max_len": pair[1]})), asked
        )
        for pair, text in zip(asked, [*found], strict=True):
            assert text == run(pair[0], beam=1, sample=False, max_len=pair[1]).text, pair


def test_two_servers_of_one_run_do_not_take_each_others_requests(runs: dict[str, Run]) -> None:
    run = runs["stories"]
    want = {text: run(text, **GREEDY).text for text in PROMPTS}
    with serving(run) as one, serving(run) as other, ThreadPoolExecutor(6) as pool:
        asked = [(text, pool.submit(ask, here, text)) for text in PROMPTS for here in (one, other)]
        assert all(text_of(found.result()) == want[text] for text, found in asked)


def test_translations_that_wait_together_are_one_batch(
    here: Here, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["Ja.", "Guten Morgen.", "Ich gehe nach Hause.", "Das ist gut.", "Wer bist du?"]
    want = [runs["tatoeba-de-en"](text).text for text in texts]
    sizes, go, real = [], threading.Event(), AnswerStream.__init__

    def begin(self: AnswerStream, use: Any, questions: Any, **more: Any) -> None:
        asked = [*questions]
        sizes.append(len(asked))
        go.wait(10)
        real(self, use, asked, **more)

    monkeypatch.setattr(AnswerStream, "__init__", begin)

    def one(text: str) -> str:
        response = here.post("/v1/predict", {"model": "tatoeba-de-en", "input": text})
        return str(response.json()["answer"]["outputs"][0]["text"])

    with ThreadPoolExecutor(5) as pool:
        found = [pool.submit(one, text) for text in texts]
        worker = here.service.workers["tatoeba-de-en"]
        wait_for(lambda: worker.accepted == 5)
        go.set()
        assert [future.result() for future in found] == want
    assert sum(sizes) == 5
    assert len(sizes) <= 3


# S3: clients that leave


@pytest.mark.parametrize("stream", [False, True])
def test_requests_of_disconnected_clients_are_cancelled(
    here: Here, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    with slow_steps(monkeypatch, 0.03) as rows:
        body = {"model": "stories", "input": "The dog", "stream": stream,
                "options": {**GREEDY, "max_len": 200, "min_len": 190}}  # fmt: skip
        raws = [open_raw(here, body) for _ in range(3)]
        wait_for(lambda: rows and max(rows) == 3)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(ask, here, PROMPTS[0])
            wait_for(lambda: max(rows) == 4)
            for raw in raws:
                raw.close()
            left = len(rows)
            assert text_of(other.result()) == runs["stories"](PROMPTS[0], **GREEDY).text
        assert settled(here, 2.0)
        assert len(rows) < left + 60  # 190 steps were asked for


def test_a_translation_without_a_waiting_client_ends(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.decode.steps import Seq2SeqSteps

    steps, real = [], Seq2SeqSteps.step

    def step(self: Seq2SeqSteps, tokens: Any) -> Any:
        steps.append(len(tokens))
        time.sleep(0.05)
        return real(self, tokens)

    monkeypatch.setattr(Seq2SeqSteps, "step", step)
    body = {"model": "tatoeba-de-en", "input": "Ich gehe nach Hause.",
            "options": {"min_len": 100, "extra_len": 150}}  # fmt: skip
    raw = open_raw(here, body)
    wait_for(lambda: len(steps) > 2)
    raw.close()
    assert settled(here, 3.0)
    assert len(steps) < 30


EMPTY = Hypothesis([], -1.0, -1.0, [], finished=False)
LONG = ("Ich gehe nach Hause. " * 900)[:18_000]
"""A text of many batches."""


@contextmanager
def slow_batches(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[list[int]]:
    """Every search of a translator takes longer; how many sources each had."""
    seen, real = [], Writer._search

    def search(self: Writer, parts: Any, wishes: Any) -> Any:
        seen.append(len(parts))
        time.sleep(seconds)
        return (
            [[EMPTY] for _ in parts]
            if len(parts[0].model_input) > 50
            else real(self, parts, wishes)
        )

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "_search", search)
        yield seen


def test_no_further_batch_of_long_texts_is_computed_without_a_waiting_client(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_batches(monkeypatch, 0.1) as seen:
        raw = open_raw(here, {"model": "tatoeba-de-en", "inputs": [LONG] * 2})
        wait_for(lambda: len(seen) > 2)
        raw.close()
        wait_for(lambda: not here.service.workers["tatoeba-de-en"].accepted, 5)
        ended = len(seen)
        time.sleep(0.3)
        assert len(seen) == ended < 20


def test_a_short_request_comes_between_the_batches_of_a_long_one(
    here: Here, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"model": "tatoeba-de-en", "input": "Ja."}
    want = text_of(here.post("/v1/predict", short))
    with slow_batches(monkeypatch, 0.05) as seen:
        raw = open_raw(here, {"model": "tatoeba-de-en", "inputs": [LONG] * 2})
        other = open_raw(here, {"model": "tatoeba-de-en", "inputs": [LONG] * 2})
        wait_for(lambda: len(seen) > 2)
        for _ in range(3):
            before = len(seen)
            assert text_of(here.post("/v1/predict", short)) == want
            assert len(seen) - before <= 5  # its own, and the one that it met
        assert here.service.workers["tatoeba-de-en"].accepted == 2
        for one in (raw, other):
            one.close()
        assert settled(here)


def test_text_streamed_during_a_beam_search_is_unchanged(here: Here, runs: dict[str, Run]) -> None:
    worker = here.service.workers["stories"]
    much = {"model": "stories", "inputs": [PROMPTS[0]] * 8,
            "options": {"beam": 4, "max_len": 100}}  # fmt: skip
    want = runs["stories"](PROMPTS[1], **GREEDY).text
    found = []
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(here.post, "/v1/predict", much)
        wait_for(lambda: worker.accepted)
        for _ in range(2):
            found.append(text_of(ask(here, PROMPTS[1])))
        assert found == [want] * 2
        assert long.result().status_code == 200


def test_one_request_does_not_take_all_rows(
    here: Here, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    much = {"model": "stories", "inputs": PROMPTS * 6,
            "options": {"sample": True, "n_best": 8, "min_len": 150, "max_len": 150}}  # fmt: skip
    want = runs["stories"](PROMPTS[1], **GREEDY).text
    with slow_steps(monkeypatch, 0.01) as rows:
        raw = open_raw(here, much)
        wait_for(lambda: rows and rows[-1] >= 40)
        before = len(rows)
        assert text_of(ask(here, PROMPTS[1])) == want
        assert len(rows) - before < 40
        raw.close()
        assert settled(here)


@pytest.mark.slow
def test_five_hundred_clients_that_leave(here: Here, runs: dict[str, Run]) -> None:
    chance, want = random.Random(0), runs["stories"](PROMPTS[0], **GREEDY).text
    before, tasks = 0, 0
    for number in range(600):
        if number == 100:  # all that is made once is there
            gc.collect()
            before, tasks = held()[0], threading.active_count()
        body = {"model": "stories", "input": "The dog", "stream": bool(number % 2),
                "options": {**GREEDY, "max_len": 100}}  # fmt: skip
        raw = open_raw(here, body)
        time.sleep(chance.random() * 0.05)
        raw.close()
        if number % 50 == 0:
            assert text_of(ask(here, PROMPTS[0])) == want
    assert settled(here, 5.0)
    assert threading.active_count() <= tasks + 4
    gc.collect()
    assert held()[0] - before < 5e6


# S10, S6: too much


def test_a_full_queue_rejects_at_once_with_retry_after(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(runs["stories"], limits=Limits(queue=3)) as here:
        with ThreadPoolExecutor(3) as pool, held_steps(monkeypatch) as go:
            busy = [pool.submit(ask, here, PROMPTS[n]) for n in range(3)]
            wait_for(lambda: here.service.workers["stories"].accepted == 3)
            began = time.perf_counter()
            found = ask(here, "x")
            took = time.perf_counter() - began
            assert found.status_code == 429
            assert 1 <= int(found.headers["retry-after"]) <= 30
            assert took < 0.5
            here.service.workers["stories"]._seconds_per_request = 0.2  # seconds a request
            crowd = [int(ask(here, "x").headers["retry-after"]) for _ in range(20)]
            assert crowd[0] == 1  # the three that are here, and two who were refused
            assert crowd[-1] >= 3  # twenty others come again before
            assert here.get("/ready").status_code == 503
            assert here.get("/health").status_code == 200
            go.set()
            assert [one.result().status_code for one in busy] == [200] * 3
        assert settled(here)
        assert ask(here, "x").status_code == 200
        assert here.get("/ready").status_code == 200
        counted = here.get("/metrics").text
        assert 'headway_requests_total{path="/v1/predict",status="429"} 21' in counted
        assert 'headway_queue_requests{model="stories"} 0' in counted


def raw_request(path: str = "/v1/predict", *lines: str, body: bytes = b'{"input": "x"}') -> bytes:
    kind = ("Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(body)}")
    return "\r\n".join([f"POST {path} HTTP/1.1", *kind, *lines, "", ""]).encode() + body


def connected(here: Here) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(here.url.rpartition(":")[2])), 10)


def heard(raw: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer: its status, headers and body."""
    text = b""
    while b"\r\n\r\n" not in text:
        text += raw.recv(65536)
    head, _, body = text.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    given = dict(line.lower().split(": ", 1) for line in lines[1:])
    while len(body) < int(given["content-length"]):
        body += raw.recv(65536)
    return int(lines[0].split()[1]), given, body


def test_a_request_rejected_unread_gets_the_same_answer_and_keeps_its_connection(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = RequestMiddleware.__call__

    async def watched(self: RequestMiddleware, scope: Any, receive: Any, send: Any) -> None:
        read.extend([scope["path"]] if scope["type"] == "http" else [])
        await whole(self, scope, receive, send)

    monkeypatch.setattr(RequestMiddleware, "__call__", watched)
    with serving(runs["stories"], limits=Limits(queue=1)) as here, connected(here) as raw:
        worker = here.service.workers["stories"]
        worker.reserve(1)
        answers = []
        for _ in range(3):
            raw.sendall(raw_request("/v1/predict", "X-Request-Id: mine"))
            answers.append(heard(raw))
        assert not read
        raw.sendall(raw_request("/v1/predict", "X-Request-Id: mine", "X-Odd: \u00e9"))
        usual = heard(raw)  # written so that it is read
        assert read == ["/v1/predict"]
        for status, given, body in answers:
            assert status == usual[0] == 429
            assert json.loads(body)["error"]["code"] == "queue_full"
            assert {**given, "date": "", "content-length": "", "retry-after": ""} == {
                **usual[1], "date": "", "content-length": "", "retry-after": ""
            }  # fmt: skip
        # A body in two pieces, one of unknown length, what is no request at all: as ever.
        one = raw_request()
        raw.sendall(one[:-3])
        time.sleep(0.05)
        raw.sendall(one[-3:])
        assert heard(raw)[0] == 429
        raw.sendall(raw_request("/v1/predict", "Origin: http://elsewhere"))
        assert heard(raw)[0] == 403
        raw.sendall(raw_request("/nowhere"))
        assert heard(raw)[0] == 404
        worker.release(1)
        assert settled(here)
        raw.sendall(raw_request(body=b'{"input": "x", "options": {"max_len": 2}}'))
        assert heard(raw)[0] == 200
        counted = here.get("/metrics").text
        assert 'headway_requests_total{path="/v1/predict",status="429"} 5' in counted


def test_a_full_server_rejects_requests_without_a_key_for_that(runs: dict[str, Run]) -> None:
    keys = Keys.of("secret")
    with (
        serving(runs["stories"], limits=Limits(queue=1), keys=keys) as here,
        connected(here) as raw,
    ):
        worker = here.service.workers["stories"]
        worker.reserve(1)
        for lines, status in (
            ((), 401), (("Authorization: Bearer wrong",), 401),
            (("Authorization: Bearer secret",), 429), (("Authorization: Bearer wrong!",), 401),
            (("Authorization: Bearer secret",), 429), ((), 401),
        ):  # fmt: skip
            raw.sendall(raw_request("/v1/predict", *lines))
            assert heard(raw)[0] == status
        worker.release(1)


def test_of_many_that_come_at_once_as_many_are_read_as_there_is_room_for(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, asyncio.AbstractEventLoop]] = []
    whole = RequestMiddleware.__call__

    async def watched(self: RequestMiddleware, scope: Any, receive: Any, send: Any) -> None:
        read.append((scope["type"], asyncio.get_running_loop()))
        await whole(self, scope, receive, send)

    monkeypatch.setattr(RequestMiddleware, "__call__", watched)
    body = b'{"input": "x", "options": {"max_len": 2}}'
    with serving(runs["stories"], limits=Limits(queue=2)) as here:
        raws = [connected(here) for _ in range(7)]
        assert here.get("/health").status_code == 200  # and those before it are connected
        go, loop, before = threading.Event(), read[-1][1], len(read)
        loop.call_soon_threadsafe(go.wait)
        for raw in raws:
            raw.sendall(raw_request(body=body))
        go.set()
        assert sorted(heard(raw)[0] for raw in raws) == [200] * 2 + [429] * 5
        assert len(read) == before + 2
        assert settled(here)
        raws[0].sendall(raw_request(body=body))  # there is room again
        assert heard(raws[0])[0] == 200
        for raw in raws:
            raw.close()


def test_an_answer_ends_the_rest_between_rejections(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "REST", 300.0)
    with (
        serving(runs["stories"], limits=Limits(queue=1)) as here,
        connected(here) as asks, connected(here) as refused,
    ):  # fmt: skip
        go, real = threading.Event(), ContinuousBatch.step
        monkeypatch.setattr(ContinuousBatch, "step", lambda self: (go.wait(60), real(self))[1])
        asks.sendall(raw_request(body=b'{"input": "x", "options": {"max_len": 2}}'))
        wait_for(
            lambda: here.service.workers["stories"].accepted and not here.service.n_thread_calls
        )
        refused.sendall(raw_request())
        assert heard(refused)[0] == 429
        go.set()
        assert heard(asks)[0] == 200


def test_a_request_that_takes_too_long_is_given_up(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(runs["stories"], limits=Limits(seconds=1.0)) as here:
        with slow_steps(monkeypatch, 0.2):
            found = ask(here, "The dog", options={**GREEDY, "max_len": 50, "min_len": 40})
            assert found.status_code == 504
            stream = ask(here, "The dog", stream=True,
                         options={**GREEDY, "max_len": 50, "min_len": 40})  # fmt: skip
            assert '"code":"deadline"' in stream.text
        assert settled(here)


def test_requests_over_a_limit_are_rejected_quickly(here: Here) -> None:
    for body in (
        {"model": "stories", "input": "a" * 30_000},
        {"model": "stories", "inputs": ["a"] * 1000},
        {"model": "stories", "input": "a", "options": {"n_best": 10_000}},
        {"model": "stories", "input": "a", "options": {"beam": 10_000}},
        {"model": "stories", "input": "a", "options": {"max_len": 10_000_000}},
    ):
        began = time.perf_counter()
        assert here.post("/v1/predict", body).status_code in (413, 422)
        assert time.perf_counter() - began < 0.5


def test_bodies_have_a_limit_together_and_a_smaller_one_without_a_key(
    runs: dict[str, Run],
) -> None:
    from headway.serve.keys import Keys

    limits = Limits(bodies=100_000)
    with serving(runs["tatoeba-de-en"], limits=limits, keys=Keys.of("secret")) as here:
        head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        place = ("127.0.0.1", int(here.url.rpartition(":")[2]))
        raws = [socket.create_connection(place, 10) for _ in range(3)]
        for number, raw in enumerate(raws):
            raw.sendall(head + b"Content-Length: 30000\r\n\r\n" + b" " * 12_000)
            if number < 2:
                wait_for(lambda n=number: here.service.body_bytes == 12_000 * (n + 1))
        assert raws[2].recv(12) == b"HTTP/1.1 429"
        body = json.dumps({"q": "Ja.", "source": "de", "target": "en", "api_key": "secret"})
        kind = {"Content-Type": "application/json"}
        padded = body + " " * 20_000
        assert here.post("/translate", content=padded, headers=kind).status_code == 429
        key = {**kind, "Authorization": "Bearer secret"}
        assert here.post("/translate", content=padded, headers=key).status_code == 200
        for raw in raws:
            raw.close()
        wait_for(lambda: here.service.body_bytes == 0)
        assert here.post("/translate", content=body, headers=kind).status_code == 200


def quick(here: Here, path: str, body: bytes, kind: str) -> int:
    """The status, which must be there soon: the event loop stands still while it is found."""
    began = time.perf_counter()
    response = here.client.post(path, content=body, headers={"Content-Type": kind})
    assert time.perf_counter() - began < 1.0
    return int(response.status_code)


def test_a_key_is_looked_for_before_a_body_is_read(runs: dict[str, Run]) -> None:
    form, js = "application/x-www-form-urlencoded", "application/json"
    with serving(runs["tatoeba-de-en"], keys=Keys.of("a secret+")) as here:
        for path in ("/translate", "/detect"):
            assert quick(here, path, b"q=" + b"%41" * 8_000_000, form) == 413
            assert quick(here, path, b"q=" + b"%41" * 600_000, form) == 401
            assert quick(here, path, b'{"q": [' + b"[]," * 600_000 + b"0]}", js) == 401
        asked = b"q=Ja.&source=de&target=en&api_key="
        assert quick(here, "/translate", asked + b"a+secret%2b", form) == 200
        assert quick(here, "/translate", asked + b"another", form) == 401
        asked = b'{"q": "\\"api_key\\": 1", "source": "de", "target": "en", "api_key" : "%b"}'
        assert quick(here, "/translate", asked % b"a \\u0073ecret+", js) == 200
        assert quick(here, "/translate", asked % b"another", js) == 401
        many = b"a&" * 1000 + b"api_key=a+secret%2b"
        assert quick(here, "/translate", many, form) == 400


def test_forms_of_text_are_read_as_people_write_them(here: Here) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for q in (b"Guten+Tag%2E", "Über".encode(), b"%C3%9Cber"):
        response = here.post("/translate", content=b"source=de&target=en&q=" + q, headers=form)
        assert response.status_code == 200
    response = here.post("/translate", content=b"source=de&target=en&q=\xff", headers=form)
    assert response.status_code == 400
    long = b"source=de&target=en&q=" + b"%20" * 19_000  # read by a thread
    assert here.post("/translate", content=long, headers=form).status_code == 200


def test_large_json_is_for_media_and_has_few_values(runs: dict[str, Run], here: Here) -> None:
    js = "application/json"
    lists = b'{"model": "shapes", "input": [' + b"[]," * 8_000_000 + b"0]}"
    assert quick(here, "/v1/predict", lists, js) == 413
    text = b'{"model": "stories", "input": "' + b"a" * 3_000_000 + b'"}'
    assert quick(here, "/v1/predict", text, js) == 413
    with serving(runs["stories"]) as texts:
        assert quick(texts, "/v1/predict", text, js) == 413
        found = texts.post("/v1/predict", files={"file": b"a" * 3_000_000})
        assert found.status_code == 413
        assert "2,000,000" in found.text


def test_media_have_limits(runs: dict[str, Run]) -> None:
    from headway.settings.folder import SHIPPED

    wav = (SHIPPED / "digits/example.wav").read_bytes()
    with serving(runs["digits"], limits=Limits(audio_seconds=2.0, media=300_000)) as here:
        assert here.post("/v1/predict", files={"file": wav}).status_code == 413
        assert here.post("/v1/predict", files={"file": wav * 5}).status_code == 413


# S8: what breaks


def test_a_request_that_breaks_the_model_breaks_no_other(
    here: Here, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = runs["stories"].tokenizer
    poison = tokenizer.as_prompt(tokenizer.encode("Poison"))
    real = ContinuousBatch.step

    def step(self: ContinuousBatch) -> list[BatchMember]:
        time.sleep(0.01)
        found = real(self)
        for member, w in self.rows:
            if member.prompt == poison and len(member.tokens[w]) == 3:
                raise RuntimeError("out of luck")
        return found

    want = [runs["stories"](text, **GREEDY).text for text in PROMPTS]
    monkeypatch.setattr(ContinuousBatch, "step", step)
    with ThreadPoolExecutor(8) as pool:
        good = [pool.submit(ask, here, text, stream=n % 2 == 0) for n, text in enumerate(PROMPTS)]
        bad = pool.submit(ask, here, "Poison")
        for number, (one, text) in enumerate(zip(good, want, strict=True)):
            if number % 2:
                assert text_of(one.result()) == text
                continue
            lines = [
                line[6:] for line in one.result().text.splitlines() if line.startswith("data:")
            ]
            pieces = [json.loads(line) for line in lines[:-2]]
            assert "".join(piece["text"] for piece in pieces) == text  # nothing comes twice
        assert bad.result().status_code == 500
        assert "RuntimeError" in bad.result().text
        assert "luck" not in bad.result().text
    assert text_of(ask(here, PROMPTS[0])) == want[0]
    assert settled(here)


@pytest.mark.parametrize("error", [RuntimeError("torch"), UserError("too long for this")])
def test_an_input_that_breaks_a_batch_is_found(
    here: Here, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from headway.decode.writer import Writer

    real, go = Writer._search, threading.Event()

    def search(self: Writer, parts: Any, wishes: Any) -> Any:
        go.wait(10)
        if any(part.text == "Gift" for part in parts):
            raise error
        return real(self, parts, wishes)

    monkeypatch.setattr(Writer, "_search", search)

    def one(text: str) -> Any:
        return here.post("/v1/predict", {"model": "tatoeba-de-en", "input": text})

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(one, text) for text in ("Ja.", "Nein.", "Gift", "Danke.")]
        wait_for(lambda: here.service.workers["tatoeba-de-en"].accepted == 4)
        go.set()
        codes = [future.result().status_code for future in found]
    assert codes == [200, 200, 422 if isinstance(error, UserError) else 500, 200]


@pytest.mark.parametrize("place", ["member", "finished_answer", "predictor"])
def test_a_failing_request_does_not_fail_others(
    here: Here, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    from headway.serve.worker import InferenceWorker
    from headway.tasks.complete_answers import CausalLMPredictor

    owner: Any = InferenceWorker if place == "predictor" else CausalLMPredictor
    name = "_predictor" if place == "predictor" else place
    real = getattr(owner, name)

    def breaks(self: Any, *given: Any, **more: Any) -> Any:
        if "Poison" in str(given) or (place == "predictor" and "777" in str(given[1])):
            raise RuntimeError("out of luck")
        return real(self, *given, **more)

    want = [runs["stories"](text, **GREEDY).text for text in PROMPTS]
    monkeypatch.setattr(owner, name, breaks)
    with slow_steps(monkeypatch, 0.01), ThreadPoolExecutor(8) as pool:
        good = [pool.submit(ask, here, text) for text in PROMPTS]
        bad = pool.submit(ask, here, "Poison", options={**GREEDY, "seed": 777})
        two = {"model": "stories", "inputs": ["The dog", "Poison"], "options": GREEDY}
        both = pool.submit(here.post, "/v1/predict", {**two, "options": {**GREEDY, "seed": 777}})
        assert [text_of(one.result()) for one in good] == want
        assert bad.result().status_code == 500
        assert both.result().status_code == 500
    assert settled(here)


def test_a_worker_that_dies_restarts_and_answers_waiting_requests(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(runs["stories"]) as here:
        worker = here.service.workers["stories"]
        dies = threading.Event()

        def die(self: ContinuousBatch) -> list[BatchMember]:
            dies.wait(10)
            raise SystemExit("a text of someone")

        with ThreadPoolExecutor(3) as pool:
            with monkeypatch.context() as patch:
                patch.setattr(ContinuousBatch, "step", die)
                first = pool.submit(ask, here, "The dog")
                wait_for(
                    lambda: (
                        worker._continuous_batch is not None
                        and not worker._continuous_batch.is_empty
                    )
                )
                waiting = [pool.submit(ask, here, text) for text in PROMPTS[:2]]
                wait_for(lambda: worker.accepted == 3)
                dies.set()
                assert first.result().status_code == 500
            assert [text_of(one.result()) for one in waiting] == [
                runs["stories"](text, **GREEDY).text for text in PROMPTS[:2]
            ]
        assert text_of(ask(here, "The dog")) == runs["stories"]("The dog", **GREEDY).text
        assert settled(here)
        assert "SystemExit" in caplog.text
        assert "someone" not in caplog.text


def test_what_is_not_answered_when_the_server_ends_hears_so(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(runs["stories"]) as here, slow_steps(monkeypatch, 0.05):
        long = {**GREEDY, "max_len": 200, "min_len": 190}
        with ThreadPoolExecutor(2) as pool:
            whole = pool.submit(ask, here, "The dog", options=long)
            stream = pool.submit(ask, here, "The dog", options=long, stream=True)
            worker = here.service.workers["stories"]
            wait_for(
                lambda: (
                    worker._continuous_batch is not None and len(worker._continuous_batch.rows) == 2
                )
            )
            [ticket, _] = here.service._open_tickets
            ticket.loop.call_soon_threadsafe(here.service.abort_requests)
            assert whole.result().status_code == 503
            assert '"code":"draining"' in stream.result().text
        assert settled(here)


def test_a_bug_is_a_500_in_the_log_and_in_the_metrics(
    here: Here, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from headway.serve.routes import predict

    def bug(*given: Any) -> None:
        raise ZeroDivisionError("a text of someone")

    monkeypatch.setattr(predict, "model_json", bug)
    with caplog.at_level("INFO", "headway.serve"):
        response = here.get("/v1/models", headers={"X-Request-Id": "mine"})
        counted = here.get("/metrics").text  # by then the line is written, too
    assert (response.status_code, response.headers["x-request-id"]) == (500, "mine")
    assert 'headway_requests_total{path="/v1/models",status="500"}' in counted
    assert "GET /v1/models 500" in caplog.text
    assert "someone" not in caplog.text + response.text


def test_a_stream_that_is_never_read_is_given_up() -> None:
    from headway.serve.service import EventStreamResponse

    class Open:
        given_up = False

        def __init__(self) -> None:
            self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def cancel(self) -> None:
            self.given_up = True

    async def run() -> bool:
        async def events() -> Any:
            yield b"never"

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise asyncio.CancelledError

        ticket: Any = Open()
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        with suppress(asyncio.CancelledError):
            await EventStreamResponse(events(), ticket)(scope, receive, send)
        return bool(ticket.given_up)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, run()).result()


def test_an_answer_does_not_wait_for_the_rest_of_a_packet() -> None:
    """Up to 40 ms, where a system collects small pieces and the other side waits to confirm."""

    class Met(asyncio.Protocol):
        found: asyncio.Future[int]

        def connection_made(self, transport: Any) -> None:
            raw = transport.get_extra_info("socket")
            self.found.set_result(raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.abort()

    async def accepted() -> int:
        loop = asyncio.get_running_loop()
        Met.found = loop.create_future()
        listening = bind("127.0.0.1", 0)
        async with await loop.create_server(Met, sock=listening):
            with socket.create_connection(listening.getsockname(), 10):
                return await Met.found

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, accepted()).result()


# S4, S2: slow clients and nonsense


def test_slow_clients_are_cut_off_and_others_are_served(runs: dict[str, Run]) -> None:
    quick = Limits(header_seconds=1.0, body_seconds=1.0, send_seconds=1.0)
    with serving(runs["stories"], limits=quick) as here:
        place = ("127.0.0.1", int(here.url.rpartition(":")[2]))
        silent = [socket.create_connection(place, 10) for _ in range(20)]
        for raw in silent[5:10]:
            raw.sendall(b"POST /v1/predict HTTP/1.1\r\nHos")
        for raw in silent[10:]:
            raw.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
                        b"Content-Type: application/json\r\n\r\n{")  # fmt: skip
        assert ask(here, "The dog").status_code == 200
        for raw in silent[:10]:
            assert raw.recv(10) == b""
        for raw in silent[10:]:
            assert raw.recv(12) == b"HTTP/1.1 408"
        for raw in silent:
            raw.close()
        # Nor is who was refused already, and sends the rest of his body byte by byte.
        with socket.create_connection(place, 10) as raw:
            raw.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n")
            assert raw.recv(12) == b"HTTP/1.1 404"
            began = time.monotonic()
            with suppress(OSError):
                while time.monotonic() < began + 8:
                    raw.sendall(b"x")
                    time.sleep(0.1)
            assert time.monotonic() - began < 4
        # A second request on a connection that was good is not forgiven either.
        with socket.create_connection(place, 10) as raw:
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert raw.recv(12) == b"HTTP/1.1 200"
            raw.sendall(b"GET /heal")
            while raw.recv(4096):
                pass


@pytest.mark.slow
def test_two_hundred_slow_clients_at_once(runs: dict[str, Run]) -> None:
    """A byte a second of a header or of a body, and who reads nothing: all are closed within 30 s
    by the usual limits, and a good client hardly notices."""

    def timed(here: Here, until: float) -> list[float]:
        took = []
        while time.monotonic() < until:
            began = time.perf_counter()
            assert here.get("/health").status_code == 200
            took.append(time.perf_counter() - began)
            time.sleep(0.05)
        return sorted(took)

    with serving(runs["stories"]) as here:
        place = ("127.0.0.1", int(here.url.rpartition(":")[2]))
        quiet = timed(here, time.monotonic() + 5)
        begun = time.monotonic()
        raws = [socket.socket() for _ in range(200)]
        for raw in raws:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(place)
        body = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n"
        reads = b"GET /assets/style.css HTTP/1.1\r\nHost: x\r\n\r\n" * 6
        for number, raw in enumerate(raws):
            raw.setblocking(False)
            with suppress(OSError):
                raw.send([b"POST /v1/pre", body, reads][number % 3])
        late = set(range(200))

        def drip() -> None:
            while late and time.monotonic() < begun + 30:
                for number in [*late]:
                    try:
                        if number % 3 < 2:
                            raws[number].send(b"x")
                            if raws[number].recv(4096) == b"":
                                late.discard(number)
                    except BlockingIOError:
                        continue
                    except OSError:
                        late.discard(number)
                time.sleep(1)

        thread = threading.Thread(target=drip)
        thread.start()
        time.sleep(1)
        busy = timed(here, begun + 25)
        thread.join()
        for number in range(2, 200, 3):  # nothing more comes behind what waits to be read
            raws[number].settimeout(1)
            with suppress(ConnectionError):
                while raws[number].recv(1 << 20):
                    pass
            late.discard(number)
        for raw in raws:
            raw.close()
    assert not late
    n, m = int(0.99 * len(quiet)), int(0.99 * len(busy))
    assert busy[m] <= max(2 * quiet[n], 0.02), (quiet[n], busy[m])


def test_a_client_that_never_reads_is_cut_off(runs: dict[str, Run]) -> None:
    with serving(runs["stories"], limits=Limits(send_seconds=1.0)) as here:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", int(here.url.rpartition(":")[2])))
        raw.sendall(b"GET /assets/style.css HTTP/1.1\r\nHost: x\r\n\r\n" * 400)
        until = time.monotonic() + 15
        while time.monotonic() < until and here.service.in_flight:
            time.sleep(0.05)
        assert settled(here, 5)
        raw.close()


def test_an_answer_that_is_not_read_does_not_keep_its_connection(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = TimeoutProtocol.connection_lost, []

    def connection_lost(self: TimeoutProtocol, exc: Exception | None) -> None:
        real(self, exc)
        lost.append(self.client and self.client[1])

    monkeypatch.setattr(TimeoutProtocol, "connection_lost", connection_lost)
    with serving(runs["stories"], limits=Limits(send_seconds=1.0)) as here:
        size = len(here.get("/assets/style.css").content)
        with reading_slowly(here) as raw:
            # Less than 64 KiB remain, asyncio's own mark.
            times, line = 1 + 60_000 // size, b"GET /assets/style.css HTTP/1.1\r\nHost: x\r\n\r\n"
            raw.sendall(line * times)
            wait_for(lambda: raw.getsockname()[1] in lost, 6)


def test_a_slow_reader_gets_the_whole_answer(runs: dict[str, Run]) -> None:
    with serving(runs["stories"], limits=Limits(send_seconds=1.0)) as here:
        one = here.get("/assets/style.css").content
        times, found, began = 1 + 90_000 // len(one), b"", time.monotonic()
        with reading_slowly(here) as raw:
            ask_for = "GET /assets/style.css HTTP/1.1\r\nHost: x\r\n"
            raw.sendall((f"{ask_for}\r\n" * (times - 1)).encode())
            raw.sendall(f"{ask_for}Connection: close\r\n\r\n".encode())
            while part := raw.recv(2_000):
                found += part
                time.sleep(0.05)
        assert found.count(one) == times
        assert time.monotonic() - began > 2.0


@contextmanager
def reading_slowly(here: Here) -> Iterator[socket.socket]:
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(10)
        raw.connect(("127.0.0.1", int(here.url.rpartition(":")[2])))
        yield raw


@pytest.mark.parametrize("is_refused_early", [False, True])
def test_idle_connections_live_longer_than_headers_may_take(
    runs: dict[str, Run], is_refused_early: bool
) -> None:
    limits = Limits(header_seconds=1.0, keep_alive_seconds=4.0, queue=1)
    assert Limits().keep_alive_seconds > 60
    with serving(runs["stories"], limits=limits) as here:
        if is_refused_early:
            here.service.workers["stories"].reserve(1)
        asked = raw_request() if is_refused_early else b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        status = 429 if is_refused_early else 200
        with connected(here) as idle, connected(here) as begun:
            for raw in (idle, begun):
                raw.sendall(asked)
                assert heard(raw)[0] == status
            time.sleep(1.5)
            idle.sendall(asked)
            assert heard(idle)[0] == status
            begun.sendall(asked[:10])
            since = time.monotonic()
            with suppress(ConnectionError):
                assert begun.recv(10) == b""
            assert 0.7 < time.monotonic() - since < 2.2
            assert idle.recv(10) == b""
            assert 3.0 < time.monotonic() - since < 9
        if is_refused_early:
            here.service.workers["stories"].release(1)


LINES = [
    b"\x00\x01\x02\x03", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET " + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n", b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 20, b"\r\n" * 1000, b"HEAD / HTTP/1.1\r\n\r\n",
    b"GET \xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
]  # fmt: skip


def nonsense(here: Here, n: int) -> None:
    chance, place = random.Random(0), ("127.0.0.1", int(here.url.rpartition(":")[2]))
    for number in range(n):
        line = bytearray(chance.choice(LINES))
        for _ in range(chance.randint(0, 3)):
            line[chance.randrange(len(line))] = chance.randrange(256)
        with socket.create_connection(place, 10) as raw:
            raw.settimeout(0.002)
            try:
                raw.sendall(bytes(line))
                raw.recv(100)
            except OSError:
                pass
        if number % 100 == 0:
            assert here.get("/health").status_code == 200


def test_nonsense_on_the_line(here: Here) -> None:
    nonsense(here, 150)
    assert ask(here, "The dog").status_code == 200
    assert settled(here, 20)


@pytest.mark.slow
def test_ten_thousand_lines_of_nonsense(here: Here) -> None:
    nonsense(here, 10_000)
    assert ask(here, "The dog").status_code == 200


# S5: many


def many(here: Here, n: int) -> list[int]:
    """Streams at once; the status of each, and that all of them came to their end."""

    async def one(client: httpx2.AsyncClient, number: int) -> int:
        body = {"model": "stories", "input": PROMPTS[number % 5], "stream": True,
                "options": GREEDY}  # fmt: skip
        async with client.stream("POST", "/v1/predict", json=body) as found:
            text = "".join([part async for part in found.aiter_text()])
            assert found.status_code == 429 or text.endswith("[DONE]\n\n")
            return int(found.status_code)

    async def run() -> list[int]:
        limits = httpx2.Limits(max_connections=n)
        async with httpx2.AsyncClient(base_url=here.url, timeout=120, limits=limits) as client:
            return [*await asyncio.gather(*(one(client, number) for number in range(n)))]

    with ThreadPoolExecutor(1) as pool:  # a browser of other tests may have a loop in this thread
        return pool.submit(asyncio.run, run()).result()


def test_many_streams_at_once(here: Here) -> None:
    assert set(many(here, 100)) == {200}
    assert settled(here)


@pytest.mark.slow
def test_a_thousand_streams_at_once(here: Here) -> None:
    took: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            began = time.perf_counter()
            assert here.get("/health").status_code == 200
            took.append(time.perf_counter() - began)
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    codes = many(here, 1000)
    done.set()
    thread.join()
    assert sorted(took)[int(0.99 * len(took))] <= 0.5
    assert len(codes) == 1000
    assert set(codes) <= {200, 429}
    assert codes.count(200) >= 100


# S12: for long


@pytest.mark.slow
def test_ten_minutes_of_mixed_load(here: Here) -> None:
    until, marks, chance = time.monotonic() + 600, [], random.Random(0)
    while time.monotonic() < until:
        assert set(many(here, 40)) <= {200, 429}
        for _ in range(5):
            raw = open_raw(here, {"model": "stories", "input": "The dog", "options": GREEDY})
            time.sleep(chance.random() * 0.02)
            raw.close()
        response = here.post("/v1/predict", {"model": "tatoeba-de-en", "inputs": ["Ja."] * 8})
        assert response.status_code == 200
        gc.collect()
        marks.append(held())
    third = len(marks) // 3
    early, late = marks[third : 2 * third], marks[2 * third :]
    mean = [sum(one for one, _ in some) / len(some) for some in (early, late)]
    assert mean[1] - mean[0] < 5e6
    assert max(n for _, n in late) <= max(n for _, n in early) + 5
