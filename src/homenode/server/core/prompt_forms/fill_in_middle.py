"""Prompts that ask for the middle of a text, given what is before it and after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from homenode.model.tokenizer.fill_in_middle import FillInMiddleTokens
from homenode.sampling import SamplingParams
from homenode.server.core.prompt_cut import PromptCut
from homenode.server.core.prompts import (
    PROMPTS_AT_ONCE,
    EncodedPrompt,
    PromptText,
    check_prompt_tokens,
    check_token_ids,
    cut_prompt,
    fitting_ids,
)
from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import ServedModel
from homenode.server.models.text_work import SHORT_TEXT


def middle_tokens_of(model: ServedModel, param: str) -> FillInMiddleTokens:
    """The model's tokens for it. Raises ApiError 400 that names `param` where the model has none."""
    if (tokens := model.tokenizer.fill_in_middle) is not None:
        return tokens
    text = (
        "this model cannot fill in the middle: its tokenizer has no tokens for it (fim_prefix, fim_suffix, fim_middle)"
    )
    raise ApiError(400, f"`{param}`: {text}", param=param, code="unsupported_parameter")


def middle_prompt(
    model: ServedModel,
    tokens: FillInMiddleTokens,
    before: Sequence[int],
    after: Sequence[int],
    *,
    context: Sequence[int] = (),
    begun: Sequence[int] = (),
    param: str,
    cut: PromptCut | None = None,
    max_tokens: int | None = None,
) -> EncodedPrompt:
    """Return what the model sees: `context`, then what is `before` and `after` the middle, each behind its mark, and
    what of the middle has `begun`. The token that begins texts comes first. Raises ApiError 400 when that does not fit,
    and is not to be cut.
    """
    begin = model.tokenizer.encode("")[:1]
    begin = begin if begin == [model.tokenizer.bos_token_id] else []
    ids = [*begin, *context, tokens.prefix, *before, tokens.suffix, *after, tokens.middle, *begun]
    return cut_prompt(model, ids, param, cut, max_tokens)


async def encode_middles(
    model: ServedModel,
    prompts: Sequence[str | list[int]],
    suffix: str,
    *,
    n: int = 1,
    cut: PromptCut | None = None,
    max_tokens: int | None = None,
) -> list[EncodedPrompt]:
    """Each prompt, which is answered `n` times, with the suffix, laid out with the model's own tokens. `cut`,
    `max_tokens`: as of `prompts.encode_chat_text`. Raises ApiError
    400, which names `suffix` where the model has no such tokens, and the prompt that does not fit.
    """
    tokens = middle_tokens_of(model, "suffix")
    after = await fitting_ids(model, PromptText(suffix), "suffix", False, inline=len(suffix) <= SHORT_TEXT, cut=cut)
    inline = sum(len(prompt) for prompt in prompts if isinstance(prompt, str)) <= SHORT_TEXT
    found, count = list[EncodedPrompt](), 0
    for number, prompt in enumerate(prompts):
        if number % PROMPTS_AT_ONCE == 0:
            await asyncio.sleep(0)  # others get a turn
        param = "prompt" if len(prompts) == 1 else f"prompt[{number}]"
        if isinstance(prompt, str):
            before = await fitting_ids(model, PromptText(prompt), param, False, inline=inline, cut=cut)
        else:
            check_token_ids(model, prompt, param)
            before = prompt
        found.append(middle_prompt(model, tokens, before, after, param=param, cut=cut, max_tokens=max_tokens))
        count += len(found[-1].ids)
        check_prompt_tokens(count, "prompt", n)
    return found


def ended_by_middle(model: ServedModel, sampling: SamplingParams) -> SamplingParams:
    """The same, ended by the tokens that end a middle as well."""
    ends = middle_tokens_of(model, "suffix").ends
    return msgspec.structs.replace(sampling, stop_token_ids=(*sampling.stop_token_ids, *ends))
