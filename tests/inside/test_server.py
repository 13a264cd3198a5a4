"""The server of a live page: who may ask, what it takes, and what it says to everyone else."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headway.errors import UserError
from headway.inside.page.server import MOST_BYTES, MOST_WAITING, LiveServer
from headway.inside.page.server_request import MOST_TEXT, Request


class Answers:
    """Stands in for the model: gives the text back, and can be held."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.begun = threading.Semaphore(0)
        self.running = self.most = 0

    def __call__(self, request: Request) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.release()
        self.go_on.wait(20)
        self.running -= 1
        if request.text == "user mistake":
            raise UserError("the text is no good.\nGive another.")
        if request.text == "bug":
            raise ZeroDivisionError("secret")
        return f"packed {request.text}"


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def server(answers: Answers) -> Iterator[LiveServer]:
    made = LiveServer(0, "<!doctype html>the page", answers)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    answers.go_on.set()
    made.shutdown()
    thread.join()
    made.server_close()


def ask(
    server: LiveServer, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    if body is not None and not isinstance(body, bytes | str):
        body = json.dumps(body)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if method == "POST":
        given = {"Content-Type": "application/json", **given}
    connection.request(method, path, body, given)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def look(server: LiveServer, **keys: Any) -> tuple[int, dict[str, str]]:
    status, text = ask(server, "POST", "/look", keys)
    return status, json.loads(text)


def test_the_page_and_an_answer(server: LiveServer) -> None:
    assert ask(server, "GET", "/") == (200, "<!doctype html>the page")
    assert look(server, text="hello") == (200, {"packed": "packed hello"})


def test_only_this_machine_is_listened_on(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.port}/"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost:80"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_name_that_was_pointed_here_is_refused(
    server: LiveServer, host: str, method: str
) -> None:
    status, text = ask(server, method, "/", {"text": "a"} if method == "POST" else None, Host=host)
    assert status == 403
    assert "answers to" in json.loads(text)["error"]


def test_localhost_is_a_name_of_this_server(server: LiveServer) -> None:
    assert ask(server, "GET", "/", Host=f"localhost:{server.port}")[0] == 200


def test_pages_of_other_sites_are_refused(server: LiveServer, answers: Answers) -> None:
    for origin in ("https://evil.example", "null", f"https://127.0.0.1:{server.port}"):
        status, text = ask(server, "POST", "/look", {"text": "a"}, Origin=origin)
        assert status == 403, origin
        assert "other sites" in json.loads(text)["error"]
    assert not answers.begun.acquire(blocking=False)
    own = f"http://127.0.0.1:{server.port}"
    assert ask(server, "POST", "/look", {"text": "a"}, Origin=own)[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_form_of_another_site_has_no_json(server: LiveServer, kind: str) -> None:
    status, text = ask(server, "POST", "/look", '{"text": "a"}', Content_Type=kind)
    assert status == 415
    assert "application/json" in json.loads(text)["error"]


def test_a_large_body_is_refused_unread(server: LiveServer) -> None:
    status, text = ask(server, "POST", "/look", b"", Content_Length=str(MOST_BYTES + 1))
    assert status == 413
    assert f"{MOST_BYTES:,}" in text
    assert ask(server, "POST", "/look", b"", Content_Length="-5")[0] == 411


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ([1], "must be a JSON object"),
        ({}, "has no text"),
        ({"text": 3}, "text must be a text"),
        ({"text": "a", "beams": 3}, "unknown key 'beams'. Did you mean 'beam'?"),
        ({"text": "a" * (MOST_TEXT + 1)}, f"at most {MOST_TEXT:,}"),
        ({"text": "a", "beam": 0}, "beam must be a whole number from 1 to 32"),
        ({"text": "a", "beam": True}, "beam must be a whole number"),
        ({"text": "a", "beam": 1e9}, "beam must be a whole number"),
        ({"text": "a", "new": 10_000_000}, "new must be a whole number"),
        ({"text": "a", "temperature": "hot"}, "temperature must be a number"),
        ({"text": "a", "hidden": [["source"]]}, '["source", 3]'),
        ({"text": "a", "hidden": "all"}, "hidden must be a list"),
        ({"text": "a", "off": ["cross.1"]}, "'cross.1' names no head"),
        ({"text": "a", "off": ["cross.-1.0"]}, "names no head"),
        ({"text": "a", "walk": ["cross", 1, 2]}, '["cross", 0, 3, 2]'),
        ({"text": "a", "walk": []}, "walk must be kind, layer, head and row"),
        ({"text": "a", "maps": 1}, "maps must be true or false"),
        ('{"text": "a", "alpha": NaN}', "alpha must be a number"),
        ({"text": "a", "alpha": 10**400}, "alpha must be a number"),
        ({"text": "a", "off": [f"cross.{'9' * 5000}.0"]}, "names no head"),
        ({"text": "user mistake"}, "the text is no good. Give another."),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_mistakes_are_named_in_a_sentence(server: LiveServer, body: Any, message: str) -> None:
    status, text = ask(server, "POST", "/look", body)
    error = json.loads(text)["error"]
    assert status == 400
    assert message in error
    assert "\n" not in error


def test_a_bug_gives_no_traceback(server: LiveServer) -> None:
    status, said = look(server, text="bug")
    assert status == 500
    assert "Traceback" not in said["error"]
    assert look(server, text="after") == (200, {"packed": "packed after"})


@pytest.mark.parametrize(("method", "path"), [("GET", "/look"), ("GET", "/../x"), ("POST", "/")])
def test_there_is_nothing_else(server: LiveServer, method: str, path: str) -> None:
    status, text = ask(server, method, path, {"text": "a"} if method == "POST" else None)
    assert status == 404
    assert "error" in json.loads(text)


def test_one_is_computed_at_a_time_and_few_wait(server: LiveServer, answers: Answers) -> None:
    answers.go_on.clear()
    found: list[int] = []
    lock = threading.Lock()

    def one() -> None:
        status, _ = look(server, text="a")
        with lock:
            found.append(status)

    threads = [threading.Thread(target=one) for _ in range(1 + MOST_WAITING)]
    for thread in threads:
        thread.start()
    assert answers.begun.acquire(timeout=120)
    while server.free:  # until all of them have a place
        threading.Event().wait(0.01)
    status, said = look(server, text="one too many")
    assert status == 429
    assert "Try again" in said["error"]
    answers.go_on.set()
    for thread in threads:
        thread.join(120)
    assert found == [200] * (1 + MOST_WAITING)
    assert answers.most == 1


def test_a_browser_that_goes_away_harms_nothing(
    server: LiveServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as away:
        away.sendall(b"POST /look HTTP/1.1\r\nContent-Le")
    with socket.create_connection(("127.0.0.1", server.port)) as away:
        away.sendall(b"nonsense\r\n\r\n")
        assert b'{"error": "Bad request syntax' in away.recv(10_000)
    assert "error" in json.loads(ask(server, "PUT", "/look")[1])
    assert look(server, text="still here")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_silent_connections_do_not_pile_up(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.inside.page.server.MOST_OPEN", 3)
    silent = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(6)]
    for one in silent[3:]:
        assert one.recv(1) == b""  # closed at once
    while server.open != 3:  # the one that is closed is counted a moment longer
        time.sleep(0.01)
    for one in silent:
        one.close()
    while server.open:
        time.sleep(0.01)
    assert ask(server, "GET", "/")[0] == 200


def test_a_port_in_use_says_what_to_do(server: LiveServer) -> None:
    with pytest.raises(UserError, match=rf"port {server.port} .* --port 0"):
        LiveServer(server.port, "", str)
    with pytest.raises(UserError, match="0 to 65535"):
        LiveServer(70_000, "", str)
