"""POST /api/generate: a prompt answered as a message, or gone on with as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from homenode.grammars.field_path import FieldPath
from homenode.server.apis.ollama.answer import generate_line, loaded
from homenode.server.apis.ollama.asked import (
    answered,
    check_asked,
    conversation_request,
    model_asked,
    output_of,
    prompt_cut,
    refuse,
    sampling_of,
    streams,
)
from homenode.server.apis.ollama.go_rendering import GoTemplateError
from homenode.server.apis.ollama.go_template import GoTemplate
from homenode.server.apis.ollama.history import refuse_images, with_images
from homenode.server.apis.ollama.options import OllamaOptions
from homenode.server.apis.ollama.request import HINTS, OllamaGenerateRequest
from homenode.server.core.choices.grammars import grammar_of
from homenode.server.core.choices.message_reader import MessageReader
from homenode.server.core.conversation import Conversation, begin_conversation, told_cut
from homenode.server.core.prompt_forms.fill_in_middle import encode_middles, ended_by_middle
from homenode.server.core.prompts import PromptText, check_token_ids, cut_prompt, fitting_ids, texts_memory
from homenode.server.core.request import GenerationRequest, begin, check_limits
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import read_json, unless_gone_early
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_ignored
from homenode.server.models.served_model import AskedModel, ServedModel
from homenode.server.models.text_work import SHORT_TEXT

_decode = decode_as(OllamaGenerateRequest, HINTS)


async def generate(state: ServerState, request: Request) -> Response:
    """Answer a prompt; without one there is nothing to do, as the model is loaded."""
    body = await read_json(state, request, _decode, any_type=True)
    asked_model = await model_asked(state, request, body, empty=not body.prompt)
    if asked_model is None:
        return json_response(loaded(generate_line, body.model, "unload"))
    model = asked_model.model
    check_asked(model, request, body)
    if model.tokenizer.fill_in_middle is None:
        refuse(body.suffix, "suffix", f'"{body.model[:200]}" does not support insert: it cannot fill in the middle')
    _check_goes_with(body)
    check_token_ids(model, body.context or [], "context")
    if "image" not in model.taken or body.raw or body.suffix or body.template:
        refuse_images(body.images, "images")
    if not body.prompt:
        return json_response(loaded(generate_line, body.model))
    raw = body.raw or bool(body.suffix)
    if body.suffix and body.system:
        note_ignored(request, "system", "system")
    begun = _raw(asked_model, body, body.prompt) if raw else _message(asked_model, body, body.prompt)
    conversation = await unless_gone_early(request, begun)
    return await answered(state, model, request, body, conversation, generate_line, context=not raw)


def _check_goes_with(body: OllamaGenerateRequest) -> None:
    """Raises ApiError 400 for a prompt of the client's own making beside fields that would make one."""
    for name in ("template", "system", "context"):
        if body.raw and getattr(body, name):
            refuse(name, name, "`raw` does not go with `template`, `system` and `context`")
        if body.suffix and getattr(body, name) and name != "system":
            refuse(name, name, "`suffix` does not go with `template` and `context`")


async def _message(asked_model: AskedModel, body: OllamaGenerateRequest, prompt: str) -> Conversation:
    model = asked_model.model
    messages: list[dict[str, Any]] = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": with_images(prompt, body.images, "images")})
    text = await asyncio.to_thread(lambda: _templated(model, body, messages)) if body.template else None
    asked = conversation_request(
        body,
        messages=messages,
        text=text,
        earlier_ids=body.context or (),
        add_special_tokens=True if text else None,
        token_ids=True,
        cut=prompt_cut(body, "prompt"),
    )
    return await begin_conversation(asked_model, asked)


def _templated(model: ServedModel, body: OllamaGenerateRequest, messages: list[dict[str, Any]]) -> PromptText:
    """Return what the request's own template makes of the messages. Raises ApiError 400."""
    hidden = None if model.config.special_tokens_in_content else model.tokenizer.hidden_names()
    said = {message["role"]: message["content"] for message in messages}
    if hidden is not None:
        said = hidden.hide(said)
    values = {
        "System": said.get("system", ""),
        "Prompt": said["user"],
        "Response": "",
        "Messages": [{"Role": role, "Content": content} for role, content in said.items()],
        "Think": body.think is not None and body.think is not False,
        "ThinkLevel": body.think if isinstance(body.think, str) else "",
        "IsThinkSet": body.think is not None,
    }
    try:
        template = GoTemplate(body.template or "")
        text = template.render(values, ends_at_response="Messages" not in template.names)
    except GoTemplateError as error:
        raise ApiError(400, f"`template`: {error}", param="template", code="invalid_value") from None
    return PromptText(text, hidden)


async def _raw(asked_model: AskedModel, body: OllamaGenerateRequest, prompt: str) -> Conversation:
    """The prompt as the model sees it, or what comes before a middle; all that it writes is the response."""
    model, sampling = asked_model.model, sampling_of(body)
    not_kept: Sequence[FieldPath] = ()
    if (output := output_of(body)) is not None:
        grammar = await grammar_of(model, output, "format")
        sampling, not_kept = msgspec.structs.replace(sampling, grammar=grammar.text), grammar.left_out
    check_limits(model, 1, sampling)
    cut, max_tokens = prompt_cut(body, "prompt"), (body.options or OllamaOptions()).max_tokens
    async with model.text_work.reserve(texts_memory([prompt, body.suffix or ""])):
        if body.suffix:
            prompts = await encode_middles(model, [prompt], body.suffix, cut=cut, max_tokens=max_tokens)
            sampling = ended_by_middle(model, sampling)
        else:
            inline = len(prompt) <= SHORT_TEXT
            ids = await fitting_ids(model, PromptText(prompt), "prompt", True, inline=inline, cut=cut)
            prompts = [cut_prompt(model, ids, "prompt", cut, max_tokens)]
    generation = await begin(
        asked_model,
        GenerationRequest(
            prompts=prompts,
            sampling=sampling,
            max_tokens=max_tokens,
            priority=body.priority,
            cache_salt=body.cache_salt or "",
            speculative=body.speculative is not False,
            stream=streams(body),
            kv_transfer=body.kv_transfer_params,
        ),
    )
    return Conversation(generation, [MessageReader(None)], told_cut(cut, prompts[0]), not_kept)
