"""The way in: a parser that is fed a model's text and gives the deltas of the message it is."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from homenode.chat.choice import ChosenFormats
from homenode.chat.syntax.parts import Delta, Message, join_deltas
from homenode.chat.syntax.reader import Reader, Tools
from homenode.chat.syntax.reasoning import RAW, Thoughts, begun_content, is_open
from homenode.chat.syntax.source import Reading, TextSource
from homenode.chat.syntax.writer import Writer


def new_call_id() -> str:
    """An id for a call that has none in the text."""
    return f"call_{uuid.uuid4().hex[:24]}"


class MessageParser:
    """Parses one message. What the deltas make when joined depends on the text alone, and not on how it was cut.

    What is neither a call nor a thought is content: no text is lost but marks of the format and white space next to
    them, and none is an error.
    """

    def __init__(
        self,
        chosen: ChosenFormats,
        prompt: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        raw_thoughts: bool = False,
        eager: bool = False,
        begun: str = "",
        taken_ids: Iterable[str] = (),
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`prompt`: what the text goes on from, which may have opened thoughts. `tools`: as in a request; without any
        nothing is a call. `raw_thoughts`: thoughts stay in the content as they were written. `eager`: arguments are
        shown as they come, because decoding is bound to make the call whole. `begun`: what of the message is within
        the prompt, which its text goes on from. `taken_ids`: of calls in earlier messages, which no call here gets.
        """
        self._source, self._writer = TextSource(), Writer(new_id, taken_ids)
        begins_open = is_open(chosen.thoughts, prompt, begun)
        raw, goes_on = raw_thoughts or chosen.thoughts_name == RAW, bool(begun.strip())
        thoughts = Thoughts(chosen.thoughts, begins_open, raw, goes_on)
        reader = Reader(self._source, self._writer, thoughts, Tools(tools), eager)
        if goes_on:
            reader.go_on(begun_content(chosen.thoughts, begun))
        self._reading = _read(reader, chosen)
        next(self._reading, None)

    def feed(self, text: str) -> list[Delta]:
        """The deltas that can be told once `text` has come as well."""
        if text:
            self._source.feed(text)
            next(self._reading, None)
        return self._writer.take()

    def end(self) -> list[Delta]:
        """The last deltas, now that there is no more text."""
        self._source.end()
        for _ in self._reading:
            raise AssertionError("a parser asked for more at the end")
        self._writer.end()
        return self._writer.take()


def parse_message(parser: MessageParser, text: str) -> Message:
    """The message that a whole text is."""
    return join_deltas([*parser.feed(text), *parser.end()])


def _read(reader: Reader, chosen: ChosenFormats) -> Reading[None]:
    yield from reader.read_first_thoughts()
    if reader.tools or chosen.tools.without_tools:
        yield from chosen.tools.read(reader)
    yield from reader.read_content()
