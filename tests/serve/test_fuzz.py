"""Schemathesis on the description: good and bad requests of every route give no 5xx, and nothing
that is not described."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import headway
from headway.serve.application import ROUTES, create_app, service_of
from headway.serve.limits import Limits

CHECKS: list[Callable[..., Any]] = [
    not_a_server_error, status_code_conformance, content_type_conformance,
    response_schema_conformance,
]  # fmt: skip
SLOW = ("/v1/look",)
"""A page takes a second; it has its own tests."""


def fuzzed(n: int, path: str = "") -> None:
    """So many good and bad requests of each route, or of one."""
    limits = Limits(inputs=4, tokens=6, beams=2, n=2, characters=300)
    runs = [headway.load(name, device="cpu") for name in ("stories", "tatoeba-de-en", "base-en")]
    app = create_app(runs, limits=limits)
    service = service_of(app)
    service.start()
    for worker in service.workers.values():
        assert worker.ready.wait(60)
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    seen: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in SLOW or (path and operation.path != path):
            continue
        for mode in modes:
            strategy = operation.as_strategy(generation_mode=mode)

            @hypothesis.settings(
                max_examples=n, deadline=None, derandomize=True, database=None,
                suppress_health_check=[*hypothesis.HealthCheck],
            )  # fmt: skip
            @hypothesis.given(case=strategy)
            def ask(case: Any) -> None:
                found = case.call()
                codes = seen.setdefault(f"{case.method} {case.path}", set())
                codes.add(found.status_code)
                case.validate_response(found, checks=CHECKS)

            try:
                ask()
            except hypothesis.errors.Unsatisfiable:
                continue  # there is no bad request of a route without a body
    service.stop()
    if not path:
        assert {"POST /v1/predict", "POST /v1/completions", "POST /translate"} <= seen.keys()
    assert seen
    assert not any(code >= 500 and code != 503 for codes in seen.values() for code in codes)


@pytest.mark.filterwarnings("ignore")
def test_good_and_bad_requests_of_every_route() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fuzzed(6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", sorted({one.path for one in ROUTES} - {*SLOW}))
def test_a_thousand_requests_of_every_route(path: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fuzzed(1000, path)
