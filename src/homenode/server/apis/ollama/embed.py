"""POST /api/embed and, as clients called it before, POST /api/embeddings: vectors of texts."""

from __future__ import annotations

import time
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.ollama.keep_alive import KeepAlive, keep_as_asked
from homenode.server.apis.ollama.names import TAG
from homenode.server.apis.ollama.request import HINTS, OllamaModelName
from homenode.server.core.api import POST_FAILURES, Operation
from homenode.server.core.pooling import (
    PooledTexts,
    check_texts,
    json_of,
    kept_tokens,
    makes_vectors,
    pool_texts,
    refuse_uncounted,
    shown_vector,
    vectors_of,
)
from homenode.server.core.prompts import encode_prompts, texts_memory
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import unless_gone
from homenode.server.http.failures import ApiError
from homenode.server.models.model_table import read_for_model
from homenode.server.models.served_model import AskedModel


class OllamaEmbedRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /api/embed. `truncate`: of a text that is too long the beginning is used, unless this is false."""

    model: OllamaModelName
    input: str | list[str] = []
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbeddingsRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /api/embeddings."""

    model: OllamaModelName
    prompt: str = ""
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbedded(Struct, kw_only=True):
    """Answer of /api/embed. Times are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OllamaEmbedding(Struct):
    """Answer of /api/embeddings."""

    embedding: list[float]


_decode = decode_as(OllamaEmbedRequest, HINTS)
_decode_older = decode_as(OllamaEmbeddingsRequest, HINTS)


async def embed(state: ServerState, request: Request) -> Response:
    """A vector of each text, of length 1."""
    begin = time.monotonic_ns()
    body, asked_model = await read_for_model(state, request, _decode, any_type=True, tag=TAG)
    keep_as_asked(state, request, asked_model.model, body.keep_alive)
    texts = [body.input] if isinstance(body.input, str) else body.input
    pooled = _pooled(asked_model, texts, "input", body.dimensions, truncate=body.truncate is not False)
    found = await unless_gone(request.receive, pooled)
    taken = time.monotonic_ns() - begin

    def answer() -> OllamaEmbedded:
        vectors = [list(shown_vector(vector, body.dimensions, normalise=True)) for vector in found.vectors]
        return OllamaEmbedded(
            model=body.model, embeddings=vectors, total_duration=taken, prompt_eval_count=found.prompt_tokens
        )

    return await json_of(asked_model.model, found, answer)


async def embeddings(state: ServerState, request: Request) -> Response:
    """The vector of one text, as the model gives it."""
    body, asked_model = await read_for_model(state, request, _decode_older, any_type=True, tag=TAG)
    keep_as_asked(state, request, asked_model.model, body.keep_alive)
    texts = [body.prompt] if body.prompt else []
    found = await unless_gone(request.receive, _pooled(asked_model, texts, "prompt", None, truncate=True))
    return json_response(OllamaEmbedding(list(found.vectors[0]) if found.vectors else []))


async def _pooled(
    asked_model: AskedModel, texts: list[str], param: str, dimensions: int | None, *, truncate: bool
) -> PooledTexts:
    model = asked_model.model
    width = vectors_of(model).width
    if dimensions is not None and dimensions > width:
        text = f"`dimensions` is {dimensions}; the vectors of this model have {width}"
        raise ApiError(400, text, param="dimensions", code="invalid_value")
    check_texts(model, len(texts), param)
    most = kept_tokens(model, -1) if truncate else None
    async with model.text_work.reserve(texts_memory(texts)):
        prompts = await encode_prompts(model, texts, param, add_special_tokens=True, n=1, most=most)
        refuse_uncounted(model, prompts, param)
        return await pool_texts(asked_model, prompts)


OPERATIONS = tuple(
    Operation(
        path=path,
        method="post",
        summary="Vectors of texts (Ollama).",
        handler=handler,
        answer=answer,
        body=body,
        failures=POST_FAILURES,
        admits=True,
        documented=makes_vectors,
    )
    for path, handler, answer, body in (
        ("/api/embed", embed, OllamaEmbedded, OllamaEmbedRequest),
        ("/api/embeddings", embeddings, OllamaEmbedding, OllamaEmbeddingsRequest),
    )
)
