"""Messages of a conversation, as /v1/chat/completions and /tokenize take them, and as chat templates know them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from homenode.server.apis.openai.requests import EmptyList


class TextPart(Struct, forbid_unknown_fields=True):
    """One piece of a message's text."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Meta(min_length=1)]


class SystemMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="system"):
    """Standing instructions."""

    content: Content
    name: str | None = None


class DeveloperMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="developer"):
    """The newer name of a system message; templates know it as one."""

    content: Content
    name: str | None = None


class UserMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="user"):
    """What the user said."""

    content: Content
    name: str | None = None


class AssistantMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="assistant"):
    """What the model said before; clients send back the whole message they got, nulls included."""

    content: Content | None = None
    name: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: EmptyList | None = None
    annotations: EmptyList | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage
Messages = Annotated[list[Message], Meta(min_length=1, max_length=4096)]


def template_messages(messages: Messages) -> list[dict[str, Any]]:
    """The messages as chat templates know them.

    A developer's message is a system message under its newer name, which few templates have heard of.
    """
    return [_template_message(message) for message in messages]


def _template_message(message: Message) -> dict[str, Any]:
    """A message as templates know it. A developer's is a system message under its newer name, which few templates have
    heard of.
    """
    role = str(message.__struct_config__.tag)
    said = {"role": "system" if role == "developer" else role, "content": _content(message.content)}
    return said | {"name": message.name} if message.name else said


def _content(content: Content | None) -> str | list[dict[str, str]]:
    """The form the client sent; the tokenizer knows which one the template takes."""
    if isinstance(content, list):
        return [{"type": "text", "text": part.text} for part in content]
    return content or ""
