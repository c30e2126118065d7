"""The request that every API asks of the engine, whatever its fields are called: a `GenerationRequest` becomes
sequences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from homenode.engine.request import session_ticket
from homenode.sampling import SamplingParams
from homenode.server.core.choices.choice import ChoiceText, PromptEcho, echo_prompt
from homenode.server.core.engine_request import engine_request
from homenode.server.core.generation import GeneratedSequence, Generation
from homenode.server.core.kv_transfer import KvTransferParams, RequestKvTransfer, kv_transfer_of
from homenode.server.core.prompts import EncodedPrompt, check_prompt_tokens
from homenode.server.http.failures import ApiError
from homenode.server.keys.caller import caller
from homenode.server.keys.service_tiers import AskedTier, ServiceRank
from homenode.server.models.served_model import AskedModel, ServedModel
from homenode.server.tracing.span import current_span, exemplar_of
from homenode.units import format_count

_PROMPTS_AT_ONCE = 16  # of many, those whose sequences are made before other requests get a turn


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request of any API.

    `sampling`: as asked, None where the model's defaults apply; its `n` is the number of answers to each prompt, its
    `stop` the strings that end a text. Its `max_tokens` is replaced by `max_tokens` here: the most tokens of an answer,
    None for as many as the context takes. `echo`: each text begins with its prompt. `shows_stop`: a text ends with the
    stop string that ended it. `token_ids`: the answer shows token ids, those of the prompts included. `shown_tokens`:
    special tokens that have text although others are skipped. `service_tier`, `priority`: whose turn it is
    (`keys.service_tiers`). `stream`: the answer is sent as events. `logprob_token_ids`: of each prompt, the tokens
    whose log-probabilities are told with each token of its answers; empty: of none.
    """

    prompts: Sequence[EncodedPrompt]
    sampling: SamplingParams
    max_tokens: int | None = None
    skip_special_tokens: bool = True
    shown_tokens: frozenset[int] = frozenset()
    service_tier: AskedTier | None = None
    priority: int | None = None
    cache_salt: str = ""
    speculative: bool = True
    session: str = ""
    echo: bool = False
    shows_stop: bool = False
    token_ids: bool = False
    stream: bool = False
    kv_transfer: KvTransferParams | None = None
    logprob_token_ids: Sequence[tuple[int, ...]] = ()


def check_limits(model: ServedModel, num_prompts: int, sampling: SamplingParams) -> None:
    """Raises ApiError 400 for too many sequences, for token ids that the model does not have, and where it does not
    generate.

    `begin` checks the same; APIs do so before they encode prompts, which may take long.
    """
    if model.ready.pooling is not None:
        text = (
            "the served model makes vectors or scores of texts (embeddings) and does not generate; ask /v1/embeddings, "
            "/v1/score or /v1/rerank"
        )
        raise ApiError(400, text, param="model", code="unsupported_model")
    count, most = num_prompts * sampling.n, model.most_sequences
    if count > most:
        own = most == model.config.max_sequences_per_request
        flags = "--max-sequences-per-request" if own else "--max-num-seqs and --max-num-queued-requests"
        text = f"`prompt` and `n` ask for {format_count(count, 'sequence')}; at most {most} are taken ({flags})"
        raise ApiError(400, text, param="n", code="invalid_value")
    for param, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
        if ids and max(ids) >= model.ready.vocab_size:
            raise ApiError(
                400,
                f"`{param}` names token id {max(ids)}; this model's ids go from 0 to {model.ready.vocab_size - 1}",
                param=param,
                code="invalid_value",
            )


async def begin(asked_model: AskedModel, request: GenerationRequest) -> Generation:
    """The sequences of a request: every prompt `n` times, in that order. Nothing runs before `Generation.events`.

    Raises ApiError 400, ServiceTierError, and KeyLimitError when the key has no tokens left.
    """
    model = asked_model.model
    check_limits(model, len(request.prompts), request.sampling)
    tokens = sum(len(prompt.ids) for prompt in request.prompts)
    check_prompt_tokens(tokens, "prompt", request.sampling.n)
    rank = caller().rank(request.service_tier, request.priority)
    _check_waiting_tokens(model, request)
    caller().take_prompt(tokens)
    if request.sampling.bad_words or request.sampling.dry_multiplier:
        rules, sampling = model.token_rules, request.sampling
        request = replace(request, sampling=await model.text_work.run(lambda: rules.resolved(sampling)))
    kv = await _kv_transfer(model, request)
    sequences: list[GeneratedSequence] = []
    for number, prompt in enumerate(request.prompts):
        if number % _PROMPTS_AT_ONCE == 0:
            await asyncio.sleep(0)
        echo = await _echo(model, request, prompt)
        if request.logprob_token_ids:
            request = _with_logprobs_of(request, request.logprob_token_ids[number])
        sequences += _sequences(asked_model, request, rank, prompt, echo, kv, first_index=len(sequences))
    kv_result = kv.result if kv else None
    return Generation(asked_model, sequences, request.sampling.logprobs or 0, request.token_ids, kv_result, rank.tier)


