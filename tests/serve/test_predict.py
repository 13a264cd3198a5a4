"""Our own route answers as `run(…)` does, whatever the task, and refuses what it must."""

from __future__ import annotations

import base64
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from headway.run import Run
from headway.serve.application import service_of
from headway.serve.limits import Limits
from headway.serve.validation import option_specs
from headway.settings.folder import SHIPPED

from .conftest import Here, serving, wait_for

WAV, PNG = SHIPPED / "digits/example.wav", SHIPPED / "shapes/example.png"
GREEDY = {"beam": 1, "max_len": 12}


def plain(answer: Any) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(answer.to_dict()))


@pytest.mark.parametrize(
    ("name", "given", "options"),
    [
        ("tatoeba-de-en", "Guten Morgen.", {}),
        ("tatoeba-de-en", "Ich gehe nach Hause.", {"beam": 2, "n_best": 2, "alignments": True}),
        ("tatoeba-de-en", "Ich gehe nach Hause.", {"prefix": "We", "banned": ["home"]}),
        ("tatoeba-de-en", {"source": "Ja.", "id": 7}, {}),
        ("stories", "Once upon a time", GREEDY),
        ("stories", "Once", {"sample": True, "seed": 3, "n_best": 2, "max_len": 8}),
        ("stories", "Once", {"beam": 3, "sample": False, "max_len": 6}),
        ("stories", "", {**GREEDY, "stop": ["."]}),
        ("base-en", "a small house", {}),
    ],
)
def test_texts_are_answered_as_python_answers_them(
    here: Here, runs: dict[str, Run], name: str, given: Any, options: dict[str, Any]
) -> None:
    response = here.post("/v1/predict", {"model": name, "input": given, "options": options})
    assert response.status_code == 200, response.text
    want = plain(runs[name](given, **options))
    found = response.json()["answer"]
    if isinstance(given, dict):
        assert found.pop("id") == 7
    assert_same(found, want)


def assert_same(found: Any, want: Any) -> None:
    """Numbers may differ in what another batch rounds."""
    if isinstance(want, float):
        assert found == pytest.approx(want, abs=2e-4)
    elif isinstance(want, dict):
        assert found.keys() == want.keys()
        for key in want:
            assert_same(found[key], want[key])
    elif isinstance(want, list):
        assert len(found) == len(want)
        for one, other in zip(found, want, strict=True):
            assert_same(one, other)
    else:
        assert found == want


@pytest.mark.parametrize(("name", "path"), [("digits", WAV), ("shapes", PNG)])
@pytest.mark.parametrize("way", ["upload", "base64", "data"])
def test_media_come_as_files_of_a_form_or_in_base64(
    here: Here, runs: dict[str, Run], name: str, path: Path, way: str
) -> None:
    data = path.read_bytes()
    if way == "upload":
        response = here.post("/v1/predict", data={"model": name}, files={"file": (path.name, data)})
    else:
        text = base64.b64encode(data).decode()
        given = {"data": text} if way == "base64" else f"data:image/png;base64,{text}"
        response = here.post("/v1/predict", {"model": name, "input": given})
    assert response.status_code == 200, response.text
    want = plain(runs[name](data))
    assert_same(response.json()["answer"], want | ({"file": path.name} if way == "upload" else {}))


def test_several_inputs_have_their_answers_and_errors_in_their_places(here: Here) -> None:
    texts = ["Ja.", "Nein.", "Danke."]
    response = here.post("/v1/predict", {"model": "tatoeba-de-en", "inputs": texts}).json()
    assert [one["source"] for one in response["answers"]] == texts
    asked = [{"text": "a"}, {"review": 3, "nothing": "b"}, {"text": "c"}]
    found = here.post("/v1/predict", {"model": "base-en", "inputs": asked}).json()["answers"]
    assert ["error" in one for one in found] == [False, True, False]
    one = here.post("/v1/predict", {"model": "base-en", "input": {"nothing": "b"}})
    assert one.status_code == 422
    image = {"data": base64.b64encode(PNG.read_bytes()).decode()}
    broken = {"data": base64.b64encode(b"no image").decode()}
    response = here.post("/v1/predict", {"model": "shapes", "inputs": [broken, image]})
    assert ["error" in one for one in response.json()["answers"]] == [True, False]


