"""The blocks of an answer, and how deltas of a message fill them one after the other."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from homenode.chat.syntax.parts import CallDelta, ContentDelta, Delta, ReasoningDelta


class MessagesText(Struct, kw_only=True, tag_field="type", tag="text"):
    """Text for the user."""

    text: str
    citations: None = None


class MessagesThought(Struct, kw_only=True, tag_field="type", tag="thinking"):
    """Thoughts. `signature`: a digest of them; where they are not shown, the thoughts themselves, sealed."""

    thinking: str
    signature: str


class MessagesToolUse(Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool of the client. `input`: what it is called with."""

    id: str
    name: str
    input: dict[str, Any]


class MessagesTextDelta(Struct, kw_only=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class MessagesThoughtDelta(Struct, kw_only=True, tag_field="type", tag="thinking_delta"):
    """More thoughts."""

    thinking: str


class MessagesSignatureDelta(Struct, kw_only=True, tag_field="type", tag="signature_delta"):
    """The signature of a block of thoughts, before its end."""

    signature: str


class MessagesInputDelta(Struct, kw_only=True, tag_field="type", tag="input_json_delta"):
    """More of the JSON text of a call's input."""

    partial_json: str


AnswerBlock = MessagesText | MessagesThought | MessagesToolUse
BlockDelta = MessagesTextDelta | MessagesThoughtDelta | MessagesSignatureDelta | MessagesInputDelta


class MessagesBlockStart(Struct, kw_only=True, tag_field="type", tag="content_block_start"):
    """Event: block `index` begins, empty."""

    index: int
    content_block: AnswerBlock


class MessagesBlockDelta(Struct, kw_only=True, tag_field="type", tag="content_block_delta"):
    """Event: more of block `index`."""

    index: int
    delta: BlockDelta


class MessagesBlockStop(Struct, kw_only=True, tag_field="type", tag="content_block_stop"):
    """Event: block `index` is whole."""

    index: int


Seal = Callable[[str], str]  # makes a text one that only this service reads
BlockEvent = MessagesBlockStart | MessagesBlockDelta | MessagesBlockStop


class BlockWriter:
    """Events of blocks for the deltas of one message: a block ends where another kind of delta, or another call,
    comes."""

    def __init__(self, seal: Seal | None = None) -> None:
        """`seal`: thoughts are not shown, but sealed by it; None: they are shown."""
        self._seal = seal
        self._index = -1
        self._open: type[Delta] | None = None
        self._call = -1
        self._thoughts: list[str] = []  # of the block that is open

    def feed(self, deltas: Iterable[Delta]) -> Iterator[BlockEvent]:
        """The events for more of the message."""
        for delta in deltas:
            begins = type(delta) is not self._open or (isinstance(delta, CallDelta) and delta.index != self._call)
            if begins:
                yield from self.close()
                yield self._begin(delta)
            if (more := self._more(delta)) is not None:
                yield MessagesBlockDelta(index=self._index, delta=more)

    def close(self) -> Iterator[BlockEvent]:
        """The events that end the block which is open, if one is."""
        if self._open is None:
            return
        if self._open is ReasoningDelta:
            yield MessagesBlockDelta(index=self._index, delta=MessagesSignatureDelta(signature=self._signature()))
        yield MessagesBlockStop(index=self._index)
        self._open = None

    def _begin(self, delta: Delta) -> MessagesBlockStart:
        self._index, self._open = self._index + 1, type(delta)
        block: AnswerBlock
        if isinstance(delta, ContentDelta):
            block = MessagesText(text="")
        elif isinstance(delta, ReasoningDelta):
            self._thoughts = []
            block = MessagesThought(thinking="", signature="")
        else:
            self._call = delta.index
            block = MessagesToolUse(id=delta.id or "", name=delta.name or "", input={})
        return MessagesBlockStart(index=self._index, content_block=block)

    def _more(self, delta: Delta) -> BlockDelta | None:
        if isinstance(delta, ContentDelta):
            return MessagesTextDelta(text=delta.text)
        if isinstance(delta, CallDelta):
            return MessagesInputDelta(partial_json=delta.arguments) if delta.arguments else None
        self._thoughts.append(delta.text)
        return MessagesThoughtDelta(thinking=delta.text) if self._seal is None else None

    def _signature(self) -> str:
        thoughts = "".join(self._thoughts)
        if self._seal is not None:
            return self._seal(thoughts)
        digest = hashlib.blake2b(thoughts.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        return base64.b64encode(digest).decode()


def whole_blocks(deltas: Iterable[Delta], seal: Seal | None = None) -> list[AnswerBlock]:
    """The blocks that the events of a `BlockWriter` for these deltas make."""
    writer = BlockWriter(seal)
    blocks: list[AnswerBlock] = []
    texts: list[list[str]] = []
    for event in (*writer.feed(deltas), *writer.close()):
        if isinstance(event, MessagesBlockStart):
            blocks.append(event.content_block)
            texts.append([])
        elif isinstance(event, MessagesBlockDelta):
            if isinstance(event.delta, MessagesSignatureDelta):
                blocks[-1] = MessagesThought(thinking="", signature=event.delta.signature)
            else:
                texts[-1].append(_text_of(event.delta))
    return [_filled(block, "".join(text)) for block, text in zip(blocks, texts, strict=True)]


def _text_of(delta: BlockDelta) -> str:
    if isinstance(delta, MessagesTextDelta):
        return delta.text
    if isinstance(delta, MessagesThoughtDelta):
        return delta.thinking
    assert isinstance(delta, MessagesInputDelta)
    return delta.partial_json


def _filled(block: AnswerBlock, text: str) -> AnswerBlock:
    if isinstance(block, MessagesText):
        return MessagesText(text=text)
    if isinstance(block, MessagesThought):
        return MessagesThought(thinking=text, signature=block.signature)
    return MessagesToolUse(id=block.id, name=block.name, input=_input(text))


def _input(text: str) -> dict[str, Any]:
    """Return what a call is made with. JSON that was cut off by the limit of tokens is kept as the text that it is."""
    try:
        value = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}
