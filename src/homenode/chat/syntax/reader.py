"""The ground of the parsers of all formats: reading content up to a marker, and attempts to read a call.

An attempt that fails gives the text it has taken back as content; reading goes on behind it, so that no text is read
twice.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homenode.chat.syntax.reasoning import Thoughts
from homenode.chat.syntax.schema_types import Types, property_names, property_types
from homenode.chat.syntax.source import Reading, TextSource
from homenode.chat.syntax.writer import Writer

HELD_CHARACTERS = 256  # of arguments before a call is shown that may still turn out to be none
_NAME = re.compile(r"[\w.:/-]{1,256}")
_FENCE = "```"
_LINE = re.compile(r"[^\n]+")


@dataclass(frozen=True)
class Marker:
    """A text at which a call may begin; with `on_new_line` only where nothing but white space is before it."""

    text: str
    on_new_line: bool = False


class Tools:
    """The tools that a request offers."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """`tools`: as the field of the OpenAI API has them."""
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                schema = function.get("parameters")
                self._parameters[function["name"]] = schema if isinstance(schema, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def schema(self, name: str) -> Mapping[str, Any]:
        """Return the schema of a tool's parameters, empty where it is not known."""
        return self._parameters.get(name, {})

    def parameters(self, name: str) -> frozenset[str]:
        """The names of a tool's parameters, as far as its schema has them."""
        return property_names(self._parameters.get(name))

    def types(self, name: str, parameter: str) -> Types:
        """The JSON types of a parameter, any where nothing is said of it."""
        return property_types(self._parameters.get(name), parameter)


class Reader:
    """The text of one message and what becomes of it."""

    def __init__(
        self, source: TextSource, writer: Writer, thoughts: Thoughts, tools: Tools, eager: bool = False
    ) -> None:
        """`eager`: calls are shown as soon as their names are known, because decoding is bound to make them whole."""
        self.source, self.writer, self.thoughts, self.tools, self.eager = source, writer, thoughts, tools, eager
        # Whether only white space is before, on this line; in a code block; the message has begun already.
        self.on_new_line, self._fenced, self.goes_on = True, False, False

    def go_on(self, content: str | None) -> None:
        """The message goes on behind this content, or behind thoughts where it is None."""
        self.writer.go_on(content)
        self.goes_on = bool(content and content.strip())
        for line in (content or "").splitlines(keepends=True):
            if line.lstrip().startswith(_FENCE):
                self._pass_fence(line.lstrip()[len(_FENCE) :])
            self.on_new_line = line.endswith(("\n", "\r")) or not line.strip()

    def read_content(self, markers: Sequence[Marker] = ()) -> Reading[Marker | None]:
        """Write content up to one of the markers, which is taken; None at the end. Thoughts on the way are written as
        such. Markers inside a block of code are content.
        """
        own = self.thoughts.markers
        plain = _plain(tuple(marker.text[0] for marker in markers) + tuple(text[0] for text in own))
        while True:
            self.source.forget()
            if run := self.source.take_run(plain):
                self._write(run)
                continue
            first = yield from self.source.peek()
            if not first:
                return None
            if self.on_new_line and first == "`" and (yield from self.source.looking_at(_FENCE)):
                yield from self._read_fence()
            elif mark := (yield from self.source.accept_one(own)):
                yield from self.thoughts.read_marked(self.source, self.writer, mark)
                self.on_new_line = True
            elif not self._fenced and (found := (yield from self._at_marker(markers))):
                return found
            else:
                self._write(self.source.take())

    def read_first_thoughts(self) -> Reading[None]:
        """Thoughts at the beginning of the message, if there are any."""
        if not (yield from self.thoughts.read_first(self.source, self.writer)):
            self.give_back()

    def _at_marker(self, markers: Iterable[Marker]) -> Reading[Marker | None]:
        for marker in markers:
            if (self.on_new_line or not marker.on_new_line) and (yield from self.source.accept(marker.text)):
                return marker
        return None

    def _read_fence(self) -> Reading[None]:
        """A line that begins with three backticks opens a block of code, and closes it where nothing else is on it."""
        self._write(self.source.take(len(_FENCE)))
        blank, ticks = True, False
        while (yield from self.source.peek()) not in ("", "\n"):
            run = self.source.take_run(_LINE)
            blank, ticks = blank and not run.strip(), ticks or "`" in run
            self._write(run)
        self._fenced = not blank if self._fenced else not ticks

    def _pass_fence(self, rest: str) -> None:
        """Read as `_read_fence`, of a line whose text behind the backticks is known."""
        self._fenced = bool(rest.strip()) if self._fenced else "`" not in rest

    def _write(self, text: str) -> None:
        self.writer.write_content(text)
        last = text.rpartition("\n")
        self.on_new_line = (self.on_new_line or bool(last[1])) and not last[2].strip()

    def give_back(self) -> None:
        """Write the text that was taken as content: it is no call."""
        self._write(self.source.taken())

    @property
    def just_called(self) -> bool:
        """Return whether nothing but white space has come since a call was read."""
        return not "".join(self.source.raw).strip()

    def attempt(self, tagged: bool = True) -> Attempt:
        """A call that is about to be read. One that is not `tagged` must name a tool that was offered."""
        return Attempt(self, tagged)


class Attempt:
    """A call while it is read. It is shown once it is whole, or once it is so long that it must be one."""

    def __init__(self, reader: Reader, tagged: bool) -> None:
        self._reader, self._tagged = reader, tagged
        self.name: str | None = None
        self.id: str | None = None
        self.id_comes_last = False  # so that nothing is shown before the call is whole
        self._pieces: list[str] = []
        self._held = 0
        self._index: int | None = None

    @property
    def bound(self) -> bool:
        """Return whether decoding is bound to make the call whole."""
        return self._reader.eager

    @property
    def has_arguments(self) -> bool:
        """Return whether any were written."""
        return self._held > 0

    @property
    def parameters(self) -> frozenset[str]:
        """The names that the schema of the tool has."""
        return frozenset() if self.name is None else self._reader.tools.parameters(self.name)

    def can_be_called(self, name: str) -> bool:
        """Return whether a call may have this name."""
        return name in self._reader.tools or (self._tagged and _NAME.fullmatch(name) is not None)

    def write(self, text: str) -> None:
        """More of the arguments' JSON text."""
        self._held += len(text)
        if self._index is not None:
            self._reader.writer.write_arguments(self._index, text)
            self._reader.source.forget()
            return
        self._pieces.append(text)
        if (self._reader.eager or self._held > HELD_CHARACTERS) and self.name is not None and not self.id_comes_last:
            self._show()

    def _show(self) -> None:
        assert self.name is not None
        known = self.id if self.id and _NAME.fullmatch(self.id) else None
        self._index = self._reader.writer.begin_call(known, self.name)
        self._reader.writer.write_arguments(self._index, "".join(self._pieces))
        self._reader.source.forget()

    def finish(self) -> None:
        """The call is whole."""
        if not self._held:
            self.write("{}")
        if self._index is None:
            self._show()
        self._reader.source.forget()
        self._reader.on_new_line = True


@functools.lru_cache(maxsize=64)
def _plain(firsts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("[^`" + "".join(re.escape(first) for first in sorted(set(firsts))) + "\n]+|\n")