@pytest.mark.parametrize(
    ("body", "status", "param", "fact"),
    [
        ({}, 422, "model", r"\bstories\b"),
        ({"model": "tatoeba-de-em", "input": "a"}, 404, "model", "'tatoeba-de-en'"),
        ({"model": "stories"}, 422, "input", r"\binputs\b"),
        ({"model": "stories", "input": "a", "inputs": ["b"]}, 422, "input", r"\binputs\b"),
        ({"model": "stories", "inputs": []}, 422, "input", r"\binputs?\b"),
        ({"model": "stories", "inputs": ["a"] * 33}, 413, "input", r"\b33\b.*\b32\b"),
        ({"model": "stories", "input": 5}, 422, "input", r"\btext\b"),
        ({"model": "stories", "input": ["a"]}, 422, "input", r"\btext\b"),
        ({"model": "stories", "input": "a" * 20_001}, 413, "input", r"\b20,001\b.*\b20,000\b"),
        (
            {"model": "stories", "input": {"a": "a" * 20_000, "b": "b"}},
            413,
            "input",
            r"\b20,001\b.*\b20,000\b",
        ),
        ({"model": "stories", "input": "a " * 9000}, 422, "input", r"\b9,002\b.*\b512\b"),
        ({"model": "stories", "input": "a", "option": {}}, 422, "option", "'option'"),
        ({"model": "stories", "input": "a", "stream": 1}, 422, "stream", r"\btrue\b.*\bfalse\b"),
        ({"model": "stories", "input": "a", "options": []}, 422, "options", r"\boptions\b"),
        ({"model": "shapes", "input": "/etc/passwd"}, 422, "input", "base64"),
        ({"model": "shapes", "input": {"path": "/etc/passwd"}}, 422, "input", "base64"),
        ({"model": "shapes", "input": "http://127.0.0.1/a.png"}, 422, "input", "base64"),
        ({"model": "shapes", "input": {"data": ""}}, 422, "input", r"\binput\b"),
        ({"model": "digits", "input": {"data": "AAAA"}}, 422, "input", r"\.npy"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_invalid_requests_are_rejected(
    here: Here, body: dict[str, Any], status: int, param: str, fact: str
) -> None:
    response = here.post("/v1/predict", body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), response.text
    assert re.search(fact, error["message"]), response.text


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"beams": 3}, "'beam'"),
        ({"beam": 17}, r"\bbeam\b.*\b16\b"),
        ({"beam": 10**400}, r"\bbeam\b.*\b16\b"),
        ({"n_best": 9}, r"\bn_best\b.*\b8\b"),
        ({"n_best": 3, "beam": 2, "sample": False}, r"n_best=3\b.*\bbeam=2\b"),
        ({"max_len": 100_000}, r"\bmax_len\b.*\b2,048\b"),
        ({"max_len": "5"}, r"\bmax_len\b"),
        ({"max_len": True}, r"\bmax_len\b"),
        ({"temperature": 0}, r"\btemperature\b.*\b0\.0001\b.*\b100\b"),
        ({"temperature": 1e400}, "JSON.*Infinity"),
        ({"repetition_penalty": -1}, r"\brepetition_penalty\b.*\b0\.01\b"),
        ({"stop": [""]}, r"\bstop\b.*\b16\b.*\b500\b"),
        ({"stop": 3}, r"\bstop\b"),
        ({"batch_tokens": 1}, "'batch_tokens'"),
        ({"draft": "stories"}, "'draft'"),
        ({"shots": "/etc/passwd"}, r"\bshots\b.*\b64\b"),
        ({"unknown": "what"}, r"\bunknown\b.*\bkeep, ban, copy\b"),
    ],
)
def test_options_have_kinds_and_bounds(here: Here, options: Any, fact: str) -> None:
    body = {"model": "stories", "input": "a", "options": options}
    text = json.dumps(body)
    response = here.post("/v1/predict", content=text, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422), response.text
    assert re.search(fact, response.json()["error"]["message"])


