"""The part that requests for a chat and for a text have in common, in the words of the conversation core."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from homenode.grammars.spec import GrammarSpec, JsonObject, JsonSchema
from homenode.sampling import SamplingParams
from homenode.server.apis.ollama.answer import LineOf, OllamaFormat
from homenode.server.apis.ollama.keep_alive import keep_alive_seconds, keep_as_asked
from homenode.server.apis.ollama.names import TAG
from homenode.server.apis.ollama.options import OllamaOptions, note_options, sampling_of_options
from homenode.server.apis.ollama.request import OllamaAsked
from homenode.server.core.answer import respond_conversation
from homenode.server.core.conversation import Conversation, ConversationRequest
from homenode.server.core.prompt_cut import PromptCut
from homenode.server.core.prompts import check_template_values
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_ignored
from homenode.server.http.sse import LINES
from homenode.server.models.model_table import model_for
from homenode.server.models.served_model import AskedModel, ServedModel

_KEPT = 4  # tokens at the beginning of a prompt that is cut, as in Ollama


def prompt_cut(body: OllamaAsked, field: str) -> PromptCut | None:
    """Return how a prompt of the field that is longer than the context is cut; None where the client wants none cut."""
    keep = (body.options or OllamaOptions()).num_keep
    return None if body.truncate is False else PromptCut(_KEPT if keep is None else keep, field)


def conversation_request(body: OllamaAsked, **rest: Any) -> ConversationRequest:
    """A request for a message, with `rest` for the other fields."""
    options = body.options or OllamaOptions()
    return ConversationRequest(
        reasoning_effort=body.think if isinstance(body.think, str) else None,
        output=output_of(body),
        output_param="format",
        thinking_budget=body.thinking_token_budget,
        thinking=None if body.think is None else body.think is not False,
        template_kwargs=body.chat_template_kwargs,
        sampling=sampling_of(body),
        max_tokens=options.max_tokens,
        priority=body.priority,
        cache_salt=body.cache_salt or "",
        speculative=body.speculative is not False,
        stream=streams(body),
        kv_transfer=body.kv_transfer_params,
        **rest,
    )


def output_of(body: OllamaAsked) -> GrammarSpec | None:
    """Return what the text of the answer is bound to."""
    if isinstance(body.format, dict):
        return JsonSchema(body.format)
    return JsonObject() if body.format else None


def sampling_of(body: OllamaAsked) -> SamplingParams:
    """Return how tokens are drawn."""
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_of_options(body.options or OllamaOptions(), logprobs)


def streams(body: OllamaAsked) -> bool:
    """Return whether the answer comes in lines, which it does unless somebody says no."""
    return body.stream is not False


async def model_asked(state: ServerState, request: Request, body: OllamaAsked, *, empty: bool) -> AskedModel | None:
    """The model of a request, kept for as long as it says; None where the request unloads it. `empty`: there is nothing
    to answer. Raises as `read_for_model`.
    """
    if empty and state.models.changes and keep_alive_seconds(body.keep_alive) == 0:
        from homenode.server.core.several_models.kept import (  # a server of one model starts sooner without
            check_admin,
            kept_models,
        )

        check_admin()
        kept_models(state).unload(kept_models(state).find_kept(body.model, TAG).name)
        return None
    asked_model = await model_for(state, request, body, tag=TAG)
    keep_as_asked(state, request, asked_model.model, body.keep_alive)
    return asked_model


def check_asked(model: ServedModel, request: Request, body: OllamaAsked) -> None:
    """Tell what of a request has no effect. Raises ApiError 400 for what would change the answer and cannot be done."""
    check_template_values(body.chat_template_kwargs)
    note = partial(note_ignored, request)
    note_options(body.options or OllamaOptions(), model.ready.max_model_len, note)
    if body.think and not model.formats.of(with_tools=False).has_thoughts:
        raise _unsupported("think", f'"{body.model[:200]}" does not support thinking')
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "`top_logprobs` needs `logprobs`: true", param="top_logprobs", code="invalid_value")


def refuse(value: object, field: str, remedy: str) -> None:
    """Raises ApiError 400 where a field has a value that would change the answer, and cannot be met."""
    if value:
        raise _unsupported(field, remedy)


async def answered(
    state: ServerState,
    model: ServedModel,
    request: Request,
    body: OllamaAsked,
    conversation: Conversation,
    line_of: LineOf,
    *,
    context: bool = False,
) -> Response:
    """The response to a request whose generation is ready to begin. `context`: it shows the conversation's tokens."""
    shows = {"logprobs": bool(body.logprobs), "context": context}
    waited_s = 0.0
    if state.models.changes:
        from homenode.server.models.model_exchange import exchange_of  # a server of one model starts sooner without

        waited_s = exchange_of(request).load_seconds
    answer = OllamaFormat(body.model, conversation, model.tokenizer, line_of, load_seconds=waited_s, **shows)
    return await respond_conversation(state, request, conversation, answer, stream=streams(body), form=LINES)


def _unsupported(field: str, remedy: str) -> ApiError:
    return ApiError(400, f"`{field}`: {remedy}", param=field, code="unsupported_parameter")
