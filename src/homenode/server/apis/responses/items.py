"""Items of a conversation as clients of the Responses API write them: what was said, thought, called and given back.

Which kinds of items the server reads is in `ITEM_KINDS`; others are left out by whoever reads the input.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MOST_ITEMS = 8192  # of a conversation
MOST_TOOLS = 2048  # of a request

CallId = Annotated[str, Meta(min_length=1, max_length=256)]
ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ResponsesPart(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message or of a tool's output. `type` says which of the other fields it has."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None
    image_url: Any = None
    detail: Any = None
    file_id: Any = None
    file_url: Any = None
    file_data: Any = None
    filename: Any = None
    input_audio: Any = None
    prompt_cache_breakpoint: Any = None


Parts = Annotated[list[ResponsesPart], Meta(max_length=4096)]


class ResponsesMessage(Struct, forbid_unknown_fields=True, kw_only=True):
    """Something that was said. `phase` tells remarks on the way from the answer, as some models have it."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    type: Literal["message"] = "message"
    id: str | None = None
    status: ItemStatus | None = None
    phase: str | None = None
    name: str | None = None


class ResponsesFunctionCall(Struct, forbid_unknown_fields=True, kw_only=True):
    """A call of a function that the model made. `arguments` is JSON text. `namespace`: the one that the function is
    of."""

    type: Literal["function_call"] = "function_call"
    call_id: CallId
    name: ToolName
    arguments: str
    namespace: ToolName | None = None
    id: str | None = None
    status: ItemStatus | None = None
    caller: Any = None


class ResponsesCustomCall(Struct, forbid_unknown_fields=True, kw_only=True):
    """A call of a tool that takes a text."""

    type: Literal["custom_tool_call"] = "custom_tool_call"
    call_id: CallId
    name: ToolName
    input: str
    namespace: ToolName | None = None
    id: str | None = None
    status: ItemStatus | None = None
    caller: Any = None


class ResponsesCallOutput(Struct, forbid_unknown_fields=True, kw_only=True):
    """The result that a tool gave back. `name` and `namespace`: of the tool, where the client tells them."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId | None = None
    output: str | Parts
    name: str | None = None
    namespace: str | None = None
    id: str | None = None
    status: ItemStatus | None = None
    caller: Any = None


class ResponsesThought(Struct, forbid_unknown_fields=True, kw_only=True):
    """A piece of thoughts, or of a summary of them."""

    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


Thoughts = Annotated[list[ResponsesThought], Meta(max_length=1024)]


class ResponsesReasoning(Struct, forbid_unknown_fields=True, kw_only=True):
    """Thoughts of the model. `encrypted_content`: as the server sealed them."""

    type: Literal["reasoning"] = "reasoning"
    summary: Thoughts | None = None
    content: Thoughts | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: ItemStatus | None = None


class ResponsesMoreTools(Struct, forbid_unknown_fields=True, kw_only=True):
    """Tools that the conversation brings along: all at once, or those that a search of the client found."""

    type: Literal["additional_tools", "tool_search_output"]
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MOST_TOOLS)]
    role: str | None = None
    id: str | None = None
    call_id: str | None = None
    execution: str | None = None
    status: ItemStatus | None = None


class ResponsesReference(Struct, forbid_unknown_fields=True, kw_only=True):
    """An item of a response that is kept, named by its id."""

    type: Literal["item_reference"] = "item_reference"
    id: Annotated[str, Meta(min_length=1, max_length=256)]


Item = (
    ResponsesMessage
    | ResponsesFunctionCall
    | ResponsesCustomCall
    | ResponsesCallOutput
    | ResponsesReasoning
    | ResponsesMoreTools
    | ResponsesReference
)

ITEM_KINDS: dict[str, type] = {
    "message": ResponsesMessage,
    "function_call": ResponsesFunctionCall,
    "custom_tool_call": ResponsesCustomCall,
    "function_call_output": ResponsesCallOutput,
    "custom_tool_call_output": ResponsesCallOutput,
    "reasoning": ResponsesReasoning,
    "additional_tools": ResponsesMoreTools,
    "tool_search_output": ResponsesMoreTools,
    "item_reference": ResponsesReference,
}
