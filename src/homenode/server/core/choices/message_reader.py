"""The events of one choice read as parts of a message: content, thoughts and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from homenode.chat.choice import ChosenFormats
from homenode.chat.parser import MessageParser
from homenode.chat.syntax.parts import CallDelta, ContentDelta, Delta, Message, ReasoningDelta, join_deltas
from homenode.server.core.choices.choice import GenerationEvent, ScoredToken

_PROMPT_END = 4096  # characters of a prompt that tell whether thoughts are open
_DELTA_ITEMS = 8  # what it costs to write one


class MessageEvent(NamedTuple):
    """The part that one output of the engine adds to the message of a choice; the last event of a choice has a finish
    reason: `stop`, `length` or `tool_calls`.

    `choice`: the number of the choice, from 0 on. `stop_text`: the stop string that ended it, if one did.
    """

    choice: int
    deltas: list[Delta]
    token_ids: list[int]
    scored: list[ScoredToken]
    finish_reason: str | None
    stop_text: str | None = None

    @property
    def empty(self) -> bool:
        """Nothing a client would notice."""
        return not (self.deltas or self.token_ids or self.scored or self.finish_reason)

    def items(self, top: int) -> int:
        """Parts, tokens and log-probabilities in it, where each token has `top` others."""
        return _DELTA_ITEMS * (1 + len(self.deltas)) + len(self.token_ids) + len(self.scored) * (top + 1)


class JoinedMessage(NamedTuple):
    """The whole message of a choice, and the other fields of `MessageEvent`. `events`: those that make it, in order."""

    choice: int
    message: Message
    token_ids: list[int]
    scored: list[ScoredToken]
    finish_reason: str | None
    stop_text: str | None
    events: list[MessageEvent]

    @property
    def deltas(self) -> list[Delta]:
        """The parts in their order."""
        return [delta for event in self.events for delta in event.deltas]


def join_message(events: list[MessageEvent]) -> JoinedMessage:
    """All events of one choice, at least one of them, as a whole."""
    return JoinedMessage(
        events[0].choice,
        join_deltas(delta for event in events for delta in event.deltas),
        [token for event in events for token in event.token_ids],
        [scored for event in events for scored in event.scored],
        events[-1].finish_reason,
        events[-1].stop_text,
        events,
    )


def merge_messages(events: list[MessageEvent]) -> list[MessageEvent]:
    """The same message in fewer events: one for each run of those that go on with the same part of it."""
    runs: list[list[MessageEvent]] = []
    part: object = None
    for event in events:
        own = _part_of(event)
        if runs and (own == part if event.deltas and own is not None else not (event.deltas or event.scored)):
            runs[-1].append(event)
        else:
            runs.append([event])
            part = own
    return [run[0] if len(run) == 1 else _joined_run(run) for run in runs]


def _part_of(event: MessageEvent) -> object:
    """Return the part of the message that an event goes on with; None where it is not one."""
    if len(event.deltas) != 1:
        return None
    delta = event.deltas[0]
    return delta.index if isinstance(delta, CallDelta) else type(delta)


def _joined_run(run: list[MessageEvent]) -> MessageEvent:
    deltas = [delta for event in run for delta in event.deltas]
    if len(deltas) > 1 and len(run[0].deltas) == 1:
        deltas = [_joined_delta(deltas)]
    return MessageEvent(
        run[0].choice,
        deltas,
        [token for event in run for token in event.token_ids],
        [scored for event in run for scored in event.scored],
        run[-1].finish_reason,
        run[-1].stop_text,
    )


def _joined_delta(deltas: list[Delta]) -> Delta:
    """One of several that go on with the same part."""
    first = deltas[0]
    if isinstance(first, CallDelta):
        return replace(first, arguments="".join(d.arguments for d in deltas if isinstance(d, CallDelta)))
    return replace(first, text="".join(d.text for d in deltas if not isinstance(d, CallDelta)))


class MessageReader:
    """Reads one choice. `thought_tokens`: tokens so far of which nothing but thoughts came."""

    def __init__(self, parser: MessageParser | None, *, parallel: bool = True) -> None:
        """`parser`: None where the whole text is content. `parallel`: there may be several calls; otherwise the message
        ends where a second one begins.
        """
        self._parser, self._parallel = parser, parallel
        self._called = False
        self.thought_tokens = 0

    @staticmethod
    def of(
        chosen: ChosenFormats,
        prompt: str,
        tools: Sequence[Mapping[str, Any]],
        *,
        raw_thoughts: bool = False,
        parallel: bool = True,
        eager: bool = False,
        begun: str = "",
        taken_ids: Iterable[str] = (),
    ) -> MessageReader:
        """Read as `MessageParser`."""
        end = prompt[-_PROMPT_END:]
        parser = MessageParser(
            chosen, end, tools, raw_thoughts=raw_thoughts, eager=eager, begun=begun, taken_ids=taken_ids
        )
        return MessageReader(parser, parallel=parallel)

    def opens_with(self, kind: type[Delta]) -> bool:
        """Return whether any text, put in place of an answer, would be read as `kind`; nothing may be read after it."""
        deltas = [] if self._parser is None else [*self._parser.feed("a"), *self._parser.end()]
        return bool(deltas) and isinstance(deltas[0], kind)

    def read(self, event: GenerationEvent) -> MessageEvent:
        """Return what `event` adds to the message; after a finish reason nothing more may be read."""
        reason = event.finish_reason
        if self._parser is None:
            deltas: list[Delta] = [ContentDelta(event.text)] if event.text else []
        else:
            deltas = self._parser.feed(event.text)
            if reason is not None:
                deltas += self._parser.end()
        if not self._parallel and (second := _second_call(deltas)) is not None:
            deltas, reason = deltas[:second], "stop"
        self._called = self._called or any(isinstance(delta, CallDelta) for delta in deltas)
        if deltas and all(isinstance(delta, ReasoningDelta) for delta in deltas):
            self.thought_tokens += len(event.token_ids)
        if reason == "stop" and self._called:
            reason = "tool_calls"
        return MessageEvent(event.choice, deltas, event.token_ids, event.scored, reason, event.stop_text)


def _second_call(deltas: list[Delta]) -> int | None:
    """The place of the first delta of a second call."""
    return next((i for i, delta in enumerate(deltas) if isinstance(delta, CallDelta) and delta.index > 0), None)
