"""The answers of POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from homenode.chat.custom_tools import CustomInput, custom_input
from homenode.chat.syntax.parts import CallDelta, ContentDelta, Delta, Message, ReasoningDelta
from homenode.server.apis.openai.chat.request import ChatRequest, shows_thoughts
from homenode.server.apis.openai.requests import StreamOptions
from homenode.server.apis.openai.usage import (
    LEAST_LOGPROB,
    CompletionDetails,
    Usage,
    usage_of,
    wants_timings,
)
from homenode.server.core.choices.choice import ScoredToken
from homenode.server.core.choices.message_reader import JoinedMessage, MessageEvent
from homenode.server.core.conversation import Conversation
from homenode.server.core.kv_transfer import KvTransferResult
from homenode.server.core.timings import AnswerTimings, timings_of
from homenode.server.http.failures import ApiError
from homenode.server.http.sse import DONE, event
from homenode.server.interfaces.tokenizer import TokenizerLike
from homenode.server.keys.service_tiers import ServiceTier
from homenode.server.models.served_model import ServedModel

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


class TopLogprob(Struct):
    """A token that could have been drawn. `bytes`: its UTF-8 bytes, for tokens that are only part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(Struct):
    """A token that was drawn, and the most likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """One entry for each token of the message."""

    content: list[ChatTokenLogprob] | None
    refusal: None = None


class AnsweredFunction(Struct, kw_only=True):
    """A function that is called. `arguments`: the JSON text of an object."""

    name: str
    arguments: str


class AnsweredCustom(Struct, kw_only=True):
    """A custom tool that is given a text."""

    name: str
    input: str


class AnsweredCall(Struct, kw_only=True, tag_field="type", tag="function"):
    """A call of a function."""

    id: str
    function: AnsweredFunction


class AnsweredCustomCall(Struct, kw_only=True, tag_field="type", tag="custom"):
    """A call of a custom tool."""

    id: str
    custom: AnsweredCustom


class ChatMessage(Struct, kw_only=True):
    """The words that the model said. `content`: None where it only thought or called. Thoughts have two names, as
    clients know one or the other. `function_call`: the call for clients that sent `functions`.
    """

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[AnsweredCall | AnsweredCustomCall] | UnsetType = UNSET
    function_call: AnsweredFunction | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """One answer of several, `index` among them."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    service_tier: ServiceTier | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: KvTransferResult | UnsetType = UNSET
    timings: AnswerTimings | UnsetType = UNSET


class FunctionDelta(Struct, kw_only=True):
    """The part that a chunk adds to a called function: the name once, and pieces of the arguments' JSON text."""

    name: str | UnsetType = UNSET
    arguments: str


class CustomDelta(Struct, kw_only=True):
    """The part that a chunk adds to the call of a custom tool: the name once, and pieces of its text."""

    name: str | UnsetType = UNSET
    input: str


class ToolCallDelta(Struct, kw_only=True):
    """The part that a chunk adds to call number `index`; the first chunk of a call has its id and its type."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class ChatDelta(Struct, kw_only=True):
    """The part that a chunk adds to the message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChunkChoice(Struct, kw_only=True):
    """A piece of an answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    """Each chunk of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str
    service_tier: ServiceTier | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: AnswerTimings | UnsetType = UNSET


