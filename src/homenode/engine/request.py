"""A request as the engine sees it: token ids in, sampling parameters, nothing of HTTP or text."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from homenode.errors import UserError
from homenode.transfer.seam import KvTicket

DEFAULT_TOKENS = 512  # tokens of an answer where nothing is said of its length
_MOST = 2**31 - 1  # what the arrays of a step hold
_MOST_ANSWERS = 2048
_SMALLEST_TOP_P = 1e-9  # of a model that says 0, by which the most likely token alone is meant
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
    ("n", 1, _MOST_ANSWERS),
)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a sequence is continued and when it ends. Ranges are checked by `check()`.

    None for `temperature`, `top_p`, `top_k`, `min_p` and `repetition_penalty` is what the model's generation_config.json
    says, else the plain distribution: 1, 1, 0, 0 and 1. `stop`: strings that end the text before them. `n`: answers to
    each prompt, of which the i-th has the seed `seed` + i. Both are for `LLM`; the engine knows neither text nor prompts.
    """

    max_tokens: int = DEFAULT_TOKENS
    min_tokens: int = 0
    temperature: float | None = None  # 0: greedy
    top_p: float | None = None
    top_k: int | None = None  # 0: off
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    seed: int | None = None  # None: the engine draws one
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None  # None: none; n: of the drawn token and the n most likely
    prompt_logprobs: int | None = None  # likewise for every prompt token but the first
    stop: str | list[str] = []
    n: int = 1

    def check(self) -> None:
        """Raises UserError naming the first value out of range. Whether token ids exist only the engine can tell."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is in no range
                raise UserError(f"{name} is {value}; it must be from {low:g} to {high:g}", param=name)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it must be above 0 and at most 1", param="top_p")
        for token, bias in self.logit_bias.items():
            if not (-1e6 <= bias <= 1e6 or bias == -math.inf):
                text = f"logit_bias of token {token} is {bias}; it must be from -1000000 to 1000000, or minus infinity to forbid the token"
                raise UserError(text, param="logit_bias")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Those of `stop`. Raises UserError for what is no text, and for an empty one, which would end every answer."""
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if not all(isinstance(text, str) and text for text in stops):
            raise UserError(f"stop is {self.stop!r}; it must be a text or several, none of them empty", param="stop")
        return stops

    def with_defaults(self, model: Mapping[str, float]) -> SamplingParams:
        """The same with no value left open: the model's own stand in, and neutral ones for what it does not say."""
        return msgspec.structs.replace(
            self,
            temperature=_first(self.temperature, model.get("temperature"), 1.0),
            top_p=_first(self.top_p, max(_first(model.get("top_p"), 1.0), _SMALLEST_TOP_P)),
            top_k=int(_first(self.top_k, model.get("top_k"), 0)),
            min_p=_first(self.min_p, model.get("min_p"), 0.0),
            repetition_penalty=_first(self.repetition_penalty, model.get("repetition_penalty"), 1.0),
        )

    def of_answer(self, index: int) -> SamplingParams:
        """Those of the i-th of several answers to a prompt: with a seed of its own, or all would say the same."""
        if self.seed is None or index == 0:
            return self
        return msgspec.structs.replace(self, seed=(self.seed + index + 2**63) % 2**64 - 2**63)

    def ended_by(self, stop_tokens: tuple[int, ...]) -> SamplingParams:
        """The same, ended by these tokens of the model as well, unless its ends are to be ignored."""
        if self.ignore_eos or not stop_tokens:
            return self
        return msgspec.structs.replace(self, stop_token_ids=tuple(dict.fromkeys((*self.stop_token_ids, *stop_tokens))))


def _first(*values: float | None) -> float:
    """The first that is not None."""
    return next(value for value in values if value is not None)


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
