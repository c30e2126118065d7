"""What the settings of drafted tokens come to, whichever way they are given."""

from __future__ import annotations

import json

import pytest

from homenode.engine.config import EngineConfig, own_flags
from homenode.engine.speculation.config import Speculation, SpeculationConfig, checked_configuration
from homenode.equivalents.translation import flag_values, translate
from homenode.errors import UserError


def _of(words: str) -> Speculation:
    """What words of a command line come to."""
    own = own_flags(EngineConfig)
    translation = translate(words.split(" "), own, takes_model=False)
    assert not translation.refused, translation.refused
    settings = {flag[2:].replace("-", "_"): value for flag, value in flag_values(translation.words, own)}
    numbers = {"num_speculative_tokens": int(settings.pop("num_speculative_tokens", 0)) or None}
    return EngineConfig.of(None, {**settings, **numbers}).speculation.resolved()


@pytest.mark.parametrize(
    ("words", "method", "model", "most"),
    [
        ("--speculative off", "off", None, 8),
        ("--speculative auto", "auto", None, 8),
        ("--speculative ngram --num-speculative-tokens 5", "ngram", None, 5),
        ("--speculative draft --speculative-model small.gguf", "draft", "small.gguf", 8),
        ("--speculative-model small.gguf", "auto", "small.gguf", 8),
        ('--speculative-config {"method":"ngram","num_speculative_tokens":4}', "ngram", None, 4),
        ('--speculative-config {"method":"suffix"}', "ngram", None, 8),
        ('--speculative-config {"model":"[ngram]"}', "ngram", None, 8),
        ('--speculative-config {"method":"draft_model","model":"m","num_speculative_tokens":3}', "draft", "m", 3),
        ('--speculative-config {"model":"m"}', "draft", "m", 8),
        ('--speculative-config {"method":"mtp"}', "mtp", None, 8),
        ('--speculative-config {"method":"deepseek_mtp"}', "mtp", None, 8),
        ('--speculative ngram --speculative-config {"method":"ngram"}', "ngram", None, 8),
        ("--speculative-model [ngram]", "ngram", None, 8),
        ("--spec-method suffix --spec-tokens 3", "ngram", None, 3),
        ("--spec-type none", "off", None, 8),
        ("--spec-type ngram-simple --draft-max 6", "ngram", None, 6),
        ("--spec-type draft-mtp", "mtp", None, 8),
        ("-md small.gguf --draft-max 6", "auto", "small.gguf", 6),
        ("--speculative-algorithm NEXTN --speculative-num-draft-tokens 2", "mtp", None, 2),
    ],
)
def test_settings_by_any_name(words: str, method: str, model: str | None, most: int) -> None:
    found = _of(words)
    assert (found.method, found.model, found.max_drafted) == (method, model, most)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{method: ngram", "is no JSON"),
        ("[]", "is no JSON object"),
        ('{"method": "eagle3", "model": "m"}', "eagle3, which is not offered: there are ngram"),
        ('{"method": "medusa"}', "medusa, which is not offered"),
        ('{"method": "telepathy"}', '"telepathy", which is not known; there are ngram'),
        ('{"method": ["ngram"]}', "which is not known"),
        ('{"method": "ngram", "prompt_lookup_most": 4}', "'prompt_lookup_most', which there is not"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens 0; it must be"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "num_speculative_tokens true; it must be"),
        ('{"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 2}', "prompt_lookup_min above"),
        ('{"method": "draft_model", "model": 3}', "the model 3, which is no text"),
    ],
)
def test_configurations_that_cannot_be(given: str, words: str) -> None:
    with pytest.raises(UserError, match=words.replace("[", r"\[")):
        checked_configuration(given)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"speculative": "draft"}, "--speculative-model"),
        ({"speculative": "ngram", "speculative_model": "m"}, "m drafts nothing with --speculative ngram"),
        ({"speculative": "off", "speculative_config": {"method": "ngram"}}, "--speculative off and"),
        ({"speculative": "mtp", "speculative_config": {"model": "m"}}, "--speculative mtp and"),
        ({"num_speculative_tokens": 2, "speculative_config": {"num_speculative_tokens": 3}}, "contradict each other"),
        ({"speculative_model": "a", "speculative_config": {"method": "draft_model", "model": "b"}}, "contradict"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        EngineConfig.of(None, settings).speculation.resolved()


def test_keys_without_effect_are_told() -> None:
    given = {"method": "suffix", "suffix_decoding_max_tree_depth": 24, "prompt_lookup_max": 4}
    assert SpeculationConfig(speculative_config=json.dumps(given)).without_effect() == (
        "suffix_decoding_max_tree_depth",
        "prompt_lookup_max",
    )
