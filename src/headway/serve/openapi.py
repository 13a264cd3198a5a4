"""OpenAPI description of all routes, generated from the table of routes that the application
uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway import __version__
from headway.serve.routes.route import TEXT, Route, object_schema

ERROR = object_schema(
    ("error",),
    error=object_schema(
        ("message", "type"), message=TEXT, type=TEXT, param={**TEXT, "nullable": True},
        code={**TEXT, "nullable": True},
    ),
)  # fmt: skip

PLAIN_ERROR = object_schema(("error",), error=TEXT)
"""Error format of routes whose clients expect a string instead of an object."""

STATUS_DESCRIPTIONS = {
    400: "The request cannot be parsed, or on OpenAI's routes a value is invalid.",
    401: "The API key is missing or invalid.",
    403: "The request comes from another site, or its Host header is not allowed.",
    404: "Unknown model, or no model that supports this route.",
    408: "The body did not arrive in time.",
    413: "The request is too large.",
    415: "Unsupported media type.",
    422: "A value is invalid; the message names it.",
    429: "The queue is full: retry after Retry-After seconds.",
    500: "The model failed on this request; other requests are not affected.",
    503: "The server is not ready or is shutting down.",
    504: "The request was cancelled at its deadline.",
}

EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/predict": {"input": "Guten Morgen."},
    "/v1/look": {"text": "Guten Morgen."},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0.8},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Tell me a story."}]},
    "/v1/embeddings": {"input": ["a small house", "a tall tree"]},
    "/translate": {"q": ["Guten Tag.", "Danke."], "source": "de", "target": "en"},
    "/detect": {"q": "Guten Tag."},
}
"""Example request bodies by path. They omit `model`, which is optional and depends on the
server."""


def openapi_document(routes: Iterable[Route], needs_key: bool) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, needs_key)
    found: dict[str, Any] = {
        "openapi": "3.0.3",
        "info": {"title": "headway serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Error": ERROR, "PlainError": PLAIN_ERROR}},
    }
    if needs_key:
        scheme = {"type": "http", "scheme": "bearer"}
        found["components"]["securitySchemes"] = {"key": scheme}
    return found


def _operation(route: Route, needs_key: bool) -> dict[str, Any]:
    shown = {kind: {"schema": schema} for kind, schema in route.responses.items()}
    kind = "PlainError" if route.plain_errors else "Error"
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind}"}}}
    answers: dict[str, Any] = {"200": {"description": "Success.", "content": shown}}
    for code in route.error_codes:
        if code == 422 and route.invalid_value_status is not None:
            continue
        content = shown if route.path == "/ready" and code == 503 else error
        answers[str(code)] = {"description": STATUS_DESCRIPTIONS[code], "content": content}
    name = route.path.strip("/").replace("/", "_").replace("{", "").replace("}", "")
    found: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{name}", "summary": route.summary,
        "responses": answers,
    }  # fmt: skip
    if "{model}" in route.path:
        found["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": TEXT}]
    bodies: dict[str, Any] = {}
    if route.body is not None:
        example = {"example": EXAMPLES[route.path]} if route.path in EXAMPLES else {}
        bodies["application/json"] = {"schema": route.body, **example}
        if route.urlencoded:
            bodies["application/x-www-form-urlencoded"] = {"schema": route.body}
    if route.form is not None:
        bodies["multipart/form-data"] = {"schema": route.form}
    if bodies:
        found["requestBody"] = {"required": True, "content": bodies}
    if needs_key and not route.is_public:
        found["security"] = [{"key": []}]
    return found
