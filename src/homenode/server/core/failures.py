"""The answer for a request that the engine ended without a result."""

from __future__ import annotations

from homenode.engine.messages import Output
from homenode.server.http.failures import ApiError, user_code


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
    if kind in ("UserError", "UnsupportedError", "CapacityError", "ContextLengthError", "CheckpointError"):
        return ApiError(400, message, code=user_code(kind))
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
