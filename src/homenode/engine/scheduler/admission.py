"""The rules of who is let in: settings that contradict each other, requests that can never run, and queues that are
full.
"""

from __future__ import annotations

from homenode.engine.inputs import rows_problem, spans_of
from homenode.engine.request import Request
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import WorkerLimits
from homenode.errors import ContextLengthError, OverloadedError, UserError
from homenode.sampling import NO_TOKEN
from homenode.units import format_count

_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0


def longest_sequence(limits: WorkerLimits) -> int:
    """Tokens, prompt included, that one sequence may have: --max-model-len, or what the KV memory holds if that is
    less, beside its state where that is handed over in blocks.
    """
    return min(limits.max_model_len, (limits.num_blocks - limits.state_pages) * limits.block_size)


def refusal(request: Request, config: SchedulerConfig, limits: WorkerLimits) -> UserError | None:
    """Return why a request can never run here, if so: a ContextLengthError with the numbers, or a UserError for values
    out of range.
    """
    if not request.prompt_ids:
        return UserError("the prompt is empty: at least one token is needed", param="prompt")
    if request.pools != limits.pools:
        return UserError(
            "this engine makes vectors or scores of texts and does not generate; start it with --runner generate"
            if limits.pools
            else "this engine generates text; vectors or scores need --runner pooling",
            param="model",
        )
    if request.adapter is not None and not 0 <= request.adapter.number < limits.adapters:
        text = f"this engine has {format_count(limits.adapters, 'adapter')} and none of the number "
        return UserError(f"{text}{request.adapter.number}", param="model")
    prompt = len(request.prompt_ids) + len(request.begun)  # all to be computed before it goes on
    error = (
        _bad_rows(request, limits)
        or _bad_picture(request, config)
        or _bad_token(request, limits.vocab_size)
        or _bad_range(request)
    )
    if error:
        return error
    if request.pools:
        if prompt > limits.max_model_len:
            return ContextLengthError(
                f"this model's maximum context length is "
                f"{format_count(limits.max_model_len, 'token')} (--max-model-len), and the text "
                f"has {format_count(prompt, 'token')}; shorten it, or ask for its beginning (truncate_prompt_tokens)",
                param="input",
                prompt_tokens=prompt,
                max_model_len=limits.max_model_len,
            )
    elif prompt >= limits.max_model_len:
        return ContextLengthError(
            f"this model's maximum context length is "
            f"{format_count(limits.max_model_len, 'token')} with the answer (--max-model-len), "
            f"and the prompt has {format_count(prompt, 'token')}; "
            f"shorten the prompt to {format_count(limits.max_model_len - 1, 'token')} or fewer",
            param="prompt",
            prompt_tokens=prompt,
            max_model_len=limits.max_model_len,
        )
    blocks = -(-(prompt + (not request.pools)) // limits.block_size)
    if blocks > (most := limits.num_blocks - limits.state_pages):
        longest = most * limits.block_size - (not request.pools)
        return ContextLengthError(
            f"this engine's maximum context length is "
            f"{format_count(longest, 'token')} of a prompt by its KV memory; the prompt has "
            f"{format_count(prompt, 'token')} and needs {format_count(blocks, 'KV block')} of "
            f"{format_count(limits.block_size, 'token')} for itself and one more, but there "
            f"are {most}; shorten the prompt or raise --kv-cache-memory",
            param="prompt",
            prompt_tokens=prompt,
            num_blocks=most,
        )
    if not config.enable_chunked_prefill and prompt > config.max_num_batched_tokens:
        return ContextLengthError(
            f"this engine's maximum context length is "
            f"{format_count(config.max_num_batched_tokens, 'token')} of a prompt, as a step "
            f"has no more (--max-num-batched-tokens), the prompt has {format_count(prompt, 'token')}, and prompts "
            "are not cut (--no-enable-chunked-prefill); shorten the prompt, raise the former or drop the latter",
            param="prompt",
            prompt_tokens=prompt,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
    return None


def _bad_rows(request: Request, limits: WorkerLimits) -> UserError | None:
    if not request.rows:
        return None
    if not limits.row_columns:
        return UserError("this engine takes token ids only, no rows (--enable-prompt-embeds)", param="prompt_embeds")
    if wrong := rows_problem(request.prompt_ids, request.rows):
        return UserError(f"the prompt is damaged: {wrong}", param="prompt_embeds")
    widths = {each.rows.columns for each in request.rows}
    if widths != {limits.row_columns}:
        text = f"rows of {min(widths - {limits.row_columns})} columns; this model's have {limits.row_columns}"
        return UserError(text, param="prompt_embeds")
    if request.params.prompt_logprobs is not None:
        return UserError("a prompt with rows has no tokens to score", param="prompt_logprobs")
    return None


def _bad_picture(request: Request, config: SchedulerConfig) -> UserError | None:
    """Rows that see each other are computed in one step."""
    longest = max((past - first for first, past in spans_of(request.rows)), default=0)
    if longest <= config.max_num_batched_tokens:
        return None
    return UserError(
        f"a picture has {format_count(longest, 'row')} that see each other, and a step has at most "
        f"{format_count(config.max_num_batched_tokens, 'token')}; raise --max-num-batched-tokens to {longest}",
        param="max_num_batched_tokens",
    )


def _bad_token(request: Request, vocab_size: int) -> UserError | None:
    params = request.params
    named = {"logit_bias": list(params.logit_bias), "logprob_token_ids": list(params.logprob_token_ids)}
    for param, tokens in (("prompt", request.prompt_ids), *named.items()):
        if not tokens:
            continue
        if param == "prompt" and request.rows:  # where one stands there may be no token, as `_bad_rows` has seen
            tokens = [token for token in tokens if token != NO_TOKEN] or [0]
        worst = min(tokens) if min(tokens) < 0 else max(tokens)
        if not 0 <= worst < vocab_size:
            return UserError(
                f"token id {worst} in {param} is outside the vocabulary of 0 to {vocab_size - 1}",
                param=param,
                token=worst,
            )
    return None


def _bad_range(request: Request) -> UserError | None:
    try:
        request.params.check()
    except UserError as error:
        return error
    return None


class Throughput:
    """Tokens computed per second of late, for telling the refused when to come back."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count a step. Older steps fade: the last ten or so decide."""
        if seconds > 0:
            self._tokens = 0.9 * self._tokens + tokens
            self._seconds = 0.9 * self._seconds + seconds

    def retry_after(self, tokens: int) -> float:
        """Seconds in which `tokens` are done, between 1 and 60; 1 as long as nothing was measured."""
        if not self._tokens:
            return _MIN_RETRY_S
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, tokens * self._seconds / self._tokens))


