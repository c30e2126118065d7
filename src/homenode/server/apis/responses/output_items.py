"""Items of a response's output while they are made: each takes pieces, tells them as events, and is an item in the
end."""

from __future__ import annotations

from typing import Protocol

from homenode.chat.custom_tools import CustomInput
from homenode.server.apis.responses.events import ResponsesEvent
from homenode.server.apis.responses.items import ItemStatus
from homenode.server.apis.responses.output import (
    OutputItem,
    ResponsesLogprob,
    ResponsesOutputCustomCall,
    ResponsesOutputFunctionCall,
    ResponsesOutputMessage,
    ResponsesOutputReasoning,
    ResponsesOutputText,
    ResponsesReasoningText,
    ResponsesSummaryText,
)
from homenode.server.core.thought_seal import ThoughtSeal


class OpenItem(Protocol):
    """An item that is not done. `id` and `index`: its own, and its number in the output."""

    id: str
    index: int

    def begin(self) -> list[ResponsesEvent]:
        """Return what tells that it begins."""

    def add(self, text: str) -> list[ResponsesEvent]:
        """Return what tells more of it."""

    def end(self) -> list[ResponsesEvent]:
        """Return what tells that nothing more comes, apart from the item as it is then."""

    def item(self, status: ItemStatus) -> OutputItem:
        """The item as it is now."""


class OpenMessage:
    """An `OpenItem`: text for the user."""

    def __init__(self, id: str, index: int) -> None:
        self.id, self.index = id, index
        self._pieces: list[str] = []
        self._logprobs: list[ResponsesLogprob] = []

    def begin(self) -> list[ResponsesEvent]:
        """Its only part begins."""
        return [self._event("response.content_part.added", part=ResponsesOutputText(text=""))]

    def add(self, text: str, logprobs: list[ResponsesLogprob] | None = None) -> list[ResponsesEvent]:
        """More of the text; `logprobs`: of its tokens, where they are asked for."""
        scored = logprobs or []
        self._pieces.append(text)
        self._logprobs += scored
        return [self._event("response.output_text.delta", delta=text, logprobs=scored)]

    def end(self) -> list[ResponsesEvent]:
        """All of the text."""
        part = self._part()
        return [
            self._event("response.output_text.done", text=part.text, logprobs=part.logprobs),
            self._event("response.content_part.done", part=part),
        ]

    def item(self, status: ItemStatus) -> ResponsesOutputMessage:
        """The message; its part is there once it has ended."""
        return ResponsesOutputMessage(
            id=self.id, status=status, content=[] if status == "in_progress" else [self._part()]
        )

    def _part(self) -> ResponsesOutputText:
        return ResponsesOutputText(text="".join(self._pieces), logprobs=self._logprobs)

    def _event(self, type: str, **fields: object) -> ResponsesEvent:
        return ResponsesEvent(type=type, item_id=self.id, output_index=self.index, content_index=0, **fields)  # type: ignore[arg-type]


