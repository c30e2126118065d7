"""Sampling parameters: what is left open is the model's own, and every door has the same names and defaults."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import homenode
from homenode.cli.main import cli
from homenode.errors import UserError
from homenode.sampling import DEFAULT_TOKENS, SamplingParams

OPEN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@pytest.mark.parametrize(
    ("asked", "model", "taken"),
    [
        ({}, {}, (1.0, 1.0, 0, 0.0, 1.0)),
        ({}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}, (0.6, 0.95, 20, 0.0, 1.0)),
        ({}, {"temperature": 0.0, "min_p": 0.1, "repetition_penalty": 1.05}, (0.0, 1.0, 0, 0.1, 1.05)),
        ({"temperature": 0.0, "top_k": 0}, {"temperature": 0.6, "top_k": 20}, (0.0, 1.0, 0, 0.0, 1.0)),
        (
            {"top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
            {"top_p": 0.5, "min_p": 0.5},
            (1.0, 1.0, 0, 0.0, 1.0),
        ),
        ({}, {"top_p": 0.0}, (1.0, 1e-9, 0, 0.0, 1.0)),  # of a model that means the likeliest token
    ],
)
def test_what_is_left_open_is_the_models_own(
    asked: dict[str, float], model: dict[str, float], taken: tuple[float, ...]
) -> None:
    params = SamplingParams(**asked).with_defaults(model)  # type: ignore[arg-type]
    assert tuple(getattr(params, name) for name in OPEN) == taken
    params.check()
    assert params.with_defaults({"temperature": 9.0}) == params, "nothing is left open"


@given(st.integers(-(2**63), 2**64 - 1), st.integers(1, 2047))
def test_answers_to_one_prompt_have_seeds_of_their_own(seed: int, index: int) -> None:
    params = SamplingParams(seed=seed)
    other = params.of_answer(index)
    other.check()
    assert params.of_answer(0).seed == seed
    assert other.seed is not None and (other.seed - seed - index) % 2**64 == 0
    assert SamplingParams().of_answer(index).seed is None, "the engine draws one for each"


@pytest.mark.parametrize(
    ("stop", "strings"), [([], ()), ("a", ("a",)), (["a", "bc"], ("a", "bc")), (("a",), ("a",)), (["é"], ("é",))]
)
def test_stop_strings(stop: list[str], strings: tuple[str, ...]) -> None:
    assert SamplingParams(stop=stop).stop_strings == strings


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [1], [None]])
def test_what_is_no_stop_string_is_refused(stop: list[str]) -> None:
    with pytest.raises(UserError, match="stop is"):
        _ = SamplingParams(stop=stop).stop_strings


@pytest.mark.parametrize("n", [0, -1, 2049])
def test_a_number_of_answers_that_cannot_be_is_refused(n: int) -> None:
    with pytest.raises(UserError, match=f"n is {n}"):
        SamplingParams(n=n).check()


SAMPLING = ("--max-tokens", "--temperature", "--top-p", "--top-k", "--seed", "--stop")


def defaults(name: str, *words: str) -> dict[str, object]:
    """What each option of a command is where nobody gives it."""
    assert isinstance(cli, click.Group)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    given = command.make_context(name, list(words)).params
    return {param.opts[0]: given[str(param.name)] for param in command.params if param.name in given}


def test_chat_and_python_have_the_same_names_and_defaults() -> None:
    found, params = defaults("chat"), SamplingParams()
    assert set(SAMPLING) <= set(found)
    for option in SAMPLING[:-1]:
        assert found[option] == getattr(params, option[2:].replace("-", "_")), option
    assert params.max_tokens == DEFAULT_TOKENS


def test_generate_differs_in_its_temperature_only_and_says_so() -> None:
    of_chat, of_generate = defaults("chat"), defaults("generate", "--prompt", "x")
    assert [option for option in SAMPLING if of_chat[option] != of_generate[option]] == ["--temperature"]
    assert of_generate["--temperature"] == 0
    text = " ".join(CliRunner().invoke(cli, ["generate", "--help"]).output.split())
    assert re.search(r"--temperature .*? 0 takes the likeliest token every time, as this command does", text)


def test_the_package_shows_what_is_public() -> None:
    assert dir(homenode) == ["LLM", "SamplingParams", "__version__", "errors"]
    assert all(getattr(homenode, name) is not None for name in dir(homenode))


def test_a_seed_of_minus_one_is_drawn_and_none_that_an_answer_gets() -> None:
    assert SamplingParams(seed=-1).leaves_seed_open and SamplingParams().leaves_seed_open
    assert SamplingParams(seed=-1).of_answer(3).leaves_seed_open
    for seed in (0, -2, 2**64 - 2, 2**64 - 1):
        made = [SamplingParams(seed=seed).of_answer(index) for index in range(4)]
        assert not any(params.leaves_seed_open for params in made)
        bits = [(params.seed or 0) % 2**64 for params in made]
        assert bits == [(seed + index) % 2**64 for index in range(4)]