def test_every_option_is_declared_with_a_kind(here: Here, runs: dict[str, Run]) -> None:
    listed = {one["id"]: one["headway"] for one in here.get("/v1/models").json()["data"]}
    assert listed.keys() == runs.keys()
    for name, run in runs.items():
        known = option_specs(run, Limits())
        assert [one["name"] for one in listed[name]["options"]] == [*known]
        assert all(one["help"] for one in listed[name]["options"])
        for option in known.values():
            if option.kind in ("integer", "number") and option.default is not None:
                assert option.low is not None, option.name
                assert option.low <= option.default <= (option.high or 0)
    assert here.get("/v1/models/stories").json()["headway"]["continues"]
    assert here.get("/v1/models/nothing").status_code == 404


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_text_appears_while_it_is_written(here: Here, runs: dict[str, Run]) -> None:
    body = {"model": "stories", "input": "The dog", "options": GREEDY, "stream": True}
    response = here.post("/v1/predict", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    *pieces, last = events(response.text)
    want = runs["stories"]("The dog", **GREEDY).text
    assert len(pieces) > 5
    assert "".join(one["text"] for one in pieces) == want
    assert last["answers"][0]["outputs"][0]["text"] == want
    whole = here.post("/v1/predict", {"model": "tatoeba-de-en", "input": "Ja.", "stream": True})
    assert [*events(whole.text)[0]] == ["model", "answers"]


def test_bodies_that_are_neither_json_nor_a_form(here: Here) -> None:
    for text in (
        "{",
        "[1]",
        '{"a": NaN}',
        '{"a": "\\ud800"}',
        "[" * 100_000,
        '{"a": 1' + "0" * 5000 + "}",
    ):
        kind = {"Content-Type": "application/json"}
        assert here.post("/v1/predict", content=text, headers=kind).status_code == 400, text[:20]
    kind = {"Content-Type": "application/json"}
    assert here.post("/v1/predict", content=b'{"a": "\xff"}', headers=kind).status_code == 400
    kind = {"Content-Type": "multipart/form-data"}
    assert here.post("/v1/predict", content=b"x", headers=kind).status_code == 400
    assert here.post("/v1/predict", content=b"x").status_code == 415
    assert here.get("/v1/predict").status_code == 405
    assert here.get("/nothing").status_code == 404
    for size, status in (("99999999", b"413"), ("1" * 30, b"400"), ("-5", b"400")):
        head = "POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", int(here.url.rpartition(":")[2])), 10) as raw:
            raw.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode())
            assert raw.recv(100).split()[1] == status


