"""The ASGI application: the routes, and the checks before all of them.

Before a route runs, the request must be addressed to this server, must not come from a page of
another site, and must have a key where keys are needed. All errors have one format. Logs contain
no text of users, only the route, the status, the time and the name of the key.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote_plus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Routed
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.errors import UserError
from headway.run import Run
from headway.serve.asking import as_refused
from headway.serve.door import HEADERS, Door, no_key, number_of
from headway.serve.keys import Keys
from headway.serve.limits import Limits
from headway.serve.looking import Looks
from headway.serve.openapi import description
from headway.serve.problems import Refused
from headway.serve.routes import libretranslate, openai, operations, own
from headway.serve.routes.route import Route, an_object, path_in
from headway.serve.service import FORM, Gone, Service, kind_of, response

log = logging.getLogger("headway.serve")

ROUTES: tuple[Route, ...] = (
    *own.ROUTES, *openai.ROUTES, *libretranslate.ROUTES, *operations.ROUTES,
)  # fmt: skip

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src blob:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""Content Security Policy of the page at `/`: no inline code, nothing from other sites."""

KEY_IN = {
    FORM: re.compile(rb"(?:\A|&)api_key=([^&]{1,2000})"),
    "application/json": re.compile(rb'"api_key"\s*:\s*("(?:[^"\\]|\\.){1,2000}")'),
}
"""Patterns that find a client's API key in a body, by media type."""

NOTHING_SAID = 499
"""Status in logs and metrics of a request whose client disconnected before the response."""


def make(
    runs: Sequence[Run],
    keys: Keys | None = None,
    limits: Limits | None = None,
    *,
    hosts: Sequence[str] | None = None,
    languages: Mapping[str, tuple[str, str]] | None = None,
    home: str | None = None,
    looks: Looks | None = None,
) -> Starlette:
    """Build the application of `headway.serve.app`.

    `home`: HTML to serve at `/` instead of our page. `looks`: the object that answers the requests
    of that page.
    """
    for run in runs:
        if not hasattr(run, "opened"):
            raise UserError(f"{run!r} is not a loaded run. Pass headway.load({str(run)!r}).")
    service = Service(runs, keys, limits or Limits(), languages=languages, looks=looks)

    async def described(service: Service, request: Request) -> Response:
        return response(description(ROUTES, keys is not None))

    async def own_home(service: Service, request: Request) -> Response:
        return Response(home, media_type="text/html; charset=utf-8")

    extra = Route(
        method="GET", path="/openapi.json", answer=described, summary="This OpenAPI description.",
        gives={"application/json": an_object()},
    )  # fmt: skip
    files = operations.FILES
    if home is not None:
        page = Route(method="GET", path="/", answer=own_home, summary="The page.", is_open=True)
        files = (page, *(one for one in files if one.path != "/"))

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        service.start()
        yield
        service.stop()

    table = (*ROUTES, extra, *files)
    made = Starlette(
        routes=[_routed(service, route) for route in table], lifespan=life,
        exception_handlers={HTTPException: _http_error},
    )  # fmt: skip
    made.router.redirect_slashes = False
    made.state.service = service
    service.home = home
    made.state.door = door = Door(service, table, hosts)
    made.add_middleware(Gate, door=door)
    return made


def _routed(service: Service, route: Route) -> Routed:
    async def endpoint(request: Request) -> Response:
        try:
            if route.key_in_body and service.keys is not None:
                await _find_body_key(service, request)
            return await route.answer(service, request)
        except Gone:
            return Response(status_code=499)
        except (Refused, UserError) as error:
            problem = as_refused(error) if isinstance(error, UserError) else error
            # A 413 for a value only: OpenAI also answers 413 to a body that is too large.
            is_value = problem.status == 422 or (problem.status == 413 and problem.param)
            if is_value and route.bad_value is not None:
                problem.status = route.bad_value
            return refusal(problem, plain=route.plain_errors)

    return Routed(route.path, endpoint, methods=[route.method], name=f"{route.method} {route.path}")


