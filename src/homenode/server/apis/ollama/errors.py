"""Failures in the words of the Ollama API."""

from __future__ import annotations

from msgspec import Struct

from homenode.server.http.failures import ApiError


class OllamaError(Struct):
    """The body of every answer of this API that is not a success, and the last line of a stream that breaks off."""

    error: str


def ollama_error(failure: ApiError) -> OllamaError:
    """The body for a failure. Clients look for the words `not found` before they offer to fetch a model."""
    if failure.body.error.code == "model_not_found":
        return OllamaError(f"model not found: {failure}")
    return OllamaError(str(failure))
