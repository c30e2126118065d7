"""What tests of message parsers share: tools, and parsing a text whole or cut anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from homenode.chat.choice import choose
from homenode.chat.parser import MessageParser
from homenode.chat.syntax.parts import Message, join_deltas


def _tool(name: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    _tool(
        "book_seat",
        ["train"],
        train={"type": "string"},
        seats={"type": "integer"},
        window={"type": "boolean"},
        price={"type": ["number", "null"]},
        options={"type": "object"},
        stops={"type": "array", "items": {"type": "string"}},
    ),
    _tool("list_trains", []),
]


def parse(
    text: str | Iterable[str],
    name: str | None = None,
    *,
    template: str = "",
    thoughts: str | None = None,
    prompt: str = "",
    tools: list[dict[str, Any]] = TOOLS,
    raw: bool = False,
    eager: bool = False,
    begun: str = "",
) -> Message:
    """The message of a text in format `name`; ids that are not in the text are a, b, c."""
    chosen = choose(template, tool_parser=name, reasoning_parser=thoughts)
    ids = iter("abcdefghijklmnopqrstuvwxyz" * 1000)
    parser = MessageParser(chosen, prompt, tools, raw_thoughts=raw, eager=eager, begun=begun, new_id=lambda: next(ids))
    deltas = []
    for piece in [text] if isinstance(text, str) else text:
        deltas += parser.feed(piece)
    return join_deltas([*deltas, *parser.end()])