async def _find_body_key(service: Service, request: Request) -> None:
    """Check the API key in the body, for clients that cannot send it in a header."""
    if request.scope.get("headway_key") is not None:
        return
    assert service.keys is not None
    key = await _body_key(service, request)
    name = None if key is None else service.keys.name_of(key)
    if name is None:
        raise no_key()
    request.scope["headway_key"] = name


async def _body_key(service: Service, request: Request) -> str | None:
    """The API key in the body, found without parsing the JSON: parsing is slow and needs a key."""
    kind = kind_of(request)
    if kind == "multipart/form-data":  # the form parser separates files from fields
        with contextlib.suppress(Refused):
            found = (await service.form(request)).get("api_key", [None])[0]
            return found if isinstance(found, str) else None
        return None
    if kind not in KEY_IN:
        return None
    body = await service.body(request, service.limits.body if request.method == "POST" else 10_000)
    match = KEY_IN[kind].search(body)
    if match is None:
        return None
    if kind == FORM:
        return unquote_plus(match[1].decode("latin-1"))
    with contextlib.suppress(ValueError):
        return str(json.loads(match[1]))
    return None


async def _http_error(request: Request, error: Exception) -> Response:
    """Response to an unknown path or a method that the path does not have."""
    status = getattr(error, "status_code", 404)
    said = {404: "unknown path. /openapi.json lists all paths.",
            405: "method not allowed for this path. /openapi.json lists the methods."}  # fmt: skip
    message = said.get(status, str(getattr(error, "detail", "")))
    return refusal(Refused(status, message, headers=getattr(error, "headers", None)))


def _unexpected(error: Exception) -> Refused:
    """Log a bug and return its response. The error's text is not logged: it may quote a user."""
    log.error("unexpected error: %s", type(error).__name__, exc_info=error if DEBUG else None)
    return Refused(500, f"internal error ({type(error).__name__}). This is a bug in headway.")


def refusal(problem: Refused, *, plain: bool = False) -> Response:
    return response(problem.body(plain=plain), problem.status, problem.headers)


DEBUG = False
"""Whether tracebacks are logged; they may quote parts of requests."""


class Gate:
    """Middleware before every route: request ids, hosts, origins, keys, headers, logs, metrics."""

    def __init__(self, app: ASGIApp, *, door: Door) -> None:
        self.app, self.service, self.door = app, door.service, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, service = time.perf_counter(), self.service
        given = {name.decode("latin-1"): value.decode("latin-1", "replace")
                 for name, value in scope["headers"]}  # fmt: skip
        number = number_of(given)
        path = path_in(scope)  # without the prefix under which someone mounted this
        where = (scope["method"], path)
        scope["headway_key"] = None
        status = NOTHING_SAID

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                known = {name.lower() for name, _ in headers}
                more = {**HEADERS, "X-Request-Id": number}
                if path in operations.PAGE and path != "/":
                    more["Cache-Control"] = "no-cache"
                if path == "/" and b"content-security-policy" not in known:
                    more["Content-Security-Policy"] = self.policy(message)
                for name, value in more.items():
                    if value and name.lower().encode() not in known:
                        headers.append((name.lower().encode(), value.encode("latin-1")))
            try:
                await send(message)
            except Exception as error:
                # h11 raises this if the request turned out not to be HTTP: no response is possible.
                if type(error).__name__ != "LocalProtocolError":
                    raise
                raise OSError("no response can be sent on this connection") from error

        service.in_flight += 1
        try:
            problem, scope["headway_key"] = self.door.refused(where, scope["headers"], given)
            if problem is None:
                try:
                    await self.app(scope, receive, sent)
                except Exception as error:
                    if status != NOTHING_SAID or isinstance(error, OSError):
                        raise  # the connection ends: there is nothing to be added
                    problem = _unexpected(error)
            if problem is not None:
                plain = path in self.door.plain
                await refusal(problem, plain=plain)(scope, receive, sent)
        finally:
            service.in_flight -= 1
            service.held -= scope.get("headway_held", 0)
            self.door.note(where, status, began, scope["headway_key"], number)

    def policy(self, message: Message) -> str:
        """The policy of our page; a `home` page brings its own, with the hashes of its scripts."""
        return POLICY if self.service.home is None else "frame-ancestors 'none'"


def service_of(app: Any) -> Service:
    found: Service = app.state.service
    return found
