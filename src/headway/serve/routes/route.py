"""A route: where it is, what answers, and what the description says about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headway.serve.service import Service

Answer = Callable[[Service, Request], Awaitable[Response]]
Schema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Route:
    method: str
    path: str
    answer: Answer
    summary: str
    body: Schema | None = None
    """Of JSON."""

    form: Schema | None = None
    """Of a form with files, where it may be one."""

    urlencoded: bool = False
    """The fields of the body may also come as a plain form."""

    gives: Mapping[str, Schema] = field(default_factory=dict)
    """Schemas of the answer by media type."""

    codes: tuple[int, ...] = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
    """What else it may say."""

    is_open: bool = False
    """It answers without a key."""

    plain_errors: bool = False
    """An error is a text, not an object with a message: its clients expect that."""

    key_in_body: bool = False
    """The key may also be a field of the body, `api_key`: its clients have no header for it."""

    bad_value: int | None = None
    """The status of values that are rejected, where it is neither 413 nor 422: OpenAI has 400."""

    queues: bool = False
    """It asks for a place in the queue of a model, and does nothing without."""


def path_in(scope: Mapping[str, Any]) -> str:
    """The path of a request without the prefix under which someone mounted the application."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    inside = path == prefix or path.startswith(prefix + "/")
    return path[len(prefix) :] if prefix and inside else path


def an(kind: str, **more: Any) -> dict[str, Any]:
    """A schema in short: `an("integer", minimum=1)`."""
    return {"type": kind, **more}


def an_object(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


def event_stream(of: Schema, example: str = "") -> dict[str, Any]:
    """The schema of an answer that is a stream of server-sent events, each an object like `of`."""
    said = (
        "Server-sent events, where the request has stream=true: lines of `data: ` and an object "
        "of x-event, and `data: [DONE]` at the end. Lines that begin with a colon are comments."
    )
    return {
        "type": "string", "format": "event-stream", "description": said, "x-event": dict(of),
        "example": f"data: {example}\n\ndata: [DONE]\n\n",
    }  # fmt: skip


TEXT = an("string")
TEXTS = an("array", items=TEXT)
ANY: dict[str, Any] = {}
