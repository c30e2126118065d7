"""A request to the Responses API in the words of the conversation core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from homenode.chat.custom_tools import input_lark
from homenode.chat.offer import ToolOffer, ToolUse, takes_several
from homenode.grammars.spec import GrammarSpec, JsonObject, JsonSchema
from homenode.sampling import SamplingParams
from homenode.server.apis.responses.history import ItemHistory
from homenode.server.apis.responses.messages import ConversationWriter
from homenode.server.apis.responses.request import (
    ResponsesAllowedTools,
    ResponsesAnyChoice,
    ResponsesCustomChoice,
    ResponsesFunctionChoice,
    ResponsesNoneChoice,
    ResponsesObjectFormat,
    ResponsesRequest,
    ResponsesRequiredChoice,
    ResponsesSchemaFormat,
)
from homenode.server.apis.responses.tools import OfferedTool, OfferedTools, ResponsesCustomTool, ResponsesGrammarSyntax
from homenode.server.core.choices.grammars import check_input
from homenode.server.core.conversation import Conversation, ConversationRequest, begin_conversation, conversation_text
from homenode.server.core.generation_fields import KEPT_VERBOSITY
from homenode.server.core.media.content import Note
from homenode.server.core.prompt_forms.truncation import truncated
from homenode.server.core.prompts import encode_chat_text
from homenode.server.core.request import check_limits
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ApiError
from homenode.server.models.media import Taken
from homenode.server.models.served_model import AskedModel, ServedModel

SEALED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
KNOWN_INCLUDES = (
    SEALED,
    LOGPROBS,
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
)


def note_unmet(body: ResponsesRequest, note: Note) -> None:
    """Tell which wishes of a request change nothing here."""
    for number, name in enumerate(body.include or ()):
        if name not in KNOWN_INCLUDES:
            note(name, f"include[{number}]")
    if body.text is not None and body.text.verbosity not in KEPT_VERBOSITY:
        note("verbosity", "text.verbosity")


def wants_logprobs(body: ResponsesRequest) -> bool:
    """Return whether log-probabilities of the text's tokens are to be shown."""
    return body.top_logprobs is not None or LOGPROBS in (body.include or ())


def output_spec(body: ResponsesRequest) -> GrammarSpec | None:
    """Return what the text of the answer has to be; None: any text."""
    match body.text.format if body.text else None:
        case ResponsesObjectFormat():
            return JsonObject()
        case ResponsesSchemaFormat(schema=schema, strict=strict):
            return JsonSchema(schema, bool(strict))
    return None


async def offer_of(model: ServedModel, body: ResponsesRequest, tools: OfferedTools) -> ToolOffer | None:
    """The tools, and how freely the model calls them; None where there are none. Raises ApiError 400."""
    choice, offered = body.tool_choice, list(tools.by_name.values())
    use, named = ToolUse.AUTO, None
    match choice:
        case "none" | ResponsesNoneChoice():
            use = ToolUse.NONE
        case "required" | "any" | ResponsesRequiredChoice() | ResponsesAnyChoice():
            use = ToolUse.REQUIRED
        case ResponsesFunctionChoice() | ResponsesCustomChoice():
            named = _chosen(choice, tools).flat_name
        case ResponsesAllowedTools():
            offered = _allowed(choice, tools)
            use = ToolUse.REQUIRED if choice.mode == "required" else ToolUse.AUTO
    if not offered:
        if use is ToolUse.REQUIRED:
            raise _choice_error("requires a call, but there is no tool that could be called")
        return None
    must_call = named is not None or use is ToolUse.REQUIRED
    parallel = takes_several(body.parallel_tool_calls, must_call=must_call)
    called = [tool for tool in offered if use is not ToolUse.NONE and named in (None, tool.flat_name)]
    inputs = await _inputs(model, called)
    return ToolOffer(tools.only(offered), use=use, named=named, parallel=parallel, inputs=inputs)


def _chosen(choice: ResponsesFunctionChoice | ResponsesCustomChoice, tools: OfferedTools) -> OfferedTool:
    name = choice.name
    if isinstance(choice, ResponsesFunctionChoice) and choice.function is not None:
        name = choice.function.name
    if name is None:
        raise _choice_error('is missing: give {"type": "function", "name": NAME}', ".name")
    chosen = tools.named(name, choice.namespace, custom=isinstance(choice, ResponsesCustomChoice))
    if chosen is None:
        raise _choice_error(f"names `{name}`, which is not among the tools")
    return chosen


