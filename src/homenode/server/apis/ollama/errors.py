"""Failures in the words of the Ollama API."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from homenode.server.http.failures import ApiError


class OllamaError(Struct):
    """The body of every answer of this API that is not a success, and the last line of a stream that breaks off.
    `code`: for programs, where there is one.
    """

    error: str
    code: str | UnsetType = UNSET


def ollama_error(failure: ApiError) -> OllamaError:
    """The body for a failure. Clients look for the words `not found` before they offer to fetch a model."""
    code = failure.body.error.code
    message = f"model not found: {failure}" if code == "model_not_found" else str(failure)
    return OllamaError(message, code or UNSET)