class OpenThoughts:
    """An `OpenItem`: thoughts, as they are or, where a summary was asked for, in its place."""

    def __init__(self, id: str, index: int, *, as_summary: bool, seal: ThoughtSeal | None) -> None:
        """`seal`: for thoughts that are given out sealed as well; None: they are not."""
        self.id, self.index = id, index
        self._as_summary, self._seal = as_summary, seal
        self._pieces: list[str] = []

    def begin(self) -> list[ResponsesEvent]:
        """Its only part begins."""
        if self._as_summary:
            return [self._event("response.reasoning_summary_part.added", part=ResponsesSummaryText(text=""))]
        return [self._event("response.content_part.added", part=ResponsesReasoningText(text=""))]

    def add(self, text: str) -> list[ResponsesEvent]:
        """More thoughts."""
        self._pieces.append(text)
        return [self._event(f"{self._kind}.delta", delta=text)]

    def end(self) -> list[ResponsesEvent]:
        """All of the thoughts."""
        text = "".join(self._pieces)
        if self._as_summary:
            part = self._event("response.reasoning_summary_part.done", part=ResponsesSummaryText(text=text))
        else:
            part = self._event("response.content_part.done", part=ResponsesReasoningText(text=text))
        return [self._event(f"{self._kind}.done", text=text), part]

    def item(self, status: ItemStatus) -> ResponsesOutputReasoning:
        """The thoughts; they are there, and sealed, once they have ended."""
        item = ResponsesOutputReasoning(id=self.id, status=status, summary=[], content=[])
        if status == "in_progress":
            return item
        text = "".join(self._pieces)
        if self._as_summary:
            item.summary = [ResponsesSummaryText(text=text)]
        else:
            item.content = [ResponsesReasoningText(text=text)]
        if self._seal is not None:
            item.encrypted_content = self._seal.seal(text)
        return item

    @property
    def _kind(self) -> str:
        return "response.reasoning_summary_text" if self._as_summary else "response.reasoning_text"

    def _event(self, type: str, **fields: object) -> ResponsesEvent:
        place = {"summary_index": 0} if self._as_summary else {"content_index": 0}
        return ResponsesEvent(type=type, item_id=self.id, output_index=self.index, **place, **fields)  # type: ignore[arg-type]


class OpenFunctionCall:
    """An `OpenItem`: a call of the function that `call` names, whose arguments come."""

    def __init__(self, call: ResponsesOutputFunctionCall, index: int) -> None:
        self.id, self.index, self._call = call.id, index, call
        self._pieces: list[str] = []

    def begin(self) -> list[ResponsesEvent]:
        """The item says all."""
        return []

    def add(self, text: str) -> list[ResponsesEvent]:
        """More of the arguments."""
        self._pieces.append(text)
        return [self._event("response.function_call_arguments.delta", delta=text)] if text else []

    def end(self) -> list[ResponsesEvent]:
        """All of the arguments."""
        done = self._event("response.function_call_arguments.done", arguments="".join(self._pieces))
        done.name = self._call.name
        return [done]

    def item(self, status: ItemStatus) -> ResponsesOutputFunctionCall:
        """The call."""
        return ResponsesOutputFunctionCall(
            id=self.id,
            status=status,
            call_id=self._call.call_id,
            name=self._call.name,
            namespace=self._call.namespace,
            arguments="".join(self._pieces),
        )

    def _event(self, type: str, **fields: object) -> ResponsesEvent:
        return ResponsesEvent(type=type, item_id=self.id, output_index=self.index, **fields)  # type: ignore[arg-type]


class OpenCustomCall:
    """An `OpenItem`: a call of the tool that `call` names, whose arguments come; the text in them is its input."""

    def __init__(self, call: ResponsesOutputCustomCall, index: int) -> None:
        self.id, self.index, self._call = call.id, index, call
        self._input = CustomInput()
        self._pieces: list[str] = []

    def begin(self) -> list[ResponsesEvent]:
        """The item says all."""
        return []

    def add(self, text: str) -> list[ResponsesEvent]:
        """More of the input, if the arguments tell more of it."""
        piece = self._input.feed(text)
        self._pieces.append(piece)
        return [self._event("response.custom_tool_call_input.delta", delta=piece)] if piece else []

    def end(self) -> list[ResponsesEvent]:
        """All of the input."""
        return [self._event("response.custom_tool_call_input.done", input="".join(self._pieces))]

    def item(self, status: ItemStatus) -> ResponsesOutputCustomCall:
        """The call."""
        return ResponsesOutputCustomCall(
            id=self.id,
            status=status,
            call_id=self._call.call_id,
            name=self._call.name,
            namespace=self._call.namespace,
            input="".join(self._pieces),
        )

    def _event(self, type: str, **fields: object) -> ResponsesEvent:
        return ResponsesEvent(type=type, item_id=self.id, output_index=self.index, **fields)  # type: ignore[arg-type]
