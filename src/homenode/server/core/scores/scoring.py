"""Scores of how near two texts are: the score of a pair by a model that scores, or the cosine of the vectors
of both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TypeVar

from homenode.model.pooling import pair_texts
from homenode.server.core.pooling import check_texts, cosine, kept_tokens, pool_texts, pooling_of, sigmoid
from homenode.server.core.prompts import (
    PROMPTS_AT_ONCE,
    EncodedPrompt,
    PromptText,
    check_prompt,
    check_prompt_tokens,
    encode_prompts,
    fitting_ids,
    texts_memory,
)
from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import AskedModel, ServedModel
from homenode.server.models.text_work import SHORT_TEXT

Item = TypeVar("Item")


@dataclass(frozen=True)
class TextsToScore:
    """Texts in the fields `first_param` and `second_param`: one against each of several, or as many pairs.
    `truncate`: see `kept_tokens`. `logits`: scores are as the model gives them, instead of between 0 and 1.
    """

    first: Sequence[str]
    second: Sequence[str]
    first_param: str
    second_param: str
    truncate: int | None = None
    priority: int | None = None
    logits: bool = False


@dataclass(frozen=True)
class Scores:
    """Scores of each pair, and the tokens that all took."""

    values: list[float]
    prompt_tokens: int


async def score_texts(asked_model: AskedModel, asked: TextsToScore) -> Scores:
    """The score of each pair. Raises ApiError 400 for texts that do not fit each other or the model."""
    model = asked_model.model
    pooling = pooling_of(model)
    for texts, param in ((asked.first, asked.first_param), (asked.second, asked.second_param)):
        if not texts:
            raise ApiError(400, f"`{param}` is an empty list; give a text", param=param, code="invalid_value")
        check_texts(model, len(texts), param)
    if len(asked.first) not in (1, len(asked.second)):
        text = (
            f"`{asked.first_param}` has {len(asked.first)} texts and `{asked.second_param}` {len(asked.second)}; give "
            "one, or as many"
        )
        raise ApiError(400, text, param=asked.first_param, code="invalid_value")
    if len(pooling.labels) > 1:
        text = (
            f"the served model gives a text scores of {len(pooling.labels)} labels; pairs need one that gives a pair "
            "one score"
        )
        raise ApiError(400, text, param="model", code="unsupported_model")
    async with model.text_work.reserve(texts_memory([*asked.first, *asked.second])):
        return await (_by_model(asked_model, asked) if pooling.labels else _by_vectors(asked_model, asked))


async def _by_vectors(asked_model: AskedModel, asked: TextsToScore) -> Scores:
    model = asked_model.model
    most = kept_tokens(model, asked.truncate)
    prompts: list[EncodedPrompt] = []
    for texts, param in ((asked.first, asked.first_param), (asked.second, asked.second_param)):
        prompts += await encode_prompts(model, list(texts), param, add_special_tokens=True, n=1, most=most)
        check_prompt_tokens(sum(len(prompt.ids) for prompt in prompts), param)
    found = await pool_texts(asked_model, prompts, asked.priority)
    first, second = found.vectors[: len(asked.first)], found.vectors[len(asked.first) :]
    pairs = _pairs(first, second)
    values = await model.text_work.run(lambda: list(starmap(cosine, pairs)), sum(map(len, found.vectors)))
    return Scores(values, found.prompt_tokens)


async def _by_model(asked_model: AskedModel, asked: TextsToScore) -> Scores:
    model = asked_model.model
    template = pooling_of(model).template
    prompts = await (_in_template(model, asked, template) if template else _joined(model, asked))
    found = await pool_texts(asked_model, prompts, asked.priority)
    return Scores([v[0] if asked.logits else sigmoid(v[0]) for v in found.vectors], found.prompt_tokens)


async def _in_template(model: ServedModel, asked: TextsToScore, template: str) -> list[EncodedPrompt]:
    """Pairs as texts, in which names of control tokens are what they are in conversations."""
    most, prompts, tokens = kept_tokens(model, asked.truncate), list[EncodedPrompt](), 0
    inline = sum(len(one) + len(other) for one, other in _pairs(asked.first, asked.second)) <= SHORT_TEXT
    for number, (one, other) in enumerate(_pairs(asked.first, asked.second)):
        await _take_turn(number, tokens, asked.second_param)
        hidden = None if model.config.special_tokens_in_content else model.tokenizer.hidden_names()
        texts = (one, other) if hidden is None else (hidden.hide(one), hidden.hide(other))
        text, behind = pair_texts(template, *texts)
        param = f"{asked.second_param}[{number}]"
        if most is None:
            ids = await fitting_ids(model, PromptText(text + behind, hidden), param, False, inline=inline)
        else:
            end = model.tokenizer.encode(behind, False)
            room = max(0, most - len(end))
            ids = await fitting_ids(model, PromptText(text, hidden), param, False, inline=inline, most=room)
            ids = [*ids, *end][-most:]
        check_prompt(model, ids, param)
        prompts.append(EncodedPrompt(ids))
        tokens += len(ids)
    check_prompt_tokens(tokens, asked.second_param)
    return prompts


async def _joined(model: ServedModel, asked: TextsToScore) -> list[EncodedPrompt]:
    """Pairs as the tokenizer puts them together."""
    first = await _bare_ids(model, asked.first, asked.first_param)
    second = await _bare_ids(model, asked.second, asked.second_param)
    most, around = kept_tokens(model, asked.truncate), model.tokenizer.surrounding
    prompts, tokens = list[EncodedPrompt](), 0
    for number, (one, other) in enumerate(_pairs(first, second)):
        await _take_turn(number, tokens, asked.second_param)
        ids = around.pair(one, other)
        if most is not None and (over := len(ids) - most) > 0:
            ids = around.pair(one, other[: max(0, len(other) - over)])
        check_prompt(model, ids, f"{asked.second_param}[{number}]")
        prompts.append(EncodedPrompt(ids, second_from=around.second_from(one)))
        tokens += len(ids)
    check_prompt_tokens(tokens, asked.second_param)
    return prompts


async def _take_turn(number: int, tokens: int, param: str) -> None:
    """Before the pair of this number is made: those before it, of so many tokens, are not too much, and others get a
    turn.
    """
    check_prompt_tokens(tokens, param)
    if number % PROMPTS_AT_ONCE == 0:
        await asyncio.sleep(0)


def _pairs(first: Sequence[Item], second: Sequence[Item]) -> Iterator[tuple[Item, Item]]:
    return zip(list(first) * len(second) if len(first) == 1 else first, second, strict=True)


async def _bare_ids(model: ServedModel, texts: Sequence[str], param: str) -> list[list[int]]:
    """The ids of texts without special tokens."""
    inline = sum(map(len, texts)) <= SHORT_TEXT
    most = model.ready.max_model_len
    return [await fitting_ids(model, PromptText(text), param, False, inline=inline, most=2 * most) for text in texts]
