"""A conversation rendered so that the prompt shows all of it: where a chat template refuses it or leaves something
out, it is arranged in other ways.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from homenode.chat.sent_texts import SentText, texts_left_out
from homenode.errors import CapacityError, UserError

Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None
Render = Callable[[Messages, Tools], str]
_MOST_RENDERINGS = 40
_PRINTED_PART = re.compile(r"""\{['"]type['"]: ?['"]text['"], ?['"]text['"]: ?['"]""")  # as Python and JSON write lists


@dataclass(frozen=True)
class Arrangement:
    """The messages and tools that a chat template is given."""

    messages: Messages
    tools: Tools = None


Rearrange = Callable[[Arrangement], Arrangement]


@dataclass(frozen=True)
class RenderedPrompt:
    """`left_out`: what the client sent and the prompt does not show, one of each name."""

    text: str
    left_out: tuple[SentText, ...] = ()


@dataclass(frozen=True)
class _Trial:
    """A rendering, or why there is none."""

    given: Arrangement
    text: str = ""
    lost: tuple[SentText, ...] = ()
    error: UserError | None = None

    @property
    def missing(self) -> tuple[bool, int]:
        """Return what is smaller is better: a prompt before none, then how many texts it lacks, or prints with their
        parts.
        """
        return self.error is not None, sum(not sent.by_template for sent in self.lost) + self._prints_parts

    @property
    def _prints_parts(self) -> bool:
        in_parts = any(isinstance(message.get("content"), list) for message in self.given.messages)
        return in_parts and _PRINTED_PART.search(self.text) is not None

    @property
    def whole(self) -> bool:
        """Nothing is missing that could be shown."""
        return self.missing == (False, 0)

    def lacks_all(self, sent: Sequence[SentText]) -> bool:
        """Return whether there is no prompt, or one that shows nothing of what was sent."""
        return self.error is not None or (bool(sent) and len(self.lost) == len(sent))


def render_whole(
    render: Render,
    given: Arrangement,
    sent: Sequence[SentText],
    rearrangements: Sequence[Rearrange],
    goes_on: Callable[[], bool] = lambda: True,
) -> RenderedPrompt:
    """The rendering of `given`, or of a rearrangement of it that shows more of what was sent.

    `render` raises UserError where a template refuses or fails, CapacityError where it goes over a limit, behind which
    nothing more is tried. The first of `rearrangements` that shows more is kept, the next ones are tried on top of it,
    and two at once where none shows anything by itself. `goes_on`: whether there is time for one more rendering.
    Raises the first UserError where no arrangement is rendered, or the only ones show nothing of what was sent.
    """
    trials = _Renderings(render, sent, goes_on)
    best = first = trials.of(given)
    for change in _changes(rearrangements):
        if best.whole or not trials.open:
            break
        if len(change) > 1 and best.error is None:
            break
        changed = best.given
        for step in change:
            changed = step(changed)
        if _media(changed.messages) < _media(given.messages):
            continue  # where texts are joined, which an image cannot be
        if changed != best.given and (found := trials.of(changed)).missing < best.missing:
            best = found
    if first.error is not None and best.lacks_all(sent):
        raise first.error
    return RenderedPrompt(best.text, tuple({each.name: each for each in best.lost}.values()))


def _media(messages: Messages) -> int:
    """The number of parts of messages that are no text."""
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(isinstance(part, dict) and part.get("type") != "text" for part in parts)


def _changes(rearrangements: Sequence[Rearrange]) -> Iterator[tuple[Rearrange, ...]]:
    """One by one, once more on top of what helped, and in pairs."""
    yield from ((one,) for one in rearrangements)
    yield from ((one,) for one in rearrangements)
    yield from itertools.combinations(rearrangements, 2)
    yield from ((one,) for one in rearrangements)


class _Renderings:
    """Renders a bounded number of arrangements."""

    def __init__(self, render: Render, sent: Sequence[SentText], goes_on: Callable[[], bool]) -> None:
        self._render, self._sent, self._goes_on = render, sent, goes_on
        self._left = _MOST_RENDERINGS
        self._seen: list[_Trial] = []

    @property
    def open(self) -> bool:
        """Return whether one more may be rendered."""
        over_a_limit = any(isinstance(trial.error, CapacityError) for trial in self._seen)
        return self._left > 0 and not over_a_limit and self._goes_on()

    def of(self, given: Arrangement) -> _Trial:
        """The rendering of an arrangement, from memory where it was rendered before."""
        for trial in self._seen:
            if trial.given == given:
                return trial
        self._left -= 1
        try:
            text = self._render(given.messages, given.tools)
        except UserError as error:
            trial = _Trial(given, error=error)
        else:
            trial = _Trial(given, text, tuple(texts_left_out(text, self._sent)))
        self._seen.append(trial)
        return trial
