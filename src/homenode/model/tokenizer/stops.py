"""Stop strings in a text that arrives in pieces: found wherever the pieces are cut, and never shown, not
even in part.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Watches one text for several stop strings.

    The one that is complete first ends the text; of two complete at the same character, the longer. So the result does
    not depend on how the text was cut. Text that may be the beginning of a stop string is held back, and no more than
    that.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string."""
        if not all(stops):
            raise ValueError("a stop string must have at least one character")
        self._watches = [_Watch(stop) for stop in sorted(set(stops), key=lambda stop: (-len(stop), stop))]
        self._held, self._marks = "", b""  # a mark for each character that is held: 1 where it is hidden
        self._matched: str | None = None

    def feed(self, text: str, *, hidden: bool = False) -> tuple[str, str | None]:
        """The text that may be given out now, and the stop string that ended it, if one did. After a match nothing more
        comes out.

        `hidden`: the text of a special token, which answers do not show: it is part of what stop strings are compared
        with, and never comes out.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._watches:
            return "" if hidden else text, None
        whole, marks = self._held + text, self._marks + bytes((hidden,)) * len(text)
        for end, character in enumerate(text, start=len(self._held) + 1):
            for watch in self._watches:  # every one of them has to see the character
                if watch.sees(character) and self._matched is None:
                    self._matched = watch.stop
            if self._matched is not None:
                self._held, self._marks = "", b""
                return _shown(whole, marks, end - len(self._matched)), self._matched
        certain = len(whole) - max(watch.matched for watch in self._watches)
        self._held, self._marks = whole[certain:], marks[certain:]
        return _shown(whole, marks, certain), None

    def flush(self) -> str:
        """The text held back at the end: it did not become a stop string after all."""
        shown = _shown(self._held, self._marks, len(self._held))
        self._held, self._marks = "", b""
        return shown


def _shown(text: str, marks: bytes, count: int) -> str:
    """Return, of the first `count` characters those that are not hidden."""
    if not any(marks):
        return text[:count]
    return "".join(character for character, hidden in zip(text[:count], marks, strict=False) if not hidden)


class _Watch:
    """Knuth, Morris and Pratt (SIAM J. Comput. 6, 1977): `matched` is how much of the stop string the text ends with.

    The table grows with what was matched: many sequences watch for long stop strings of which hardly any begins.
    """

    __slots__ = ("_shorter", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop, self.matched = stop, 0
        # Of the first i + 1 characters: the longest proper beginning that is also their end.
        self._shorter: tuple[int, ...] | list[int] = ()

    def sees(self, character: str) -> bool:
        """Takes the next character; true when the stop string is complete."""
        matched = self.matched
        while matched and character != self.stop[matched]:
            matched = self._shorter[matched - 1]
        self.matched = matched + (character == self.stop[matched])
        if self.matched > len(self._shorter):
            self._grow()
        return self.matched == len(self.stop)

    def _grow(self) -> None:
        """One more entry of the table."""
        if not isinstance(self._shorter, list):
            self._shorter = []
        at = len(self._shorter)
        length = self._shorter[at - 1] if at else 0
        while length and self.stop[at] != self.stop[length]:
            length = self._shorter[length - 1]
        self._shorter.append(length + (at > 0 and self.stop[at] == self.stop[length]))
