"""The text of a middle as it comes, and what ends it besides the model: its indentation, and the time that it takes."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from homenode.server.core.generation import Generation

_BLANKS = " \t"


@dataclass
class InfillText:
    """The text that came so far. `stop_type`: as llama.cpp calls it: none while it goes on, then eos, word or limit."""

    n_indent: int = 0
    limit_s: float | None = None
    text: str = ""
    tokens: int = 0
    stop_type: str = "none"
    stopping_word: str = ""
    began: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    last_token_at: float | None = None
    _held: str = ""  # the beginning of a line, until it is known how far it is indented

    def take(self, text: str, tokens: int) -> str:
        """The part of `text` that may be shown; `stop_type` says whether it is the last."""
        now = time.monotonic()
        if tokens:
            self.first_token_at = self.first_token_at or now
            self.last_token_at = now
        self.tokens += tokens
        shown = self._within_indent(text) if self.n_indent else text
        late = self.limit_s is not None and now - (self.first_token_at or now) > self.limit_s
        if late and self.stop_type == "none" and "\n" in self.text + shown:
            self.stop_type = "limit"
        self.text += shown
        return shown

    def flush(self) -> str:
        """Return what was held back, when the model has ended."""
        shown, self._held = self._held, ""
        self.text += shown
        return shown

    def _within_indent(self, text: str) -> str:
        """Without lines from the first on that is indented too little; the line that goes on from what is before the
        middle, and empty ones, do not count.
        """
        whole, self._held = self._held + text, ""
        at = 0 if whole.startswith("\n") else whole.find("\n")
        while at >= 0:
            line = whole[at + 1 :]
            indent = len(line) - len(line.lstrip(_BLANKS))
            rest = line[indent:]
            if not rest:
                self._held = whole[at:]
                return whole[:at]
            if indent < self.n_indent and rest[0] != "\n":
                self.stop_type = "limit"
                return whole[:at]
            at = whole.find("\n", at + 1)
        return whole


async def pieces(generation: Generation, middle: InfillText) -> AsyncGenerator[str, None]:
    """The text that may be shown, as it comes; closing it early ends the generation."""
    async with aclosing(generation.events()) as events:
        async for event in events:
            shown = middle.take(event.text, len(event.token_ids))
            if event.finish_reason is not None and middle.stop_type == "none":
                shown += middle.flush()
                middle.stopping_word = event.stop_text or ""
                middle.stop_type = "word" if event.stop_text else "limit" if event.finish_reason == "length" else "eos"
            if shown:
                yield shown
            if middle.stop_type != "none":
                return
