"""Responses that are made in the background: the request is answered at once, and the response fetched when it is
there.

A response that is being made is in the store with the status `in_progress`, and whoever makes it touches it there every
second. Whoever cancels or removes it does so in the store; the one who makes it sees that within a second.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

import msgspec
from msgspec import Raw, Struct
from starlette.background import BackgroundTask
from starlette.responses import Response

from homenode.server.apis.responses.answer import ResponsesFormat
from homenode.server.core.answer import GatheredEvents
from homenode.server.core.choices.message_reader import join_message, merge_messages
from homenode.server.core.response_store import StoredResponse
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ApiError, failure_of

_LOG = logging.getLogger("homenode.server")
_TOUCHED_EVERY_S = 1.0
_LOST_AFTER_S = 15.0  # without a touch
UNFINISHED = ("queued", "in_progress")


class StoredStatus(Struct):
    """Status of a response that is kept, how far it is."""

    status: str
    background: bool = False


def status_of(stored: StoredResponse) -> StoredStatus:
    """Return how far a response is that is kept."""
    return msgspec.json.decode(stored.response, type=StoredStatus)


async def answer_in_background(
    state: ServerState, answer: ResponsesFormat, items: list[Raw], key: str, request_id: str
) -> Response:
    """The response as it is now; it is made after that was sent. Raises ApiError 503 where it cannot be stored."""
    try:
        await _put(state, answer, items, key)
    except OSError as error:
        text = f"the response could not be stored: {error.strerror}"
        raise ApiError(503, text, code="overloaded", retry_after_s=60) from None
    body = msgspec.json.encode(answer.response)
    work = BackgroundTask(_make, state, answer, items, key, request_id)
    return Response(body, media_type="application/json", background=work)


async def _make(state: ServerState, answer: ResponsesFormat, items: list[Raw], key: str, request_id: str) -> None:
    """Make the response, unless nobody wants it any more."""
    id = answer.response.id
    work = asyncio.ensure_future(_generate(state, answer, request_id))
    watch = asyncio.ensure_future(_until_unwanted(state, id, key))
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and await _is_wanted(state, id, key):
            await _put(state, answer, items, key)
    except OSError as error:
        _LOG.warning("the response %s could not be stored: %s", id, error.strerror)
    finally:
        work.cancel()
        watch.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def _generate(state: ServerState, answer: ResponsesFormat, request_id: str) -> None:
    """Up to the whole response, or one that has failed."""
    gathered = GatheredEvents(merge_messages)
    try:
        async with aclosing(answer.conversation.events()) as events:
            async for event in events:
                gathered.add(event)
        await state.text_work.run(lambda: answer.whole([join_message(gathered.events)]))
    except Exception as error:  # nobody waits for this task: the response says that it has failed, the log why
        answer.failure(failure_of(error, request_id))


async def _until_unwanted(state: ServerState, id: str, key: str) -> None:
    """Returns when the response was cancelled or removed; until then it is told to be under way."""
    while await _is_wanted(state, id, key) and await state.responses.touch(id):
        await asyncio.sleep(_TOUCHED_EVERY_S)


async def _is_wanted(state: ServerState, id: str, key: str) -> bool:
    stored = await state.responses.get(id, key)
    return stored is not None and status_of(stored).status in UNFINISHED


async def _put(state: ServerState, answer: ResponsesFormat, items: list[Raw], key: str) -> None:
    response = Raw(msgspec.json.encode(answer.response))
    await state.responses.put(answer.response.id, StoredResponse(response=response, items=items, key=key))


async def cancelled(state: ServerState, id: str, stored: StoredResponse) -> Raw:
    """Cancel the response of this id, which is not finished; the response as it is then."""
    response = Raw(msgspec.json.encode({**msgspec.json.decode(stored.response), "status": "cancelled"}))
    await state.responses.put(id, msgspec.structs.replace(stored, response=response))
    return response


async def as_it_is(state: ServerState, id: str, stored: StoredResponse) -> Raw:
    """A response that is kept; one that nobody makes any more has failed."""
    if status_of(stored).status not in UNFINISHED:
        return stored.response
    age = await state.responses.age(id)
    if age is not None and age < _LOST_AFTER_S:
        return stored.response
    error = {"code": "server_error", "message": "the process that made the response is gone"}
    return Raw(msgspec.json.encode({**msgspec.json.decode(stored.response), "status": "failed", "error": error}))