def overload(
    request: Request,
    config: SchedulerConfig,
    *,
    draining: bool,
    waiting: int,
    waiting_tokens: int,
    free_slots: int,
    retry_after_s: float,
) -> tuple[str, OverloadedError] | None:
    """Return why a request that could run is not let in now: the reason's short name for the metrics, and the error;
    None if it is.

    `waiting` requests with `waiting_tokens` prompt tokens are in the queue, of which `free_slots` can start at once and
    do not count.
    """
    if draining:
        return "draining", OverloadedError(
            "the server is shutting down and takes no new requests", retry_after_s=retry_after_s
        )
    queued = waiting + 1 - free_slots
    if queued <= 0:
        return None
    if 0 < config.max_num_queued_requests < queued:
        text = (
            f"{format_count(waiting, 'request is', 'requests are')} waiting already (--max-num-queued-requests "
            f"{config.max_num_queued_requests}); try again later"
        )
        return "queued_requests", OverloadedError(text, retry_after_s=retry_after_s)
    tokens = waiting_tokens + len(request.prompt_ids)
    if 0 < config.max_num_queued_tokens < tokens:
        text = (
            f"{format_count(waiting_tokens, 'prompt token is', 'prompt tokens are')} waiting already and this request "
            f"has {len(request.prompt_ids)}"
        )
        text += f" (--max-num-queued-tokens {config.max_num_queued_tokens}); try again later"
        return "queued_tokens", OverloadedError(text, retry_after_s=retry_after_s)
    return None