class ChatFormat:
    """A `MessageFormat`: chat completions, whose streams begin with the role of each choice."""

    def __init__(
        self,
        model: ServedModel,
        name: str,
        body: ChatRequest,
        conversation: Conversation,
        custom: Collection[str] = (),
    ) -> None:
        """`name`: of the model, as it was asked for. `custom`: the names of the tools that take a text."""
        self._custom = custom
        self._inputs: dict[tuple[int, int], CustomInput] = {}  # of calls of these, by choice and number
        self._tokenizer, self._body, self._conversation = model.tokenizer, body, conversation
        self._generation = conversation.generation
        self._shows_thoughts = shows_thoughts(body)
        self._id, self._created, self._model = (
            f"chatcmpl-{secrets.token_hex(12)}",
            int(time.time()),
            name,
        )
        self._fingerprint, self._options = model.fingerprint, body.stream_options or StreamOptions()
        self._tier: ServiceTier | UnsetType = self._generation.tier if body.service_tier else UNSET
        self._opened = False  # an event was written

    def whole(self, choices: list[JoinedMessage]) -> bytes:
        """One completion with all choices."""
        answer = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(choice) for choice in choices],
            usage=self._usage(),
            system_fingerprint=self._fingerprint,
            service_tier=self._tier,
            prompt_token_ids=self._prompt_ids(),
            kv_transfer_params=self._generation.kv_result or UNSET,
            timings=timings_of(self._generation) if wants_timings(self._body) else UNSET,
        )
        return msgspec.json.encode(answer)

    def event(self, part: MessageEvent, *, first: bool) -> bytes:
        """The role of a choice before its first part, and the part."""
        added = self._chunk([self._chunk_choice(part)])
        if self._body.timings_per_token or (part.finish_reason and self._body.return_timings):
            added.timings = timings_of(self._generation)
        chunk = event(added)
        if not first:
            return chunk
        role = self._chunk([_opening(part.choice)])
        role.prompt_token_ids = UNSET if self._opened else self._prompt_ids()
        self._opened = True
        return event(role) + chunk

    def end(self) -> bytes:
        """The totals, if they were asked for, and [DONE]."""
        if not self._options.include_usage:
            return DONE
        last = self._chunk([])
        last.usage = self._usage()
        return event(last) + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error body; no [DONE] follows."""
        return event(error.body)

    def _usage(self) -> Usage:
        usage = usage_of(self._generation)
        if thoughts := self._conversation.thought_tokens:
            usage.completion_tokens_details = CompletionDetails(thoughts)
        return usage

    def _prompt_ids(self) -> list[int] | UnsetType:
        return self._generation.prompt_ids(0) if self._body.return_token_ids else UNSET

    def _chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        chunk = ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            system_fingerprint=self._fingerprint,
            service_tier=self._tier,
        )
        if self._options.include_usage or self._options.continuous_usage_stats:
            chunk.usage = self._usage() if self._options.continuous_usage_stats else None
        return chunk

    def _choice(self, choice: JoinedMessage) -> ChatChoice:
        return ChatChoice(
            index=choice.choice,
            message=self._message(choice.message),
            logprobs=self._logprobs(choice.scored),
            finish_reason=self._reason(choice.finish_reason),  # type: ignore[arg-type]
            token_ids=choice.token_ids if self._body.return_token_ids else UNSET,
        )

    def _message(self, said: Message) -> ChatMessage:
        calls = [AnsweredFunction(name=call.name, arguments=call.arguments) for call in said.calls]
        message = ChatMessage(content=said.content if said.content or not (calls or said.reasoning) else None)
        if said.reasoning and self._shows_thoughts:
            message.reasoning_content = message.reasoning = said.reasoning
        if calls and self._body.functions:
            message.function_call = calls[0]
        elif calls:
            message.tool_calls = [
                AnsweredCustomCall(
                    id=call.id, custom=AnsweredCustom(name=call.name, input=custom_input(call.arguments))
                )
                if call.name in self._custom
                else AnsweredCall(id=call.id, function=function)
                for call, function in zip(said.calls, calls, strict=True)
            ]
        return message

    def _chunk_choice(self, part: MessageEvent) -> ChunkChoice:
        return ChunkChoice(
            index=part.choice,
            delta=self._delta(part.choice, part.deltas),
            logprobs=self._logprobs(part.scored),
            finish_reason=self._reason(part.finish_reason),  # type: ignore[arg-type]
            token_ids=part.token_ids if self._body.return_token_ids else UNSET,
        )

    def _delta(self, choice: int, parts: list[Delta]) -> ChatDelta:
        delta = ChatDelta()
        if content := "".join(part.text for part in parts if isinstance(part, ContentDelta)):
            delta.content = content
        thoughts = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
        if thoughts and self._shows_thoughts:
            delta.reasoning_content = delta.reasoning = thoughts
        calls = self._call_deltas(choice, [part for part in parts if isinstance(part, CallDelta)])
        if calls and self._body.functions:
            delta.function_call = calls[0].function
        elif calls:
            delta.tool_calls = calls
        return delta

    def _call_deltas(self, choice: int, parts: list[CallDelta]) -> list[ToolCallDelta]:
        """One for each call, in the order of their numbers."""
        made: dict[int, ToolCallDelta] = {}
        for part in parts:
            known = made.setdefault(part.index, ToolCallDelta(index=part.index))
            if part.id is not None:
                known.id, known.type = part.id, "custom" if part.name in self._custom else "function"
                if part.name in self._custom:
                    self._inputs[choice, part.index] = CustomInput()
            name = UNSET if part.id is None else part.name or ""
            if (text := self._inputs.get((choice, part.index))) is not None:
                known.custom = known.custom or CustomDelta(name=name, input="")
                known.custom.input += text.feed(part.arguments)
            else:
                known.function = known.function or FunctionDelta(name=name, arguments="")
                known.function.arguments += part.arguments
        return list(made.values())

    def _reason(self, reason: str | None) -> str | None:
        return "function_call" if reason == "tool_calls" and self._body.functions else reason

    def _logprobs(self, scored: list[ScoredToken]) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        return ChatLogprobs([_scored(self._tokenizer, entry) for entry in scored])


def _opening(index: int) -> ChunkChoice:
    return ChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""), logprobs=None, finish_reason=None)


def _scored(tokenizer: TokenizerLike, entry: ScoredToken) -> ChatTokenLogprob:
    assert entry.logprob is not None  # only the first token of a prompt has none, and prompts are not echoed here
    top = [_top(tokenizer, token, logprob) for token, logprob in entry.logprob.top]
    own = _top(tokenizer, entry.token, entry.logprob.logprob)
    return ChatTokenLogprob(own.token, own.logprob, own.bytes, top)


def _top(tokenizer: TokenizerLike, token: int, logprob: float) -> TopLogprob:
    return TopLogprob(tokenizer.token_text(token), max(logprob, LEAST_LOGPROB), list(tokenizer.token_bytes(token)))
