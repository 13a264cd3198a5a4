"""A chat template is a program that comes with the weights; it cannot block the server."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

import headway
from headway.run import Run
from headway.serve import template as of_template
from headway.serve.limits import Limits
from headway.serve.template import ChatTemplate, TemplateError
from headway.settings.folder import CHAT_TEMPLATE

from .conftest import serving, wait_for
from .test_command import command

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
STRINGS = "{% for a in 'x' * 99999 %}{% for b in 'x' * 99999 %}{% endfor %}{% endfor %}"
WIDE = '{{ "%0999999999d" % 1 }}'
POWER = "{{ 9 ** (9 ** 9) }}"
LONG = "{% for a in range(90000) %}0123456789{% endfor %}"
GOOD = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


@pytest.fixture
def make(tmp_path: Path, runs: dict[str, Run]) -> Callable[[str, str], Path]:
    """A copy of `stories` with a chat template."""

    def made(name: str, text: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(runs["stories"].folder, folder)
        (folder / CHAT_TEMPLATE).write_text(text)
        return folder

    return made


@contextmanager
def rendering(folder: Path) -> Iterator[ChatTemplate]:
    with closing(ChatTemplate(folder / CHAT_TEMPLATE, 200_000)) as template:
        yield template


@pytest.mark.parametrize("text", [LOOP, STRINGS, WIDE, POWER, LONG], ids=range(5))
def test_time_memory_steps_and_output_are_bounded(
    make: Callable[[str, str], Path], text: str
) -> None:
    folder = make("evil", text)
    with rendering(folder) as template:
        began = time.monotonic()
        with pytest.raises(TemplateError):
            template.render({"messages": []})
        assert time.monotonic() - began < of_template.RENDER_SECONDS + 5
        (folder / CHAT_TEMPLATE).write_text(GOOD)  # it works again
        assert template.render({"messages": [{"role": "a", "content": "ü"}]}) == "a: ü\n"


def test_the_process_is_kept_and_ends_with_its_owner(make: Callable[[str, str], Path]) -> None:
    with rendering(make("chatty", GOOD)) as template:
        assert template._process is None  # no chat came yet
        template.render({"messages": []})
        first = template._process
        template.render({"messages": []})
        assert first is not None
        assert template._process is first
    assert first.poll() is not None
    with pytest.raises(TemplateError):
        template.render({"messages": []})


def test_ctrl_c_in_a_terminal_does_not_end_the_process(
    make: Callable[[str, str], Path],
) -> None:
    """A terminal sends SIGINT to all its processes; the server then answers what it accepted."""
    with rendering(make("chatty", GOOD)) as template:
        template.render({"messages": []})
        first = template._process
        assert first is not None
        first.send_signal(signal.SIGINT)
        assert template.render({"messages": [{"role": "a", "content": "b"}]}) == "a: b\n"
        assert template._process is first


def test_a_process_that_ended_is_replaced_and_its_pipes_are_closed(
    make: Callable[[str, str], Path],
) -> None:
    with rendering(make("chatty", GOOD)) as template:
        template.render({"messages": []})
        first = template._process
        assert first is not None
        first.kill()
        first.wait()
        assert template.render({"messages": [{"role": "a", "content": "b"}]}) == "a: b\n"
        assert first.stdin is not None
        assert first.stdin.closed


def test_a_template_that_loops_stops_no_other_model(
    make: Callable[[str, str], Path], runs: dict[str, Run]
) -> None:
    """Four requests, as there are four threads that read requests."""
    evil, good = (headway.load(make(*pair), device="cpu")
                  for pair in (("evil", STRINGS), ("good", GOOD)))  # fmt: skip
    limits = Limits(seconds=8)
    with serving(evil, good, runs["base-en"], limits=limits) as here, ThreadPoolExecutor(4) as pool:
        chat = "/v1/chat/completions"
        asked = [pool.submit(here.post, chat, {**BODY, "model": "evil"}) for _ in range(4)]
        wait_for(lambda: here.service.templates)
        began = time.monotonic()
        assert here.get("/health").status_code == 200
        assert here.post("/v1/embeddings", {"input": "a"}).status_code == 200
        assert here.post(chat, {**BODY, "model": "good"}).status_code == 200
        assert here.post("/v1/completions", {"model": "evil", "prompt": "a"}).status_code == 200
        assert not all(one.done() for one in asked)
        assert time.monotonic() - began < 20
        codes = {one.result().status_code for one in asked}
        assert codes <= {400, 504}


def test_the_deadline_covers_the_template(make: Callable[[str, str], Path]) -> None:
    run = headway.load(make("evil", STRINGS), device="cpu")
    with serving(run, limits=Limits(seconds=1)) as here:
        began = time.monotonic()
        response = here.post("/v1/chat/completions", BODY)
        assert response.status_code == 504
        assert time.monotonic() - began < 8


def test_sigterm_ends_the_server_within_its_drain(make: Callable[[str, str], Path]) -> None:
    with command(str(make("evil", STRINGS)), "serve.drain=1") as (process, url, _):
        found: list[Any] = []

        def ask() -> None:
            with suppress(httpx2.HTTPError):
                result = httpx2.post(f"{url}/v1/chat/completions", json=BODY, timeout=60)
                found.append(result.status_code)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_for(lambda: "in_flight_requests 9" in httpx2.get(f"{url}/metrics").text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        for thread in threads:
            thread.join(10)
        assert set(found) <= {400, 503}
        assert 503 in found
