"""Lines of the log with prompts and answers, for who asks for them: `--log-requests`, `--log-outputs`. Nothing else
writes a text of a request to the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from homenode.engine.request import Request
from homenode.sampling import SamplingParams
from homenode.server.http.config import ServedModelConfig
from homenode.server.interfaces.tokenizer import TokenizerLike
from homenode.server.models.text_work import TextWork
from homenode.units import format_count

_log = logging.getLogger(__name__)
_MOST_LINES = 16  # of the prompts of one HTTP request, and of its answers, each of which may have thousands
_MOST_OF_PARAMS = 1024  # characters: a grammar may have millions
_MOST_OF_LIST = 128  # entries of a parameter that are encoded
_LISTS = ("bad_words", "logit_bias", "stop_token_ids", "logprob_token_ids", "dry_sequence_breakers")
_MOST_BYTES = 2**20 - 2**14  # of a text in a line: the log drops a line of 1 MiB
_BYTES_OF_CHARACTER = 12  # that it takes at most, in a line of JSON


@dataclass(slots=True)
class _Kept:
    """The beginning of a text that comes in pieces, and how many characters followed it."""

    pieces: list[str] = field(default_factory=list)
    length: int = 0
    more: int = 0


class AnswerEnd(NamedTuple):
    """The end of the answer to a request."""

    request: Request
    tokens: int
    reason: str


class AnswerLines:
    """The lines of the answers of one HTTP request, of each of which at most `most` characters are kept."""

    def __init__(self, most: int, requests: Sequence[Request]) -> None:
        """`requests`: those that it became, in the order of its answers."""
        self._most, self._more = most, len(requests) - _MOST_LINES
        self._kept = {request.id: _Kept() for request in requests[:_MOST_LINES]}

    def add(self, request: Request, text: str) -> None:
        """Take the next piece of the answer to a request."""
        kept = self._kept.get(request.id)
        if kept is None:
            return
        shown = text[: self._most - kept.length]
        if shown:
            kept.pieces.append(shown)
        kept.length += len(shown)
        kept.more += len(text) - len(shown)

    def write(self, ends: Sequence[AnswerEnd]) -> None:
        """Write the lines of all answers, in their order, which ended so."""
        for request, tokens, reason in ends[:_MOST_LINES]:
            kept = self._kept[request.id]
            what = f"answer of {format_count(tokens, 'token')} ({reason})"
            _write(request, what, "".join(kept.pieces), bool(kept.more))
        if self._more > 0:
            _write_more(ends[0].request, self._more, "answer")


class RequestLog:
    """The lines that a model writes of its requests."""

    def __init__(self, config: ServedModelConfig, tokenizer: TokenizerLike, text_work: TextWork) -> None:
        self._logs_prompts, self._logs_answers, self._most = config.log_requests, config.log_outputs, config.max_log_len
        self._tokenizer, self._text_work = tokenizer, text_work

    def answers(self, requests: Sequence[Request]) -> AnswerLines | None:
        """Return what takes the answers to the requests that one HTTP request became, where they are logged."""
        return AnswerLines(self._most, requests) if self._logs_answers else None

    async def write_prompts(self, requests: Sequence[Request]) -> None:
        """Write a line with the prompt of each of the requests that one HTTP request became, and how it is gone on
        with, where prompts are logged. Of many the first have lines, and the others one together.
        """
        if not self._logs_prompts:
            return
        for request in requests[:_MOST_LINES]:
            ids = request.prompt_ids[: self._most]  # tokens that are shown are no more than characters
            text = await self._text_work.run(lambda ids=ids: self._text(ids), len(ids))  # type: ignore[misc]
            cut = max(len(request.prompt_ids), len(text)) > self._most
            what = f"prompt of {format_count(len(request.prompt_ids), 'token')}, {_params_text(request.params)}"
            _write(request, what, text[: self._most], cut)
            await asyncio.sleep(0)  # others get a turn
        if (more := len(requests) - _MOST_LINES) > 0:
            _write_more(requests[0], more, "prompt")

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _params_text(params: SamplingParams) -> str:
    """Return parameters as JSON. Of those without bounds no more is encoded than is shown, and what the engine was made
    of texts is left out.
    """
    beginnings = {name: _beginning(getattr(params, name)) for name in _LISTS}
    grammar = params.grammar and params.grammar[:_MOST_OF_PARAMS]
    shown = msgspec.structs.replace(params, **beginnings, grammar=grammar, forbidden=(), dry_breaker_ids=())
    return msgspec.json.encode(shown).decode()[:_MOST_OF_PARAMS]


def _beginning(values: dict[int, float] | tuple[Any, ...]) -> dict[int, float] | tuple[Any, ...]:
    if isinstance(values, dict):
        return dict(islice(values.items(), _MOST_OF_LIST))
    return tuple(value[:_MOST_OF_PARAMS] if isinstance(value, str) else value for value in values[:_MOST_OF_LIST])


def _write(request: Request, what: str, text: str, cut: bool) -> None:
    """Write a line, which stays one whatever is in the text, and which the log has room for."""
    shown = repr(text)
    most = _MOST_BYTES // _BYTES_OF_CHARACTER
    if len(shown) > most and len(json.dumps(shown)) > _MOST_BYTES:
        shown, cut = shown[:most], True
    _log.info("request %s: %s: %s%s", request.name or request.id, what, shown, " (and more)" if cut else "")


def _write_more(request: Request, count: int, what: str) -> None:
    _log.info("request %s: and %d more %ss", request.name or request.id, count, what)
