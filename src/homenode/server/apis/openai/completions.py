"""POST /v1/completions."""

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
from homenode.server.apis.openai.requests import HINTS, CompletionRequest, StreamOptions
from homenode.server.apis.openai.responses import CompletionChoice, CompletionLogprobs, TextCompletion
from homenode.server.core.choice import Piece, Scored
from homenode.server.core.respond import respond
from homenode.server.core.run import Generation
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.exchange import read_json, unless_gone_early
from homenode.server.http.sse import DONE, event
from homenode.server.interfaces.tokenizer import TokenizerLike

LEAST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot carry

_decode = decode_as(CompletionRequest, HINTS)


async def completions(state: ServerState, request: Request) -> Response:
    """Continue one or several prompts."""
    body = await read_json(state, request, _decode)
    model = state.model(body.model)
    generation = await unless_gone_early(request, translate.completion(state, body))
    answer = CompletionAnswer(state, body, model, generation)
    return await respond(state, request, answer, stream=bool(body.stream))


class CompletionAnswer:
    """Pieces as chunks of a stream, or gathered into one answer."""

    def __init__(self, state: ServerState, body: CompletionRequest, model: str, generation: Generation) -> None:
        self._tokenizer, self._body, self._generation = state.tokenizer, body, generation
        self._id, self._created, self._model = f"cmpl-{secrets.token_hex(12)}", int(time.time()), model
        self._fingerprint, self._text_work = state.fingerprint, state.text_work

    async def whole(self) -> bytes:
        """Everything at once, as JSON. Raises ApiError when a sequence ends without a result."""
        gathered: list[list[Piece]] = [[] for _ in self._generation.sequences]
        async with aclosing(self._generation.pieces()) as pieces:
            async for index, piece in pieces:
                gathered[index].append(piece)

        def written() -> bytes:
            answer = self._chunk([self._choice(i, _joined(parts), first=True) for i, parts in enumerate(gathered)])
            answer.usage = self._generation.usage()
            answer.kv_transfer_params = self._generation.handed_over or UNSET
            return msgspec.json.encode(answer)

        wanted = self._body.logprobs or 0
        items = sum(piece.items(wanted) for parts in gathered for piece in parts) + self._prompt_items()
        return await self._text_work.run(written, items)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, ending with [DONE]."""
        options = self._body.stream_options or StreamOptions()
        begun = [False] * len(self._generation.sequences)
        async with aclosing(self._generation.pieces()) as pieces:
            async for index, piece in pieces:
                if not piece.empty:
                    items = piece.items(self._body.logprobs or 0) + (0 if begun[index] else self._prompt_items())
                    first, begun[index] = not begun[index], True
                    yield await self._text_work.run(partial(self._event, index, piece, options, first=first), items)
        if options.include_usage:
            chunk = self._chunk([])
            chunk.usage = self._generation.usage()
            yield event(chunk)
        yield DONE

    def _event(self, index: int, piece: Piece, options: StreamOptions, *, first: bool) -> bytes:
        chunk = self._chunk([self._choice(index, piece, first=first)])
        if options.include_usage or options.continuous_usage_stats:
            chunk.usage = self._generation.usage() if options.continuous_usage_stats else None
        return event(chunk)

    def _prompt_items(self) -> int:
        """Prompt tokens that the answer shows as ids."""
        sequences = self._generation.sequences
        return sum(len(sequence.request.prompt_ids) for sequence in sequences) if self._body.return_token_ids else 0

    def _chunk(self, choices: list[CompletionChoice]) -> TextCompletion:
        return TextCompletion(
            id=self._id, created=self._created, model=self._model, choices=choices, system_fingerprint=self._fingerprint
        )

    def _choice(self, index: int, piece: Piece, *, first: bool) -> CompletionChoice:
        wanted, ids = self._body.logprobs, bool(self._body.return_token_ids)
        return CompletionChoice(
            index=index,
            text=piece.text,
            logprobs=None if wanted is None else logprobs_of(self._tokenizer, piece.scored, wanted),
            finish_reason=piece.finish_reason,  # type: ignore[arg-type]
            token_ids=piece.token_ids if ids else UNSET,
            prompt_token_ids=self._generation.sequences[index].request.prompt_ids if ids and first else UNSET,
        )


def _joined(pieces: list[Piece]) -> Piece:
    return Piece(
        "".join(piece.text for piece in pieces),
        [token for piece in pieces for token in piece.token_ids],
        [scored for piece in pieces for scored in piece.scored],
        pieces[-1].finish_reason,
    )


def logprobs_of(tokenizer: TokenizerLike, scored: list[Scored], wanted: int) -> CompletionLogprobs:
    """The parallel lists of the API. `top_logprobs` has the `wanted` most likely tokens and the one that came; null where 0 are wanted."""
    return CompletionLogprobs(
        tokens=[tokenizer.token_text(entry.token) for entry in scored],
        token_logprobs=[
            None if entry.logprob is None else max(entry.logprob.logprob, LEAST_LOGPROB) for entry in scored
        ],
        top_logprobs=[_top(tokenizer, entry) for entry in scored] if wanted else None,
        text_offset=[entry.offset for entry in scored],
    )


def _top(tokenizer: TokenizerLike, entry: Scored) -> dict[str, float] | None:
    """Tokens with the same text (parts of characters) share a key; the likeliest keeps it."""
    if entry.logprob is None:
        return None
    top: dict[str, float] = {}
    for token, logprob in (*entry.logprob.top, (entry.token, entry.logprob.logprob)):
        top.setdefault(tokenizer.token_text(token), max(logprob, LEAST_LOGPROB))
    return top
