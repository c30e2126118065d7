"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from homenode.server.apis.responses.items import MOST_ITEMS, MOST_TOOLS, ToolName
from homenode.server.core.generation_fields import TIER_REMEDY, Count, Effort, GenerationFields
from homenode.server.http.decoding import FieldHints

SummaryKind = Literal["auto", "concise", "detailed"]


class ResponsesReasoningOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """The amount that the model thinks, and whether its thoughts are shown as a summary."""

    effort: Effort | None = None
    summary: SummaryKind | None = None
    generate_summary: SummaryKind | None = None  # the older name
    context: Literal["auto", "current_turn", "all_turns"] | None = None


class ResponsesPlainFormat(Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class ResponsesObjectFormat(Struct, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class ResponsesSchemaFormat(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that fits a schema."""

    schema: dict[str, Any] | bool
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponsesTextOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """The form that the text of the answer has to be."""

    format: ResponsesPlainFormat | ResponsesObjectFormat | ResponsesSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesAutoChoice(Struct, forbid_unknown_fields=True, tag_field="type", tag="auto"):
    """The word `auto`, as some clients write it."""


class ResponsesNoneChoice(Struct, forbid_unknown_fields=True, tag_field="type", tag="none"):
    """The word `none`, as some clients write it."""


class ResponsesRequiredChoice(Struct, forbid_unknown_fields=True, tag_field="type", tag="required"):
    """The word `required`, as some clients write it."""


class ResponsesAnyChoice(Struct, forbid_unknown_fields=True, tag_field="type", tag="any"):
    """The choice that other APIs call `required`."""


class ResponsesNamedFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """The name of a function, as chat completions have it."""

    name: ToolName


class ResponsesFunctionChoice(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="function"):
    """This function is called: its name, or as chat completions have it."""

    name: ToolName | None = None
    namespace: ToolName | None = None
    function: ResponsesNamedFunction | None = None


class ResponsesCustomChoice(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="custom"):
    """This tool is given a text."""

    name: ToolName
    namespace: ToolName | None = None


class ResponsesAllowedTools(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="allowed_tools"):
    """A choice by which only these of the tools may be called."""

    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_TOOLS)]


class ResponsesStreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """Padding against traffic analysis can be asked for; none is ever sent."""

    include_obfuscation: bool | None = None


class ResponsesRequest(GenerationFields, kw_only=True):
    """Body of POST /v1/responses. Items of `input` and `tools` are read one by one, as there may be some of kinds that
    are left out.
    """

    input: str | Annotated[list[dict[str, Any]], Meta(max_length=MOST_ITEMS)] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: (
        Literal["none", "auto", "required", "any"]
        | ResponsesAutoChoice
        | ResponsesNoneChoice
        | ResponsesRequiredChoice
        | ResponsesAnyChoice
        | ResponsesFunctionChoice
        | ResponsesCustomChoice
        | ResponsesAllowedTools
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None  # of tools that a service runs: none here
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    reasoning: ResponsesReasoningOptions | None = None
    text: ResponsesTextOptions | None = None
    include: Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=64)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    background: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=1024)] | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None
    safety_identifier: str | None = None
    user: str | None = None
    thinking_token_budget: Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: None = None
    conversation: None = None
    prompt: None = None
    moderation: None = None


HINTS = FieldHints(
    {"service_tier": TIER_REMEDY},
    {
        "response_format": "say it in `text.format`",
        "conversation": "go on from a response with `previous_response_id`, or send the items of the conversation",
        "prompt": "send the text of the prompt; none are kept here",
        "moderation": "there is no moderation",
    },
)
