"""Blocks of content, as requests bring them: every type is one struct, so that types of other servers can be left out
instead of refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from msgspec import Struct

from homenode.server.core.media.content import Note, media_kind, media_part, media_word, refuse_media, taken_kind
from homenode.server.http.failures import ApiError
from homenode.server.models.media import Taken

T = TypeVar("T")

NEEDED_FIELDS = {  # that a block of a type must have
    "text": ("text",),
    "thinking": ("thinking",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}


class MessagesSource(Struct, forbid_unknown_fields=True, kw_only=True):
    """The place where an image or a document is."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: MessagesContent | None = None


class MessagesBlock(Struct, forbid_unknown_fields=True, kw_only=True):
    """A block of any type. Which fields it must have depends on `type`."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    is_error: bool | None = None
    content: str | list[MessagesBlock] | MessagesBlock | None = None
    source: str | MessagesSource | None = None
    title: str | None = None
    context: str | None = None
    cache_control: Any = None  # of any value but null: see `cache_is_marked`
    citations: Any = None
    caller: Any = None


MessagesContent = str | list[MessagesBlock]


def check_block(block: MessagesBlock, place: str) -> None:
    """Raises ApiError 400 for a block without a field that one of its type must have, or with such a block within."""
    for each, where in _blocks(block, place):
        for field in NEEDED_FIELDS.get(each.type, ()):
            needed(getattr(each, field), where, field)


def cache_is_marked(content: MessagesContent) -> bool:
    """Return whether a block of a content, or one within it, has a `cache_control`."""
    return any(
        each.cache_control is not None for block, place in _within(content, "") for each, _ in _blocks(block, place)
    )


def _blocks(block: MessagesBlock, place: str) -> Iterator[tuple[MessagesBlock, str]]:
    """A block and all that it has within, with their places."""
    left = [(block, place)]
    while left:
        block, place = left.pop()
        yield block, place
        left += _within(block.content, f"{place}.content")
        if isinstance(block.source, MessagesSource):
            left += _within(block.source.content, f"{place}.source.content")


def _within(content: str | list[MessagesBlock] | MessagesBlock | None, place: str) -> list[tuple[MessagesBlock, str]]:
    """The blocks of a content, and their places."""
    if isinstance(content, MessagesBlock):
        return [(content, place)]
    return [(block, f"{place}[{number}]") for number, block in enumerate(content)] if isinstance(content, list) else []


def needed(value: T | None, place: str, field: str) -> T:
    """The value of a field that a block of its type must have. Raises ApiError 400."""
    if value is None:
        path = f"{place}.{field}"
        raise ApiError(400, f"the required field `{path}` is missing", param=path, code="missing_required_parameter")
    return value


def user_part(block: MessagesBlock, place: str, note: Note, taken: Taken) -> str | dict[str, Any] | None:
    """The text or other medium that a block of the user is; None where it is left out. `taken`: the media that the
    model takes. Raises ApiError 400 for what it cannot read.
    """
    if (kind := taken_kind(block.type, taken)) is not None:
        return media_part(kind, place, block)
    reader = USER_READERS.get(block.type)
    if reader is not None and (text := reader(block, place)) is not None:
        return text
    if (kind := media_kind(block.type)) is not None:
        refuse_media(kind, place)
    note(block.type, place)
    return None


def result_content(block: MessagesBlock, place: str, note: Note, taken: Taken) -> str | list[dict[str, Any]]:
    """The text of a tool's result, or its parts where media are among them. What the model cannot read in it becomes
    a word, and is noted.
    """
    content = block.content
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    found = [_result_part(part, f"{place}.content[{number}]", note, taken) for number, part in enumerate(parts)]
    if not all(isinstance(each, str) for each in found):
        return [{"type": "text", "text": each} if isinstance(each, str) else each for each in found if each]
    return "\n".join(text for text in found if isinstance(text, str) and text)


def _result_part(part: MessagesBlock, place: str, note: Note, taken: Taken) -> str | dict[str, Any]:
    if (kind := taken_kind(part.type, taken)) is not None:
        return media_part(kind, place, part)
    reader = RESULT_READERS.get(part.type)
    if reader is not None and (text := reader(part, place)) is not None:
        return text
    if media_kind(part.type) is not None:
        return media_word(part.type, place, note)
    note(part.type, place)
    return ""


def _text(block: MessagesBlock, place: str) -> str:
    return needed(block.text, place, "text")


def _tool_reference(block: MessagesBlock, place: str) -> str:
    return f"The tool {needed(block.tool_name, place, 'tool_name')} may be called."


def _document(block: MessagesBlock, place: str) -> str | None:
    """The text of a document with its title and context; None where it has none that can be read."""
    source = block.source
    if not isinstance(source, MessagesSource):
        return source
    text = source.data if source.type == "text" else _texts(source.content) if source.type == "content" else None
    if text is None:
        return None
    return "\n".join(part for part in (block.title, block.context, text) if part)


def _search_result(block: MessagesBlock, place: str) -> str:
    content = block.content if isinstance(block.content, str | list) else None
    source = block.source if isinstance(block.source, str) else None
    return "\n".join(part for part in (block.title, source, _texts(content)) if part)


def _texts(content: MessagesContent | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    texts = [block.text for block in content]
    return None if None in texts else "\n".join(text for text in texts if text is not None)


_Reader = Callable[[MessagesBlock, str], str | None]  # from a block and its place to its text; None: it has none
# By the types of blocks: how a block of the user, or one of a tool's result, becomes a text. All others are left out.
USER_READERS: dict[str, _Reader] = {"text": _text, "search_result": _search_result, "document": _document}
RESULT_READERS: dict[str, _Reader] = {**USER_READERS, "tool_reference": _tool_reference}
ANSWER_TYPES = ("text", "thinking", "tool_use")  # of blocks of the assistant
TOOL_RESULT = "tool_result"
