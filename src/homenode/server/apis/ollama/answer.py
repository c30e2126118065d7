"""The answers of POST /api/chat and POST /api/generate: one JSON object, or one a line while it is generated."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from homenode.chat.syntax.parts import CallDelta, ContentDelta, Delta, Message, ReasoningDelta
from homenode.server.apis.ollama.errors import ollama_error
from homenode.server.core.choices.choice import ScoredToken
from homenode.server.core.choices.message_reader import JoinedMessage, MessageEvent
from homenode.server.core.conversation import Conversation
from homenode.server.http.failures import ApiError
from homenode.server.interfaces.tokenizer import TokenizerLike

DoneReason = Literal["stop", "length", "load", "unload"]
_LEAST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot carry


class OllamaTokenLogprob(Struct, kw_only=True):
    """A token, the logarithm of its probability, and its UTF-8 bytes."""

    token: str
    logprob: float
    bytes: list[int]


class OllamaLogprob(Struct, kw_only=True):
    """A token that was drawn, and the most likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[OllamaTokenLogprob]


class OllamaTotals(Struct, kw_only=True):
    """Figures that the last line has besides. Durations are nanoseconds; the prompt's goes until the first token."""

    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


class OllamaCalledFunction(Struct, kw_only=True):
    """A function that is called. `index`: its place among the calls of the message."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(Struct, kw_only=True):
    """A call of a tool."""

    id: str
    function: OllamaCalledFunction


class OllamaSaid(Struct, kw_only=True):
    """The words that the model said, or a piece of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class OllamaLine(Struct, kw_only=True):
    """The part that all answers have. `created_at`: when it was written."""

    model: str
    created_at: str
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET


class OllamaChatAnswer(OllamaLine, kw_only=True):
    """Answer of /api/chat, and each line of its stream."""

    message: OllamaSaid


class OllamaGenerateAnswer(OllamaLine, kw_only=True):
    """Answer of /api/generate, and each line of its stream. `context`, at the end: the tokens of the prompt and the
    answer, which the next request may give back.
    """

    response: str
    context: list[int] | UnsetType = UNSET
    thinking: str | UnsetType = UNSET


class OllamaPart(NamedTuple):
    """A part of an answer, or all of it."""

    content: str = ""
    thinking: str = ""
    calls: tuple[OllamaToolCall, ...] = ()
    scored: tuple[ScoredToken, ...] = ()


# From what all lines have and a part to the line.
LineOf = Callable[[dict[str, Any], OllamaPart], OllamaLine]


def chat_line(common: dict[str, Any], part: OllamaPart) -> OllamaLine:
    """A line of /api/chat."""
    said = OllamaSaid(
        content=part.content, thinking=part.thinking or UNSET, tool_calls=list(part.calls) if part.calls else UNSET
    )
    return OllamaChatAnswer(message=said, **common)


def generate_line(common: dict[str, Any], part: OllamaPart) -> OllamaLine:
    """A line of /api/generate."""
    return OllamaGenerateAnswer(response=part.content, thinking=part.thinking or UNSET, **common)


def loaded(line_of: LineOf, model: str, reason: DoneReason = "load") -> OllamaLine:
    """The answer to a request without messages or a prompt."""
    return line_of({"model": model, "created_at": _now(), "done": True, "done_reason": reason}, OllamaPart())


def ollama_failure(error: ApiError) -> bytes:
    """The line that ends a stream which had begun when `error` came up."""
    return _written([ollama_error(error)])


