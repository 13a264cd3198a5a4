"""The ASGI application: the routes, and what stands before all of them.

Before a route is asked, the request must be for this server and not from another site's page, have
a key where keys are needed, and fit. What goes wrong is said in one form. Logs have no text of
users: the route, the status, the time, the name of the key.
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
"""What a browser lets the page at `/` do: nothing inline, nothing from elsewhere."""

KEY_IN = {
    FORM: re.compile(rb"(?:\A|&)api_key=([^&]{1,2000})"),
    "application/json": re.compile(rb'"api_key"\s*:\s*("(?:[^"\\]|\\.){1,2000}")'),
}
"""How the key of a client stands in a body, by its kind."""

NOTHING_SAID = 499
"""The status in logs and metrics of a request whose client left before it was answered."""


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
    """See `headway.serve.app`. `home`: another page at `/`, `looks`: what it is answered by."""
    for run in runs:
        if not hasattr(run, "opened"):
            raise UserError(f"{run!r} is no run: give headway.load({str(run)!r}).")
    service = Service(runs, keys, limits or Limits(), languages=languages, looks=looks)

    async def described(service: Service, request: Request) -> Response:
        return response(description(ROUTES, keys is not None))

    async def own_home(service: Service, request: Request) -> Response:
        return Response(home, media_type="text/html; charset=utf-8")

    extra = Route(
        method="GET", path="/openapi.json", answer=described, summary="This description.",
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
            # Of 413 only values: a body that is too large is 413 at OpenAI, too.
            is_value = problem.status == 422 or (problem.status == 413 and problem.param)
            if is_value and route.bad_value is not None:
                problem.status = route.bad_value
            return refusal(problem, plain=route.plain_errors)

    return Routed(route.path, endpoint, methods=[route.method], name=f"{route.method} {route.path}")


async def _find_body_key(service: Service, request: Request) -> None:
    """Of clients that have no header for it."""
    if request.scope.get("headway_key") is not None:
        return
    assert service.keys is not None
    key = await _body_key(service, request)
    name = None if key is None else service.keys.name_of(key)
    if name is None:
        raise no_key()
    request.scope["headway_key"] = name


async def _body_key(service: Service, request: Request) -> str | None:
    """Looked for in the bytes: to make values of all of them takes long, and is for who may."""
    kind = kind_of(request)
    if kind == "multipart/form-data":  # files are found as they lie there
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
    """What the router says: no such path, or not this way."""
    status = getattr(error, "status_code", 404)
    said = {404: "there is no such path. /openapi.json lists them.",
            405: "this path is asked in another way."}  # fmt: skip
    message = said.get(status, str(getattr(error, "detail", "")))
    return refusal(Refused(status, message, headers=getattr(error, "headers", None)))


def _unexpected(error: Exception) -> Refused:
    """A bug of ours. The text of the error may hold what a user said: it is not logged."""
    log.error("unexpected %s", type(error).__name__, exc_info=error if DEBUG else None)
    return Refused(500, f"a bug in headway: {type(error).__name__}.")


def refusal(problem: Refused, *, plain: bool = False) -> Response:
    return response(problem.body(plain=plain), problem.status, problem.headers)


DEBUG = False
"""Whether tracebacks are logged; they may hold pieces of what was asked."""


class Gate:
    """Before every route: ids, names, origins, keys, headers, logs, metrics."""

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
                # h11 refuses to answer what was no HTTP in the end: there is nobody to tell.
                if type(error).__name__ != "LocalProtocolError":
                    raise
                raise OSError("the connection cannot be answered") from error

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
        """That of our page; another page at `/` has its own, with the hashes of its scripts."""
        return POLICY if self.service.home is None else "frame-ancestors 'none'"


def service_of(app: Any) -> Service:
    found: Service = app.state.service
    return found
