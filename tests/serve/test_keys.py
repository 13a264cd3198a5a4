"""Who may ask: without a key only what tells nothing; generated from the table of routes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import UserError
from headway.run import Run
from headway.serve.application import ROUTES
from headway.serve.keys import Keys, new_key
from headway.serve.routes.admin import FILES, PAGE

from .conftest import Here, serving

KEY = "a key with ümlauts"
OPEN = {"/health", "/ready", "/metrics", "/version", *PAGE, "/favicon.ico"}
TABLE = [(one.method, one.path.replace("{model}", "stories")) for one in (*ROUTES, *FILES)]
TABLE.append(("GET", "/openapi.json"))


@pytest.fixture(scope="module")
def locked(runs: dict[str, Run]) -> Iterator[Here]:
    with serving(runs["stories"], keys=Keys.of("other", KEY.encode().decode("latin-1"))) as found:
        yield found


def test_the_open_routes_are_these_and_no_others() -> None:
    assert {one.path for one in (*ROUTES, *FILES) if one.is_public} == OPEN


@pytest.mark.parametrize(("method", "path"), TABLE)
def test_every_route_requires_a_key(locked: Here, method: str, path: str) -> None:
    key = KEY.encode()
    ways: list[dict[bytes, bytes]] = [
        {}, {b"Authorization": b"Bearer wrong"}, {b"Authorization": b"Basic " + key},
        {b"Authorization": key}, {b"Authorization": b"Bearer"}, {b"X-Api-Key": key},
        {b"Cookie": b"key=" + key},
    ]  # fmt: skip
    for headers in ways:
        status = locked.client.request(method, path, headers=headers).status_code
        assert status in ((200, 204) if path in OPEN else (401,)), headers
    right = {b"Authorization": b"bearer " + key}
    assert locked.client.request(method, path, headers=right).status_code not in (401, 403)


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/%2e/v1/models", "/v1/%6dodels", "/v1//models", "/health/../v1/models",
     "/health/", "/health/x", "/assets/../v1/models", "/assets/%2e%2e/page.html", "/V1/models",
     "/v1/models/", "/openapi.json/", "/.well-known/x", "/assets/nothing.js", "/metrics%00"],
)  # fmt: skip
def test_no_way_around_the_key(locked: Here, path: str) -> None:
    import http.client

    for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"):
        raw = http.client.HTTPConnection(locked.url.removeprefix("http://"), timeout=10)
        raw.request(method, path)
        assert raw.getresponse().status == 401, method
        raw.close()


def test_options_are_not_open(locked: Here) -> None:
    for path in ("/v1/predict", "/health", "/"):
        response = locked.client.request("OPTIONS", path, headers={"Origin": locked.url})
        assert response.status_code == 401
        assert "access-control-allow-origin" not in response.headers


def test_keys_are_made_once_and_kept_as_hashes(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    mine, yours = new_key(path, "me"), new_key(path, "you@work")
    text = path.read_text()
    assert mine not in text
    assert yours not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keys = Keys.read(path)
    assert (keys.name_of(mine), keys.name_of(yours)) == ("me", "you@work")
    assert keys.name_of("") is None
    assert keys.name_of(mine[:-1]) is None
    with pytest.raises(UserError, match=r"/keys\.txt.*'me'"):
        new_key(path, "me")
    with pytest.raises(UserError, match="'a b'"):
        new_key(path, "a b")
    with pytest.raises(UserError, match=rf"/none/keys\.txt\b.*{os.strerror(errno.ENOENT)}"):
        new_key(tmp_path / "none" / "keys.txt", "me")
    path.write_text("me: secret\n")
    with pytest.raises(UserError, match=r"/keys\.txt.*\b1\b"):
        Keys.read(path)
    path.write_text("# nothing\n")
    with pytest.raises(UserError, match=r"^(?!.*\bline 1\b).*\bkeys?\b"):
        Keys.read(path)
    with pytest.raises(UserError, match="--new-key"):
        Keys.read(tmp_path / "none.txt")
