"""The input of a request to the Responses API: its items and tools, one by one, without those of kinds not known
here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from homenode.server.apis.responses.items import ITEM_KINDS, MOST_ITEMS, ResponsesMoreTools
from homenode.server.apis.responses.messages import PlacedItem
from homenode.server.apis.responses.request import HINTS
from homenode.server.apis.responses.tools import TOOL_KINDS, GivenTool, ResponsesNamespace
from homenode.server.core.media.content import Note
from homenode.server.http.decoding import convert_as
from homenode.server.http.failures import ApiError

Convert = Callable[[Any, str, Note], Any]

_ITEMS: dict[str, Convert] = {name: convert_as(kind, HINTS) for name, kind in ITEM_KINDS.items()}
_TOOLS: dict[str, Convert] = {name: convert_as(kind, HINTS) for name, kind in TOOL_KINDS.items()}
_read_namespace = convert_as(ResponsesNamespace, HINTS)


def item_kind(raw: Mapping[str, Any]) -> str | None:
    """The type of an item; messages and references may leave it out. None for what is no type."""
    kind = raw.get("type")
    if kind is None:
        return "item_reference" if "role" not in raw and "id" in raw else "message"
    return kind if isinstance(kind, str) else None


def read_items(given: Sequence[Mapping[str, Any]], place: str, note: Note) -> list[PlacedItem]:
    """The items of an input that is in the field `place`. `note` hears of those that are left out, by their types.

    Raises ApiError 400, which names the item and its field.
    """
    items = []
    for number, raw in enumerate(given):
        at, kind = f"{place}[{number}]", item_kind(raw)
        if kind is None:
            raise ApiError(400, f"`{at}.type`: expected `str`", param=f"{at}.type", code="invalid_value")
        if kind in _ITEMS:
            items.append(PlacedItem(_ITEMS[kind](raw, at, note), at))
        else:
            note(kind or "type", at)
    return items


def read_tools(given: Iterable[Mapping[str, Any]], place: str, note: Note) -> list[GivenTool]:
    """The tools in the field `place` that a client runs itself, those of namespaces included. `note` hears of the
    others, by their types.

    Raises ApiError 400, which names the tool and its field.
    """
    tools: list[GivenTool] = []
    for kind, raw, at in _kinds(given, place):
        if kind == "namespace":
            tools += _tools_of(_read_namespace(raw, at, note), at, note)
        elif kind in _TOOLS:
            tools.append(GivenTool(_TOOLS[kind](_known(raw), at, note), at))
        else:
            note(kind or "type", at)
    return tools


def _tools_of(namespace: ResponsesNamespace, place: str, note: Note) -> list[GivenTool]:
    tools: list[GivenTool] = []
    about = f"{namespace.name}: {namespace.description}" if namespace.description else ""
    for kind, raw, at in _kinds(namespace.tools, f"{place}.tools"):
        if kind in _TOOLS:
            tools.append(GivenTool(_TOOLS[kind](_known(raw), at, note), at, namespace.name, "" if tools else about))
        else:
            note(kind or "type", at)
    return tools


def _kinds(given: Iterable[Mapping[str, Any]], place: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """The type of each tool, the tool, and its place."""
    for number, raw in enumerate(given):
        at, kind = f"{place}[{number}]", raw.get("type")
        if not isinstance(kind, str):
            text = f"`{at}.type`: expected `str`, such as 'function'"
            raise ApiError(400, text, param=f"{at}.type", code="invalid_value")
        yield kind, raw, at


def _known(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool as this API has it, also where a client sends it as the API of chat completions has it."""
    inner = raw.get(str(raw["type"]))
    return {"type": raw["type"], **inner} if "name" not in raw and isinstance(inner, dict) else raw


def more_tools(items: Iterable[PlacedItem], note: Note) -> list[GivenTool]:
    """The tools that items of a conversation bring along."""
    found: list[GivenTool] = []
    for item, place in items:
        if isinstance(item, ResponsesMoreTools):
            found += read_tools(item.tools, f"{place}.tools", note)
    return found


def check_number(items: int) -> None:
    """Raises ApiError 400 for a conversation of too many items."""
    if items > MOST_ITEMS:
        text = f"`input`: the conversation has {items} items; at most {MOST_ITEMS} are taken"
        raise ApiError(400, text, param="input", code="invalid_value")
