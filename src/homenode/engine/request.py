"""A request as the engine sees it: token ids in, sampling parameters, nothing of HTTP or text."""

from __future__ import annotations

import math

import msgspec

from homenode.errors import UserError
from homenode.transfer.seam import KvTicket

_MOST = 2**31 - 1  # what the arrays of a step hold
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 0, _MOST),
    ("min_tokens", 0, _MOST),
    ("temperature", 0, 1e6),
    ("top_k", 0, _MOST),
    ("min_p", 0, 1),
    ("presence_penalty", -1e6, 1e6),
    ("frequency_penalty", -1e6, 1e6),
    ("repetition_penalty", 1e-3, 1e3),
    ("seed", -(2**63), 2**64 - 1),
    ("logprobs", 0, 1000),  # a Python object each: this many for every token are plenty
    ("prompt_logprobs", 0, 1000),
)


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

    def check(self) -> None:
        """Raises UserError naming the first value out of range. Whether token ids exist only the engine can tell."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is in no range
                raise UserError(f"{name} is {value}; it must be from {low:g} to {high:g}", param=name)
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it must be above 0 and at most 1", param="top_p")
        for token, bias in self.logit_bias.items():
            if not (-1e6 <= bias <= 1e6 or bias == -math.inf):
                text = f"logit_bias of token {token} is {bias}; it must be from -1000000 to 1000000, or minus infinity to forbid the token"
                raise UserError(text, param="logit_bias")

    def ended_by(self, stop_tokens: tuple[int, ...]) -> SamplingParams:
        """The same, ended by these tokens of the model as well, unless its ends are to be ignored."""
        if self.ignore_eos or not stop_tokens:
            return self
        return msgspec.structs.replace(self, stop_token_ids=tuple(dict.fromkeys((*self.stop_token_ids, *stop_tokens))))


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence to continue. `id` is chosen by the client and unique for the life of the engine."""

    id: int
    prompt_ids: list[int]
    params: SamplingParams
    priority: int = 0  # lower runs first
    cache_salt: str = ""  # requests share cached prefixes only within one salt
    arrival: float = 0.0  # time.monotonic() of the front, same clock on one host
    deadline: float | None = None  # time.monotonic() after which it is aborted
    kv: KvTicket | None = None  # its KV is handed over, to or from another engine
    begun: list[
        int
    ] = []  # output tokens that another engine had given when it was lost: the sequence goes on after them


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of a token, and the most likely (token, log-probability) pairs in its place."""

    logprob: float
    top: list[tuple[int, float]] = []
