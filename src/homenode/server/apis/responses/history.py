"""The conversation that a request goes on with: what is kept of the response before, and what is added."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from homenode.server.apis.responses.background import UNFINISHED, status_of
from homenode.server.apis.responses.input import check_number, item_kind, read_items
from homenode.server.apis.responses.messages import PlacedItem
from homenode.server.apis.responses.request import ResponsesRequest
from homenode.server.core.media.content import Note
from homenode.server.core.response_store import StoredResponse
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ApiError
from homenode.server.keys.caller import caller

RawItem = Mapping[str, Any]
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_(\d{1,6})")
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_NAMES_PREVIOUS = "previous_response_id"
_BYTES_OF_AN_ITEM = 64


class _Output(msgspec.Struct):
    """The output of a response that is kept, what the next request goes on from."""

    output: list[dict[str, Any]]


@dataclass(frozen=True)
class ItemHistory:
    """All items of a conversation, oldest first. `raw`: as they came, those that were left out aside. `size`: bytes of
    the request and of what it goes on from.
    """

    items: list[PlacedItem]
    raw: list[RawItem]
    size: int

    def kept(self) -> list[Raw]:
        """The items as they are kept, each with an id."""
        return [Raw(msgspec.json.encode(_kept_item(raw))) for raw in self.raw]


async def read_history(state: ServerState, body: ResponsesRequest, size: int, note: Note) -> ItemHistory:
    """The items before a request, and its own. `size`: bytes of the request. `note` hears of those that are left out.

    Raises ApiError 404 where what the request goes on from is not kept, and 400, which names the item and its field.
    """
    stored = None if body.previous_response_id is None else await _previous(state, body.previous_response_id)
    given = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input or []
    own = [
        await _resolved(state, item, number) if item_kind(item) == "item_reference" else item
        for number, item in enumerate(given)
    ]
    if stored is not None:
        size += len(stored.response) + sum(map(len, stored.items))
    return await state.text_work.run(lambda: _history(stored, own, size, note), work_items(size))


def work_items(size: int) -> int:
    """Return what it costs to translate `size` bytes, in the measure of `TextWork.run`."""
    return size // _BYTES_OF_AN_ITEM


def _history(stored: StoredResponse | None, own: list[RawItem], size: int, note: Note) -> ItemHistory:
    before = [] if stored is None else _items_of(stored)
    check_number(len(before) + len(own))
    items = read_items(before, _NAMES_PREVIOUS, lambda name, place: None) + read_items(own, "input", note)
    by_place = {f"{_NAMES_PREVIOUS}[{number}]": raw for number, raw in enumerate(before)}
    by_place |= {f"input[{number}]": raw for number, raw in enumerate(own)}
    return ItemHistory(items, [by_place[item.place] for item in items], size)


async def stored_response(state: ServerState, id: str) -> StoredResponse | None:
    """A response that is kept, for the caller whose request is handled."""
    return await state.responses.get(id, caller().name)


async def _previous(state: ServerState, id: str) -> StoredResponse:
    """The response of this id. Raises ApiError 404 where it is not kept, 400 where it is not complete."""
    stored = await stored_response(state, id)
    if stored is None:
        text = (
            f"`previous_response_id`: the response {id[:100]!r} is not here: it was not stored, was deleted, or had to "
            "give way to others; send the items of the conversation as `input`"
        )
        raise ApiError(404, text, param=_NAMES_PREVIOUS, code="previous_response_not_found")
    if status_of(stored).status in UNFINISHED:
        text = f"`previous_response_id`: the response {id[:100]!r} is not complete yet"
        raise ApiError(400, text, param=_NAMES_PREVIOUS, code="invalid_value")
    return stored


def _items_of(stored: StoredResponse) -> list[RawItem]:
    """The items that were there when a response was complete."""
    output = msgspec.json.decode(stored.response, type=_Output).output
    return [*(msgspec.json.decode(item) for item in stored.items), *output]


async def _resolved(state: ServerState, item: RawItem, number: int) -> RawItem:
    """The item that a reference names, which is one of the output of a response that is kept. Raises ApiError 404."""
    id = str(item.get("id"))
    found = _ITEM_ID.fullmatch(id)
    stored = await stored_response(state, f"resp_{found[1]}") if found else None
    output: Sequence[RawItem] = () if stored is None else msgspec.json.decode(stored.response, type=_Output).output
    for kept in output:
        if kept["id"] == id:
            return kept
    place = f"input[{number}].id"
    raise ApiError(404, f"`{place}`: the item {id[:100]!r} is not here", param=place, code="item_not_found")


def _kept_item(raw: RawItem) -> RawItem:
    """An item as it is shown: with a type, an id, and texts as parts."""
    kind = item_kind(raw) or ""
    kept = {**raw, "type": kind}
    if not kept.get("id"):
        kept["id"] = f"{_PREFIXES.get(kind, 'item')}_{secrets.token_hex(16)}"
    if kind == "message":
        part = "output_text" if raw["role"] == "assistant" else "input_text"
        if isinstance(raw["content"], str):
            kept["content"] = [{"type": part, "text": raw["content"]}]
        kept.setdefault("status", "completed")
    return kept
