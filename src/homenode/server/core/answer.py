"""A generation sent as its request asks: as a stream of events or as one body, in the words of an API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from homenode.server.core.choice import GenerationEvent, join_events
from homenode.server.core.generation import Generation
from homenode.server.core.state import ServerState
from homenode.server.http.exchange import unless_gone
from homenode.server.http.failures import ApiError
from homenode.server.http.sse import EventStream


class AnswerFormat(Protocol):
    """How one API writes one answer. Long ones are written on a thread, but never two at once."""

    def whole(self, choices: list[GenerationEvent]) -> bytes:
        """The body of an answer that is not streamed. `choices`: all that was generated, an event for each choice."""

    def event(self, event: GenerationEvent, *, first: bool) -> bytes:
        """The server-sent events for what was generated. `first`: it is the first event of its choice."""

    def end(self) -> bytes:
        """The server-sent events after everything was generated."""

    def failure(self, error: ApiError) -> bytes:
        """The server-sent event that ends a stream which had begun when `error` came up."""


async def respond(
    state: ServerState, request: Request, generation: Generation, answer: AnswerFormat, *, stream: bool
) -> Response:
    """The response. Raises ApiError when a sequence ends without a result, and ClientGone when nobody is left to
    answer.
    """
    if stream:
        events = _events(state, generation, answer)
        return EventStream(request, events, answer.failure, keep_alive_s=state.config.sse_keep_alive)
    whole = await unless_gone(request.receive, _whole(state, generation, answer))
    return Response(whole, media_type="application/json")


async def _whole(state: ServerState, generation: Generation, answer: AnswerFormat) -> bytes:
    gathered: list[list[GenerationEvent]] = [[] for _ in generation.sequences]
    async with aclosing(generation.events()) as events:
        async for event in events:
            gathered[event.choice].append(event)
    items = (
        sum(event.items(generation.top_logprobs) for parts in gathered for event in parts) + generation.prompt_items()
    )
    return await state.text_work.run(lambda: answer.whole([join_events(parts) for parts in gathered]), items)


async def _events(state: ServerState, generation: Generation, answer: AnswerFormat) -> AsyncGenerator[bytes, None]:
    begun = [False] * len(generation.sequences)
    async with aclosing(generation.events()) as events:
        async for event in events:
            if event.empty:
                continue
            first, begun[event.choice] = not begun[event.choice], True
            items = event.items(generation.top_logprobs)
            if first:
                items += generation.prompt_items()
            yield await state.text_work.run(partial(answer.event, event, first=first), items)
    yield answer.end()
