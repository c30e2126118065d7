"""Everything that goes wrong becomes an OpenAI error body with the right status; nothing of the inside gets out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct
from starlette.responses import Response

from homenode import errors
from homenode.server.keys.caller import KeyLimitError
from homenode.server.keys.service_tiers import ServiceTierError

_LOG = logging.getLogger("homenode.server")
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # the code of a prompt that is too long, which agents look for
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ErrorDetail(Struct, kw_only=True):
    """`param`: the request field at fault. `code`: for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class ApiError(Exception):
    """An answer that is not a success. `param` names the field at fault, `retry_after_s` when to come again. `body` is
    in the words of the OpenAI API; an API with words of its own has an `ErrorShape`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.headers = dict(headers or {})
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.body = ErrorBody(ErrorDetail(message=message, type=kind, param=param, code=code))

    def response(self, shape: ErrorShape | None = None) -> Response:
        """The HTTP answer, its body as `shape` makes it; None: `body`."""
        headers = dict(self.headers)
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        body = self.body if shape is None else shape(self)
        return Response(msgspec.json.encode(body), self.status, headers, "application/json")


# From a failure to the body of its answer, which can be encoded as JSON.
ErrorShape = Callable[[ApiError], object]


def failure_of(error: Exception, request_id: str) -> ApiError:
    """The answer for anything raised while a request was handled. What is the server's own fault is logged here and
    hidden there.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, KeyLimitError):
        return ApiError(429, error.message, code="rate_limit_exceeded", retry_after_s=error.retry_after_s)
    if isinstance(error, ServiceTierError):
        return ApiError(400, error.message, param=error.param, code="invalid_value")
    if isinstance(error, errors.HomenodeError) and not isinstance(error, errors.HostError | errors.InternalError):
        return _from_error(error)
    _LOG.error("request %s failed", request_id, exc_info=error)
    return ApiError(
        500, f"internal error; the server's log tells more under request id {request_id}", code="internal_error"
    )


def _from_error(error: errors.HomenodeError) -> ApiError:
    if isinstance(error, errors.OverloadedError):
        return ApiError(503, error.message, code="overloaded", retry_after_s=error.retry_after_s)
    if isinstance(error, errors.PeerError):
        return ApiError(503, "the engine is not available", code="engine_lost")
    param = error.param if isinstance(error, errors.UserError) else None
    return ApiError(400, error.message, param=param, code=user_code(type(error).__name__))


def user_code(kind: str) -> str:
    """The `code` of a client's own fault, by the name of its error class."""
    codes = {
        "CapacityError": "capacity_exceeded",
        "ContextLengthError": CONTEXT_LENGTH_EXCEEDED,
        "UnsupportedError": "unsupported",
    }
    return codes.get(kind, "invalid_value")
