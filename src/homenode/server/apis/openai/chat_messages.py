"""Messages of a conversation, as /v1/chat/completions and /tokenize take them, and as chat templates know them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request

from homenode.chat.custom_tools import arguments_of
from homenode.server.core.media.content import (
    Note,
    media_kind,
    media_part,
    media_word,
    refuse_media,
    taken_kind,
)
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_ignored
from homenode.server.models.media import NO_MEDIA, Taken

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,256}$")]


# Types of parts of text, and of those that `homenode.server.core.media.content` has a kind for.
PartType = Literal[
    "text", "input_text", "output_text", "image_url", "image", "input_image", "image_embeds", "input_audio",
    "audio_url", "audio", "video_url", "input_video", "video", "file", "input_file", "document",
]  # fmt: skip


class TextPart(Struct, forbid_unknown_fields=True):
    """One piece of a message's text. The Responses API has the other names of its type."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class AssistantPart(Struct, forbid_unknown_fields=True, kw_only=True):
    """One piece of what the model said or thought: text, why it refused, or thoughts."""

    type: Literal["text", "output_text", "refusal", "thinking"]
    text: str | None = None
    refusal: str | None = None
    thinking: str | list[TextPart] | None = None
    signature: str | None = None


class MessagePart(Struct, forbid_unknown_fields=True, kw_only=True):
    """One piece of a message: text, or what `homenode.server.core.media.content` has a kind for. `type` says which of
    the other fields it has.
    """

    type: PartType
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    audio_url: Any = None
    video_url: Any = None
    source: Any = None
    file: Any = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: Any = None


class SaidPart(MessagePart, kw_only=True):
    """One piece of what somebody says."""


class ResultPart(MessagePart, kw_only=True):
    """One piece of what a tool gave back. Of one that is no text the model is told that there is one."""


Content = str | Annotated[list[SaidPart], Meta(min_length=1)]
ResultContent = str | list[ResultPart]


class SystemMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="system"):
    """Standing instructions."""

    content: Content
    name: str | None = None


class DeveloperMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="developer"):
    """The newer name of a system message; templates know it as one."""

    content: Content
    name: str | None = None


class UserMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="user"):
    """The words of the user."""

    content: Content
    name: str | None = None


