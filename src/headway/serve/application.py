"""ASGI application: all routes, and the checks that run before them.

A request must be addressed to this server, must not come from a page of another site, and must have
an API key if keys are required. All errors have the same format. Logs contain no user text, only
the route, the status, the duration and the name of the key.
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
from headway.serve.access import HEADERS, AccessControl, key_required, request_id_of
from headway.serve.errors import RequestRejected
from headway.serve.keys import Keys
from headway.serve.limits import Limits
from headway.serve.look import LookService
from headway.serve.openapi import openapi_document
from headway.serve.routes import admin, libretranslate, openai, predict
from headway.serve.routes.route import Route, object_schema, path_in
from headway.serve.service import FORM_URLENCODED, ClientGone, Service, json_response, media_type_of
from headway.serve.validation import as_rejection

log = logging.getLogger("headway.serve")

ROUTES: tuple[Route, ...] = (
    *predict.ROUTES, *openai.ROUTES, *libretranslate.ROUTES, *admin.ROUTES,
)  # fmt: skip

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src blob:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""Content Security Policy of the page at `/`. It allows no inline code and nothing from other
sites."""

KEY_IN = {
    FORM_URLENCODED: re.compile(rb"(?:\A|&)api_key=([^&]{1,2000})"),
    "application/json": re.compile(rb'"api_key"\s*:\s*("(?:[^"\\]|\\.){1,2000}")'),
}
"""Pattern that finds the API key in a request body, by media type."""

CLIENT_CLOSED_REQUEST = 499
"""Status in logs and metrics if the client disconnected before the response. nginx uses the same
number."""


def create_app(
    runs: Sequence[Run],
    keys: Keys | None = None,
    limits: Limits | None = None,
    *,
    hosts: Sequence[str] | None = None,
    languages: Mapping[str, tuple[str, str]] | None = None,
    home: str | None = None,
    looks: LookService | None = None,
) -> Starlette:
    """Build the ASGI application of `headway.serve.app`.

    `home`: HTML page to serve at `/` instead of the built-in page. `looks`: object that answers the
    requests of this page.
    """
    for run in runs:
        if not hasattr(run, "opened"):
            raise UserError(f"{run!r} is not a loaded run. Pass headway.load({str(run)!r}).")
    service = Service(runs, keys, limits or Limits(), languages=languages, looks=looks)

    async def described(service: Service, request: Request) -> Response:
        return json_response(openapi_document(ROUTES, keys is not None))

    async def own_home(service: Service, request: Request) -> Response:
        return Response(home, media_type="text/html; charset=utf-8")

    extra = Route(
        method="GET", path="/openapi.json", handler=described, summary="This OpenAPI description.",
        responses={"application/json": object_schema()},
    )  # fmt: skip
    files = admin.FILES
    if home is not None:
        page = Route(method="GET", path="/", handler=own_home, summary="The page.", is_public=True)
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
    made.state.access = access = AccessControl(service, table, hosts)
    made.add_middleware(RequestMiddleware, access=access)
    return made


def _routed(service: Service, route: Route) -> Routed:
    async def endpoint(request: Request) -> Response:
        try:
            if route.key_in_body and service.keys is not None:
                await _find_body_key(service, request)
            return await route.handler(service, request)
        except ClientGone:
            return Response(status_code=499)
        except (RequestRejected, UserError) as error:
            problem = as_rejection(error) if isinstance(error, UserError) else error
            # OpenAI's API uses status 413 only for a body that is too large, not for a value.
            is_value = problem.status == 422 or (problem.status == 413 and problem.param)
            if is_value and route.invalid_value_status is not None:
                problem.status = route.invalid_value_status
            return error_response(problem, plain=route.plain_errors)

    return Routed(route.path, endpoint, methods=[route.method], name=f"{route.method} {route.path}")


async def _find_body_key(service: Service, request: Request) -> None:
    """Check the API key in the body, for clients that cannot send it in a header."""
    if request.scope.get("headway_key") is not None:
        return
    assert service.keys is not None
    key = await _body_key(service, request)
    name = None if key is None else service.keys.name_of(key)
    if name is None:
        raise key_required()
    request.scope["headway_key"] = name


