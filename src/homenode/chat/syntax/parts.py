"""Parts of an assistant's message as they come: pieces of content, of thoughts and of tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ContentDelta:
    """More of the text for the user."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """More of the thoughts."""

    text: str


@dataclass(frozen=True)
class CallDelta:
    """More of the tool call of number `index`; calls are numbered from 0 in the order in which they begin.

    The first delta of a call has its `id` and `name`, later ones have None. `arguments` is JSON text, which is whole
    once all pieces are joined.
    """

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


Delta = ContentDelta | ReasoningDelta | CallDelta


@dataclass
class Call:
    """A tool call: `arguments` is the JSON text of an object."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Message:
    """An assistant's message."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


def join_deltas(deltas: Iterable[Delta]) -> Message:
    """The message that these deltas make."""
    content, reasoning = [], []
    calls: list[Call] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content.append(delta.text)
        elif isinstance(delta, ReasoningDelta):
            reasoning.append(delta.text)
        else:
            if delta.index == len(calls):
                calls.append(Call(delta.id or "", delta.name or ""))
                arguments.append([])
            arguments[delta.index].append(delta.arguments)
    for call, pieces in zip(calls, arguments, strict=True):
        call.arguments = "".join(pieces)
    return Message("".join(content), "".join(reasoning), calls)
