"""Everything that goes wrong becomes an OpenAI error body with the right status; nothing of the inside gets out."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from homenode import errors
from homenode.engine.messages import Output
from homenode.server.responses import ErrorBody, ErrorDetail

_LOG = logging.getLogger("homenode.server")
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """An answer that is not a success. `param` names the field at fault, `retry_after_s` when to come again."""

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

    def response(self) -> Response:
        """The HTTP answer."""
        headers = dict(self.headers)
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        return Response(msgspec.json.encode(self.body), self.status, headers, "application/json")


def failure_of(error: Exception, request_id: str) -> ApiError:
    """The answer for anything raised while a request was handled. What is the server's own fault is logged here and hidden there."""
    if isinstance(error, ApiError):
        return error
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
    return ApiError(400, error.message, param=param, code=_user_code(type(error).__name__))


def from_output(output: Output) -> ApiError:
    """The answer for a request the engine ended without a result."""
    kind, message = output.error_kind or "", output.error or "the request was aborted by the server"
    if kind == "KvRefusedError":
        return ApiError(
            503,
            message,
            code="kv_transfer_refused",
            param="kv_transfer_params",
            retry_after_s=output.retry_after_s or 1.0,
        )
    if kind == "OverloadedError":
        return ApiError(503, message, code="overloaded", retry_after_s=output.retry_after_s or 1.0)
    if kind in ("UserError", "UnsupportedError", "CapacityError", "CheckpointError"):
        return ApiError(400, message, code=_user_code(kind))
    if kind == "PeerError":
        return ApiError(503, message, code="engine_lost")
    if kind == "WorkerLostError":
        return ApiError(503, message, code="worker_lost", retry_after_s=1.0)
    if kind == "HostError":
        return ApiError(500, "the machine could not run this request; the server's log tells more", code="host_error")
    if kind == "NotANumberError":
        return ApiError(
            500, "the model computed no numbers for this request; the server's log tells more", code="not_a_number"
        )
    if output.finish_reason == "abort":
        return ApiError(503, message, code="aborted")
    return ApiError(500, "the engine failed on this request; the server's log tells more", code="internal_error")


def _user_code(kind: str) -> str:
    return {"CapacityError": "capacity_exceeded", "UnsupportedError": "unsupported"}.get(kind, "invalid_value")
