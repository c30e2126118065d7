"""Settings of drafted tokens, and the one that vLLM has them in: what both come to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from homenode.errors import UserError
from homenode.options import option
from homenode.spelling import with_suggestion

Method = Literal["off", "auto", "ngram", "draft", "mtp"]
METHODS: Final[tuple[Method, ...]] = ("off", "auto", "ngram", "draft", "mtp")
_USUAL: Final = 8  # drafted tokens behind a sequence's last one
_MOST: Final = 64
_SHORTEST: Final = 2  # tokens that have to have stood before for what followed them to be a guess

_MTP_NAMES = (
    "deepseek_mtp",
    "qwen3_next_mtp",
    "qwen3_5_mtp",
    "mimo_mtp",
    "glm4_moe_mtp",
    "ernie_mtp",
    "longcat_flash_mtp",
)
_TAKEN: Mapping[str, Method] = {
    "ngram": "ngram",
    "suffix": "ngram",
    "mtp": "mtp",
    "draft_model": "draft",
    **dict.fromkeys(_MTP_NAMES, "mtp"),
}
_REFUSED = (
    "eagle", "eagle3", "medusa", "mlp_speculator", "ngram_gpu", "extract_hidden_states", "custom_class", "dflash",
)  # fmt: skip
_NUMBERS = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
# Keys that ask for nothing that could be otherwise here: how many are drafted follows from what is measured.
_WITHOUT_EFFECT = (
    "attention_backend code_revision disable_by_batch_size disable_logprobs disable_mqa_scorer "
    "disable_padded_drafter_batch draft_load_config draft_sample_method draft_tensor_parallel_size "
    "enforce_eager max_model_len moe_backend parallel_drafting quantization rejection_sample_method "
    "revision speculative_token_tree suffix_decoding_max_cached_requests "
    "suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth suffix_decoding_min_token_prob "
    "tensor_parallel_size use_local_argmax_reduction "
).split()
_KEYS = ("method", "model", *_NUMBERS, *_WITHOUT_EFFECT)


def checked_configuration(text: str) -> str:
    """Return vLLM's configuration as it was given, once it is one that can be taken. UserError if not."""
    _read(text)
    return text


@dataclass(frozen=True)
class SpeculationConfig:
    """Settings of drafted tokens, as they were given; `resolved` says what they come to."""

    speculative: str = option(
        "auto",
        "Who drafts tokens, which are verified in the same step and change no answer: ngram (what followed the last "
        "tokens before, in this text or in earlier answers), draft (--speculative-model), mtp (the model's own heads). "
        "auto: whoever is there, where it pays.",
        choices=METHODS,
    )
    speculative_model: str | None = option(
        None, "A smaller model of the same vocabulary, which drafts tokens.", metavar="MODEL"
    )
    num_speculative_tokens: int | None = option(
        None,
        f"Most tokens drafted for one sequence in one step. Default: {_USUAL}.",
        minimum=1,
        maximum=_MOST,
    )
    speculative_config: str | None = option(
        None,
        "The same as JSON, as vLLM has it: method (ngram, suffix, mtp, draft_model), model, num_speculative_tokens, "
        "prompt_lookup_min.",
        parse=checked_configuration,
        metavar="JSON",
    )

    def resolved(self) -> Speculation:
        """Return what these settings come to. UserError where they contradict each other, or lack something."""
        given = _read(self.speculative_config) if self.speculative_config else {}
        return Speculation(
            method := self._method(given),
            _one_of("--speculative-model", self.speculative_model, given.get("model")) if method != "off" else None,
            _one_of("--num-speculative-tokens", self.num_speculative_tokens, given.get(_NUMBERS[0])) or _USUAL,
            given.get("prompt_lookup_min") or _SHORTEST,
        ).checked()

    def _method(self, given: Mapping[str, Any]) -> Method:
        named = _method_of(given)
        method: Method = next(each for each in METHODS if each == self.speculative)
        if named is None or named == method:
            return method
        if method != "auto":
            raise UserError(
                f"--speculative {method} and --speculative-config contradict each other: that says "
                f"{json.dumps(given.get('method', given.get('model')))}; leave one out",
                param="speculative_config",
            )
        return named

    def without_effect(self) -> tuple[str, ...]:
        """Return the keys of the configuration that have nothing to act on."""
        given = _read(self.speculative_config) if self.speculative_config else {}
        return tuple(key for key in given if key in _WITHOUT_EFFECT or key == "prompt_lookup_max")


@dataclass(frozen=True)
class Speculation:
    """Who drafts, and how much at most. `lookup_min`: tokens that have to have stood before, for a lookup; 0:
    nothing is looked up.
    """

    method: Method
    model: str | None
    max_drafted: int
    lookup_min: int

    @property
    def looks_up(self) -> bool:
        """Return whether tokens are drafted from what stood before."""
        return self.method in ("auto", "ngram") and self.lookup_min > 0

    @property
    def asks_model(self) -> bool:
        """Return whether tokens are drafted by another model, or by the model's own blocks for that."""
        return self.method in ("auto", "draft", "mtp")

    def checked(self) -> Speculation:
        """Return these settings, if they can be. UserError if not."""
        if self.method == "draft" and self.model is None:
            raise UserError(
                "--speculative draft needs a model that drafts: name one with --speculative-model",
                param="speculative_model",
            )
        if self.method in ("ngram", "mtp") and self.model is not None:
            raise UserError(
                f"--speculative-model {self.model} drafts nothing with --speculative {self.method}; leave it out, or "
                "take draft or auto",
                param="speculative_model",
            )
        return self


def _method_of(given: Mapping[str, Any]) -> Method | None:
    """Return what the configuration names, or what its model means; None: neither is there."""
    if (name := given.get("method")) is not None:
        return _TAKEN[name]
    if given.get("model") in ("ngram", "[ngram]"):
        return "ngram"
    return "draft" if given.get("model") else None


def _one_of(flag: str, own: Any, other: Any) -> Any:
    """Return the one that was given. UserError if both were, and differ."""
    if other in ("ngram", "[ngram]"):
        other = None
    if own is not None and other is not None and own != other:
        raise UserError(
            f"{flag} {own} and --speculative-config contradict each other: that says {other}; leave one out",
            param=flag[2:].replace("-", "_"),
        )
    return other if own is None else own


def _read(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise _wrong(f"is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise _wrong("is no JSON object")
    for key in given:
        if key not in _KEYS:
            raise _wrong(
                with_suggestion(f"has a key {key!r}, which there is not; there are {', '.join(_KEYS[:5])}", key, _KEYS)
            )
    given = {key: value for key, value in given.items() if value is not None}
    _check_method(given.get("method"))
    for key in _NUMBERS:
        value = given.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            raise _wrong(f"has {key} {json.dumps(value)}; it must be a whole number from 1 to {_MOST}")
    if not isinstance(given.get("model", ""), str):
        raise _wrong(f"has the model {json.dumps(given['model'])}, which is no text")
    if given.get("prompt_lookup_min", 1) > given.get("prompt_lookup_max", _MOST):
        raise _wrong("has a prompt_lookup_min above its prompt_lookup_max")
    return given


def _check_method(method: object) -> None:
    if method is None or (isinstance(method, str) and method in _TAKEN):
        return
    there_are = "there are ngram, suffix, mtp and draft_model"
    if method in _REFUSED:
        raise _wrong(f"has the method {method}, which is not offered: {there_are}")
    raise _wrong(f"has the method {json.dumps(method)}, which is not known; {there_are}")


def _wrong(what: str) -> UserError:
    return UserError(f"the speculative configuration {what}", param="speculative_config")