class OllamaFormat:
    """A `MessageFormat`: an object, or lines with one each. Calls are written when they are whole."""

    def __init__(
        self,
        model: str,
        conversation: Conversation,
        tokenizer: TokenizerLike,
        line_of: LineOf,
        *,
        logprobs: bool,
        context: bool,
        load_seconds: float = 0.0,
    ) -> None:
        """`model`: the name that was asked for. `logprobs`: the answer shows log-probabilities. `context`: it shows the
        tokens of the whole conversation. `load_seconds`: that the request waited for its model.
        """
        self._load_ns = _nanoseconds(load_seconds) if load_seconds else 0
        self._model, self._generation, self._line_of = model, conversation.generation, line_of
        self._tokenizer = tokenizer if logprobs else None
        self._context = list(self._generation.prompt_ids(0)) if context else None
        self._call: list[CallDelta] = []  # what has come of the last call

    def whole(self, choices: list[JoinedMessage]) -> bytes:
        """One object."""
        choice = choices[0]
        message: Message = choice.message
        calls = tuple(_called(index, call.id, call.name, call.arguments) for index, call in enumerate(message.calls))
        part = OllamaPart(message.content, message.reasoning, calls, tuple(choice.scored))
        self._take_ids(choice.token_ids)
        return msgspec.json.encode(self._line(part, self._end(choice.finish_reason)))

    def event(self, event: MessageEvent, *, first: bool) -> bytes:
        """A line for what was generated, and the last one after it where this is the end."""
        self._take_ids(event.token_ids)
        calls = self._calls(event.deltas, ended=event.finish_reason is not None)
        content = "".join(delta.text for delta in event.deltas if isinstance(delta, ContentDelta))
        thinking = "".join(delta.text for delta in event.deltas if isinstance(delta, ReasoningDelta))
        part = OllamaPart(content, thinking, calls, tuple(event.scored))
        lines = [self._line(part, {"done": False})] if any(part) else []
        if event.finish_reason is not None:
            lines.append(self._line(OllamaPart(), self._end(event.finish_reason)))
        return _written(lines)

    def end(self) -> bytes:
        """Nothing: the last event has it."""
        return b""

    def failure(self, error: ApiError) -> bytes:
        """A line that says what went wrong."""
        return ollama_failure(error)

    def _calls(self, deltas: Iterable[Delta], *, ended: bool) -> tuple[OllamaToolCall, ...]:
        """The calls that are whole by now."""
        whole = []
        for delta in deltas:
            if self._call and (not isinstance(delta, CallDelta) or delta.index != self._call[0].index):
                whole.append(self._whole_call())
            if isinstance(delta, CallDelta):
                self._call.append(delta)
        if ended and self._call:
            whole.append(self._whole_call())
        return tuple(whole)

    def _whole_call(self) -> OllamaToolCall:
        begin, arguments = self._call[0], "".join(delta.arguments for delta in self._call)
        self._call = []
        return _called(begin.index, begin.id or "", begin.name or "", arguments)

    def _take_ids(self, ids: Iterable[int]) -> None:
        if self._context is not None:
            self._context += ids

    def _line(self, part: OllamaPart, rest: dict[str, Any]) -> OllamaLine:
        common = {"model": self._model, "created_at": _now(), **rest}
        if self._tokenizer is not None and part.scored:
            common["logprobs"] = [_scored(self._tokenizer, entry) for entry in part.scored]
        return self._line_of(common, part)

    def _end(self, finish_reason: str | None) -> dict[str, Any]:
        """Return why the answer ends, and the totals."""
        usage, recorder = self._generation.usage(), self._generation.sequences[0].recorder
        now = time.monotonic()
        first = now if recorder.first_token_at is None else recorder.first_token_at
        prompt_ns, answer_ns = _nanoseconds(first - recorder.arrival), _nanoseconds(now - first)
        totals = OllamaTotals(
            total_duration=self._load_ns + prompt_ns + answer_ns,
            load_duration=self._load_ns,
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=prompt_ns,
            eval_count=usage.completion_tokens,
            eval_duration=answer_ns,
        )
        reason: DoneReason = "length" if finish_reason == "length" else "stop"
        context = {} if self._context is None else {"context": self._context}
        return {"done": True, "done_reason": reason, **context, **msgspec.structs.asdict(totals)}


def _called(index: int, id: str, name: str, arguments: str) -> OllamaToolCall:
    """A call. JSON that was cut off by the limit of tokens is kept as the text that it is."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        value = None
    given = value if isinstance(value, dict) else {"INVALID_JSON": arguments}
    return OllamaToolCall(id=id, function=OllamaCalledFunction(index=index, name=name, arguments=given))


def _scored(tokenizer: TokenizerLike, entry: ScoredToken) -> OllamaLogprob:
    assert entry.logprob is not None  # only the first token of a prompt has none, and prompts are not echoed here
    top = [_top(tokenizer, token, logprob) for token, logprob in entry.logprob.top]
    own = _top(tokenizer, entry.token, entry.logprob.logprob)
    return OllamaLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top)


def _top(tokenizer: TokenizerLike, token: int, logprob: float) -> OllamaTokenLogprob:
    return OllamaTokenLogprob(
        token=tokenizer.token_text(token),
        logprob=max(logprob, _LEAST_LOGPROB),
        bytes=list(tokenizer.token_bytes(token)),
    )


def _nanoseconds(seconds: float) -> int:
    return max(1, int(seconds * 1e9))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _written(lines: Iterable[Struct]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
