"""Errors of requests, with an HTTP status, a message, and the name of the wrong field."""

from __future__ import annotations

from collections.abc import Mapping

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    499: "client_closed_request",
    500: "server_error",
    503: "unavailable_error",
    504: "timeout_error",
}


class RequestRejected(Exception):
    """Raised when a request is rejected. It becomes an error response with an HTTP status and a
    message."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    def body(self, *, plain: bool = False) -> dict[str, object]:
        """Return the body of the error response in OpenAI's format, or with `plain` in
        LibreTranslate's format."""
        message = " ".join(str(self).split())
        if plain:
            return {"error": message}
        said = {"message": message, "type": ERROR_TYPES.get(self.status, "error")}
        return {"error": {**said, "param": self.param, "code": self.code}}


class ModelFailed(Exception):
    """Raised when the model fails on a valid request."""
