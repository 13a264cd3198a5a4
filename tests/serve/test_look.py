"""The page about one input, asked over HTTP; and a server for one person: who may ask it."""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headway.errors import UserError
from headway.inside.page.live import MOST_TEXT, LivePage, LookRequest
from headway.run import Run
from headway.serve.limits import Limits
from headway.serve.server import LOOPBACK, bind, is_loopback, loopback_hosts
from headway.settings.folder import SHIPPED
from headway.web.pack import unpack

from .conftest import Here, serving, wait_for

JSON = {"Accept": "application/json"}


@pytest.fixture(scope="module")
def closed(runs: dict[str, Run]) -> Iterator[Here]:
    """As `headway serve` and `headway look --serve` are without keys."""
    with serving(runs["tatoeba-de-en"], hosts=LOOPBACK, limits=Limits(looks=1)) as found:
        yield found


def look(here: Here, **keys: Any) -> Any:
    return here.post("/v1/look", keys, headers=JSON)


def test_only_this_machine_is_listened_on(closed: Here) -> None:
    assert closed.url.startswith("http://127.0.0.1:")
    with bind("127.0.0.1", 0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
    assert is_loopback("127.0.0.1")
    assert all(map(is_loopback, ("127.0.0.2", "::1", "[::1]", "localhost")))
    odd = ("0.0.0.0", "::", "10.0.0.1", "example.org", "127.evil.example", "")
    assert not any(map(is_loopback, odd))
    assert "127.0.0.2" in loopback_hosts("127.0.0.2")
    assert "[::2]" in loopback_hosts("::2")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "evil:80"])
@pytest.mark.parametrize("path", ["/", "/health", "/v1/models"])
def test_a_name_that_was_pointed_here_is_refused(closed: Here, host: str, path: str) -> None:
    found = closed.get(path, headers={"Host": host})
    assert found.status_code == 403
    assert "localhost" in found.json()["error"]["message"]


def test_localhost_is_a_name_of_this_server(closed: Here) -> None:
    for host in ("localhost", "localhost:1234", "127.0.0.1", "[::1]:80"):
        assert closed.get("/health", headers={"Host": host}).status_code == 200


def test_pages_of_other_sites_are_refused(closed: Here) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        found = closed.post("/v1/look", {"text": "a"}, headers={"Origin": origin})
        assert found.status_code == 403, origin
        assert "localhost" not in found.json()["error"]["message"]  # the host is right
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert closed.get("/v1/models", headers=cross).status_code == 403
    link = {**cross, "Sec-Fetch-Mode": "navigate"}  # which may lead to the page, and no further
    assert closed.get("/", headers=link).status_code == 200
    assert closed.get("/v1/models", headers=link).status_code == 403


def test_the_page_and_its_data(here: Here) -> None:
    page = here.post("/v1/look", {"model": "tatoeba-de-en", "text": "Ja."})
    assert page.headers["content-type"].startswith("text/html")
    assert "Content-Security-Policy" in page.text
    assert "content-security-policy" not in page.headers  # its own has the hashes of its scripts
    data = unpack(look(here, model="tatoeba-de-en", text="Ja.").json()["packed"])
    assert data["looks"][0]["text"] == "Ja."
    assert data["shared"]["live"]["asked"] == {"post": "/v1/look", "model": "tatoeba-de-en"}


def test_a_medium_is_kept_for_the_next_question(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def page(self: LivePage, request: LookRequest) -> Any:
        seen.append((self.media, self.asked))
        raise ZeroDivisionError("a page takes seconds: what it is made from is enough")

    monkeypatch.setattr(LivePage, "page", page)
    png = (SHIPPED / "shapes/example.png").read_bytes()
    assert here.post("/v1/look", data={"model": "shapes"}, files={"file": png}).status_code == 500
    medium = seen[0][1]["medium"]
    assert look(here, model="shapes", text="x", medium=medium).status_code == 500
    assert seen[1][0] is seen[0][0]
    assert look(here, model="shapes", text="x", medium="other").status_code == 422
    assert look(here, model="shapes", text="x").status_code == 422
    assert look(here, model="shapes", text=base64.b64encode(png).decode()).status_code in (413, 422)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, r"\btext\b"),
        ({"text": 3}, r"\btext\b.*\b3\b"),
        ({"text": "a", "beams": 3}, "'beams'.*'beam'"),
        ({"text": "a" * MOST_TEXT}, r"\d,\d\d\d tokens"),
        ({"text": "a", "beam": 0}, r"\bbeam\b.*\b32\b"),
        ({"text": "a", "beam": True}, r"\bbeam\b.*\b32\b"),
        ({"text": "a", "new": 10_000_000}, r"\bnew\b.*\d"),
        ({"text": "a", "temperature": "hot"}, "temperature"),
        ({"text": "a", "hidden": [["source"]]}, r'\["source", 3\]'),
        ({"text": "a", "hidden": "all"}, "hidden"),
        ({"text": "a", "off": ["cross.1"]}, r"'cross\.1'"),
        ({"text": "a", "off": ["cross.-1.0"]}, r"'cross\.-1\.0'"),
        ({"text": "a", "walk": ["cross", 1, 2]}, r'\bwalk\b.*\["cross", 0, 3, 2\]'),
        ({"text": "a", "walk": []}, r"\bwalk\b"),
        ({"text": "a", "maps": 1}, r"\bmaps\b.*\btrue\b.*\bfalse\b"),
        ({"text": "a", "length_penalty_alpha": 10**400}, "length_penalty_alpha"),
        ({"text": "a", "off": [f"cross.{'9' * 5000}.0"]}, r"'cross\.999"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_invalid_requests_name_the_key_or_its_value(closed: Here, keys: Any, message: str) -> None:
    found = look(closed, **keys)
    assert found.status_code == 422
    assert re.search(message, found.json()["error"]["message"])


def test_one_page_is_made_at_a_time_and_few_wait(
    closed: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, begun, real = threading.Event(), threading.Semaphore(0), LivePage.page

    def page(self: LivePage, request: LookRequest) -> Any:
        begun.release()
        go.wait(20)
        return real(self, request)

    monkeypatch.setattr(LivePage, "page", page)
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(look(closed, text="Ja.").status_code))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=20)
    wait_for(lambda: closed.service.looks.waiting == 2)
    assert look(closed, text="one too many").status_code == 429
    assert closed.post("/v1/predict", {"input": "Ja."}).status_code == 200  # answers go on
    go.set()
    for thread in threads:
        thread.join()
    assert codes == [200, 200]


def test_a_page_without_a_waiting_client_is_not_made(
    closed: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, made = threading.Event(), []

    def page(self: LivePage, request: LookRequest) -> Any:
        made.append(request.text)
        go.wait(20)
        raise UserError("enough")

    monkeypatch.setattr(LivePage, "page", page)
    first = threading.Thread(target=look, args=(closed,), kwargs={"text": "first"})
    first.start()
    wait_for(lambda: made == ["first"])
    raw = socket.create_connection(("127.0.0.1", int(closed.url.rpartition(":")[2])), 10)
    body = b'{"text": "second"}'
    head = f"POST /v1/look HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    raw.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    wait_for(lambda: closed.service.looks.waiting == 2)
    raw.close()
    wait_for(lambda: closed.service.looks.waiting == 1)
    go.set()
    first.join()
    assert made == ["first"]
