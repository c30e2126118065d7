"""The answers of POST /v1/responses: one response, or the events that tell how it comes about."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from homenode.server.apis.responses.events import ResponsesEvent, encoded
from homenode.server.apis.responses.output import (
    ResponseObject,
    ResponsesFailure,
    ResponsesIncompleteDetails,
    ResponsesInputTokensDetails,
    ResponsesLogprob,
    ResponsesOutputTokensDetails,
    ResponsesTopLogprob,
    ResponsesUsage,
)
from homenode.server.apis.responses.output_builder import OutputBuilder
from homenode.server.core.choices.choice import ScoredToken
from homenode.server.core.choices.message_reader import JoinedMessage, MessageEvent
from homenode.server.core.conversation import Conversation
from homenode.server.core.timings import timings_of
from homenode.server.http.failures import CONTEXT_LENGTH_EXCEEDED, ApiError
from homenode.server.interfaces.tokenizer import TokenizerLike

_LEAST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot carry


def responses_failure(error: ApiError) -> bytes:
    """The event for an error that is not a response's own, in a stream of which nothing else is known."""
    detail = error.body.error
    return encoded(ResponsesEvent(type="error", code=detail.code, message=detail.message, param=detail.param))


def failed_stream(response: ResponseObject, error: ApiError) -> bytes:
    """The whole stream of a response that has failed before anything came of it."""
    begun = [_about(response, "response.created"), _about(response, "response.in_progress")]
    _fail(response, error)
    return _numbered([*begun, _about(response, "response.failed")], 0)


def _fail(response: ResponseObject, error: ApiError) -> None:
    response.status = "failed"
    response.error = ResponsesFailure(code=_failure_code(error), message=error.body.error.message)


def _about(response: ResponseObject, type: str) -> ResponsesEvent:
    return ResponsesEvent(type=type, response=msgspec.structs.replace(response))


def _numbered(events: list[ResponsesEvent], first: int) -> bytes:
    for number, event in enumerate(events, first):
        event.sequence_number = number
    return b"".join(encoded(event) for event in events)


def _failure_code(error: ApiError) -> str:
    """Return why a response has failed, in a word that the API has for it."""
    if error.status >= 500:
        return "server_error"
    if error.status == 429:
        return "rate_limit_exceeded"
    return CONTEXT_LENGTH_EXCEEDED if error.body.error.code == CONTEXT_LENGTH_EXCEEDED else "invalid_prompt"


@dataclass
class ResponsesFormat:
    """A `MessageFormat`. `response`: as it is told at the moment; complete once `whole` or `end` was asked for.

    `logprobs`: the tokens of texts are shown with their log-probabilities. `timings`: the response says what it took.
    """

    response: ResponseObject
    builder: OutputBuilder
    conversation: Conversation
    tokenizer: TokenizerLike
    logprobs: bool = False
    timings: bool = False
    _sent: int = 0  # events
    _lock: threading.Lock = field(default_factory=threading.Lock)  # around writing: on a thread, and on the event loop
    _reason: str | None = None  # why the message ended

    def whole(self, choices: list[JoinedMessage]) -> bytes:
        """The response with all of its items."""
        for part in choices[0].events:
            self.builder.add(part.deltas, self._scored(part.scored))
        self._reason = choices[0].finish_reason
        self._end()
        return msgspec.json.encode(self.response)

    def opening(self) -> bytes:
        """Say that the response was begun, unless that was told."""
        with self._lock:
            return b"" if self._sent else self._encoded(self._opening())

    def event(self, part: MessageEvent, *, first: bool) -> bytes:
        """Return what tells more of the response; that it was begun comes before all else."""
        with self._lock:
            events = [] if self._sent else self._opening()
            events += self.builder.add(part.deltas, self._scored(part.scored))
            self._reason = part.finish_reason
            return self._encoded(events)

    def end(self) -> bytes:
        """The last item, and the whole response."""
        events = self._end()
        return self._encoded([*events, self._about(f"response.{self.response.status}")])

    def failure(self, error: ApiError) -> bytes:
        """Say that the response has failed, after which nothing comes."""
        events = [] if self._sent else self._opening()
        self.response.output = self.builder.items
        _fail(self.response, error)
        return self._encoded([*events, self._about("response.failed")])

    def _opening(self) -> list[ResponsesEvent]:
        return [self._about("response.created"), self._about("response.in_progress")]

    def _end(self) -> list[ResponsesEvent]:
        cut = self._reason == "length"
        events = self.builder.end(cut=cut)
        self.response.output = self.builder.items
        self.response.usage = self._usage()
        self.response.kv_transfer_params = self.conversation.generation.kv_result or UNSET
        if self.timings:
            self.response.timings = timings_of(self.conversation.generation)
        self.response.status = "incomplete" if cut else "completed"
        if cut:
            self.response.incomplete_details = ResponsesIncompleteDetails("max_output_tokens")
        else:
            self.response.completed_at = int(time.time())
        return events

    def _about(self, type: str) -> ResponsesEvent:
        return _about(self.response, type)

    def _encoded(self, events: list[ResponsesEvent]) -> bytes:
        first, self._sent = self._sent, self._sent + len(events)
        return _numbered(events, first)

    def _usage(self) -> ResponsesUsage:
        prompt, generated, cached = self.conversation.generation.usage()
        return ResponsesUsage(
            input_tokens=prompt,
            input_tokens_details=ResponsesInputTokensDetails(cached_tokens=cached),
            output_tokens=generated,
            output_tokens_details=ResponsesOutputTokensDetails(reasoning_tokens=self.conversation.thought_tokens),
            total_tokens=prompt + generated,
        )

    def _scored(self, scored: list[ScoredToken]) -> list[ResponsesLogprob]:
        return [self._logprob(entry) for entry in scored] if self.logprobs else []

    def _logprob(self, entry: ScoredToken) -> ResponsesLogprob:
        assert entry.logprob is not None  # only the first token of a prompt has none, and prompts are not echoed here
        own, top = self._token(entry.token, entry.logprob.logprob), entry.logprob.top
        return ResponsesLogprob(own.token, own.logprob, own.bytes, [self._token(*other) for other in top])

    def _token(self, token: int, logprob: float) -> ResponsesTopLogprob:
        text, spelled = self.tokenizer.token_text(token), list(self.tokenizer.token_bytes(token))
        return ResponsesTopLogprob(text, max(logprob, _LEAST_LOGPROB), spelled)
