"""POST /api/generate: a prompt answered as a message, or gone on with as it is."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.ollama.answer import generate_line, loaded
from homenode.server.apis.ollama.asked import (
    answered,
    check_asked,
    conversation_request,
    output_of,
    refuse,
    sampling_of,
    streams,
)
from homenode.server.apis.ollama.history import refuse_images
from homenode.server.apis.ollama.names import check_name
from homenode.server.apis.ollama.options import OllamaOptions
from homenode.server.apis.ollama.request import HINTS, OllamaGenerateRequest
from homenode.server.core.conversation import Conversation, begin_conversation
from homenode.server.core.fill_in_middle import encode_middles, ended_by_middle
from homenode.server.core.grammars import grammar_of
from homenode.server.core.message_reader import MessageReader
from homenode.server.core.prompts import encode_prompts, texts_memory
from homenode.server.core.request import GenerationRequest, begin, check_limits
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import read_json, unless_gone_early
from homenode.server.http.ignored import note_ignored

_decode = decode_as(OllamaGenerateRequest, HINTS)


async def generate(state: ServerState, request: Request) -> Response:
    """Answer a prompt; without one there is nothing to do, as the model is loaded."""
    body = await read_json(state, request, _decode, any_type=True)
    check_name(state, body.model)
    check_asked(state, request, body)
    if state.tokenizer.fill_in_middle is None:
        refuse(body.suffix, "suffix", f'"{body.model[:200]}" does not support insert: it cannot fill in the middle')
    refuse(body.template, "template", "the model's own chat template is used; give `raw` and the whole prompt instead")
    refuse(body.context, "context", "send the turns before as `messages` to /api/chat")
    refuse_images(body.images, "images")
    if not body.prompt:
        return json_response(loaded(generate_line, body.model))
    raw = body.raw or bool(body.suffix)
    if raw and body.system:
        note_ignored(request, "system", "system")
    begun = _raw(state, body, body.prompt) if raw else _message(state, body, body.prompt)
    conversation = await unless_gone_early(request, begun)
    return await answered(state, request, body, conversation, generate_line)


async def _message(state: ServerState, body: OllamaGenerateRequest, prompt: str) -> Conversation:
    messages = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": prompt})
    return await begin_conversation(state, conversation_request(body, messages=messages))


async def _raw(state: ServerState, body: OllamaGenerateRequest, prompt: str) -> Conversation:
    """The prompt as the model sees it, or what comes before a middle; all that it writes is the response."""
    sampling = sampling_of(body)
    if (output := output_of(body)) is not None:
        sampling = msgspec.structs.replace(sampling, grammar=await grammar_of(state, output, "format"))
    check_limits(state, 1, sampling)
    async with state.text_work.reserve(texts_memory([prompt, body.suffix or ""])):
        if body.suffix:
            prompts = await encode_middles(state, [prompt], body.suffix)
            sampling = ended_by_middle(state, sampling)
        else:
            prompts = await encode_prompts(state, [prompt], "prompt", add_special_tokens=True, n=1)
    generation = await begin(
        state,
        GenerationRequest(
            prompts=prompts,
            sampling=sampling,
            max_tokens=(body.options or OllamaOptions()).max_tokens,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            stream=streams(body),
            kv_transfer=body.kv_transfer_params,
        ),
    )
    return Conversation(generation, [MessageReader(None)])
