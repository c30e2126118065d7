"""The answers of POST /v1/messages."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from homenode.server.apis.anthropic.content import AnswerBlock, BlockEvent, BlockWriter, Seal, whole_blocks
from homenode.server.apis.anthropic.errors import MessagesErrorDetail, messages_error
from homenode.server.core.choices.message_reader import JoinedMessage, MessageEvent
from homenode.server.core.conversation import Conversation
from homenode.server.http.failures import ApiError
from homenode.server.keys.service_tiers import ServiceTier

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
MessagesTier = Literal["priority", "standard", "batch"]
_TIERS: dict[ServiceTier, MessagesTier] = {"priority": "priority", "default": "standard", "flex": "batch"}
_REASONS: dict[str | None, StopReason] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesUsage(Struct, kw_only=True):
    """Tokens of a request. `cache_read_input_tokens`: of the prompt of a request that has `cache_control`, found in the
    prefix cache; `input_tokens` are the others. What the cache keeps costs nothing, so none are counted as created.
    `service_tier`: whose turn it was, in the words of this API; `message_delta` does not repeat it.
    """

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: MessagesTier | UnsetType = UNSET


class MessagesAnswer(Struct, kw_only=True, tag_field="type", tag="message"):
    """Answer of /v1/messages. `stop_sequence`: the one that ended it."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class MessagesStart(Struct, kw_only=True, tag_field="type", tag="message_start"):
    """Event: the message, still empty."""

    message: MessagesAnswer


class MessagesEnd(Struct, kw_only=True):
    """Reason why a message ends."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessagesDelta(Struct, kw_only=True, tag_field="type", tag="message_delta"):
    """Event: why the message ends, and the totals."""

    delta: MessagesEnd
    usage: MessagesUsage


class MessagesStop(Struct, kw_only=True, tag_field="type", tag="message_stop"):
    """Event: the end."""


class MessagesPing(Struct, kw_only=True, tag_field="type", tag="ping"):
    """Event: the server is there."""


class MessagesFailed(Struct, kw_only=True, tag_field="type", tag="error"):
    """Event: what ended a stream that had begun."""

    error: MessagesErrorDetail


MessagesEvent = MessagesStart | BlockEvent | MessagesDelta | MessagesStop | MessagesPing | MessagesFailed
MESSAGES_EVENTS: tuple[type, ...] = get_args(MessagesEvent)


def write_event(event: MessagesEvent) -> bytes:
    """One event on the wire, with its type as its name."""
    name = str(event.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


PING = write_event(MessagesPing())


def messages_failure(error: ApiError) -> bytes:
    """The event that ends a stream which had begun when `error` came up."""
    return write_event(MessagesFailed(error=messages_error(error).error))


class MessagesFormat:
    """A `MessageFormat`: one message, as blocks."""

    def __init__(
        self, model: str, conversation: Conversation, seal: Seal | None = None, *, cached_apart: bool = True
    ) -> None:
        """`seal`: of thoughts that are not shown; None: they are. `cached_apart`: tokens found in the prefix cache are
        no part of `input_tokens`, as for whoever marks prefixes; else all tokens of the prompt are.
        """
        self._model, self._generation = model, conversation.generation
        self._seal, self._cached_apart = seal, cached_apart
        self._id = f"msg_{secrets.token_hex(12)}"
        self._writer = BlockWriter(seal)
        self._end = MessagesEnd(stop_reason=None, stop_sequence=None)

    def whole(self, choices: list[JoinedMessage]) -> bytes:
        """The message."""
        choice = choices[0]
        end = _end_of(choice)
        answer = self._answer(whole_blocks(choice.deltas, self._seal), end)
        return msgspec.json.encode(answer)

    def event(self, event: MessageEvent, *, first: bool) -> bytes:
        """The beginning of the message before its first part, and the events for the part."""
        parts: list[MessagesEvent] = []
        if first:
            start = self._answer([], self._end)
            parts += [MessagesStart(message=start), MessagesPing()]
        parts += self._writer.feed(event.deltas)
        if event.finish_reason is not None:
            self._end = _end_of(event)
        return _written(parts)

    def end(self) -> bytes:
        """The end of the last block, the reason and the totals."""
        end = MessagesDelta(delta=self._end, usage=self._usage())
        return _written([*self._writer.close(), end, MessagesStop()])

    def failure(self, error: ApiError) -> bytes:
        """An event of the type `error`; no message_stop follows."""
        return messages_failure(error)

    def _answer(self, content: list[AnswerBlock], end: MessagesEnd) -> MessagesAnswer:
        return MessagesAnswer(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=self._usage(_TIERS[self._generation.tier]),
        )

    def _usage(self, tier: MessagesTier | UnsetType = UNSET) -> MessagesUsage:
        prompt, completion, cached = self._generation.usage()
        if not self._cached_apart:
            cached = 0
        return MessagesUsage(
            input_tokens=prompt - cached,
            cache_read_input_tokens=cached,
            output_tokens=completion,
            service_tier=tier,
        )


def _end_of(event: MessageEvent | JoinedMessage) -> MessagesEnd:
    if event.stop_text is not None and event.finish_reason == "stop":
        return MessagesEnd(stop_reason="stop_sequence", stop_sequence=event.stop_text)
    return MessagesEnd(stop_reason=_REASONS.get(event.finish_reason), stop_sequence=None)


def _written(events: Iterable[MessagesEvent]) -> bytes:
    return b"".join(map(write_event, events))
