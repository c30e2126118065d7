"""Conversations of the Ollama API as chat templates know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homenode.server.apis.ollama.request import OllamaCall, OllamaMessage
from homenode.server.core.media.content import Note, data_part, media_word, refuse_media
from homenode.server.models.media import NO_MEDIA, Taken


def template_messages(
    messages: Sequence[OllamaMessage], note: Note, *, taken: Taken = NO_MEDIA
) -> list[dict[str, Any]]:
    """The messages of a template. Results of tools, which need not say what call they are of, answer the earliest that
    is open. `taken`: the media that the model takes; else raises ApiError 400 for images.
    """
    said: list[dict[str, Any]] = []
    open_calls: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        if message.role == "tool":
            said.append(_result(message, open_calls, place, note, taken))
            continue
        if "image" not in taken:
            refuse_images(message.images, f"{place}.images")
        role = "system" if message.role == "developer" else message.role
        content = with_images(message.content or "", message.images, f"{place}.images")
        one: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            if message.thinking:
                one["reasoning_content"] = message.thinking
            open_calls = [_call(call, f"call_{number}_{i}") for i, call in enumerate(message.tool_calls or ())]
            if open_calls:
                one["tool_calls"] = list(open_calls)
        said.append(one | {"name": message.name} if message.name else one)
    return said


def ends_open(messages: Sequence[OllamaMessage]) -> bool:
    """Return whether the last message is the beginning of the answer, which is to go on from there."""
    last = messages[-1]
    return last.role == "assistant" and bool(last.content) and not last.tool_calls


def refuse_images(images: list[str] | None, place: str) -> None:
    """Raises ApiError 400 where there are some."""
    if images:
        refuse_media("image", f"{place}[0]")


def with_images(content: str, images: list[str] | None, place: str) -> str | list[dict[str, Any]]:
    """A text with the pictures of its message, which stand before it as Ollama has them."""
    if not images:
        return content
    parts = [data_part("image", f"{place}[{number}]", image) for number, image in enumerate(images)]
    return [*parts, {"type": "text", "text": content}] if content else parts


def _call(call: OllamaCall, id: str) -> dict[str, Any]:
    arguments = call.function.arguments
    function = {"name": call.function.name, "arguments": {} if arguments is None else arguments}
    return {"id": call.id or id, "type": "function", "function": function}


def _result(
    message: OllamaMessage, open_calls: list[dict[str, Any]], place: str, note: Note, taken: Taken
) -> dict[str, Any]:
    name = message.tool_name or message.name
    fitting = [
        call
        for call in open_calls
        if message.tool_call_id in (None, call["id"]) and name in (None, call["function"]["name"])
    ]
    content: Any = message.content or ""
    if "image" in taken:
        content = with_images(content, message.images, f"{place}.images")
    elif message.images:
        word = media_word("image", f"{place}.images", note)
        content = "\n".join([content, word] if content else [word])
    said: dict[str, Any] = {"role": "tool", "content": content}
    if fitting:
        open_calls.remove(fitting[0])
        said |= {"tool_call_id": fitting[0]["id"], "name": fitting[0]["function"]["name"]}
    if message.tool_call_id:
        said["tool_call_id"] = message.tool_call_id
    return said | {"name": name} if name else said
