"""Conversations of the Messages API as chat templates know them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from homenode.server.apis.anthropic.blocks import (
    ANSWER_TYPES,
    TOOL_RESULT,
    MessagesBlock,
    MessagesContent,
    check_block,
    needed,
    result_content,
    user_part,
)
from homenode.server.apis.anthropic.request import MessagesMessage, MessagesSystemBlock
from homenode.server.core.media.content import Note
from homenode.server.core.thought_seal import ThoughtSeal
from homenode.server.models.media import NO_MEDIA, Taken

# A line that agents put before their instructions. It is another one in each request, and meant for the bill alone: in
# the prompt it would keep the rest from being found in the prefix cache.
_BILLING = "x-anthropic-billing-header:"
_BILLING_LINE = re.compile(rf"^{_BILLING}[^\n]*(\n|\Z)", re.MULTILINE)


@dataclass
class _Turn:
    """The words that one role says until another one does."""

    role: str
    texts: list[str] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)  # of a turn with pictures, its texts among them
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def say(self, *said: str | dict[str, Any]) -> None:
        """Add texts and pictures."""
        if not self.parts and any(not isinstance(each, str) for each in said):
            self.parts = [{"type": "text", "text": text} for text in self.texts]
        if self.parts or any(not isinstance(each, str) for each in said):
            self.parts += [{"type": "text", "text": each} if isinstance(each, str) else each for each in said]
        self.texts += [each for each in said if isinstance(each, str)]

    def message(self) -> dict[str, Any]:
        if self.parts:
            return {"role": self.role, "content": self.parts}
        if self.role != "assistant":
            parts = [{"type": "text", "text": text} for text in self.texts]
            return {"role": self.role, "content": self.texts[0] if len(parts) == 1 else parts}
        said: dict[str, Any] = {"role": "assistant", "content": "\n".join(self.texts)}
        if thoughts := "\n".join(filter(None, self.thoughts)):
            said["reasoning_content"] = thoughts
        if self.calls:
            said["tool_calls"] = self.calls
        return said


class HistoryReader:
    """Reads a system text and messages into the messages of a template; turns of one role that follow each other become
    one. What is left out is told to `note`.
    """

    def __init__(self, seal: ThoughtSeal, note: Note, *, taken: Taken = NO_MEDIA) -> None:
        """`seal`: of thoughts that were not shown, which their signatures hold. `taken`: the media that the model
        takes.
        """
        self._seal, self._note, self._taken = seal, note, taken
        self._read: list[_Turn | dict[str, Any]] = []
        self._names: dict[str, str] = {}  # of called tools, by the id of the call

    def system(self, system: str | Sequence[MessagesSystemBlock] | None) -> None:
        """Standing instructions before the conversation."""
        texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
        self._say("system", map(_without_billing, texts))

    def messages(self, messages: Sequence[MessagesMessage]) -> None:
        """The turns of the conversation. Raises ApiError 400 for what the model cannot read, and what is incomplete."""
        for number, message in enumerate(messages):
            place = f"messages[{number}].content"
            if message.role == "system":
                self._say("system", map(_without_billing, self._texts(message.content, place)))
            elif message.role == "assistant":
                self._assistant(message.content, place)
            else:
                self._user(message.content, place)

    def template_messages(self) -> list[dict[str, Any]]:
        """All that was read."""
        return [turn.message() if isinstance(turn, _Turn) else turn for turn in self._read]

    @property
    def ends_open(self) -> bool:
        """Return whether the last turn is the beginning of the answer, which is to go on from there."""
        last = self._read[-1] if self._read else None
        return isinstance(last, _Turn) and last.role == "assistant" and bool(last.texts) and not last.calls

    def _say(self, role: str, texts: Iterator[str]) -> None:
        if kept := [text for text in texts if text]:
            self._turn(role).texts.extend(kept)

    def _turn(self, role: str) -> _Turn:
        """The turn of `role` that is going on, begun if there is none."""
        last = self._read[-1] if self._read else None
        if not isinstance(last, _Turn) or last.role != role:
            last = _Turn(role)
            self._read.append(last)
        return last

    def _texts(self, content: MessagesContent, place: str) -> Iterator[str]:
        if isinstance(content, str):
            yield content
            return
        for number, block in enumerate(content):
            check_block(block, f"{place}[{number}]")
            text = user_part(block, f"{place}[{number}]", self._note, NO_MEDIA)
            if isinstance(text, str):
                yield text

    def _user(self, content: MessagesContent, place: str) -> None:
        """Results come before the rest: they answer the calls of the turn before."""
        results: list[dict[str, Any]] = []
        said: list[str | dict[str, Any]] = []
        for number, block in enumerate([] if isinstance(content, str) else content):
            where = f"{place}[{number}]"
            check_block(block, where)
            if block.type == TOOL_RESULT:
                results.append(self._result(block, where))
            elif (part := user_part(block, where, self._note, self._taken)) is not None:
                said.append(part)
        self._read.extend(results)
        if isinstance(content, str):
            self._turn("user").say(content)
        elif said or not results:
            self._turn("user").say(*(said or [""]))

    def _result(self, block: MessagesBlock, place: str) -> dict[str, Any]:
        id = needed(block.tool_use_id, place, "tool_use_id")
        content = result_content(block, place, self._note, self._taken)
        if block.is_error and isinstance(content, str):
            content = f"Error: {content}"
        elif block.is_error:
            content = [{"type": "text", "text": "Error: "}, *content]
        said = {"role": "tool", "tool_call_id": id, "content": content}
        return said | {"name": self._names[id]} if id in self._names else said

    def _assistant(self, content: MessagesContent, place: str) -> None:
        turn = self._turn("assistant")
        if isinstance(content, str):
            turn.texts.append(content)
            return
        for number, block in enumerate(content):
            where = f"{place}[{number}]"
            check_block(block, where)
            if block.type not in ANSWER_TYPES:  # thoughts that only another server can read, tools that it runs
                self._note(block.type, where)
            elif block.type == "text":
                turn.texts.append(needed(block.text, where, "text"))
            elif block.type == "thinking":
                turn.thoughts.append(needed(block.thinking, where, "thinking") or self._sealed(block))
            else:
                turn.calls.append(self._call(block, where))

    def _sealed(self, block: MessagesBlock) -> str:
        return self._seal.open(block.signature or "") or ""

    def _call(self, block: MessagesBlock, place: str) -> dict[str, Any]:
        id, name = needed(block.id, place, "id"), needed(block.name, place, "name")
        self._names[id] = name
        function = {"name": name, "arguments": needed(block.input, place, "input")}
        return {"id": id, "type": "function", "function": function}


def _without_billing(text: str) -> str:
    return _BILLING_LINE.sub("", text) if _BILLING in text else text
