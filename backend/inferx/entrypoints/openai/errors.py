"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}` and a status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from inferx_client.wire import NO_CONNECTION, InferenceError

from inferx.errors import RequestError

RETRY_SECONDS = 1  # what Retry-After says; a place in a queue is free soon
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_QUEUE_FULL = "the queue is full"  # how the backend begins the one UNAVAILABLE that is a load limit
_STARTS_WITH_PARAMETER = re.compile(r"([a-z_]+) (?:is|has|holds) ")


class ApiError(Exception):
    """Ends one HTTP request. `param` is the request's field that is wrong, if it is one."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "invalid_request_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> Mapping[str, str]:
        if self.status in (429, 503):
            return {"retry-after": str(RETRY_SECONDS)}
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        # What may remain of the request's body is not read
        return {"connection": "close"} if self.status in (408, 413) else {}


def invalid(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param)


def of_request_error(error: RequestError) -> ApiError:
    """An error of InferX's own checks, made here and not by the server."""
    return of_status(error.status, str(error))


def of_inference_error(error: InferenceError) -> ApiError:
    if error.message.startswith(NO_CONNECTION):  # the rest names Triton's address
        return ApiError(503, "Triton does not answer")
    return of_status(error.status, error.message)


def of_status(status: str, message: str) -> ApiError:
    """A Triton status as HTTP's."""
    if status == "INVALID_ARG":
        named = _STARTS_WITH_PARAMETER.match(message)
        return invalid(message, named.group(1) if named else None)
    if status == "UNAVAILABLE":
        return ApiError(429 if message.startswith(_QUEUE_FULL) else 503, message)
    if status == "CANCELLED":
        return ApiError(408, message)
    if status == "NOT_FOUND":
        return ApiError(404, message)
    return ApiError(500, message)


def encoded(error: ApiError) -> bytes:
    return msgspec.json.encode(error.body)
