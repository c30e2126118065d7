"""A conversation that is longer than the context: its oldest turns are dropped until the others fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from homenode.server.core.conversation import ConversationRequest, conversation_text
from homenode.server.core.prompt_cut import room_for_answer
from homenode.server.core.prompts import encode_chat_text
from homenode.server.http.failures import CONTEXT_LENGTH_EXCEEDED, ApiError
from homenode.server.models.served_model import ServedModel

Messages = Sequence[Mapping[str, Any]]
_ALWAYS = ("system", "developer")  # roles whose messages stay


async def truncated(model: ServedModel, request: ConversationRequest) -> ConversationRequest:
    """The request itself where it fits; else without its oldest turns, so that there is room for its answer, too. The
    system messages, what the user said last and what followed last upon it stay; where these alone do not fit, nothing
    is dropped, and whoever begins the conversation cuts it or refuses it. Raises ApiError 400, and UserError as
    `begin_conversation`.
    """
    most = model.ready.max_model_len
    if await prompt_tokens(model, request) is not None:
        return request
    droppable = droppable_messages(request.messages)
    room = room_for_answer(request.max_tokens, most)

    async def fitting(dropped: int) -> ConversationRequest | None:
        left_out = {index for unit in droppable[:dropped] for index in unit}
        kept = [message for index, message in enumerate(request.messages) if index not in left_out]
        shorter = dataclasses.replace(request, messages=kept)
        tokens = await prompt_tokens(model, shorter)
        return shorter if tokens is not None and (tokens + room <= most or dropped == len(droppable)) else None

    low, high, found = 1, len(droppable), None  # fewer than `low` are too few
    while low <= high:
        middle = (low + high) // 2
        if (shorter := await fitting(middle)) is not None:
            found, high = shorter, middle - 1
        else:
            low = middle + 1
    return found or request


async def prompt_tokens(model: ServedModel, request: ConversationRequest) -> int | None:
    """Tokens of the prompt; None where it does not fit the context. Raises as `truncated`."""
    try:
        text = await conversation_text(model, request)
        return len((await encode_chat_text(model, text, request.add_special_tokens, request.earlier_ids)).ids)
    except ApiError as error:
        if error.body.error.code != CONTEXT_LENGTH_EXCEEDED:
            raise
        return None


def droppable_messages(messages: Messages) -> list[list[int]]:
    """Places of messages that may be dropped, those together that make no sense alone, in the order in which they are.

    First the turns, each of which begins with what a user says, but the last; then of the last one each answer with the
    results of its calls, but the last.
    """
    said = [index for index, message in enumerate(messages) if message["role"] not in _ALWAYS]
    turns = _groups(said, [index for index in said if messages[index]["role"] == "user"])
    if not turns:
        return []
    *older, last = turns
    answers = _groups(last, [index for index in last if messages[index]["role"] == "assistant"])
    if answers and messages[answers[0][0]]["role"] == "user":
        answers = answers[1:]
    return [*older, *answers[:-1]]


def _groups(places: Sequence[int], begins: Sequence[int]) -> list[list[int]]:
    """The places in groups, each of which begins at one of `begins`, but the first perhaps."""
    groups: list[list[int]] = []
    for place in places:
        if place in begins or not groups:
            groups.append([])
        groups[-1].append(place)
    return groups
