"""Answers: what is generated, sent as its request asks: as a stream of events or as one body, in the words of
an API.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from homenode.server.core.choices.choice import GenerationEvent, join_events
from homenode.server.core.choices.message_reader import JoinedMessage, MessageEvent, join_message, merge_messages
from homenode.server.core.conversation import Conversation
from homenode.server.core.generation import Generation
from homenode.server.core.state import ServerState
from homenode.server.http.exchange import unless_gone
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_left_out, note_not_kept
from homenode.server.http.sse import EVENTS, LINES, EventStream, StreamForm
from homenode.server.keys.told_usage import USAGE_HEADER, ToldUsage

Event = TypeVar("Event", GenerationEvent, MessageEvent)
Whole = TypeVar("Whole", GenerationEvent, JoinedMessage)
_MERGED = 16  # events of a choice, as many as are merged at a time
_Event = TypeVar("_Event", bound=GenerationEvent | MessageEvent, contravariant=True)
_Whole = TypeVar("_Whole", bound=GenerationEvent | JoinedMessage)


class AnswerFormat(Protocol[_Event, _Whole]):
    """The way in which one API writes one answer. Long ones are written on a thread, but never two at once."""

    def whole(self, choices: list[_Whole]) -> bytes:
        """The body of an answer that is not streamed. `choices`: all that was generated, one for each choice."""

    def event(self, event: _Event, *, first: bool) -> bytes:
        """The server-sent events for what was generated. `first`: it is the first event of its choice."""

    def end(self) -> bytes:
        """The server-sent events after everything was generated."""

    def failure(self, error: ApiError) -> bytes:
        """The server-sent event that ends a stream which had begun when `error` came up."""


TextFormat = AnswerFormat[GenerationEvent, GenerationEvent]
MessageFormat = AnswerFormat[MessageEvent, JoinedMessage]


class GatheredEvents(Generic[Event]):
    """The events of one choice until all are there. Where each token has one they would be hundreds of thousands, at
    which every collection of garbage looks: those of a run become one.
    """

    def __init__(self, merge: Callable[[list[Event]], list[Event]]) -> None:
        """`merge`: makes fewer of them that say the same."""
        self.events: list[Event] = []
        self._merge: Callable[[list[Event]], list[Event]] = merge
        self._new = 0

    def add(self, event: Event) -> None:
        """Take in the next."""
        self.events.append(event)
        self._new += 1
        if self._new == _MERGED:
            self.events[-_MERGED:] = self._merge(self.events[-_MERGED:])
            self._new = 0


@dataclass(frozen=True)
class _Source(Generic[Event, Whole]):
    """The source that events come from, how many of a choice become few, and what all of them are together."""

    generation: Generation
    events: Callable[[], AsyncGenerator[Event, None]]
    merge: Callable[[list[Event]], list[Event]]
    join: Callable[[list[Event]], Whole]


async def respond(
    state: ServerState, request: Request, generation: Generation, answer: TextFormat, *, stream: bool
) -> Response:
    """The response with texts. Raises ApiError when a sequence ends without a result, and ClientGone when nobody is
    left to answer.
    """
    source = _Source(
        generation, partial(generation.events, by_token=stream), lambda each: [join_events(each)], join_events
    )
    return await _respond(state, request, source, answer, stream=stream)


async def respond_conversation(
    state: ServerState,
    request: Request,
    conversation: Conversation,
    answer: MessageFormat,
    *,
    stream: bool,
    form: StreamForm = EVENTS,
    before_end: Callable[[], Awaitable[None]] | None = None,
    opening: Callable[[], bytes] | None = None,
) -> Response:
    """The response with messages. `form`: of a stream; `opening`: what it begins with where its first event takes long.
    `before_end`: awaited when the whole answer is written, before the last of it is sent. Raises as `respond`.
    """
    note_conversation(request, conversation)
    source = _Source(conversation.generation, conversation.events, merge_messages, join_message)
    return await _respond(
        state, request, source, answer, stream=stream, form=form, before_end=before_end, opening=opening
    )


def note_conversation(request: Request, conversation: Conversation) -> None:
    """Tell what of a conversation is not shown to the model, and what of schemas is not kept. Raises ApiError 400 where
    the server is told to refuse that.
    """
    note_left_out(request, conversation.left_out)
    note_not_kept(request, conversation.not_kept)


async def _respond(
    state: ServerState,
    request: Request,
    source: _Source[Event, Whole],
    answer: AnswerFormat[Event, Whole],
    *,
    stream: bool,
    form: StreamForm = EVENTS,
    before_end: Callable[[], Awaitable[None]] | None = None,
    opening: Callable[[], bytes] | None = None,
) -> Response:
    tells = USAGE_HEADER in request.headers
    if stream:
        events = _events(state, source, answer, before_end, tells=tells and form is not LINES)
        every_s = state.config.sse_keep_alive
        return EventStream(request, events, answer.failure, keep_alive_s=every_s, form=form, opening=opening)
    whole = await unless_gone(request.receive, _whole(state, source, answer))
    if before_end is not None:
        await before_end()
    told = {USAGE_HEADER: told_usage(source.generation).header()} if tells else None
    return Response(whole, media_type="application/json", headers=told)


def told_usage(generation: Generation) -> ToldUsage:
    """Return what is told to a proxy that asks for it."""
    usage = generation.usage()
    return ToldUsage(usage.prompt_tokens, usage.completion_tokens)


async def _whole(state: ServerState, source: _Source[Event, Whole], answer: AnswerFormat[Event, Whole]) -> bytes:
    generation = source.generation
    gathered = [GatheredEvents(source.merge) for _ in generation.sequences]
    items = 0  # summed up as they come: of many answers there are more events than one call of the loop may look at
    async with aclosing(source.events()) as events:
        async for event in events:
            gathered[event.choice].add(event)
            items += event.items(generation.top_logprobs)
    return await state.text_work.run(
        lambda: answer.whole([source.join(each.events) for each in gathered]), items + generation.prompt_items()
    )


async def _events(
    state: ServerState,
    source: _Source[Event, Whole],
    answer: AnswerFormat[Event, Whole],
    before_end: Callable[[], Awaitable[None]] | None,
    *,
    tells: bool,
) -> AsyncGenerator[bytes, None]:
    generation = source.generation
    begun = [False] * len(generation.sequences)
    async with aclosing(source.events()) as events:
        async for event in events:
            if event.empty:
                continue
            first, begun[event.choice] = not begun[event.choice], True
            items = event.items(generation.top_logprobs)
            if first:
                items += generation.prompt_items()
            yield await state.text_work.run(partial(answer.event, event, first=first), items)
    last = answer.end()
    if tells:
        last = told_usage(generation).comment() + last
    if before_end is not None:
        await before_end()
    yield last
