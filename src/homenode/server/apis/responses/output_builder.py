"""The output of a response, made of the deltas of a message: what belongs together becomes an item, one after
another."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from homenode.chat.syntax.parts import CallDelta, ContentDelta, Delta, ReasoningDelta
from homenode.server.apis.responses.events import ResponsesEvent
from homenode.server.apis.responses.items import ItemStatus
from homenode.server.apis.responses.output import (
    OutputItem,
    ResponsesLogprob,
    ResponsesOutputCustomCall,
    ResponsesOutputFunctionCall,
)
from homenode.server.apis.responses.output_items import (
    OpenCustomCall,
    OpenFunctionCall,
    OpenItem,
    OpenMessage,
    OpenThoughts,
)
from homenode.server.apis.responses.tools import OfferedTools
from homenode.server.core.thought_seal import ThoughtSeal


class OutputBuilder:
    """Takes deltas and gives the events that tell of them. `items`: those that are done.

    What the items are does not depend on how the deltas were cut; ids aside, nor does it on who builds them.
    """

    def __init__(
        self, suffix: str, tools: OfferedTools, *, thoughts_as_summary: bool = False, seal: ThoughtSeal | None = None
    ) -> None:
        """`suffix`: ends the ids of all items, and is known to nobody else. `seal`: of thoughts; None: they are not
        given out sealed.
        """
        self.items: list[OutputItem] = []
        self._suffix, self._tools = suffix, tools
        self._thoughts_as_summary, self._seal = thoughts_as_summary, seal
        self._open: OpenItem | None = None
        self._call = -1  # number of the call that is open, or was last

    def add(self, deltas: Iterable[Delta], logprobs: list[ResponsesLogprob] | None = None) -> list[ResponsesEvent]:
        """The events that tell more of the message. `logprobs`: of the tokens that these deltas are of."""
        events: list[ResponsesEvent] = []
        scored = logprobs or []
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    if not isinstance(self._open, OpenMessage):
                        events += self._begin(OpenMessage(self._id("msg"), self._next_index))
                    assert isinstance(self._open, OpenMessage)
                    events += self._open.add(text, scored)
                    scored = []
                case ReasoningDelta(text):
                    if not isinstance(self._open, OpenThoughts):
                        events += self._begin(self._thoughts())
                    assert self._open is not None
                    events += self._open.add(text)
                case CallDelta():
                    events += self._add_call(delta)
        return events

    def end(self, *, cut: bool) -> list[ResponsesEvent]:
        """The last events. `cut`: the answer ends before it is whole, so that its last item is incomplete. An answer
        of nothing is an empty message.
        """
        events = [] if self.items or self._open else self._begin(OpenMessage(self._id("msg"), 0))
        return events + self._end_item("incomplete" if cut else "completed")

    @property
    def _next_index(self) -> int:
        return len(self.items) + (self._open is not None)

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._suffix}_{self._next_index}"

    def _thoughts(self) -> OpenThoughts:
        return OpenThoughts(self._id("rs"), self._next_index, as_summary=self._thoughts_as_summary, seal=self._seal)

    def _add_call(self, delta: CallDelta) -> list[ResponsesEvent]:
        events: list[ResponsesEvent] = []
        if delta.index > self._call:
            self._call = delta.index
            events += self._begin(self._new_call(delta))
        assert isinstance(self._open, OpenFunctionCall | OpenCustomCall)  # calls are whole before anything else comes
        return events + self._open.add(delta.arguments)

    def _new_call(self, delta: CallDelta) -> OpenItem:
        name, index = delta.name or "", self._next_index
        call_id = delta.id or f"call_{self._suffix}_{index}"
        tool = self._tools.by_name.get(name) or self._tools.named(name, None)
        if tool is not None and tool.custom:
            custom = ResponsesOutputCustomCall(
                id=self._id("ctc"),
                status="in_progress",
                call_id=call_id,
                name=tool.tool.name,
                namespace=tool.namespace or UNSET,
                input="",
            )
            return OpenCustomCall(custom, index)
        called = ResponsesOutputFunctionCall(
            id=self._id("fc"),
            status="in_progress",
            call_id=call_id,
            name=tool.tool.name if tool else name,
            namespace=(tool.namespace if tool else None) or UNSET,
            arguments="",
        )
        return OpenFunctionCall(called, index)

    def _begin(self, item: OpenItem) -> list[ResponsesEvent]:
        events = self._end_item("completed")
        self._open = item
        added = ResponsesEvent(
            type="response.output_item.added", output_index=item.index, item=item.item("in_progress")
        )
        return [*events, added, *item.begin()]

    def _end_item(self, status: ItemStatus) -> list[ResponsesEvent]:
        if self._open is None:
            return []
        ended, self._open = self._open, None
        item = ended.item(status)
        self.items.append(item)
        done = ResponsesEvent(type="response.output_item.done", output_index=ended.index, item=item)
        return [*ended.end(), done]
