"""Sampling parameters: how a sequence is continued, and when it ends.

The annotated fields of `SamplingParams` are the table of what says, row by row of the logits, how a token is drawn. The
table drives the fields of the HTTP APIs and the OpenAPI document, the message to workers, the arrays that backends
take, and, by `make stubs`, csrc/sampling/settings.h and docs/sampling.md. A new parameter is a row here and its
computation in the samplers of the backends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from homenode.errors import UserError

NO_TOKEN = -1  # stands where no token could be drawn, and where a row takes the place of one in a prompt
DEFAULT_TOKENS = 512  # tokens of an answer where nothing is said of its length
_MOST = 2**31 - 1  # what the arrays of a step hold
_MOST_ANSWERS = 2048
DRY_BREAKERS = ("\n", ":", '"', "*")


@dataclass(frozen=True, slots=True)
class SamplingSetting:
    """A row of the table. `off`: the value that changes nothing, which stands where neither request nor model has one.

    `low` to `high`: what is taken, without `low` itself where `above`. `api`: the range of the field of the HTTP APIs
    where that is another one. `least`: what stands for the smaller values that HTTP APIs and model files may have.
    """

    doc: str
    off: float
    low: float
    high: float
    api: tuple[float, float] | None = None
    least: float | None = None
    above: bool = False

    @property
    def api_range(self) -> tuple[float, float]:
        """Return what the HTTP APIs take, bounds included."""
        return self.api or (self.low, self.high)

    def clamped(self, value: float) -> float:
        """`value` as an HTTP API or a model file has it, within the range of `SamplingParams`."""
        return value if self.least is None else max(value, self.least)


class ForbiddenText(msgspec.Struct, frozen=True, array_like=True):
    """A text that an answer must not hold, as an automaton over tokens: where its first `at` bytes stand at the end of
    the answer, `completing[at - 1]` are the tokens that would complete it; `whole` are those that hold all of it.
    `beginning[at - 1]`: the tokens that end with its first `at` bytes. `inner`: tokens that lie within it, as (token,
    at, to): from its first `at` bytes to its first `to`.
    """

    whole: tuple[int, ...]
    completing: tuple[tuple[int, ...], ...]
    beginning: tuple[tuple[int, ...], ...]
    inner: tuple[tuple[int, int, int], ...]


OPEN_SEED = -1  # of a request: a new seed each time, as the field has it


def is_open_seed(seed: object) -> bool:
    """Return whether a seed is one that is to be drawn."""
    return seed is None or seed == OPEN_SEED


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The way in which a sequence is continued, and when it ends. Ranges are checked by `check()`.

    None for `repetition_penalty`, `temperature`, `top_k`, `top_p` and `min_p` is what the model's
    generation_config.json or GGUF file says, else the plain distribution: 1, 1, 0, 1 and 0. `stop`: strings that end
    the text before them. `n`: answers to each prompt, of which the i-th has the seed `seed` + i. Both are for `LLM`;
    the engine knows neither text nor prompts. With a `grammar` an answer ends where that ends, whatever `ignore_eos`
    and `min_tokens` say.
    """

    # The table, in the order in which the settings are applied, but for `top_n_sigma`: it comes before the temperature.
    repetition_penalty: Annotated[
        float | None,
        SamplingSetting(
            "divides the logits above 0 of tokens of the prompt and the answer, and multiplies those below",
            off=1, low=1e-3, high=1e3, api=(0.01, 100),
        ),
    ] = None  # fmt: skip
    frequency_penalty: Annotated[
        float,
        SamplingSetting(
            "taken from a token's logit, times its count in the answer", off=0, low=-1e6, high=1e6, api=(-2, 2)
        ),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        SamplingSetting("taken from the logits of all tokens of the answer", off=0, low=-1e6, high=1e6, api=(-2, 2)),
    ] = 0.0
    temperature: Annotated[
        float | None,
        SamplingSetting("divides the logits; 0 takes the most likely token", off=1, low=0, high=1e6, api=(0, 100)),
    ] = None
    dynatemp_range: Annotated[
        float,
        SamplingSetting(
            "lets the temperature go from itself - r, at no entropy, to itself + r, at the largest",
            off=0,
            low=0,
            high=100,
        ),
    ] = 0.0
    dynatemp_exponent: Annotated[
        float,
        SamplingSetting(
            "the power of the entropy's share of the largest, which places it there", off=1, low=0, high=100
        ),
    ] = 1.0
    top_n_sigma: Annotated[
        float,
        SamplingSetting("keeps logits >= the largest - n standard deviations of all; n <= 0 keeps all", off=0, low=-1,
        high=1e3),
    ] = 0.0  # fmt: skip
    top_k: Annotated[
        int | None,
        SamplingSetting(
            "keeps the k most likely tokens; 0 keeps all", off=0, low=0, high=_MOST, api=(-1, _MOST), least=0
        ),
    ] = None
    typical_p: Annotated[
        float,
        SamplingSetting(
            "keeps the tokens whose surprise is nearest to the entropy, that together have the probability p",
            off=1, low=0, high=1,
        ),
    ] = 1.0  # fmt: skip
    top_p: Annotated[
        float | None,
        SamplingSetting(
            "keeps the most likely tokens that together have the probability p, at least one",
            off=1, low=0, high=1, least=1e-9, above=True,
        ),
    ] = None  # fmt: skip
    min_p: Annotated[
        float | None,
        SamplingSetting(
            "keeps tokens of at least p times the probability of the most likely one", off=0, low=0, high=1
        ),
    ] = None
    max_surprise: Annotated[
        float,
        SamplingSetting(
            "keeps tokens of at most s bits of surprise among those left, at least one; 0 keeps all",
            off=0, low=0, high=1e3,
        ),
    ] = 0.0  # fmt: skip
    xtc_probability: Annotated[
        float,
        SamplingSetting(
            "how often all but the least likely of the tokens above the threshold go", off=0, low=0, high=1
        ),
    ] = 0.0
    xtc_threshold: Annotated[
        float,
        SamplingSetting("the probability from which on that may happen to a token", off=0.1, low=0, high=1),
    ] = 0.1
    # What is no number of a row.
    mirostat: int = 0  # 1 or 2: `max_surprise` follows the surprise of what was drawn (Mirostat 2)
    mirostat_tau: float = 5.0  # the surprise, in bits, that it aims at
    mirostat_eta: float = 0.1  # how fast
    dry_multiplier: float = 0.0  # taken from logits of tokens that go on with a repetition of dry_allowed_length tokens
    dry_base: float = 1.75  # and times this for each token by which the repetition is longer
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # tokens before the next that are looked at; -1: all
    dry_sequence_breakers: tuple[str, ...] = DRY_BREAKERS  # texts of tokens over which no repetition goes
    dry_breaker_ids: tuple[int, ...] = ()  # those tokens: what the engine knows of them
    bad_words: tuple[str, ...] = ()  # texts that the answer does not hold
    forbidden: tuple[ForbiddenText, ...] = ()  # the same over tokens: what the engine knows of them
    max_tokens: int = DEFAULT_TOKENS
    min_tokens: int = 0
    seed: int | None = None  # None or -1: the engine draws one
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None  # None: none; n: of the drawn token and the n most likely
    logprob_token_ids: tuple[int, ...] = ()  # with `logprobs`: of these tokens, in place of the most likely ones
    prompt_logprobs: int | None = None  # as `logprobs`, for every prompt token but the first
    stop: str | list[str] = []
    n: int = 1
    grammar: str | None = None  # what the text has to be: `grammars.compile.CompiledGrammar.text`

    def check(self) -> None:
        """Raises UserError naming the first value out of range. Whether token ids exist only the engine can tell."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is in no range
                raise UserError(f"{name} is {value}; it must be from {low:g} to {high:g}", param=name)
        for name, setting in SETTINGS.items():
            value = getattr(self, name)
            if setting.above and value is not None and value <= setting.low:
                text = f"{name} is {value}; it must be above {setting.low:g} and at most {setting.high:g}"
                raise UserError(text, param=name)
        for token, bias in self.logit_bias.items():
            if not (-1e6 <= bias <= 1e6 or bias == -math.inf):
                text = (
                    f"logit_bias of token {token} is {bias}; it must be from -1000000 to 1000000, or minus "
                    "infinity to forbid the token"
                )
                raise UserError(text, param="logit_bias")

    @property
    def leaves_seed_open(self) -> bool:
        """Return whether the engine draws the seed, a new one for each request."""
        return is_open_seed(self.seed)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Return those of `stop`. Raises UserError for what is no text, and for an empty one, which would end every
        answer.
        """
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if not all(isinstance(text, str) and text for text in stops):
            raise UserError(f"stop is {self.stop!r}; it must be a text or several, none of them empty", param="stop")
        return stops

    def with_defaults(self, model: Mapping[str, float]) -> SamplingParams:
        """The same with no value left open: the model's own stand in, and neutral ones for what it does not say."""
        return msgspec.structs.replace(self, **self._open(model))

    def _open(self, model: Mapping[str, float]) -> dict[str, Any]:
        """Return what stands in for the settings that are None."""
        found: dict[str, Any] = {}
        for name, setting in SETTINGS.items():
            if getattr(self, name) is None:
                found[name] = setting_type(name)(setting.clamped(model.get(name, setting.off)))
        return found

    def of_answer(self, index: int) -> SamplingParams:
        """Return those of the i-th of several answers to a prompt: with a seed of its own, or all would say
        the same.
        """
        if self.seed is None or self.leaves_seed_open or index == 0:
            return self
        seed = (self.seed + index + 2**63) % 2**64 - 2**63
        return msgspec.structs.replace(self, seed=2**64 - 1 if seed == OPEN_SEED else seed)  # the same bits

    def ended_by(self, stop_tokens: tuple[int, ...]) -> SamplingParams:
        """The same, ended by these tokens of the model as well, unless its ends are to be ignored."""
        if (self.ignore_eos and self.grammar is None) or not stop_tokens:
            return self
        return msgspec.structs.replace(self, stop_token_ids=tuple(dict.fromkeys((*self.stop_token_ids, *stop_tokens))))


