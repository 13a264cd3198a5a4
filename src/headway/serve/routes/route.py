"""Definition of a route: its path, the function that answers its requests, and its OpenAPI
description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headway.serve.service import Service

RouteHandler = Callable[[Service, Request], Awaitable[Response]]
JsonSchema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Route:
    method: str
    path: str
    handler: RouteHandler
    summary: str
    body: JsonSchema | None = None
    """Schema of the JSON body; None if the route takes none."""

    form: JsonSchema | None = None
    """Schema of a form with files; None if the route takes no form."""

    urlencoded: bool = False
    """Whether the body may also be a URL-encoded form."""

    responses: Mapping[str, JsonSchema] = field(default_factory=dict)
    """Schemas of the response by media type."""

    error_codes: tuple[int, ...] = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
    """HTTP status codes of the errors of this route."""

    is_public: bool = False
    """Whether the route needs no API key."""

    plain_errors: bool = False
    """Whether an error is a string, as the clients of this API expect, instead of an object with a
    message."""

    key_in_body: bool = False
    """Whether the API key may also be the body field `api_key`, for clients that cannot set a
    header."""

    invalid_value_status: int | None = None
    """HTTP status for invalid values, such as 400 in OpenAI's API. None: 413 or 422."""

    queues: bool = False
    """Whether a request needs a place in the queue of a model."""


def path_in(scope: Mapping[str, Any]) -> str:
    """Return the path of a request, without the prefix under which the application is mounted."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    inside = path == prefix or path.startswith(prefix + "/")
    return path[len(prefix) :] if prefix and inside else path


def schema(kind: str, **more: Any) -> dict[str, Any]:
    """Return a JSON schema, such as `schema("integer", minimum=1)`."""
    return {"type": kind, **more}


def object_schema(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


def event_stream_schema(of: JsonSchema, example: str = "") -> dict[str, Any]:
    """Return the schema of a stream of server-sent events. `of`: schema of one event."""
    said = (
        "Server-sent events if the request has stream=true: lines of `data: ` with an object of "
        "x-event, and `data: [DONE]` at the end. Lines that begin with a colon are comments."
    )
    return {
        "type": "string", "format": "event-stream", "description": said, "x-event": dict(of),
        "example": f"data: {example}\n\ndata: [DONE]\n\n",
    }  # fmt: skip


TEXT = schema("string")
TEXTS = schema("array", items=TEXT)
ANY: dict[str, Any] = {}
