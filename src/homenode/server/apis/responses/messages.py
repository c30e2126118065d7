"""Items of a conversation as messages that a chat template knows.

What an assistant thought, said and called in a row is one message, as templates want it, up to what somebody else says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from homenode.chat.custom_tools import arguments_of
from homenode.server.apis.responses.items import (
    Item,
    ResponsesCallOutput,
    ResponsesCustomCall,
    ResponsesFunctionCall,
    ResponsesMessage,
    ResponsesPart,
    ResponsesReasoning,
    Thoughts,
)
from homenode.server.apis.responses.tools import OfferedTools
from homenode.server.core.media.content import Note, media_kind, media_part, media_word, refuse_media, taken_kind
from homenode.server.core.thought_seal import ThoughtSeal
from homenode.server.http.failures import ApiError
from homenode.server.models.media import NO_MEDIA, Taken

TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


class PlacedItem(NamedTuple):
    """An item and where it is in the body, such as `input[3]`."""

    item: Item
    place: str


class ConversationWriter:
    """Writes messages. `messages`: those written so far."""

    def __init__(self, tools: OfferedTools, seal: ThoughtSeal, note: Note, *, taken: Taken = NO_MEDIA) -> None:
        """`note` hears of what is left out. `taken`: the media that the model takes."""
        self._tools, self._seal, self._note, self._taken = tools, seal, note, taken
        self.messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None  # the assistant's message that the next item may be a part of
        self._calls: dict[str, str] = {}  # names of the functions called so far, by the ids of the calls

    def write(self, items: Iterable[PlacedItem]) -> None:
        """Add what `items` are. Raises ApiError 400 for what no message can be."""
        for item, place in items:
            match item:
                case ResponsesMessage():
                    self._write_message(item, place)
                case ResponsesReasoning():
                    self._write_thoughts(item, place)
                case ResponsesFunctionCall():
                    self._write_call(item, item.arguments or "{}")
                case ResponsesCustomCall():
                    self._write_call(item, arguments_of(item.input))
                case ResponsesCallOutput():
                    self._write_output(item, place)

    def _write_message(self, item: ResponsesMessage, place: str) -> None:
        content = self._content(item.content, f"{place}.content", in_words=False)
        if item.role == "assistant":
            self._write_answer(_joined(content))
            return
        self._turn = None
        role = "user" if item.role == "user" else "system"  # few templates have heard of developers
        message: dict[str, Any] = {"role": role, "content": content}
        if item.name:
            message["name"] = item.name
        self.messages.append(message)

    def _write_answer(self, text: str) -> None:
        turn = self._turn
        if turn is None or (turn["content"] and not turn.get("tool_calls")):
            turn = self._begin_turn()
        turn["content"] += text

    def _write_thoughts(self, item: ResponsesReasoning, place: str) -> None:
        text = self._thoughts(item, place)
        if not text:
            return
        turn = self._turn
        if turn is None or turn["content"] or turn.get("tool_calls"):
            turn = self._begin_turn()
        before = turn.get("reasoning_content")
        turn["reasoning_content"] = f"{before}\n{text}" if before else text

    def _thoughts(self, item: ResponsesReasoning, place: str) -> str:
        if item.encrypted_content:
            opened = self._seal.open(item.encrypted_content)
            if opened is not None:
                return opened
            self._note("encrypted_content", f"{place}.encrypted_content")
        return _thought_text(item.content) or _thought_text(item.summary)

    def _write_call(self, item: ResponsesFunctionCall | ResponsesCustomCall, arguments: str) -> None:
        turn = self._turn or self._begin_turn()
        name = self._tools.flat_name(item.namespace, item.name)
        self._calls[item.call_id] = name
        function = {"name": name, "arguments": arguments}
        turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})

    def _write_output(self, item: ResponsesCallOutput, place: str) -> None:
        self._turn = None
        message: dict[str, Any] = {"role": "tool"}
        if item.call_id is not None:
            message["tool_call_id"] = item.call_id
        name = self._calls.get(item.call_id or "")
        if name is None and item.name:
            name = self._tools.flat_name(item.namespace, item.name)
        if name is not None:
            message["name"] = name
        message["content"] = self._content(item.output, f"{place}.output", in_words=True)
        self.messages.append(message)

    def _begin_turn(self) -> dict[str, Any]:
        self._turn = {"role": "assistant", "content": ""}
        self.messages.append(self._turn)
        return self._turn

    def _content(self, content: str | list[ResponsesPart], place: str, *, in_words: bool) -> str | list[dict[str, Any]]:
        """`in_words`: what the model cannot take becomes a word, and is told."""
        if isinstance(content, str):
            return content
        parts = [self._part(part, f"{place}[{number}]", in_words=in_words) for number, part in enumerate(content)]
        if len(parts) == 1 and "text" in parts[0]:
            return str(parts[0]["text"])
        return parts or ""

    def _part(self, part: ResponsesPart, place: str, *, in_words: bool) -> dict[str, Any]:
        if (kind := taken_kind(part.type, self._taken)) is not None:
            return media_part(kind, place, part)
        return {"type": "text", "text": self._part_text(part, place, in_words=in_words)}

    def _part_text(self, part: ResponsesPart, place: str, *, in_words: bool) -> str:
        if part.type in TEXT_PARTS and part.text is not None:
            return part.text
        if part.type == "refusal" and part.refusal is not None:
            return part.refusal
        if part.type in TEXT_PARTS or part.type == "refusal":
            field = f"{place}.{'refusal' if part.type == 'refusal' else 'text'}"
            raise ApiError(
                400, f"the required field `{field}` is missing", param=field, code="missing_required_parameter"
            )
        if in_words:
            return media_word(part.type, place, self._note)
        if (kind := media_kind(part.type)) is not None:
            refuse_media(kind, place)
        raise ApiError(
            400,
            f"`{place}.type` is not supported: a part of type {part.type[:100]!r}; this model takes parts of type "
            "'input_text' only",
            param=f"{place}.type",
            code="unsupported_parameter",
        )


def _joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _thought_text(pieces: Thoughts | None) -> str:
    return "\n".join(piece.text for piece in pieces or ())
