"""POST /v1/embeddings: texts, token ids, or a conversation, which may have images, become vectors."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.openai.chat_messages import Messages, template_messages
from homenode.server.apis.openai.openapi import tighten_model, tighten_template
from homenode.server.apis.openai.requests import HINTS
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.conversation import ConversationRequest, conversation_text
from homenode.server.core.generation_fields import TokenId, TokenIds
from homenode.server.core.pooling import (
    PooledTexts,
    Vector,
    check_texts,
    json_of,
    kept_tokens,
    makes_vectors,
    pool_texts,
    shown_vector,
    vectors_of,
)
from homenode.server.core.pooling_openapi import tighten_input, tighten_kept_tokens
from homenode.server.core.prompts import (
    EncodedPrompt,
    check_ending,
    check_template_values,
    encode_chat_text,
    encode_prompts,
    split_prompts,
    texts_memory,
)
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.exchange import unless_gone
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_left_out
from homenode.server.models.model_table import read_for_model
from homenode.server.models.served_model import AskedModel, ServedModel


class EmbeddingRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/embeddings. `input`: a text, texts, token ids, or lists of token ids; or `messages`, one
    conversation as chat completions have it, images among its parts where the model sees, of which one vector is made.
    `dimensions`: elements that are kept of each vector. `truncate_prompt_tokens`: tokens that are kept of each text, -1
    for as many as fit; without it a text that is too long is refused. `normalize`: vectors have length 1, which they
    have unless this is false.
    """

    input: str | list[str | TokenId | TokenIds] | None = None
    messages: Messages | None = None
    add_generation_prompt: bool | None = None  # of `messages`; default: false
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    add_special_tokens: bool | None = None
    normalize: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None


class Embedding(Struct, kw_only=True):
    """A vector: its numbers, or the base64 of them as little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, kw_only=True):
    """Answer of /v1/embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


_CUT = "truncate_prompt_tokens"
_decode = decode_as(EmbeddingRequest, HINTS)


async def embeddings(state: ServerState, request: Request) -> Response:
    """A vector of each text, or of the conversation."""
    body, asked_model = await read_for_model(state, request, _decode)
    found = await unless_gone(request.receive, _pooled(asked_model, request, body))
    return await json_of(asked_model.model, found, lambda: _answer(body, asked_model.name, found))


async def _pooled(asked_model: AskedModel, request: Request, body: EmbeddingRequest) -> PooledTexts:
    model = asked_model.model
    width = vectors_of(model).width
    if body.dimensions is not None and body.dimensions > width:
        text = f"`dimensions` is {body.dimensions}; the vectors of this model have {width}"
        raise ApiError(400, text, param="dimensions", code="invalid_value")
    check_ending(body.continue_final_message, body.add_generation_prompt)  # looked at beside a text as well
    check_template_values(body.chat_template_kwargs)
    if (body.input is None) == (body.messages is None):
        text = "give one of `input` (texts or token ids) and `messages` (a conversation)"
        raise ApiError(400, text, param="input", code="invalid_value")
    if body.messages is not None:
        return await pool_texts(asked_model, [await _conversation(model, request, body)], body.priority)
    assert body.input is not None
    given = body.input
    most = kept_tokens(model, body.truncate_prompt_tokens)
    texts = await model.text_work.run(lambda: split_prompts(given, "input"), len(given))
    check_texts(model, len(texts), "input")
    special = body.add_special_tokens is not False
    async with model.text_work.reserve(texts_memory(texts)):
        prompts = await encode_prompts(model, texts, "input", add_special_tokens=special, n=1, most=most)
        return await pool_texts(asked_model, prompts, body.priority)


async def _conversation(model: ServedModel, request: Request, body: EmbeddingRequest) -> EncodedPrompt:
    """The prompt of `messages`, of which nothing is cut."""
    assert body.messages is not None
    if body.truncate_prompt_tokens is not None:
        text = f"`{_CUT}` goes with `input`; a conversation is taken whole"
        raise ApiError(400, text, param=_CUT, code="invalid_value")
    asked = ConversationRequest(
        messages=template_messages(request, body.messages, taken=model.taken),
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=bool(body.add_generation_prompt),
        continue_final=bool(body.continue_final_message),
    )
    prompt = await conversation_text(model, asked)
    note_left_out(request, prompt.left_out)
    return await encode_chat_text(model, prompt, body.add_special_tokens)


def _answer(body: EmbeddingRequest, model: str, found: PooledTexts) -> EmbeddingList:
    shown = [shown_vector(v, body.dimensions, normalise=body.normalize is not False) for v in found.vectors]
    written = as_base64 if body.encoding_format == "base64" else list
    data = [Embedding(index=number, embedding=written(vector)) for number, vector in enumerate(shown)]
    usage = EmbeddingUsage(found.prompt_tokens, found.prompt_tokens)
    return EmbeddingList(data=data, model=model, usage=usage)


def as_base64(vector: Vector) -> str:
    """Its numbers as little-endian float32."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    schema = components[EmbeddingRequest.__name__]
    tighten_model(schema, state)
    tighten_input(schema, state.limits, optional=True)
    tighten_template(schema)
    none = {"type": "null"}
    schema["oneOf"] = [
        {"required": ["input"], "properties": {"input": {"not": none}, "messages": none}},
        {"required": ["messages"], "properties": {"input": none, "messages": {"type": "array"}, _CUT: none}},
    ]
    tighten_kept_tokens(schema, state.limits)
    if state.limits.vector_width is not None:
        schema["properties"]["dimensions"]["anyOf"][0]["maximum"] = state.limits.vector_width


API = Api(
    operations=(
        Operation(
            path="/v1/embeddings",
            method="post",
            summary="Vectors of texts, or of a conversation.",
            handler=embeddings,
            answer=EmbeddingList,
            body=EmbeddingRequest,
            failures=POST_FAILURES,
            admits=True,
            documented=makes_vectors,
        ),
    ),
    tighten=_tighten,
)