def _check_waiting_tokens(model: ServedModel, request: GenerationRequest) -> None:
    """Raises ApiError 400 for sequences of which so many tokens would have to wait for the first to end that the queue
    never takes them, however little else there is to do.
    """
    queue, n = model.ready.queue, request.sampling.n
    if not queue.waiting_tokens or len(request.prompts) * n <= queue.running:
        return
    lengths = [len(prompt.ids) for prompt in request.prompts for _ in range(n)]
    if (waiting := sum(lengths[queue.running :])) > queue.waiting_tokens:
        text = (
            f"`prompt` and `n` ask for {format_count(len(lengths), 'sequence')}. Behind the first {queue.running} "
            f"{format_count(waiting, 'prompt token')} would wait; at most {queue.waiting_tokens} may "
            "(--max-num-queued-tokens)"
        )
        raise ApiError(400, text, param="n", code="invalid_value")


def _with_logprobs_of(request: GenerationRequest, tokens: tuple[int, ...]) -> GenerationRequest:
    """The same where the log-probabilities of these tokens are wanted."""
    return replace(request, sampling=msgspec.structs.replace(request.sampling, logprob_token_ids=tokens))


async def _kv_transfer(model: ServedModel, request: GenerationRequest) -> RequestKvTransfer | None:
    """Return the same as `kv_transfer_of`. A request that scores its prompt has to compute it: what another server
    computed is released.
    """
    single = not request.stream and request.sampling.n == 1
    kv = kv_transfer_of(
        model, request.kv_transfer, prompts=len(request.prompts), tokens=len(request.prompts[0].ids), single=single
    )
    if kv is None or kv.ticket is None or kv.ticket.sends or request.sampling.prompt_logprobs is None:
        return kv
    await model.client.release_kv(kv.ticket.ticket, "the prompt is scored")
    return None


async def _echo(model: ServedModel, request: GenerationRequest, prompt: EncodedPrompt) -> PromptEcho | None:
    if not request.echo:
        return None
    offsets = request.sampling.prompt_logprobs is not None
    return await model.text_work.run(
        lambda: echo_prompt(model.tokenizer, prompt.ids, prompt.text, offsets=offsets), len(prompt.ids)
    )


def _sequences(
    asked_model: AskedModel,
    request: GenerationRequest,
    rank: ServiceRank,
    prompt: EncodedPrompt,
    echo: PromptEcho | None,
    kv: RequestKvTransfer | None,
    *,
    first_index: int,
) -> list[GeneratedSequence]:
    """The n sequences of one prompt. The i-th gets `seed` + i, or all would say the same. Of `kv` the first has the
    ticket.
    """
    model = asked_model.model
    params = _engine_params(model, request, len(prompt.ids), computes_only=kv is not None and kv.result is not None)
    stops = request.sampling.stop_strings
    skip_special = request.skip_special_tokens
    named = model.tokenizer.special_tokens_in(stops) if stops and skip_special else {}
    hidden = {token: name for token, name in named.items() if token not in request.shown_tokens}
    session = session_ticket(caller().name, request.cache_salt, request.session) if request.session else ""
    exemplar = exemplar_of(current_span())
    model.metrics.asked(request.sampling.n)
    made = []
    for index in range(request.sampling.n):
        recorder = model.metrics.recorder(len(prompt.ids), params.max_tokens, exemplar)
        of_engine = engine_request(
            asked_model,
            prompt,
            params.of_answer(index),
            rank.priority,
            cache_salt=request.cache_salt,
            speculative=request.speculative,
            session=session,
            arrival=recorder.arrival,
            kv=kv.ticket if kv and index == 0 else None,
        )
        stream = model.tokenizer.stream(prompt.text_ids, skip_special, request.shown_tokens)
        choice = ChoiceText(
            stream,
            index=first_index + index,
            stops=stops,
            hidden=hidden,
            echo=echo if kv is None or kv.result is None else None,
            logprobs=params.logprobs is not None,
            shows_stop=request.shows_stop,
        )
        made.append(GeneratedSequence(of_engine, choice, recorder, first_of_prompt=index == 0))
    return made


def _engine_params(
    model: ServedModel, request: GenerationRequest, prompt_tokens: int, *, computes_only: bool
) -> SamplingParams:
    """The parameters that the engine gets: without text and number of answers, with every default filled in.

    `computes_only`: nothing is generated, as the server that the prompt's KV is for gives the answer.
    """
    asked = request.sampling
    available = model.ready.max_model_len - prompt_tokens
    most = 0 if computes_only else available if request.max_tokens is None else min(request.max_tokens, available)
    asked = msgspec.structs.replace(
        asked,
        max_tokens=most,
        min_tokens=min(asked.min_tokens, most),
        logprobs=None if computes_only else asked.logprobs,
        prompt_logprobs=None if computes_only else asked.prompt_logprobs,
        grammar=None if computes_only else asked.grammar,
        stop=[],
        n=1,
    )
    defaults = model.sampling_defaults
    ends = tuple(token for token in model.tokenizer.stop_token_ids if token < model.ready.vocab_size)
    return asked.with_defaults(defaults).ended_by(ends)
