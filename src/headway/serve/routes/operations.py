"""Routes for the operator: health, readiness, metrics, version, and the page's files."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from headway import __version__
from headway.serve.routes.route import TEXT, Route, an, an_object, path_in
from headway.serve.service import Service, response
from headway.web.html import FOLDER


async def health(service: Service, request: Request) -> Response:
    """Report that the process is alive, even while it drains."""
    return response({"status": "ok"})


async def ready(service: Service, request: Request) -> Response:
    """Report whether every model is loaded and accepts requests."""
    models = {
        name: "full" if one.is_full else "ready" if one.is_open.is_set() else "loading"
        for name, one in service.workers.items()
    }
    said = {"ready": service.is_ready, "draining": service.draining, "models": models}
    if service.is_ready:
        return response(said)
    return response(said, 503, {"Retry-After": "2"})


async def metrics(service: Service, request: Request) -> Response:
    return PlainTextResponse(
        service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


async def version(service: Service, request: Request) -> Response:
    return response({"name": "headway", "version": __version__})


PAGE = {
    "/": ("serve/page.html", "text/html; charset=utf-8"),
    "/assets/style.css": ("style.css", "text/css; charset=utf-8"),
    "/assets/serve.css": ("serve/serve.css", "text/css; charset=utf-8"),
    "/assets/base.js": ("core/base.js", "text/javascript; charset=utf-8"),
    "/assets/charts.js": ("core/charts.js", "text/javascript; charset=utf-8"),
    "/assets/colour.js": ("core/colour.js", "text/javascript; charset=utf-8"),
    "/assets/serve.js": ("serve/serve.js", "text/javascript; charset=utf-8"),
}
"""Files of the page, which uses the style sheet and components of the look page."""


async def page(service: Service, request: Request) -> Response:
    name, kind = PAGE[path_in(request.scope)]
    return Response((FOLDER / name).read_bytes(), media_type=kind)


async def favicon(service: Service, request: Request) -> Response:
    return Response(status_code=204)


async def description_page(service: Service, request: Request) -> Response:
    return RedirectResponse("./#api")


STATUS = an_object(("status",), status=TEXT)
ROUTES = (
    Route(method="GET", path="/health", answer=health, summary="Is the process alive?",
          gives={"application/json": STATUS}, codes=(403,), is_open=True),
    Route(method="GET", path="/ready", answer=ready, summary="Are all models ready? 503 if not.",
          gives={"application/json": an_object(("ready",), ready=an("boolean"))},
          codes=(403, 503), is_open=True),
    Route(method="GET", path="/metrics", answer=metrics, summary="Metrics for Prometheus.",
          gives={"text/plain": TEXT}, codes=(403,), is_open=True),
    Route(method="GET", path="/version", answer=version, summary="The version of headway.",
          gives={"application/json": an_object(("name", "version"), name=TEXT, version=TEXT)},
          codes=(403,), is_open=True),
)  # fmt: skip
FILES = (
    *(Route(method="GET", path=path, answer=page, summary="The web page.", is_open=True)
      for path in PAGE),
    Route(method="GET", path="/favicon.ico", answer=favicon, summary="No icon.", is_open=True),
    Route(method="GET", path="/docs", answer=description_page, summary="Redirect to the API tab."),
)  # fmt: skip
"""Routes for browsers, which the OpenAPI description leaves out."""
