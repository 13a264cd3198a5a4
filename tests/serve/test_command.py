"""`headway serve` as people start and stop it."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headway.cli.main import main
from headway.errors import needs
from headway.settings.folder import SHIPPED, WEIGHTS
from tests.facts import missing

from .conftest import wait_for


@contextmanager
def command(
    *words: str, program: Sequence[str] = ("-m", "headway")
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The server as a process: its address, and what it said until it answered."""
    process = subprocess.Popen(
        [sys.executable, *program, "serve", *words, "--port", "0"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    result: list[str] = []
    try:
        for line in process.stderr:
            result.append(line)
            if re.search(r"http://[\d.:]+/$", line):  # the page, in the last line
                break
        found = re.search(r"http://[\d.]+:\d+", "".join(result))
        assert found, result
        reader = threading.Thread(target=lambda: result.extend(process.stderr or ()))
        reader.start()
        yield process, found[0], result
        process.kill()
        reader.join()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """A command that runs in this process writes its log to what is standard error meanwhile."""
    yield
    log = logging.getLogger("headway.serve")
    log.handlers.clear()
    log.propagate = True


def test_it_prints_its_address_answers_its_own_line_and_drains(tmp_path: Path) -> None:
    with command("stories", "serve.drain=20") as (process, url, result):
        line = next(one for one in result if one.strip().startswith("curl"))
        words = shlex.split(line)
        body = json.loads(words[words.index("-d") + 1])
        client = httpx2.Client(base_url=url, timeout=60)
        assert client.post("/v1/predict", json=body).status_code == 200  # when the line is there
        secret = "a word that occurs nowhere else"
        options = {"max_len": 120, "min_len": 110, "beam": 1, "sample": False}
        long = {"model": "stories", "input": secret, "stream": True, "options": options}
        found: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda: found.append(httpx2.post(f"{url}/v1/predict", json=long, timeout=60))
            )
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        six = 'headway_growing_texts{model="stories"} 6'
        wait_for(lambda: six in client.get("/metrics").text)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        while client.get("/ready").status_code != 503:
            assert time.monotonic() - began < 2
        assert client.get("/health").status_code == 200
        refused = client.post("/v1/predict", json=body)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        for thread in threads:
            thread.join(60)
        assert len(found) == 6
        assert all(one.text.endswith("[DONE]\n\n") and '"answers"' in one.text for one in found)
        client.close()
        assert process.wait(30) == 0
        log = "".join(result)
        assert "POST /v1/predict 200" in log
        assert secret not in log


@pytest.mark.slow
def test_fifty_requests_and_twenty_streams_survive_a_drain() -> None:
    with command("stories") as (process, url, _):
        found: list[Any] = []

        def ask(number: int) -> None:
            options = {"max_len": 100, "min_len": 90, "beam": 1, "sample": False}
            body = {"input": f"The dog {number}", "options": options, "stream": number < 20}
            found.append(httpx2.post(f"{url}/v1/predict", json=body, timeout=60))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(70)]
        for thread in threads:
            thread.start()
        accepted = 'headway_queue_requests{model="stories"} 70'
        wait_for(lambda: accepted in httpx2.get(f"{url}/metrics").text)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        while httpx2.get(f"{url}/ready").status_code != 503:
            assert time.monotonic() - began < 0.5
        assert httpx2.get(f"{url}/health").status_code == 200
        assert httpx2.post(f"{url}/v1/predict", json={"input": "a"}).status_code == 503
        assert process.wait(35) == 0
        for thread in threads:
            thread.join(10)
        assert [one.status_code for one in found] == [200] * 70
        streams = [one.text for one in found if "event-stream" in one.headers["content-type"]]
        assert len(streams) == 20
        assert all('"answers"' in one and one.endswith("[DONE]\n\n") for one in streams)


