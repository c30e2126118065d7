"""The bodies of POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from homenode.server.apis.anthropic.blocks import MessagesContent, cache_is_marked
from homenode.server.core.generation_fields import MOST_STOPS, Count, RequestFields, StopString
from homenode.server.http.decoding import FieldHints

MessagesToolName = Annotated[str, Meta(pattern=r"^[\w.:/-]{1,256}$")]


class MessagesSystemBlock(Struct, forbid_unknown_fields=True, kw_only=True):
    """A piece of the standing instructions."""

    type: Literal["text"]
    text: str
    cache_control: Any = None
    citations: Any = None


class MessagesMessage(Struct, forbid_unknown_fields=True, kw_only=True):
    """A turn of the conversation. One of the role `system` may stand anywhere."""

    role: Literal["user", "assistant", "system"]
    content: MessagesContent


class MessagesTool(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool of the client: `type` is absent or `custom`, and `input_schema` says what it takes. Any other type is a
    tool that another server runs, which is left out.
    """

    type: str | None = None
    name: MessagesToolName | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Any = None
    defer_loading: bool | None = None  # a search for tools would load it; there is none, so it is offered at once
    eager_input_streaming: bool | None = None  # arguments are always streamed as they come
    allowed_callers: Any = None
    max_uses: Any = None
    allowed_domains: Any = None
    blocked_domains: Any = None
    user_location: Any = None


class MessagesToolChoice(Struct, forbid_unknown_fields=True, kw_only=True):
    """Setting of how freely the model decides to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesThinking(Struct, forbid_unknown_fields=True, kw_only=True):
    """Setting whether the model thinks before it answers. `display`: whether the thoughts are shown."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class MessagesOutputFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    """The form that the text of the answer must be."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class MessagesOutputConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """The effort that goes into the answer, and its form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: MessagesOutputFormat | None = None


class MessagesMetadata(Struct, forbid_unknown_fields=True, kw_only=True):
    """The client who asks; changes nothing."""

    user_id: str | None = None


class MessagesPrompt(RequestFields, kw_only=True):
    """The parts of a prompt, which both endpoints share."""

    messages: Annotated[list[MessagesMessage], Meta(min_length=1, max_length=4096)]
    model: str | None = None
    system: str | list[MessagesSystemBlock] | None = None
    tools: Annotated[list[MessagesTool], Meta(max_length=1024)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: MessagesThinking | None = None
    output_config: MessagesOutputConfig | None = None
    output_format: MessagesOutputFormat | None = None  # the older name of output_config.format
    cache_control: Any = None
    metadata: MessagesMetadata | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def marks_cache(self) -> bool:
        """Return whether `cache_control` stands anywhere: at the top, at a tool, a system block or a block of a
        message.
        """
        system = self.system if isinstance(self.system, list) else ()
        marks = [self.cache_control, *(each.cache_control for each in (*system, *(self.tools or ())))]
        return any(mark is not None for mark in marks) or any(
            cache_is_marked(message.content) for message in self.messages
        )


class MessagesRequest(MessagesPrompt, kw_only=True):
    """Body of POST /v1/messages. `RequestFields` and `thinking_token_budget` are this server's own."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stop_sequences: Annotated[list[StopString], Meta(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    context_management: dict[str, Any] | None = None
    response_format: None = None
    thinking_token_budget: Count | None = None  # before thinking.budget_tokens


class MessagesCountRequest(MessagesPrompt, kw_only=True):
    """Body of POST /v1/messages/count_tokens: that of a message without what concerns its answer alone."""


HINTS = FieldHints(
    {"service_tier": "give auto or standard_only"}, {"response_format": "say it in `output_config.format`"}
)
