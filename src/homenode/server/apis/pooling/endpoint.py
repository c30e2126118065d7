"""POST /pooling: what the model makes of texts, as it is: vectors that are not normalised, or scores of labels."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.pooling import (
    PooledTexts,
    check_texts,
    json_of,
    kept_tokens,
    pool_texts,
    pooling_of,
    pools,
    shown_vector,
)
from homenode.server.core.pooling_openapi import tighten_input, tighten_kept_tokens
from homenode.server.core.prompts import encode_prompts, split_prompts, texts_memory
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import FieldHints, decode_as
from homenode.server.http.exchange import unless_gone
from homenode.server.models.model_table import read_for_model
from homenode.server.models.served_model import AskedModel

_Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class PoolingRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /pooling. `input`: a text, texts, token ids, or lists of token ids. `normalize`: vectors have
    length 1. `truncate_prompt_tokens`: tokens that are kept of each text, -1 for as many as fit.
    """

    input: str | list[str | _Id | list[_Id]]
    model: str | None = None
    encoding_format: Literal["float"] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    add_special_tokens: bool | None = None
    normalize: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    user: str | None = None


class PooledText(Struct, kw_only=True):
    """The result that the model makes of one text."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[float]


class PooledUsage(Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class PooledList(Struct, kw_only=True):
    """Answer of /pooling."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PooledText]
    usage: PooledUsage


_decode = decode_as(PoolingRequest, FieldHints({}, {}))


async def pooling(state: ServerState, request: Request) -> Response:
    """Return what the model makes of each text."""
    body, asked_model = await read_for_model(state, request, _decode)
    found = await unless_gone(request.receive, _pooled(asked_model, body))
    return await json_of(asked_model.model, found, lambda: _answer(body, asked_model.name, found))


async def _pooled(asked_model: AskedModel, body: PoolingRequest) -> PooledTexts:
    model = asked_model.model
    pooling_of(model)
    most = kept_tokens(model, body.truncate_prompt_tokens)
    texts = await model.text_work.run(lambda: split_prompts(body.input, "input"), len(body.input))
    check_texts(model, len(texts), "input")
    special = body.add_special_tokens is not False
    async with model.text_work.reserve(texts_memory(texts)):
        prompts = await encode_prompts(model, texts, "input", add_special_tokens=special, n=1, most=most)
        return await pool_texts(asked_model, prompts, body.priority)


def _answer(body: PoolingRequest, model: str, found: PooledTexts) -> PooledList:
    vectors = [shown_vector(vector, None, normalise=bool(body.normalize)) for vector in found.vectors]
    data = [PooledText(index=number, data=list(vector)) for number, vector in enumerate(vectors)]
    usage = PooledUsage(found.prompt_tokens, found.prompt_tokens)
    name, created = f"pool-{secrets.token_hex(12)}", int(time.time())
    return PooledList(id=name, created=created, model=model, data=data, usage=usage)


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    schema = components[PoolingRequest.__name__]
    schema["properties"]["model"] = {"anyOf": [{"enum": list(state.limits.names)}, {"type": "null"}], "default": None}
    tighten_input(schema, state.limits)
    tighten_kept_tokens(schema, state.limits)


API = Api(
    operations=(
        Operation(
            path="/pooling",
            method="post",
            summary="What the model makes of texts.",
            handler=pooling,
            answer=PooledList,
            body=PoolingRequest,
            failures=POST_FAILURES,
            admits=True,
            documented=pools,
        ),
    ),
    tighten=_tighten,
)
