"""Lines of the log with prompts and answers, for who asks for them: `--log-requests`, `--log-outputs`. Nothing else
writes a text of a request to the log.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import msgspec

from homenode.engine.request import Request
from homenode.server.http.config import ServedModelConfig
from homenode.server.interfaces.tokenizer import TokenizerLike
from homenode.units import format_count

_log = logging.getLogger(__name__)
_MOST_OF_PARAMS = 1024  # characters: a grammar may have millions


@dataclass(slots=True)
class _Kept:
    """The beginning of a text that comes in pieces, and how many characters followed it."""

    pieces: list[str] = field(default_factory=list)
    length: int = 0
    more: int = 0


class AnswerLines:
    """The lines of the answers of one request, of each of which at most `most` characters are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[int, _Kept] = {}

    def add(self, request: Request, text: str) -> None:
        """Take the next piece of the answer to a request."""
        kept = self._kept.setdefault(request.id, _Kept())
        shown = text[: self._most - kept.length]
        kept.pieces.append(shown)
        kept.length += len(shown)
        kept.more += len(text) - len(shown)

    def end(self, request: Request, tokens: int, reason: str) -> None:
        """Write the line of an answer, which ended so."""
        kept = self._kept.pop(request.id, _Kept())
        _write(request, f"answer of {format_count(tokens, 'token')} ({reason})", "".join(kept.pieces), bool(kept.more))


class RequestLog:
    """The lines that a model writes of its requests."""

    def __init__(self, config: ServedModelConfig, tokenizer: TokenizerLike) -> None:
        self._logs_prompts, self._logs_answers, self._most = config.log_requests, config.log_outputs, config.max_log_len
        self._tokenizer = tokenizer

    def answers(self) -> AnswerLines | None:
        """Return what takes the answers to a request, where they are logged."""
        return AnswerLines(self._most) if self._logs_answers else None

    def write_prompt(self, request: Request) -> None:
        """Write a line with the prompt of a request, and how it is gone on with, where prompts are logged."""
        if not self._logs_prompts:
            return
        ids = request.prompt_ids
        text = self._tokenizer.decode(
            ids[: self._most], skip_special_tokens=False
        )  # tokens that are shown are no more than characters
        how = msgspec.json.encode(request.params).decode()[:_MOST_OF_PARAMS]
        cut = max(len(ids), len(text)) > self._most
        _write(request, f"prompt of {format_count(len(ids), 'token')}, {how}", text[: self._most], cut)


def _write(request: Request, what: str, text: str, cut: bool) -> None:
    """Write a line, which stays one whatever is in the text."""
    _log.info("request %s: %s: %r%s", request.name or request.id, what, text, " (and more)" if cut else "")
