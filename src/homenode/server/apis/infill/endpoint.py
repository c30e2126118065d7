"""POST /infill: the middle of a file, as editors ask for it in the words of llama.cpp."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from homenode.model.tokenizer.fill_in_middle import FillInMiddleTokens
from homenode.sampling import SamplingParams
from homenode.server.apis.infill.request import HINTS, InfillExtra, InfillRequest
from homenode.server.apis.infill.text import InfillText, pieces
from homenode.server.core.answer import told_usage
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.generation import Generation
from homenode.server.core.pooling import generates
from homenode.server.core.prompt_forms.fill_in_middle import middle_prompt, middle_tokens_of
from homenode.server.core.prompts import EncodedPrompt
from homenode.server.core.request import GenerationRequest, begin, check_limits
from homenode.server.core.setting_fields import given_settings
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import unless_gone, unless_gone_early
from homenode.server.http.failures import CONTEXT_LENGTH_EXCEEDED, ApiError
from homenode.server.http.sse import EventStream
from homenode.server.keys.told_usage import USAGE_HEADER
from homenode.server.models.model_table import read_for_model
from homenode.server.models.served_model import AskedModel, ServedModel
from homenode.server.models.text_work import SHORT_TEXT, memory_of
from homenode.units import format_count

_CHARACTERS_A_TOKEN = 64  # of a text that is longer than the context, more are not looked at
_PROJECT = "project\n"  # the name of a repository, which editors do not tell
_SNIPPET = "\n\n--- snippet ---\n\n"  # before pieces of other files where the model has no token for that
_decode = decode_as(InfillRequest, HINTS)


class InfillAnswer(msgspec.Struct, kw_only=True):
    """Answer of /infill, and the last event of its stream; earlier ones have `content` and `stop` alone."""

    index: int = 0
    content: str
    stop: bool = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: bool
    stop_type: str
    stopping_word: str
    has_new_line: bool
    timings: dict[str, float]


async def infill(state: ServerState, request: Request) -> Response:
    """Fill in the middle."""
    body, asked_model = await read_for_model(state, request, _decode)
    model = asked_model.model
    tokens = middle_tokens_of(model, "input_prefix")
    prompt, truncated = await unless_gone_early(request, _prompt(model, body, tokens))
    generation = await _begin(asked_model, body, prompt, tokens)
    limit = body.t_max_predict_ms
    middle = InfillText(body.n_indent or 0, None if limit is None or limit <= 0 else limit / 1000)

    def answer(content: str) -> Any:
        return _selected(_answer(generation, middle, content, asked_model.name, truncated), body.response_fields)

    tells = USAGE_HEADER in request.headers
    if body.stream:
        events = _events(generation, middle, answer, tells=tells)
        return EventStream(request, events, _failure, keep_alive_s=state.config.sse_keep_alive)
    await unless_gone(request.receive, _whole(generation, middle))
    response = json_response(answer("" if body.most_tokens == 0 else middle.text))
    if tells:
        response.headers[USAGE_HEADER] = told_usage(generation).header()
    return response


async def _begin(
    asked_model: AskedModel, body: InfillRequest, prompt: EncodedPrompt, tokens: FillInMiddleTokens
) -> Generation:
    model, given = asked_model.model, given_settings(body)
    if body.repeat_penalty is not None:
        given.setdefault("repetition_penalty", body.repeat_penalty)
    ends = tuple(token for token in tokens.ends if token < model.ready.vocab_size)
    sampling = SamplingParams(
        seed=body.seed, stop=[text for text in body.stop or () if text], stop_token_ids=ends, **given
    )
    check_limits(model, 1, sampling)
    most = body.most_tokens
    # A prompt alone is computed with one token, which nobody sees.
    return await begin(
        asked_model,
        GenerationRequest(
            prompts=[prompt],
            sampling=sampling,
            max_tokens=1 if most == 0 else most,
            priority=body.priority,
            cache_salt=body.cache_salt or "",
            speculative=body.speculative is not False,
            stream=bool(body.stream),
        ),
    )


async def _prompt(model: ServedModel, body: InfillRequest, tokens: FillInMiddleTokens) -> tuple[EncodedPrompt, bool]:
    """The prompt, and whether something was left out of it: the end of what comes after, the beginning of what comes
    before, and other files, where all of it does not fit.
    """
    longest = model.ready.max_model_len
    kept = longest * _CHARACTERS_A_TOKEN
    extras = list(body.input_extra or ())
    texts = [body.input_prefix[-kept:], body.input_suffix[:kept], (body.prompt or "")[-kept:]]
    size = sum(map(memory_of, [*texts, *(extra.text for extra in extras)]))
    async with model.text_work.reserve(size):
        inline = 0 if size <= SHORT_TEXT else None
        before, after, begun = await model.text_work.run(lambda: [_ids(model, text) for text in texts], inline)
        room = longest - len(begun) - 8 - min(body.most_tokens or 0, longest // 4)
        if room < 2:
            text = (
                f"This model's maximum context length is "
                f"{format_count(longest, 'token')} (--max-model-len). `prompt` has "
                f"{format_count(len(begun), 'token')}, which leaves no room; shorten it"
            )
            raise ApiError(400, text, param="prompt", code=CONTEXT_LENGTH_EXCEEDED)
        of_after = min(len(after), max(room // 4, room - len(before)))
        of_before = min(len(before), room - of_after)
        context = await model.text_work.run(
            lambda: _context(model, extras, tokens, room - of_before - of_after, kept), inline
        )
    truncated = of_before < len(before) or of_after < len(after) or len(texts[0]) < len(body.input_prefix)
    cut = before[len(before) - of_before :]
    prompt = middle_prompt(model, tokens, cut, after[:of_after], context=context, begun=begun, param="input_prefix")
    return prompt, truncated


def _context(
    model: ServedModel, extras: list[InfillExtra], tokens: FillInMiddleTokens, room: int, kept: int
) -> list[int]:
    """Pieces of other files, the last of them nearest to the file, as many as there is room for."""
    if not extras:
        return []
    found: list[list[int]] = []
    head = [] if tokens.repository is None else [tokens.repository, *_ids(model, _PROJECT)]
    room -= len(head)
    for extra in reversed(extras):
        if tokens.file is None:
            piece = _ids(model, f"{_SNIPPET}{extra.text[:kept]}\n")
        else:
            piece = [tokens.file, *_ids(model, f"{extra.filename[:1000]}\n{extra.text[:kept]}\n")]
        if len(piece) > room:
            break
        room -= len(piece)
        found.append(piece)
    if not found:
        return []
    own = [] if tokens.file is None else [tokens.file, *_ids(model, "filename\n")]
    return [*head, *(token for piece in reversed(found) for token in piece), *(own if len(own) <= room else [])]


def _ids(model: ServedModel, text: str) -> list[int]:
    return model.tokenizer.encode(text, False) if text else []


async def _whole(generation: Generation, middle: InfillText) -> None:
    async with aclosing(pieces(generation, middle)) as shown:
        async for _ in shown:
            pass


async def _events(
    generation: Generation, middle: InfillText, answer: Any, *, tells: bool
) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces(generation, middle)) as shown:
        async for text in shown:
            yield _event({"index": 0, "content": text, "stop": False})
    yield (told_usage(generation).comment() if tells else b"") + _event(answer(""))


def _event(chunk: object) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _failure(error: ApiError) -> bytes:
    return _event(error.body)


def _answer(generation: Generation, middle: InfillText, content: str, model: str, truncated: bool) -> InfillAnswer:
    usage = generation.usage()
    first, last = middle.first_token_at or middle.began, middle.last_token_at or middle.began
    prompt_ms, predicted_ms = 1000 * (first - middle.began), 1000 * (last - first)
    prompt_n = usage.prompt_tokens - usage.cached_tokens
    timings = {
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(1, prompt_n),
        "prompt_per_second": 1000 * prompt_n / max(1e-3, prompt_ms),
        "predicted_n": middle.tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(1, middle.tokens),
        "predicted_per_second": 1000 * middle.tokens / max(1e-3, predicted_ms),
    }
    return InfillAnswer(
        content=content,
        model=model,
        tokens_predicted=middle.tokens,
        tokens_evaluated=usage.prompt_tokens,
        tokens_cached=usage.prompt_tokens + middle.tokens,
        truncated=truncated,
        stop_type=middle.stop_type,
        stopping_word=middle.stopping_word,
        has_new_line="\n" in content,
        timings=timings,
    )


def _selected(answer: InfillAnswer, fields: list[str] | None) -> object:
    """The fields that a client wants, under the names by which it asks, such as `timings/prompt_n`; all for none."""
    if not fields:
        return answer
    whole, found = msgspec.to_builtins(answer), {}
    for path in fields:
        value: Any = whole
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found


API = Api(
    operations=(
        Operation(
            path="/infill",
            method="post",
            summary="Fill in the middle (llama.cpp).",
            handler=infill,
            answer=dict,
            body=InfillRequest,
            streams=InfillAnswer,
            failures=POST_FAILURES,
            admits=True,
            documented=lambda model: generates(model) and model.tokenizer.fill_in_middle is not None,
        ),
    ),
)
