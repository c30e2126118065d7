"""A request as the engine sees it: token ids in, sampling parameters, nothing of HTTP or text."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a sequence is continued and when it ends. Ranges are checked by `check()`; the defaults sample from the plain distribution."""

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # None: the engine draws one
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None  # None: none; n: of the drawn token and the n most likely
    prompt_logprobs: int | None = None  # likewise for every prompt token but the first


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence to continue. `id` is chosen by the client and unique for the life of the engine."""

    id: int
    prompt_ids: list[int]
    params: SamplingParams
    priority: int = 0  # lower runs first
    cache_salt: str = ""  # requests share cached prefixes only within one salt
    arrival: float = 0.0  # time.monotonic() of the front, same clock on one host
    deadline: float | None = None  # time.monotonic() after which it is aborted


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of a token, and the most likely (token, log-probability) pairs in its place."""

    logprob: float
    top: list[tuple[int, float]] = []