def test_answers_have_an_id_and_no_cross_site_headers(here: Here) -> None:
    response = here.get("/health", headers={"X-Request-Id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    assert "access-control-allow-origin" not in response.headers
    assert response.headers["x-content-type-options"] == "nosniff"
    odd = here.get("/health", headers={"X-Request-Id": "a" * 500}).headers["x-request-id"]
    assert odd != "a" * 500
    evil = {"Origin": "https://evil.example"}
    assert here.post("/v1/predict", {"model": "stories"}, headers=evil).status_code == 403
    own = {"Origin": here.url}
    assert here.post("/v1/predict", {"model": "stories"}, headers=own).status_code == 422


@pytest.mark.parametrize("beam", [1, 2])
def test_an_invalid_stream_is_rejected_like_other_requests(here: Here, beam: int) -> None:
    asked = {"model": "stories", "input": "The dog " * 2000, "options": {"beam": beam}}
    plain, stream = (
        here.post("/v1/predict", {**asked, "stream": stream}) for stream in (False, True)
    )
    assert (plain.status_code, stream.status_code) == (422, 422)
    assert stream.json() == plain.json()
    some = {"model": "stories", "inputs": ["The dog", asked["input"]], "stream": True,
            "options": {"beam": beam, "max_len": 5}}  # fmt: skip
    last = events(here.post("/v1/predict", some).text)[-1]
    assert ["error" in one for one in last["answers"]] == [False, True]
    assert "tokens" in last["answers"][1]["error"]


def test_it_can_be_mounted_under_a_prefix(runs: dict[str, Run]) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.testclient import TestClient

    import headway.serve
    from headway.serve.keys import Keys

    key = {"Authorization": "Bearer secret"}
    for root, at in (("", "/ai"), ("/ai", "/ai"), ("", "")):
        inner = app = headway.serve.app(runs["stories"], keys=Keys.of("secret"))
        if at and not root:
            app = Starlette(routes=[Mount(at, inner)], lifespan=inner.router.lifespan_context)
        with TestClient(app, "http://127.0.0.1", root_path=root) as client:
            wait_for(service_of(inner).workers["stories"].ready.is_set)
            page = client.get(f"{at}/")
            assert page.status_code == 200
            assert "script-src 'self'" in page.headers["content-security-policy"]
            assert client.get(f"{at}/assets/serve.js").headers["cache-control"] == "no-cache"
            assert client.get(f"{at}/health").status_code == 200
            assert client.get(f"{at}/v1/models").status_code == 401
            assert client.get(f"{at}/v1/models", headers=key).status_code == 200
            response = client.get(f"{at}/docs", headers=key, follow_redirects=False)
            assert response.headers["location"] == "./#api"
            assert '{path="/health",status="200"}' in client.get(f"{at}/metrics").text


def test_errors_and_answers_name_inputs_by_their_places_and_files(here: Here) -> None:
    inputs = ["Ja.", {"a": "b"}, "Nein.", {"c": "d"}]
    found = here.post("/v1/predict", {"model": "tatoeba-de-en", "inputs": inputs}).json()["answers"]
    assert [found[place]["error"][:7] for place in (1, 3)] == ["input 2", "input 4"]
    some = [("file", (name, PNG.read_bytes())) for name in ("a.png", "C:\\b/c\u200b.png")]
    some.append(("file", ("no.png", b"nothing")))
    response = here.post("/v1/predict", files=some, data={"model": "shapes"}).json()["answers"]
    assert [one.get("file") for one in response][:2] == ["a.png", "c.png"]
    assert response[2]["error"].startswith("no.png")
    data = base64.b64encode(PNG.read_bytes()).decode()
    asked = {"model": "shapes", "inputs": [{"data": data}] * 2}
    found = here.post("/v1/predict", asked).json()["answers"]
    assert [one["file"] for one in found] == ["input 1", "input 2"]


def test_what_is_wrong_is_named(here: Here) -> None:
    form = {"model": (None, "shapes"), "options": (None, "{"), "file": PNG.read_bytes()}
    response = here.post("/v1/predict", files=form)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "options")
    assert "JSON" in response.json()["error"]["message"]
    response = here.post("/v1/look", {"model": "tatoeba-de-en", "text": " "})
    assert (response.status_code, response.json()["error"]["param"]) == (422, "text")
    assert "--text" not in response.text
    lengths = {"min_len": 500, "max_len": 5}
    response = here.post("/v1/predict", {"model": "stories", "input": "a", "options": lengths})
    assert (response.status_code, response.json()["error"]["param"]) == (422, "min_len")


def test_the_application_takes_runs_and_names(runs: dict[str, Run]) -> None:
    import headway.serve

    for given in ("stories", ["stories"], runs["stories"], [runs["stories"]]):
        assert [*service_of(headway.serve.app(given)).workers] == ["stories"]


def test_counters_begin_at_zero(runs: dict[str, Run]) -> None:
    with serving(runs["stories"]) as here:
        before = here.get("/metrics").text
        for name in ("tokens", "prompt_tokens", "broken", "given_up"):
            assert f'headway_{name}_total{{model="stories"}} 0\n' in before
        here.post("/v1/predict", {"input": "The dog", "options": GREEDY})
        after = here.get("/metrics").text
        assert 'headway_tokens_total{model="stories"} 12\n' in after
        assert 'headway_prompt_tokens_total{model="stories"} 3\n' in after


def test_the_cost_of_a_model_is_reported(here: Here, runs: dict[str, Run]) -> None:
    """Weights in fp32, and packed copies of those of linear layers."""
    metrics = here.get("/metrics").text
    for name in ("stories", "tatoeba-de-en"):
        model = runs[name].opened.models[0]
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        found = here.get(f"/v1/models/{name}").json()["headway"]["bytes"]
        assert weights <= found <= 2.2 * weights
        assert f'headway_model_bytes{{model="{name}"}} {found}' in metrics
    [resident] = [line for line in metrics.splitlines() if line.startswith("process_resident")]
    assert float(resident.split()[1]) > 1e7
