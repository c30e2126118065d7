"""A conversation answered as its request asks: as a stream of events or as one body, in the words of an API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from homenode.server.core.conversation import Conversation
from homenode.server.core.message_reader import JoinedMessage, MessageEvent, join_message
from homenode.server.core.state import ServerState
from homenode.server.http.exchange import unless_gone
from homenode.server.http.failures import ApiError
from homenode.server.http.sse import EVENTS, EventStream, StreamForm


class MessageFormat(Protocol):
    """How one API writes one answer to a conversation. Long ones are written on a thread, but never two at once."""

    def whole(self, choices: list[JoinedMessage]) -> bytes:
        """The body of an answer that is not streamed."""

    def event(self, event: MessageEvent, *, first: bool) -> bytes:
        """The server-sent events for what was generated. `first`: it is the first event of its choice."""

    def end(self) -> bytes:
        """The server-sent events after everything was generated."""

    def failure(self, error: ApiError) -> bytes:
        """The server-sent event that ends a stream which had begun when `error` came up."""


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
    """The response. `form`: of a stream; `opening`: what it begins with where its first event takes long. `before_end`:
    awaited when the whole answer is written, before the last of it is sent.

    Raises ApiError when a sequence ends without a result, and ClientGone when nobody is left to answer.
    """
    if stream:
        events = _events(state, conversation, answer, before_end)
        every_s = state.config.sse_keep_alive
        return EventStream(request, events, answer.failure, keep_alive_s=every_s, form=form, opening=opening)
    whole = await unless_gone(request.receive, _whole(state, conversation, answer))
    if before_end is not None:
        await before_end()
    return Response(whole, media_type="application/json")


async def _whole(state: ServerState, conversation: Conversation, answer: MessageFormat) -> bytes:
    gathered: list[list[MessageEvent]] = [[] for _ in conversation.generation.sequences]
    async with aclosing(conversation.events()) as events:
        async for event in events:
            gathered[event.choice].append(event)
    top = conversation.generation.top_logprobs
    items = sum(event.items(top) for parts in gathered for event in parts) + conversation.generation.prompt_items()
    return await state.text_work.run(lambda: answer.whole([join_message(parts) for parts in gathered]), items)


async def _events(
    state: ServerState,
    conversation: Conversation,
    answer: MessageFormat,
    before_end: Callable[[], Awaitable[None]] | None,
) -> AsyncGenerator[bytes, None]:
    generation = conversation.generation
    begun = [False] * len(generation.sequences)
    async with aclosing(conversation.events()) as events:
        async for event in events:
            if event.empty:
                continue
            first, begun[event.choice] = not begun[event.choice], True
            items = event.items(generation.top_logprobs)
            if first:
                items += generation.prompt_items()
            yield await state.text_work.run(partial(answer.event, event, first=first), items)
    last = answer.end()
    if before_end is not None:
        await before_end()
    yield last
