"""Requests of the API turned into engine requests; everything a type cannot say is checked here, and refused with the field's name."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from homenode.engine.request import Request, SamplingParams
from homenode.server.choices import Choice, Echo, echo_prompt
from homenode.server.failures import ApiError
from homenode.server.generation import Generation, Sequence
from homenode.server.openai import ChatRequest, CompletionRequest, Content, Messages, Sampling
from homenode.server.state import ServerState

_LONG_TEXT = 8192  # characters; longer ones are tokenised off the event loop
_SMALLEST_TOP_P = 1e-9  # top_p 0 is valid in the API and means the most likely token alone
_OWN_VALUES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


async def completion(state: ServerState, body: CompletionRequest) -> Generation:
    """The sequences of a completion request: every prompt n times, in that order. Raises ApiError 400."""
    prompts = split_prompt(body.prompt)
    _check_sequences(state, len(prompts) * (body.n or 1))
    score = body.logprobs if body.echo else None
    sequences: list[Sequence] = []
    for place, prompt in enumerate(prompts):
        param = "prompt" if len(prompts) == 1 else f"prompt[{place}]"
        ids = await _prompt_ids(state, prompt, param, body.add_special_tokens is not False)
        echo = _echo(state, ids, prompt, score is not None) if body.echo else None
        wanted = 16 if body.max_tokens is None else body.max_tokens
        sequences += _sequences(state, body, ids, wanted, logprobs=body.logprobs, prompt_logprobs=score, echo=echo)
    return Generation(state.client, sequences, state.active)


async def chat(state: ServerState, body: ChatRequest) -> Generation:
    """The n sequences of a chat request. Raises ApiError 400, and UserError when the chat template refuses the messages."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "`top_logprobs` needs `logprobs`: true", param="top_logprobs", code="invalid_value")
    _check_sequences(state, body.n or 1)
    ids = await chat_ids(
        state,
        body.messages,
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final=bool(body.continue_final_message),
        add_special_tokens=bool(body.add_special_tokens),
    )
    check_prompt(state, ids, "messages")
    wanted = body.max_completion_tokens or body.max_tokens or state.ready.max_model_len
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return Generation(state.client, _sequences(state, body, ids, wanted, logprobs=logprobs), state.active)