class CalledFunction(Struct, forbid_unknown_fields=True, kw_only=True):
    """A function that the model called. `arguments`: the JSON text of an object, the object, or nothing."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CalledCustom(Struct, forbid_unknown_fields=True, kw_only=True):
    """A custom tool that the model gave a text to."""

    name: str
    input: str = ""


class ToolCall(Struct, forbid_unknown_fields=True, kw_only=True):
    """A call of a tool in the history, of a function or a custom one. `index`: what clients keep that join a stream."""

    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None
    index: int | None = None


class AssistantMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="assistant"):
    """The words that the model said before; clients send back the whole message they got, nulls included.

    `function_call`: the one call of old clients. `reasoning_content`, `reasoning`: thoughts, under either name.
    `prefix`, `partial`: the answer goes on from this message, the last one.
    """

    content: str | list[AssistantPart] | None = None
    name: str | None = None
    refusal: str | None = None
    audio: None = None
    function_call: CalledFunction | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=1024)] | None = None
    annotations: list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    prefix: bool | None = None
    partial: bool | None = None


class ToolMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="tool"):
    """The result that a tool gave back."""

    content: ResultContent | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="function"):
    """The result that a function gave back, of old clients."""

    content: ResultContent | None = None
    name: str


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage
Messages = Annotated[list[Message], Meta(min_length=1, max_length=4096)]


def goes_on(messages: Messages, *, turn_begins: bool | None) -> bool:
    """Return whether the answer is to go on from the last message, as that says. `turn_begins`: the request says that
    it is to be a turn of its own.
    """
    last = messages[-1]
    return not turn_begins and isinstance(last, AssistantMessage) and bool(last.prefix or last.partial)


def template_messages(request: Request, messages: Messages, *, taken: Taken = NO_MEDIA) -> list[dict[str, Any]]:
    """The messages as chat templates know them. What tools gave back that the model cannot take is told as ignored.
    `taken`: the media that it takes. Raises ApiError 400.
    """
    note = partial(note_ignored, request)
    return [_template_message(number, message, note, taken) for number, message in enumerate(messages)]


def _template_message(number: int, message: Message, note: Note, taken: Taken) -> dict[str, Any]:
    """A message as templates know it. A function's is a tool's under its older name."""
    if isinstance(message, AssistantMessage):
        return _assistant(number, message)
    place = f"messages[{number}].content"
    if isinstance(message, ToolMessage):
        said = {"role": "tool", "content": _result(message.content, place, note, taken)}
        if message.tool_call_id:
            said["tool_call_id"] = message.tool_call_id
    elif isinstance(message, FunctionMessage):
        said = {"role": "tool", "content": _result(message.content, place, note, taken)}
    else:
        said = {"role": str(message.__struct_config__.tag), "content": _said(message.content, place, taken)}
    return said | {"name": message.name} if message.name else said


def _assistant(number: int, message: AssistantMessage) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": _answer(message.content) or message.refusal or ""}
    if message.name:
        said["name"] = message.name
    if thoughts := message.reasoning_content or message.reasoning or _thoughts(message.content):
        said["reasoning_content"] = thoughts
    calls = [
        _call(call.id or f"call_{number}_{place}", _called(call, f"messages[{number}].tool_calls[{place}]"))
        for place, call in enumerate(message.tool_calls or ())
    ]
    if message.function_call is not None:
        calls.append(_call(f"call_{number}", message.function_call))
    return said | {"tool_calls": calls} if calls else said


def _thoughts(content: str | list[AssistantPart] | None) -> str:
    """Return what the model thought, as parts of its content have it."""
    given = [part.thinking for part in content if part.thinking] if isinstance(content, list) else []
    return "\n".join(text if isinstance(text, str) else "".join(part.text for part in text) for text in given)


def _called(call: ToolCall, place: str) -> CalledFunction:
    """Return what was called, a custom tool as the function that it is to the model. Raises ApiError 400."""
    if call.function is not None:
        return call.function
    if call.custom is None:
        text = f"the required field `{place}.function` is missing"
        raise ApiError(400, text, param=f"{place}.function", code="missing_required_parameter")
    return CalledFunction(name=call.custom.name, arguments=arguments_of(call.custom.input))


def _call(call_id: str, function: CalledFunction) -> dict[str, Any]:
    given = "" if function.arguments is None else function.arguments
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": function.name, "arguments": arguments}}


def _said(content: Content, place: str, taken: Taken) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return _parts(_said_part(part, f"{place}[{number}]", taken) for number, part in enumerate(content))


def _said_part(part: SaidPart, place: str, taken: Taken) -> str | dict[str, Any]:
    """Raises ApiError 400 for what the model cannot take, and for text without a text."""
    if (kind := taken_kind(part.type, taken)) is not None:
        return media_part(kind, place, part)
    if (kind := media_kind(part.type)) is not None:
        refuse_media(kind, place)
    if part.text is None:
        path = f"{place}.text"
        raise ApiError(400, f"the required field `{path}` is missing", param=path, code="missing_required_parameter")
    return part.text


def _result(content: ResultContent | None, place: str, note: Note, taken: Taken) -> str | list[dict[str, Any]]:
    if not isinstance(content, list):
        return content or ""
    return _parts(_result_part(part, f"{place}[{number}]", note, taken) for number, part in enumerate(content))


def _result_part(part: ResultPart, place: str, note: Note, taken: Taken) -> str | dict[str, Any]:
    if (kind := taken_kind(part.type, taken)) is not None:
        return media_part(kind, place, part)
    return (part.text or "") if media_kind(part.type) is None else media_word(part.type, place, note)


def _answer(content: str | list[AssistantPart] | None) -> str | list[dict[str, Any]]:
    if not isinstance(content, list):
        return content or ""
    return _parts(part.text or part.refusal or "" for part in content if part.type != "thinking")


def _parts(parts: Iterable[str | dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The form the client sent, texts or media; the tokenizer knows which one the template takes. Nothing is an
    empty text.
    """
    given = list(parts)
    return [{"type": "text", "text": each} if isinstance(each, str) else each for each in given] if any(given) else ""


def plain(value: Struct) -> dict[str, Any]:
    """A struct of a request as JSON has it, without what was left out or null."""
    builtin: dict[str, Any] = msgspec.to_builtins(value)
    return {name: entry for name, entry in builtin.items() if entry is not None}