def _allowed(choice: ResponsesAllowedTools, tools: OfferedTools) -> list[OfferedTool]:
    """Tools of kinds that are left out may be named among them."""
    found = []
    for number, raw in enumerate(choice.tools):
        kind, name, namespace = raw.get("type"), raw.get("name"), raw.get("namespace")
        if kind not in ("function", "custom"):
            continue
        tool = tools.named(name, namespace, custom=kind == "custom") if isinstance(name, str) else None
        if tool is None:
            raise _choice_error(f"names `{str(name)[:128]}`, which is not among the tools", f".tools[{number}].name")
        found.append(tool)
    return found


def _choice_error(what: str, field: str = "") -> ApiError:
    return ApiError(400, f"`tool_choice{field}` {what}", param=f"tool_choice{field}", code="invalid_value")


async def _inputs(model: ServedModel, tools: Iterable[OfferedTool]) -> dict[str, str]:
    """The grammars of inputs by the names of the tools, each of which was tried by itself."""
    inputs: dict[str, str] = {}
    for tool in tools:
        if isinstance(tool.tool, ResponsesCustomTool) and isinstance(
            syntax := tool.tool.format, ResponsesGrammarSyntax
        ):
            await check_input(model, syntax.syntax, syntax.definition, f"{tool.place}.format.definition")
            inputs[tool.flat_name] = input_lark(syntax.syntax, syntax.definition)
    return inputs


@dataclass(frozen=True)
class AskedConversation:
    """The conversation that a request asks of the core. `messages`: those among them that `truncation` may have to
    drop.
    """

    body: ResponsesRequest
    messages: list[dict[str, Any]]
    offer: ToolOffer | None

    async def count(self, model: ServedModel) -> int:
        """Tokens of the prompt. Raises ApiError 400 for a request that would not be answered."""
        request = self._request()
        check_limits(model, 1, request.sampling)
        try:
            text = await conversation_text(model, await self._fitting(model, request))
            return len((await encode_chat_text(model, text)).ids)
        except ApiError as error:
            raise _about_input(error) from None

    async def begin(self, asked_model: AskedModel) -> Conversation:
        """Raises ApiError 400. Where the request says so, the oldest turns are dropped until the others fit."""
        try:
            request = await self._fitting(asked_model.model, self._request())
            return await begin_conversation(asked_model, request)
        except ApiError as error:
            raise _about_input(error) from None

    async def _fitting(self, model: ServedModel, request: ConversationRequest) -> ConversationRequest:
        return await truncated(model, request) if self.body.truncation == "auto" else request

    def _request(self) -> ConversationRequest:
        body = self.body
        return ConversationRequest(
            messages=self.messages,
            offer=self.offer,
            output=output_spec(body),
            output_param="text.format",
            thinking_budget=body.thinking_token_budget,
            reasoning_effort=body.reasoning.effort if body.reasoning else None,
            template_kwargs=body.chat_template_kwargs,
            sampling=_sampling(body),
            max_tokens=body.max_output_tokens,
            service_tier=body.service_tier,
            priority=body.priority,
            cache_salt=body.cache_salt or "",
            session=body.session or "",
            speculative=body.speculative is not False,
            stream=bool(body.stream),
            kv_transfer=body.kv_transfer_params,
        )


def _about_input(error: ApiError) -> ApiError:
    """Return what is wrong with the messages, in the words of this API."""
    detail = error.body.error
    if detail.param != "messages":
        return error
    text = detail.message.replace("`messages`", "`input`", 1)
    return ApiError(error.status, text, param="input", code=detail.code)


def _sampling(body: ResponsesRequest) -> SamplingParams:
    return body.sampling(logprobs=(body.top_logprobs or 0) if wants_logprobs(body) else None)


def written_messages(
    state: ServerState, body: ResponsesRequest, history: ItemHistory, tools: OfferedTools, note: Note, *, taken: Taken
) -> list[dict[str, Any]]:
    """The conversation as chat templates know it. `taken`: the media that the model takes. Raises ApiError 400, which
    names the item and its field.
    """
    writer = ConversationWriter(tools, state.thought_seal, note, taken=taken)
    if body.instructions:
        writer.messages.append({"role": "system", "content": body.instructions})
    writer.write(history.items)
    if not writer.messages:
        raise ApiError(400, "the required field `input` is missing", param="input", code="missing_required_parameter")
    return writer.messages


def told(value: msgspec.Struct | None) -> dict[str, Any]:
    """The fields of a part of the request that were given, as they are repeated in the response."""
    found: Mapping[str, Any] = {} if value is None else msgspec.to_builtins(value)
    return {name: entry for name, entry in found.items() if entry is not None}
