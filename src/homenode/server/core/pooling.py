"""Vectors and scores of texts: what every API asks of an engine that pools, whatever its fields are called."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from operator import mul
from typing import TypeAlias

import msgspec
from starlette.responses import Response

from homenode.engine.messages import Output, PoolingReady
from homenode.engine.request import Request
from homenode.sampling import SamplingParams
from homenode.server.core.engine_request import engine_request
from homenode.server.core.failures import from_output
from homenode.server.core.prompts import EncodedPrompt, most_prompt_tokens
from homenode.server.http.failures import CONTEXT_LENGTH_EXCEEDED, ApiError
from homenode.server.keys.caller import caller
from homenode.server.models.served_model import AskedModel, ServedModel
from homenode.units import format_count

_PARAMS = SamplingParams(max_tokens=0)
Vector: TypeAlias = "array[float]"


@dataclass(frozen=True)
class PooledTexts:
    """One vector, or the scores, of each text, in their order, and what they took."""

    vectors: list[Vector]
    prompt_tokens: int
    cached_tokens: int


def pooling_of(model: ServedModel) -> PoolingReady:
    """Return what the engine makes of texts. Raises ApiError 400 where it generates text."""
    pooling = model.ready.pooling
    if pooling is None:
        text = (
            "the served model generates text and makes no embeddings; `homenode serve --runner pooling` has it make "
            "some"
        )
        raise ApiError(400, text, param="model", code="unsupported_model")
    return pooling


def vectors_of(model: ServedModel) -> PoolingReady:
    """Return what the engine makes of texts, which are vectors. Raises ApiError 400 where it is something else."""
    pooling = pooling_of(model)
    if pooling.labels:
        text = "the served model scores texts and makes no embeddings; ask /v1/score or /v1/rerank"
        raise ApiError(400, text, param="model", code="unsupported_model")
    return pooling


def makes_vectors(model: ServedModel) -> bool:
    """Return whether the engine makes vectors of texts."""
    return model.ready.pooling is not None and not model.ready.pooling.labels


def pools(model: ServedModel) -> bool:
    """Return whether the engine makes vectors or scores of texts."""
    return model.ready.pooling is not None


def generates(model: ServedModel) -> bool:
    """Return whether the engine generates text."""
    return model.ready.pooling is None


def kept_tokens(model: ServedModel, asked: int | None) -> int | None:
    """Tokens that `truncate_prompt_tokens` keeps of each text: -1 stands for as many as fit; None: all of it. By some
    models' files only so many count of any text; then no more are kept. Raises ApiError 400 for none, and for more than
    fit.
    """
    counted = pooling_of(model).text.tokens
    if asked is None:
        return counted
    most = most_prompt_tokens(model)
    if asked == 0:
        text = "`truncate_prompt_tokens` is 0, which keeps nothing; give -1 for as many tokens as fit, or 1 or more"
        raise ApiError(400, text, param="truncate_prompt_tokens", code="invalid_value")
    if asked > most:
        text = f"`truncate_prompt_tokens` is {asked}; this model takes {most} (--max-model-len)"
        raise ApiError(400, text, param="truncate_prompt_tokens", code="invalid_value")
    return min(most if asked < 0 else asked, counted or most)


def refuse_uncounted(model: ServedModel, prompts: Sequence[EncodedPrompt], param: str) -> None:
    """Raises ApiError 400 for a text that was to count whole, and has more tokens than count by the model's files."""
    counted = pooling_of(model).text.tokens
    for number, prompt in enumerate(prompts):
        if counted is not None and len(prompt.ids) > counted:
            text = (
                f"This model's maximum context length is "
                f"{format_count(counted, 'token')} by its files. `{param}[{number}]` has "
                f"{format_count(len(prompt.ids), 'token')}; shorten it, or leave `truncate` out"
            )
            raise ApiError(400, text, param=param, code=CONTEXT_LENGTH_EXCEEDED)


def check_texts(model: ServedModel, count: int, param: str) -> None:
    """Raises ApiError 400 for more texts than a request may have."""
    if count > (most := model.config.max_sequences_per_request):
        text = f"`{param}` has {format_count(count, 'text')}; at most {most} are taken (--max-sequences-per-request)"
        raise ApiError(400, text, param=param, code="invalid_value")


async def pool_texts(
    asked_model: AskedModel, prompts: Sequence[EncodedPrompt], priority: int | None = None
) -> PooledTexts:
    """Have the engine make a vector of each text, which `check_prompt_tokens` lets through. Raises ApiError for the
    first that fails, and ServiceTierError; none is left running then.

    Of many texts as many are with the engine at a time as it computes together.
    """
    model, tokens = asked_model.model, sum(len(prompt.ids) for prompt in prompts)
    rank = caller().rank(None, priority).priority
    caller().take_prompt(tokens)
    turns = asyncio.Semaphore(model.ready.max_num_seqs)
    requests = [engine_request(asked_model, prompt, _PARAMS, rank, pools=True) for prompt in prompts]
    await model.request_log.write_prompts(requests)
    tasks = [asyncio.create_task(_pool_text(model, request, turns)) for request in requests]
    try:
        outputs = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    vectors = [array("f", output.pooled) for output in outputs]
    return PooledTexts(vectors, tokens, sum(output.cached_tokens for output in outputs))


async def _pool_text(model: ServedModel, request: Request, turns: asyncio.Semaphore) -> Output:
    async with turns:
        recorder = model.metrics.recorder(len(request.prompt_ids))
        request = msgspec.structs.replace(request, arrival=recorder.arrival)
        model.active.add(request.id)
        try:
            async with aclosing(model.client.submit(request)) as outputs:
                async for output in outputs:
                    if output.error_kind is not None or output.finish_reason in ("error", "abort"):
                        recorder.end("error")
                        raise from_output(output)
                    if output.finish_reason is not None:
                        recorder.computed(output.queued_s)
                        recorder.end("stop")
                        return output
            raise from_output(Output(id=0, finish_reason="abort", error="the engine stopped answering"))
        finally:
            model.active.discard(request.id)
            recorder.end("abort")


async def json_of(model: ServedModel, found: PooledTexts, answer: Callable[[], object]) -> Response:
    """200 with the answer as JSON, made off the event loop where the vectors in it are many or long."""
    content = await model.text_work.run(lambda: msgspec.json.encode(answer()), sum(map(len, found.vectors)))
    return Response(content, media_type="application/json")


def shown_vector(vector: Vector, dimensions: int | None, *, normalise: bool) -> Vector:
    """The first `dimensions` elements, of length 1 where it is to be normalised."""
    cut = vector[:dimensions] if dimensions is not None else vector
    length = math.sqrt(sum(map(mul, cut, cut)))
    return array("f", [value / length for value in cut]) if normalise and length else cut


def cosine(first: Vector, second: Vector) -> float:
    """Return the cosine of the angle between two vectors; 0 where one has no direction."""
    lengths = math.sqrt(sum(map(mul, first, first)) * sum(map(mul, second, second)))
    return sum(map(mul, first, second)) / lengths if lengths else 0.0


def sigmoid(logit: float) -> float:
    """1 / (1 + e^-logit)."""
    if logit < 0:
        grown = math.exp(max(logit, -700.0))
        return grown / (1.0 + grown)
    return 1.0 / (1.0 + math.exp(-logit))
