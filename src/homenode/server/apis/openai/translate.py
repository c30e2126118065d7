"""Requests of the API turned into engine requests; what a type cannot say is checked, and refused with the field's name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from homenode.engine.request import Request, SamplingParams
from homenode.server.apis.openai.requests import REMEDIES, ChatRequest, CompletionRequest, Sampling
from homenode.server.core.choice import ChoiceText, PromptEcho, echo_prompt
from homenode.server.core.prompts import chat_ids, prompt_ids, split_prompt
from homenode.server.core.run import GeneratedSequence, Generation
from homenode.server.core.state import ServerState
from homenode.server.core.text_work import SHORT_TEXT, memory_of
from homenode.server.http.failures import ApiError
from homenode.server.kv_transfer import RequestKvTransfer, hand_over
from homenode.units import format_count

_PROMPTS_AT_ONCE = 16
_MOST_PROMPT_TOKENS = 2**22  # of all sequences of a request; each takes its prompt to the engine
_NO_LIMIT = -1  # as a number of tokens
_SMALLEST_TOP_P = 1e-9  # top_p 0 is valid in the API and means the most likely token alone


async def completion(state: ServerState, body: CompletionRequest) -> Generation:
    """The sequences of a completion request: every prompt n times, in that order. Raises ApiError 400."""
    prompts = await state.text_work.run(lambda: split_prompt(body.prompt), len(body.prompt))
    _check_sequences(state, len(prompts) * (body.n or 1))
    _check_bias(state, body)
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    async with state.text_work.reserve(sum(map(memory_of, texts))):
        return await _completion(state, body, prompts, inline=sum(map(len, texts)) <= SHORT_TEXT)


async def _completion(
    state: ServerState, body: CompletionRequest, prompts: list[str | list[int]], *, inline: bool
) -> Generation:
    """`inline`: all texts together are short."""
    score = body.logprobs if body.echo else None
    over: RequestKvTransfer | None = None
    sequences: list[GeneratedSequence] = []
    tokens = 0
    for place, prompt in enumerate(prompts):
        if place % _PROMPTS_AT_ONCE == 0:
            await asyncio.sleep(0)  # others get a turn
        param = "prompt" if len(prompts) == 1 else f"prompt[{place}]"
        ids = await prompt_ids(state, prompt, param, body.add_special_tokens is not False, inline=inline)
        tokens += len(ids) * (body.n or 1)
        _check_tokens(tokens)
        over = await _hand_over(state, body, len(prompts), ids, score)
        echo = await _echo(state, ids, prompt, score is not None) if body.echo else None
        wanted = 16 if body.max_tokens is None else _most_tokens(state, body.max_tokens)
        sequences += _sequences(
            state, body, ids, wanted, logprobs=body.logprobs, prompt_logprobs=score, echo=echo, over=over
        )
    return _generation(state, sequences, over)


async def chat(state: ServerState, body: ChatRequest) -> Generation:
    """The n sequences of a chat request. Raises ApiError 400, and UserError when the chat template refuses the messages."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "`top_logprobs` needs `logprobs`: true", param="top_logprobs", code="invalid_value")
    _check_sequences(state, body.n or 1)
    _check_bias(state, body)
    ids = await chat_ids(
        state,
        body.messages,
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final=bool(body.continue_final_message),
        add_special_tokens=body.add_special_tokens,
    )
    _check_tokens(len(ids) * (body.n or 1))
    wanted = _chat_tokens(state, body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    over = await _hand_over(state, body, 1, ids, None)
    return _generation(state, _sequences(state, body, ids, wanted, logprobs=logprobs, over=over), over)


def _most_tokens(state: ServerState, asked: int) -> int:
    """Tokens the answer may have, of which there may still be less room in the context; -1 asks for all of it."""
    return state.ready.max_model_len if asked == _NO_LIMIT else asked


def _chat_tokens(state: ServerState, body: ChatRequest) -> int:
    """The same of a chat, whose limit has two names and is never 0. Raises ApiError 400."""
    for param, asked in (("max_completion_tokens", body.max_completion_tokens), ("max_tokens", body.max_tokens)):
        if asked == 0:
            raise ApiError(400, f"`{param}`: expected `int` >= 1; {REMEDIES[param]}", param=param, code="invalid_value")
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _most_tokens(state, _NO_LIMIT if asked is None else asked)


async def _hand_over(
    state: ServerState, body: Sampling, prompts: int, ids: list[int], score: int | None
) -> RequestKvTransfer | None:
    """As `kv_transfer.hand_over`. A request that scores its prompt has to compute it: what was computed elsewhere is given up."""
    over = hand_over(state, body, prompts, len(ids))
    if over is None or over.ticket is None or over.ticket.sends or score is None:
        return over
    await state.client.release_kv(over.ticket.ticket, "the prompt is scored")
    return None


def _generation(state: ServerState, sequences: list[GeneratedSequence], over: RequestKvTransfer | None) -> Generation:
    result = over.result if over else None
    return Generation(state.client, sequences, state.active, state.tickets, result, state.text_work)


def _check_tokens(tokens: int) -> None:
    """Raises ApiError 400 when the prompts so far are too long to be handed over at once."""
    if tokens > _MOST_PROMPT_TOKENS:
        raise ApiError(
            400,
            f"`prompt` and `n` ask for {format_count(tokens, 'prompt token')} or more; at most {_MOST_PROMPT_TOKENS} are taken "
            "in one request",
            param="n",
            code="invalid_value",
        )


async def _echo(state: ServerState, ids: list[int], prompt: str | list[int], offsets: bool) -> PromptEcho:
    text = prompt if isinstance(prompt, str) else None
    return await state.text_work.run(lambda: echo_prompt(state.tokenizer, ids, text, offsets=offsets), len(ids))


def _check_sequences(state: ServerState, count: int) -> None:
    most = state.config.max_sequences_per_request
    if count > most:
        raise ApiError(
            400,
            f"`prompt` and `n` ask for {format_count(count, 'sequence')}; at most {most} are taken (--max-sequences-per-request)",
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
    echo: PromptEcho | None = None,
    over: RequestKvTransfer | None = None,
) -> list[GeneratedSequence]:
    """The n sequences of one prompt. The i-th gets `seed` + i, or all would say the same. Of `over` the first one has the ticket."""
    if over is not None and over.result is not None:  # whom it is for gives the answer
        wanted, logprobs, prompt_logprobs, echo = 0, None, None, None
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    skip_special = body.skip_special_tokens is not False
    hidden = state.tokenizer.special_tokens_in(stops) if stops and skip_special else {}
    room = state.ready.max_model_len - len(ids)
    defaults = state.ready.sampling_defaults if state.config.generation_config == "auto" else {}
    ends = tuple(token for token in state.tokenizer.stop_token_ids if token < state.ready.vocab_size)
    params = _params(body, defaults, min(wanted, room), logprobs, prompt_logprobs).ended_by(ends)
    made = []
    for index in range(body.n or 1):
        recorder = state.metrics.recorder()
        request = Request(
            id=state.next_id(),
            prompt_ids=ids,
            params=params.of_answer(index),
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            arrival=recorder.arrival,
            kv=over.ticket if over and index == 0 else None,
        )
        stream = state.tokenizer.stream(ids, skip_special_tokens=skip_special)
        choice = ChoiceText(stream, stops=stops, hidden=hidden, echo=echo, logprobs=logprobs is not None)
        made.append(GeneratedSequence(request, choice, recorder, first_of_prompt=index == 0))
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


def _params(
    body: Sampling, defaults: Mapping[str, float], max_tokens: int, logprobs: int | None, prompt_logprobs: int | None
) -> SamplingParams:
    """`defaults` stand in for what the request leaves open; neutral values for what neither says."""
    asked = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(body.min_tokens or 0, max_tokens),
        temperature=body.temperature,
        top_p=None if body.top_p is None else max(body.top_p, _SMALLEST_TOP_P),
        top_k=None if body.top_k is None else max(body.top_k, 0),
        min_p=body.min_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logit_bias=body.logit_bias or {},
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    return asked.with_defaults(defaults)
