"""Everything that goes wrong becomes an OpenAI error body with the right status; nothing of the inside gets out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from homenode import errors
from homenode.engine.messages import Output
from homenode.server.openai import UNSUPPORTED
from homenode.server.responses import ErrorBody, ErrorDetail

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}
_PATH = re.compile(r" - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`$")
_NAME = re.compile(r"(?:unknown|required) field `(?P<name>.*)`", re.DOTALL)
_LONGEST_ECHO = 200  # characters of a client's own words repeated in a message


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


def internal_failure(request_id: str) -> ApiError:
    """For bugs: says nothing but where to look."""
    return ApiError(500, f"internal error; the server's log tells more under request id {request_id}", code="internal_error")


def from_error(error: errors.HomenodeError) -> ApiError:
    """The answer for an error raised on this side of the engine; HostError and InternalError are for the caller to log and hide."""
    if isinstance(error, errors.OverloadedError):
        return ApiError(503, error.message, code="overloaded", retry_after_s=error.retry_after_s)
    if isinstance(error, errors.UserError):
        return ApiError(400, error.message, param=error.param, code=_user_code(type(error).__name__))
    if isinstance(error, errors.PeerError):
        return ApiError(503, "the engine is not available", code="engine_lost")
    return ApiError(500, "internal error", code="internal_error")


def from_output(output: Output) -> ApiError:
    """The answer for a request the engine ended without a result."""
    kind, message = output.error_kind or "", output.error or "the request was aborted by the server"
    if kind == "OverloadedError":
        return ApiError(503, message, code="overloaded", retry_after_s=output.retry_after_s or 1.0)
    if kind in ("UserError", "UnsupportedError", "CapacityError", "CheckpointError"):
        return ApiError(400, message, code=_user_code(kind))
    if kind == "PeerError":
        return ApiError(503, message, code="engine_lost")
    if kind == "HostError":
        return ApiError(500, "the machine could not run this request; the server's log tells more", code="host_error")
    if output.finish_reason == "abort":
        return ApiError(503, message, code="aborted")
    return ApiError(500, "the engine failed on this request; the server's log tells more", code="internal_error")


def _user_code(kind: str) -> str:
    return {"CapacityError": "capacity_exceeded", "UnsupportedError": "unsupported"}.get(kind, "invalid_value")


def from_decoding(error: Exception) -> ApiError:
    """The answer for a body that is not JSON (DecodeError, UnicodeDecodeError, RecursionError) or not of the right shape (ValidationError)."""
    if not isinstance(error, msgspec.ValidationError):
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        return ApiError(400, f"the body is not valid JSON: {reason[:_LONGEST_ECHO]}", code="invalid_json")
    message = str(error)
    found, where = _NAME.search(message), _PATH.search(message)
    path = (where["path"] if where else "").lstrip(".")
    reason = message[: where.start()] if where else message
    if found:
        name = found["name"][:_LONGEST_ECHO]
        path = f"{path}.{name}" if path else name
        if "unknown" in reason:
            return _unknown_field(path, name)
        return ApiError(400, f"the required field `{path}` is missing", param=path, code="missing_required_parameter")
    if not path:
        return ApiError(400, f"the body must be a JSON object: {reason[:_LONGEST_ECHO]}", code="invalid_type")
    first = re.split(r"[.\[]", path, maxsplit=1)[0]
    unsupported = next((part for part in (first, path.rsplit(".", 1)[-1]) if part in UNSUPPORTED), None)
    if unsupported:
        return _unsupported(path, unsupported)
    place = f"a key of `{path}`" if where and where["key"] else f"`{path}`"
    return ApiError(400, f"{place}: {_lower(reason)[:_LONGEST_ECHO]}", param=path, code="invalid_value")


def _unknown_field(path: str, name: str) -> ApiError:
    if name in UNSUPPORTED:
        return _unsupported(path, name)
    return ApiError(400, f"unknown field `{path}`", param=path, code="unknown_parameter")


def _unsupported(path: str, name: str) -> ApiError:
    return ApiError(400, f"`{path}` is not supported: {UNSUPPORTED[name]}", param=path, code="unsupported_parameter")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
