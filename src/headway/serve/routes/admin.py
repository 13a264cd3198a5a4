"""Routes for operators (health, readiness, metrics and version), and the files of the web page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from headway import __version__
from headway.serve.routes.route import TEXT, Route, object_schema, path_in, schema
from headway.serve.service import Service, json_response
from headway.web.html import FOLDER


async def health(service: Service, request: Request) -> Response:
    """Report that the process is alive, even while it is shutting down."""
    return json_response({"status": "ok"})


async def ready(service: Service, request: Request) -> Response:
    """Report whether every model is loaded and accepts requests."""
    models = {
        name: "full" if one.is_full else "ready" if one.ready.is_set() else "loading"
        for name, one in service.workers.items()
    }
    said = {"ready": service.is_ready, "draining": service.draining, "models": models}
    if service.is_ready:
        return json_response(said)
    return json_response(said, 503, {"Retry-After": "2"})


async def metrics(service: Service, request: Request) -> Response:
    return PlainTextResponse(
        service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


async def version(service: Service, request: Request) -> Response:
    return json_response({"name": "headway", "version": __version__})


PAGE = {
    "/": ("serve/page.html", "text/html; charset=utf-8"),
    "/assets/style.css": ("style.css", "text/css; charset=utf-8"),
    "/assets/serve.css": ("serve/serve.css", "text/css; charset=utf-8"),
    "/assets/base.js": ("core/base.js", "text/javascript; charset=utf-8"),
    "/assets/charts.js": ("core/charts.js", "text/javascript; charset=utf-8"),
    "/assets/colour.js": ("core/colour.js", "text/javascript; charset=utf-8"),
    "/assets/serve.js": ("serve/serve.js", "text/javascript; charset=utf-8"),
}
"""Files of the web page at `/`, which shares its style sheet and components with the inspection
page."""


async def page(service: Service, request: Request) -> Response:
    name, kind = PAGE[path_in(request.scope)]
    return Response((FOLDER / name).read_bytes(), media_type=kind)


async def favicon(service: Service, request: Request) -> Response:
    return Response(status_code=204)


async def description_page(service: Service, request: Request) -> Response:
    return RedirectResponse("./#api")


STATUS = object_schema(("status",), status=TEXT)
ROUTES = (
    Route(method="GET", path="/health", handler=health, summary="Is the process alive?",
          responses={"application/json": STATUS}, error_codes=(403,), is_public=True),
    Route(method="GET", path="/ready", handler=ready, summary="Are all models ready? 503 if not.",
          responses={"application/json": object_schema(("ready",), ready=schema("boolean"))},
          error_codes=(403, 503), is_public=True),
    Route(method="GET", path="/metrics", handler=metrics, summary="Metrics for Prometheus.",
          responses={"text/plain": TEXT}, error_codes=(403,), is_public=True),
    Route(method="GET", path="/version", handler=version, summary="The version of headway.",
          responses={"application/json": object_schema(("name", "version"), name=TEXT,
          version=TEXT)},
          error_codes=(403,), is_public=True),
)  # fmt: skip
FILES = (
    *(Route(method="GET", path=path, handler=page, summary="The web page.", is_public=True)
      for path in PAGE),
    Route(method="GET", path="/favicon.ico", handler=favicon, summary="No icon.", is_public=True),
    Route(method="GET", path="/docs", handler=description_page, summary="Redirect to the API tab."),
)  # fmt: skip
"""Routes of the files for browsers, which are not part of the OpenAPI description."""