@pytest.mark.slow
def test_a_drain_that_takes_too_long_is_cut_off_and_ends_well() -> None:
    with command("stories", "serve.drain=1") as (process, url, found):
        options = {"max_len": 250, "min_len": 249, "beam": 16, "sample": False}
        codes: list[int] = []

        def ask() -> None:
            body = {"input": "a", "options": options}
            codes.append(httpx2.post(f"{url}/v1/predict", json=body, timeout=60).status_code)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        wait_for(lambda: "in_flight_requests 13" in httpx2.get(f"{url}/metrics").text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        for thread in threads:
            thread.join(10)
        assert set(codes) == {503}
        assert "Traceback" not in "".join(found)


BUSY = """
import sys, time
from headway.serve.worker import InferenceWorker
InferenceWorker._compute_batch = InferenceWorker._join = lambda *given: time.sleep(60)
from headway.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""A server whose worker hears nothing while it computes."""


def test_it_ends_with_the_drain_whatever_is_being_computed(tmp_path: Path) -> None:
    program = tmp_path / "busy.py"
    program.write_text(BUSY)
    # The process needs 0.4 s more on a machine that other tests keep busy: the fastest of three.
    assert any(1.0 <= seconds_to_end(program) < 1.9 for _ in range(3))


def seconds_to_end(program: Path) -> float:
    """From SIGTERM, during a computation, to the end of a server with a drain of one second."""
    with command("stories", "serve.drain=1", program=[str(program)]) as (process, url, result):
        found: list[int] = []
        asking = threading.Thread(
            target=lambda: found.append(
                httpx2.post(f"{url}/v1/predict", json={"input": "a"}, timeout=60).status_code
            )
        )
        asking.start()
        wait_for(lambda: "in_flight_requests 2" in httpx2.get(f"{url}/metrics").text)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        took = time.monotonic() - began
        asking.join(10)
        assert found == [503]
        assert "Traceback" not in "".join(result)
        return took


def test_a_run_with_the_sign_of_settings_in_its_name_is_served(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED / "stories", tmp_path / "lr=1")
    with command(str(tmp_path / "lr=1"), "serve.drain=1") as (_, url, _):
        body = {"model": "lr=1", "input": "a", "options": {"max_len": 2}}
        assert httpx2.post(f"{url}/v1/predict", json=body, timeout=60).status_code == 200


def test_an_error_of_a_request_names_its_option() -> None:
    with command("base-en") as (_, url, _):
        sent = {"model": "base-en", "input": "A text.", "options": {"top": 3}}
        answer = httpx2.post(f"{url}/v1/predict", json=sent, timeout=60)
    assert answer.status_code == 422
    assert not missing(answer.text, "top nearest")
    assert "--" not in answer.text


def test_a_second_signal_ends_it_at_once() -> None:
    with command("stories") as (process, url, _):
        body = {"input": "a", "options": {"max_len": 250, "min_len": 249, "beam": 1}}

        def ask() -> None:
            with pytest.raises(httpx2.HTTPError):
                httpx2.post(f"{url}/v1/predict", json=body, timeout=60)

        thread = threading.Thread(target=ask)
        thread.start()
        one = 'headway_growing_texts{model="stories"} 1'
        wait_for(lambda: one in httpx2.get(f"{url}/metrics").text)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(2) != 0
        thread.join(10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "headway models"),
        (["nothing-here"], "nothing-here"),
        (["stories", "--host", "0.0.0.0"], r"0\.0\.0\.0.*--key-file"),
        (["stories", "--key-file", "none.txt"], r"\bnone\.txt"),
        (["stories", "--port", "70000"], "70000.*65535"),
        (["stories", "serve.queu=3"], "queu'.*'queue'"),
        (["stories", "serve.queue=0"], r"serve\.queue=0"),
        (["stories", "stories"], "'stories'"),
        (["tatoeba-de-en", "--languages", "stories=de-en"], "stories=de-en.*tatoeba-de-en"),
        (["stories", "--new-key", "me"], "--key-file"),
    ],
)
def test_what_cannot_be_served_is_an_error(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    assert re.search(message, capfd.readouterr().err)


def test_a_model_that_cannot_be_read_ends_the_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(SHIPPED / "stories", folder)
    weights = folder / WEIGHTS
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 255
    weights.write_bytes(data)
    assert main(["serve", str(folder), "--port", "0"]) == 2
    printed = capfd.readouterr().err
    assert re.search(r"\bdamaged\b", printed)  # its name
    assert "Traceback" not in printed
    assert "curl" not in printed


def test_a_key_is_printed_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.txt"
    assert main(["serve", "--key-file", str(path), "--new-key", "me"]) == 0
    out = capfd.readouterr().out.strip()
    assert out.startswith("hw-")
    assert out not in path.read_text()


def test_without_the_extra_one_line_names_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    for words in (["serve", "stories"], ["look", "stories", "--text", "a", "--serve"]):
        assert main(words) == 2
        assert "headway[serve]" in capfd.readouterr().err
    assert needs("json", "serve") is json