async def _body_key(service: Service, request: Request) -> str | None:
    """Return the API key in the body without parsing the JSON. Parsing is slow, so it is allowed
    only after the key was checked."""
    kind = media_type_of(request)
    if kind == "multipart/form-data":  # the form parser separates files from fields
        with contextlib.suppress(RequestRejected):
            found = (await service.form(request)).get("api_key", [None])[0]
            return found if isinstance(found, str) else None
        return None
    if kind not in KEY_IN:
        return None
    body = await service.body(request, service.limits.body if request.method == "POST" else 10_000)
    match = KEY_IN[kind].search(body)
    if match is None:
        return None
    if kind == FORM_URLENCODED:
        return unquote_plus(match[1].decode("latin-1"))
    with contextlib.suppress(ValueError):
        return str(json.loads(match[1]))
    return None


async def _http_error(request: Request, error: Exception) -> Response:
    """Return the response for an unknown path, or for a method that the path does not support."""
    status = getattr(error, "status_code", 404)
    said = {404: "unknown path. /openapi.json lists all paths.",
            405: "method not allowed for this path. /openapi.json lists the methods."}  # fmt: skip
    message = said.get(status, str(getattr(error, "detail", "")))
    return error_response(RequestRejected(status, message, headers=getattr(error, "headers", None)))


def _internal_error(error: Exception) -> RequestRejected:
    """Log an internal error and return its response. The text of the error is not logged, because
    it may contain user text."""
    log.error("unexpected error: %s", type(error).__name__, exc_info=error if DEBUG else None)
    return RequestRejected(
        500, f"internal error ({type(error).__name__}). This is a bug in headway."
    )


def error_response(problem: RequestRejected, *, plain: bool = False) -> Response:
    return json_response(problem.body(plain=plain), problem.status, problem.headers)


DEBUG = False
"""Whether tracebacks are logged. The default is False, because they may contain user text."""


class RequestMiddleware:
    """Middleware for all routes. It handles request ids, allowed hosts, origins, API keys, headers,
    logs and metrics."""

    def __init__(self, app: ASGIApp, *, access: AccessControl) -> None:
        self.app, self.service, self.access = app, access.service, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, service = time.perf_counter(), self.service
        given = {name.decode("latin-1"): value.decode("latin-1", "replace")
                 for name, value in scope["headers"]}  # fmt: skip
        number = request_id_of(given)
        path = path_in(scope)  # without the prefix under which someone mounted this
        where = (scope["method"], path)
        scope["headway_key"] = None
        status = CLIENT_CLOSED_REQUEST

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                known = {name.lower() for name, _ in headers}
                more = {**HEADERS, "X-Request-Id": number}
                if path in admin.PAGE and path != "/":
                    more["Cache-Control"] = "no-cache"
                if path == "/" and b"content-security-policy" not in known:
                    more["Content-Security-Policy"] = self.policy(message)
                for name, value in more.items():
                    if value and name.lower().encode() not in known:
                        headers.append((name.lower().encode(), value.encode("latin-1")))
            try:
                await send(message)
            except Exception as error:
                # h11 raises this if the data is not HTTP, so no response is possible.
                if type(error).__name__ != "LocalProtocolError":
                    raise
                raise OSError("no response can be sent on this connection") from error

        service.in_flight += 1
        try:
            problem, scope["headway_key"] = self.access.check(where, scope["headers"], given)
            if problem is None:
                try:
                    await self.app(scope, receive, sent)
                except Exception as error:
                    if status != CLIENT_CLOSED_REQUEST or isinstance(error, OSError):
                        raise  # the connection ends: there is nothing to be added
                    problem = _internal_error(error)
            if problem is not None:
                plain = path in self.access.plain_error_paths
                await error_response(problem, plain=plain)(scope, receive, sent)
        finally:
            service.in_flight -= 1
            service.body_bytes -= scope.get("headway_held", 0)
            self.access.record(where, status, began, scope["headway_key"], number)

    def policy(self, message: Message) -> str:
        """Return the Content Security Policy of the built-in page. A `home` page has its own
        policy, with the hashes of its scripts."""
        return POLICY if self.service.home is None else "frame-ancestors 'none'"


def service_of(app: Any) -> Service:
    found: Service = app.state.service
    return found
