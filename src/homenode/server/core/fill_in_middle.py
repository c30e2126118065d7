"""Prompts that ask for the middle of a text, given what is before it and after it."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.model.tokenizer.fill_in_middle import FillInMiddleTokens
from homenode.server.core.prompts import EncodedPrompt, check_prompt
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ApiError


def middle_tokens_of(state: ServerState, param: str) -> FillInMiddleTokens:
    """The model's tokens for it. Raises ApiError 400 that names `param` where the model has none."""
    if (tokens := state.tokenizer.fill_in_middle) is not None:
        return tokens
    text = (
        "this model cannot fill in the middle: its tokenizer has no tokens for it (fim_prefix, fim_suffix, fim_middle)"
    )
    raise ApiError(400, f"`{param}`: {text}", param=param, code="unsupported_parameter")


def middle_prompt(
    state: ServerState,
    tokens: FillInMiddleTokens,
    before: Sequence[int],
    after: Sequence[int],
    *,
    context: Sequence[int] = (),
    begun: Sequence[int] = (),
    param: str,
) -> EncodedPrompt:
    """What the model sees: `context`, then what is `before` and `after` the middle, each behind its mark, and what of
    the middle has `begun`. The token that begins texts comes first. Raises ApiError 400 when that does not fit.
    """
    begin = state.tokenizer.encode("")[:1]
    begin = begin if begin == [state.tokenizer.bos_token_id] else []
    ids = [*begin, *context, tokens.prefix, *before, tokens.suffix, *after, tokens.middle, *begun]
    check_prompt(state, ids, param)
    return EncodedPrompt(ids)
