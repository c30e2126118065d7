"""The grammar of a whole message: thoughts as the model marks them, calls that fit their schemas, and content that is
what was asked for.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from homenode.chat.call_grammar import binds_calls, call_grammar
from homenode.chat.offer import ToolOffer
from homenode.errors import UserError
from homenode.grammars.schema_grammar import bounded_schema
from homenode.grammars.spec import GrammarSpec, JsonSchema
from homenode.server.core.grammars import grammar_of
from homenode.server.core.model_formats import ConversationFormats
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ApiError


async def message_grammar(
    state: ServerState,
    formats: ConversationFormats,
    prompt: str,
    *,
    offer: ToolOffer | None = None,
    output: GrammarSpec | None = None,
    output_param: str = "response_format",
    thinking_budget: int | None = None,
    begun: str = "",
) -> str | None:
    """For `SamplingParams.grammar`; None where nothing is bound. `prompt`: the rendered conversation. `output`: what
    the content has to be, which came by the field `output_param`. `begun`: the beginning of the answer, with which the
    prompt ends.

    Raises ApiError 400.
    """
    content = None if output is None else await grammar_of(state, output, output_param)
    if offer is None and thinking_budget is None and not formats.has_thoughts:
        return content
    if offer is not None and binds_calls(offer):
        await _try_parameters(state, offer)
    param = output_param if output is not None else "tools" if offer is not None else "thinking_token_budget"
    try:
        message = call_grammar(
            formats.chosen,
            None if offer is None else dataclasses.replace(offer, tools=[_with_bounds(tool) for tool in offer.tools]),
            prompt=prompt,
            begun=begun,
            thinking_budget=thinking_budget,
            output=content,
            special_tokens=state.grammars.special_tokens if content or offer or thinking_budget is not None else None,
        )
        return None if message is None else await state.grammars.tried(message, param)
    except UserError as error:
        raise ApiError(400, error.message, param=error.param or param, code="invalid_value") from None


def _with_bounds(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": bounded_schema(function.get("parameters"))}}


async def _try_parameters(state: ServerState, offer: ToolOffer) -> None:
    """Compile the schemas that calls are bound to one by one, so that what is wrong with one is told with its place."""
    for number, tool in enumerate(offer.tools):
        function = tool["function"]
        strict = bool(function.get("strict"))
        bound = strict if not offer.must_call else offer.named in (None, function["name"])
        if bound and function.get("parameters"):
            await grammar_of(state, JsonSchema(function["parameters"], strict), f"tools[{number}].function.parameters")
