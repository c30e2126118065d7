"""The grammar of a whole message: thoughts as the model marks them, calls that fit their schemas, and content that is
what was asked for.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from homenode.chat.call_grammar import binds_calls, call_grammar
from homenode.chat.offer import ToolOffer
from homenode.errors import UserError
from homenode.grammars.compile import CompiledGrammar
from homenode.grammars.field_path import FieldPath
from homenode.grammars.schema_grammar import bounded_schema
from homenode.grammars.spec import GrammarSpec, JsonSchema
from homenode.server.core.choices.grammars import grammar_of
from homenode.server.http.failures import ApiError
from homenode.server.models.model_formats import ConversationFormats
from homenode.server.models.served_model import ServedModel


async def message_grammar(
    model: ServedModel,
    formats: ConversationFormats,
    prompt: str,
    *,
    offer: ToolOffer | None = None,
    output: GrammarSpec | None = None,
    output_param: str = "response_format",
    thinking_budget: int | None = None,
    begun: str = "",
) -> CompiledGrammar | None:
    """Return the grammar for `SamplingParams.grammar`; None where nothing is bound. `prompt`: the rendered
    conversation. `output`: what the content has to be, which came by the field `output_param`. `begun`: the beginning
    of the answer, with which the prompt ends.

    Raises ApiError 400.
    """
    content = None if output is None else await grammar_of(model, output, output_param)
    if offer is None and thinking_budget is None and not formats.has_thoughts:
        return content
    left_out = [] if content is None else [*content.left_out]
    if offer is not None and binds_calls(offer):
        offer = dataclasses.replace(offer, tools=await _kept_tools(model, offer, left_out))
    param = output_param if output is not None else "tools" if offer is not None else "thinking_token_budget"
    try:
        message = call_grammar(
            formats.chosen,
            offer,
            prompt=prompt,
            begun=begun,
            thinking_budget=thinking_budget,
            output=content.text if content else None,
            special_tokens=model.grammars.special_tokens if content or offer or thinking_budget is not None else None,
        )
        if message is None:
            return None
        return CompiledGrammar(await model.grammars.tried(message, param), tuple(left_out))
    except UserError as error:
        raise ApiError(400, error.message, param=error.param or param, code="invalid_value") from None


async def _kept_tools(model: ServedModel, offer: ToolOffer, left_out: list[FieldPath]) -> list[dict[str, Any]]:
    """The tools with what grammars keep of their schemas. Those that calls are bound to are compiled one by one, so
    that what is wrong with one is told with its place; what is not kept of them is added to `left_out`.
    """
    tools = []
    for number, tool in enumerate(offer.tools):
        function, param = tool["function"], f"tools[{number}].function.parameters"
        schema, strict = function.get("parameters"), bool(function.get("strict"))
        bound = strict if not offer.must_call else offer.named in (None, function["name"])
        if schema and bound:
            left_out += (await grammar_of(model, JsonSchema(schema, strict), param)).left_out
        if schema:
            schema = (await model.grammars.keep(schema, param, strict=strict)).schema
        tools.append({**tool, "function": {**function, "parameters": bounded_schema(schema)}})
    return tools
