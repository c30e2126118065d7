"""Collects the deltas of a message, and leaves out the white space that formats put around calls and thoughts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable

from homenode.chat.syntax.parts import CallDelta, ContentDelta, Delta, ReasoningDelta

_COUNTED = re.compile(r"(|.*\D)(\d{1,9})", re.DOTALL)  # "0", or "functions.look:0"


class Writer:
    """Deltas that were not taken yet.

    White space at the end of content is held until it is known what follows: it belongs to the format where that is a
    call, and to the text otherwise.
    """

    def __init__(self, new_id: Callable[[], str], taken_ids: Iterable[str] = ()) -> None:
        """`taken_ids`: of calls in earlier messages."""
        self._new_id = new_id
        self._deltas: list[Delta] = []
        self._space: list[str] = []  # of content, not written yet
        self._thought_space: list[str] = []
        self._before_call = ""  # white space between the last content and the calls behind it
        self._has_content = self._has_thoughts = False
        self._behind_call = self._behind_thoughts = False
        self._calls = 0
        self._ids = set(taken_ids)

    def go_on(self, content: str | None) -> None:
        """The message goes on behind this content, or behind thoughts where it is None."""
        self._has_content, self._has_thoughts = bool(content and content.strip()), content is None
        self._behind_thoughts = content is not None and not content.strip("\r\n")

    def take(self) -> list[Delta]:
        """The deltas since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def write_content(self, text: str) -> None:
        """More text for the user."""
        if self._behind_thoughts and not (text := text.lstrip("\r\n")):
            return  # the template's
        if not text:
            return
        self._behind_thoughts = False
        if self._behind_call and (bare := text.lstrip()):
            self._space.append(text[: len(text) - len(bare)])
            text = bare
        body = text.rstrip()
        if body:
            self._deltas.append(ContentDelta(self._held_space() + body))
            self._has_content, self._behind_call = True, False
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def _held_space(self) -> str:
        space = "".join(self._space)
        self._space = []
        if not self._behind_call:
            return space
        return max(self._before_call, space, key=len) if self._has_content else ""

    def write_thoughts(self, text: str) -> None:
        """More thoughts; line breaks at their beginning and white space at their end are left out."""
        if not self._has_thoughts and not self._thought_space and not (text := text.lstrip("\r\n")):
            return
        body = text.rstrip()
        if body:
            self._deltas.append(ReasoningDelta("".join(self._thought_space) + body))
            self._thought_space, self._has_thoughts = [], True
        if len(body) < len(text):
            self._thought_space.append(text[len(body) :])

    def end_thoughts(self) -> None:
        """The thoughts are over; further ones begin on a line of their own."""
        self._thought_space = ["\n"] if self._has_thoughts else []
        self._behind_thoughts = True

    def begin_call(self, call_id: str | None, name: str) -> int:
        """A call begins; its number. An id that an earlier call has is replaced: models that count their calls begin
        anew with each message, and whoever runs them tells calls apart by their ids.
        """
        if not self._behind_call:
            self._before_call = "".join(self._space)
        self._space, self._behind_call, self._behind_thoughts = [], True, False
        index, self._calls = self._calls, self._calls + 1
        own_id = self._free(call_id) if call_id else self._new_id()
        self._ids.add(own_id)
        self._deltas.append(CallDelta(index, "", own_id, name))
        return index

    def _free(self, call_id: str) -> str:
        """The id; where it is taken the next one that is free, if it ends with a number, else a new one."""
        if call_id not in self._ids:
            return call_id
        counted = _COUNTED.fullmatch(call_id)
        if counted is None:
            return self._new_id()
        ids = (f"{counted[1]}{number}" for number in itertools.count(int(counted[2]) + 1))
        return next(each for each in ids if each not in self._ids)

    def write_arguments(self, index: int, text: str) -> None:
        """More arguments of a call that has begun."""
        if text:
            self._deltas.append(CallDelta(index, text))

    def end(self) -> None:
        """The message is over."""
        if self._space and not self._behind_call:
            self._deltas.append(ContentDelta("".join(self._space)))
        self._space = []