def split_prompt(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts in the four forms of the API's `prompt`. Raises ApiError 400 for an empty or mixed list."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(entry) for entry in prompt}
    if not prompt:
        raise ApiError(400, "`prompt` is an empty list; give a text, token ids or a list of either", param="prompt", code="invalid_value")
    if kinds == {int}:
        return [prompt]  # type: ignore[list-item]
    if kinds in ({str}, {list}):
        return prompt  # type: ignore[return-value]
    raise ApiError(
        400,
        "`prompt` mixes kinds; its entries must be all texts, all token ids or all lists of token ids",
        param="prompt",
        code="invalid_value",
    )


async def chat_ids(
    state: ServerState,
    messages: Messages,
    *,
    template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool | None = None,
    continue_final: bool = False,
    add_special_tokens: bool = False,
) -> list[int]:
    """Token ids of a conversation. Templates write BOS themselves, so special tokens are not added unless asked for."""
    values = dict(template_kwargs or {})
    if taken := sorted(_OWN_VALUES & values.keys()):
        raise ApiError(400, f"`chat_template_kwargs` may not set `{taken[0]}`", param="chat_template_kwargs", code="invalid_value")
    said = [
        {"role": _role(message), "content": _text(message.content)} | ({"name": message.name} if message.name else {})
        for message in messages
    ]
    if continue_final and add_generation_prompt:
        raise ApiError(
            400,
            "`continue_final_message` and `add_generation_prompt` exclude each other",
            param="continue_final_message",
            code="invalid_value",
        )

    def work() -> list[int]:
        render = _render_open if continue_final else _render
        text = render(state, said, values, add_generation_prompt is not False)
        return state.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    long = sum(len(message["content"]) for message in said) > _LONG_TEXT
    return await asyncio.to_thread(work) if long else work()


async def text_ids(state: ServerState, text: str, add_special_tokens: bool) -> list[int]:
    """Token ids of a text."""
    if len(text) > _LONG_TEXT:
        return await asyncio.to_thread(state.tokenizer.encode, text, add_special_tokens)
    return state.tokenizer.encode(text, add_special_tokens)


def check_token_ids(state: ServerState, ids: list[int], param: str) -> None:
    """Raises ApiError 400 for an id outside the vocabulary."""
    if ids and max(ids) >= state.ready.vocab_size:
        place = next(i for i, token in enumerate(ids) if token >= state.ready.vocab_size)
        raise ApiError(
            400,
            f"`{param}[{place}]` is token id {ids[place]}; this model's ids go from 0 to {state.ready.vocab_size - 1}",
            param=param,
            code="invalid_value",
        )


def check_prompt(state: ServerState, ids: list[int], param: str) -> None:
    """Raises ApiError 400 for a prompt without tokens, or with too many to leave room for one more."""
    if not ids:
        raise ApiError(
            400,
            f"`{param}` has no tokens, and this model has no token that begins a text; give at least one",
            param=param,
            code="invalid_value",
        )
    if len(ids) >= state.ready.max_model_len:
        raise ApiError(
            400,
            f"`{param}` has {len(ids)} tokens; the context takes {state.ready.max_model_len} (--max-model-len), one of them for the answer",
            param=param,
            code="context_length_exceeded",
        )


async def _prompt_ids(state: ServerState, prompt: str | list[int], param: str, add_special_tokens: bool) -> list[int]:
    if isinstance(prompt, str):
        ids = await text_ids(state, prompt, add_special_tokens)
    else:
        ids = prompt
        check_token_ids(state, ids, param)
    check_prompt(state, ids, param)
    return ids


def _echo(state: ServerState, ids: list[int], prompt: str | list[int], offsets: bool) -> Echo:
    return echo_prompt(state.tokenizer, ids, prompt if isinstance(prompt, str) else None, offsets=offsets)


def _check_sequences(state: ServerState, count: int) -> None:
    most = state.config.max_sequences_per_request
    if count > most:
        raise ApiError(
            400,
            f"`prompt` and `n` ask for {count} sequences; at most {most} are taken (--max-sequences-per-request)",
            param="n",
            code="invalid_value",
        )


def _sequences(
    state: ServerState,
    body: Sampling,
    ids: list[int],
    wanted: int,
    *,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    echo: Echo | None = None,
) -> list[Sequence]:
    """The n sequences of one prompt. The i-th gets `seed` + i, or all would say the same."""
    _check_bias(state, body)
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    room = state.ready.max_model_len - len(ids)
    params = _params(body, min(wanted, room), logprobs, prompt_logprobs)
    made = []
    for index in range(body.n or 1):
        recorder = state.metrics.recorder()
        request = Request(
            id=state.next_id(),
            prompt_ids=ids,
            params=_seeded(params, index),
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            arrival=recorder.arrival,
        )
        stream = state.tokenizer.stream(ids, skip_special_tokens=body.skip_special_tokens is not False)
        choice = Choice(stream, stops=stops, echo=echo, logprobs=logprobs is not None)
        made.append(Sequence(request, choice, recorder, first_of_prompt=index == 0))
    return made


def _check_bias(state: ServerState, body: Sampling) -> None:
    for param, ids in (("logit_bias", body.logit_bias or ()), ("stop_token_ids", body.stop_token_ids or ())):
        if ids and max(ids) >= state.ready.vocab_size:
            raise ApiError(
                400,
                f"`{param}` names token id {max(ids)}; this model's ids go from 0 to {state.ready.vocab_size - 1}",
                param=param,
                code="invalid_value",
            )


def _params(body: Sampling, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(body.min_tokens or 0, max_tokens),
        temperature=_or(body.temperature, 1.0),
        top_p=max(_or(body.top_p, 1.0), _SMALLEST_TOP_P),
        top_k=max(body.top_k or 0, 0),
        min_p=_or(body.min_p, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        seed=body.seed,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logit_bias=body.logit_bias or {},
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _seeded(params: SamplingParams, index: int) -> SamplingParams:
    if params.seed is None or index == 0:
        return params
    return msgspec.structs.replace(params, seed=(params.seed + index + 2**63) % 2**64 - 2**63)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _role(message: Any) -> str:
    role = str(message.__struct_config__.tag)
    return "system" if role == "developer" else role  # the same thing under its newer name, which few templates know


def _text(content: Content | None) -> str:
    if isinstance(content, list):
        return "\n".join(part.text for part in content)
    return content or ""


def _render(state: ServerState, said: list[dict[str, str]], values: dict[str, Any], add_generation_prompt: bool) -> str:
    return state.tokenizer.render_chat(said, add_generation_prompt=add_generation_prompt, **values)


def _render_open(state: ServerState, said: list[dict[str, str]], values: dict[str, Any], _: bool) -> str:
    """The prompt up to the end of the last message's text: a mark at that end shows where the template would close the turn."""
    mark = f"[{secrets.token_hex(16)}]"
    marked = [*said[:-1], {**said[-1], "content": said[-1]["content"] + mark}]
    text = _render(state, marked, values, False)
    before, found, _after = text.rpartition(mark)
    if not found:
        raise ApiError(
            400,
            "the chat template does not show the last message, so it cannot be continued",
            param="continue_final_message",
            code="invalid_value",
        )
    return before
