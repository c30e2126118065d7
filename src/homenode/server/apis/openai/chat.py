"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.openai import translate
from homenode.server.apis.openai.completions import LEAST_LOGPROB
from homenode.server.apis.openai.requests import HINTS, ChatRequest, StreamOptions
from homenode.server.apis.openai.responses import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    ChunkChoice,
    Delta,
    TopLogprob,
)
from homenode.server.core.choice import Piece, Scored
from homenode.server.core.respond import respond
from homenode.server.core.run import Generation
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.exchange import read_json, unless_gone_early
from homenode.server.http.sse import DONE, event
from homenode.server.interfaces.tokenizer import TokenizerLike

_decode = decode_as(ChatRequest, HINTS)


async def chat_completions(state: ServerState, request: Request) -> Response:
    """Answer the last message of a conversation."""
    body = await read_json(state, request, _decode)
    model = state.model(body.model)
    generation = await unless_gone_early(request, translate.chat(state, body))
    answer = ChatAnswer(state, body, model, generation)
    return await respond(state, request, answer, stream=bool(body.stream))


class ChatAnswer:
    """Pieces as chunks of a stream, or gathered into one answer."""

    def __init__(self, state: ServerState, body: ChatRequest, model: str, generation: Generation) -> None:
        self._tokenizer, self._body, self._generation = state.tokenizer, body, generation
        self._id, self._created, self._model = f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), model
        self._fingerprint, self._text_work = state.fingerprint, state.text_work

    async def whole(self) -> bytes:
        """Everything at once, as JSON. Raises ApiError when a sequence ends without a result."""
        gathered: list[list[Piece]] = [[] for _ in self._generation.sequences]
        async with aclosing(self._generation.pieces()) as pieces:
            async for index, piece in pieces:
                gathered[index].append(piece)
        items = sum(piece.items(self._top) for parts in gathered for piece in parts) + self._prompt_items()
        return await self._text_work.run(lambda: msgspec.json.encode(self._completion(gathered)), items)

    def _completion(self, gathered: list[list[Piece]]) -> ChatCompletion:
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(index, parts) for index, parts in enumerate(gathered)],
            usage=self._generation.usage(),
            system_fingerprint=self._fingerprint,
            prompt_token_ids=self._prompt_ids(),
            kv_transfer_params=self._generation.handed_over or UNSET,
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events: the role of every choice, its text, and [DONE]."""
        options = self._body.stream_options or StreamOptions()
        begun = [False] * len(self._generation.sequences)
        async with aclosing(self._generation.pieces()) as pieces:
            async for index, piece in pieces:
                if piece.empty:
                    continue
                if not begun[index]:
                    opening = self._chunk([_opening(index)], options)
                    opening.prompt_token_ids = UNSET if any(begun) else self._prompt_ids()
                    begun[index] = True
                    yield await self._text_work.run(partial(event, opening), self._prompt_items())
                yield await self._text_work.run(partial(self._event, index, piece, options), piece.items(self._top))
        if options.include_usage:
            last = self._chunk([], options)
            last.usage = self._generation.usage()
            yield event(last)
        yield DONE

    def _event(self, index: int, piece: Piece, options: StreamOptions) -> bytes:
        return event(self._chunk([self._chunk_choice(index, piece)], options))

    @property
    def _top(self) -> int:
        return self._body.top_logprobs or 0

    def _prompt_items(self) -> int:
        """Prompt tokens that the answer shows as ids."""
        return len(self._generation.sequences[0].request.prompt_ids) if self._body.return_token_ids else 0

    def _prompt_ids(self) -> list[int] | msgspec.UnsetType:
        return self._generation.sequences[0].request.prompt_ids if self._body.return_token_ids else UNSET

    def _chunk(self, choices: list[ChunkChoice], options: StreamOptions) -> ChatChunk:
        chunk = ChatChunk(
            id=self._id, created=self._created, model=self._model, choices=choices, system_fingerprint=self._fingerprint
        )
        if options.include_usage or options.continuous_usage_stats:
            chunk.usage = self._generation.usage() if options.continuous_usage_stats else None
        return chunk

    def _choice(self, index: int, pieces: list[Piece]) -> ChatChoice:
        scored = [entry for piece in pieces for entry in piece.scored]
        return ChatChoice(
            index=index,
            message=ChatMessage(content="".join(piece.text for piece in pieces)),
            logprobs=self._logprobs(scored),
            finish_reason=pieces[-1].finish_reason,  # type: ignore[arg-type]
            token_ids=[token for piece in pieces for token in piece.token_ids]
            if self._body.return_token_ids
            else UNSET,
        )

    def _chunk_choice(self, index: int, piece: Piece) -> ChunkChoice:
        return ChunkChoice(
            index=index,
            delta=Delta(content=piece.text) if piece.text else Delta(),
            logprobs=self._logprobs(piece.scored),
            finish_reason=piece.finish_reason,  # type: ignore[arg-type]
            token_ids=piece.token_ids if self._body.return_token_ids else UNSET,
        )

    def _logprobs(self, scored: list[Scored]) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        return ChatLogprobs([_scored(self._tokenizer, entry) for entry in scored])


def _opening(index: int) -> ChunkChoice:
    return ChunkChoice(index=index, delta=Delta(role="assistant", content=""), logprobs=None, finish_reason=None)


def _scored(tokenizer: TokenizerLike, entry: Scored) -> ChatTokenLogprob:
    assert entry.logprob is not None  # only the first token of a prompt has none, and prompts are not echoed here
    top = [_top(tokenizer, token, logprob) for token, logprob in entry.logprob.top]
    own = _top(tokenizer, entry.token, entry.logprob.logprob)
    return ChatTokenLogprob(own.token, own.logprob, own.bytes, top)


def _top(tokenizer: TokenizerLike, token: int, logprob: float) -> TopLogprob:
    return TopLogprob(tokenizer.token_text(token), max(logprob, LEAST_LOGPROB), list(tokenizer.token_bytes(token)))