_HINTS = get_type_hints(SamplingParams, include_extras=True)
SETTINGS: dict[str, SamplingSetting] = {  # the table, by name, in the order of the fields
    name: note
    for name, hint in _HINTS.items()
    for note in getattr(hint, "__metadata__", ())
    if isinstance(note, SamplingSetting)
}
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("mirostat", 0, 2),
    ("mirostat_tau", 0, 100),
    ("mirostat_eta", 0, 1),
    ("dry_multiplier", 0, 100),
    ("dry_base", 1, 100),
    ("dry_allowed_length", 0, _MOST),
    ("dry_penalty_last_n", -1, _MOST),
    ("max_tokens", 0, _MOST),
    ("min_tokens", 0, _MOST),
    *((name, setting.low, setting.high) for name, setting in SETTINGS.items() if not setting.above),
    ("seed", -(2**63), 2**64 - 1),
    ("logprobs", 0, 1000),  # a Python object each: this many for every token are plenty
    ("prompt_logprobs", 0, 1000),
    ("n", 1, _MOST_ANSWERS),
    *((name, -math.inf, setting.high) for name, setting in SETTINGS.items() if setting.above),
)


def setting_type(name: str) -> type[int] | type[float]:
    """Return whether a setting is a whole number (int32 in arrays) or a real one (float32)."""
    kind = get_args(_HINTS[name])[0]  # of Annotated
    return int if int in (kind, *get_args(kind)) else float
