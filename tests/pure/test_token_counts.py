"""`8k` is a count of tokens wherever an option takes one."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from homenode.cli.flags.settings import settings_of
from homenode.cli.flags.token_counts import TokenCount, TokenCountList
from homenode.cli.main import cli
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.server.proxy.config import ProxyConfig
from homenode.simulate.workload import synthetic
from homenode.units import parse_tokens


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8192", 8192),
        ("8k", 8192),
        ("8K", 8192),
        ("128k", 131_072),
        ("1m", 1_048_576),
        (" 2 M ", 2_097_152),
        ("0.5k", 512),
        ("1.5m", 1_572_864),
        ("0", 0),
        ("-1", -1),  # whether it may be below 0 is the option's affair
        (7, 7),
    ],
)
def test_counts(text: str | int, count: int) -> None:
    assert parse_tokens(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        "k",
        "8kb",
        "8KiB",
        "8g",
        "1.3k",
        "8.5",
        "8 k k",
        "eight",
        "0x10",
        "8_192",
        "1e3",
        "nan",
        "9" * 5000,
        "9" * 18 + "m",
    ],
)
def test_nonsense_is_refused_with_what_a_count_is(text: str) -> None:
    with pytest.raises(UserError, match="not a number of tokens"):
        parse_tokens(text)


@given(st.integers(0, 2**40))
def test_thousands_are_those_of_models_names(number: int) -> None:
    assert parse_tokens(f"{number}k") == 1024 * number
    assert parse_tokens(f"{number}m") == parse_tokens(f"{1024 * number}k")
    assert parse_tokens(str(number)) == number


# All options whose help speaks of tokens that are counted.
OPTIONS = {
    "serve": "--max-model-len --max-num-batched-tokens --max-num-queued-tokens --block-size",
    "proxy": "--min-handover-tokens",
    "generate": "--max-tokens --max-model-len",
    "chat": "--max-tokens --max-model-len",
    "plan": "--context",
    "simulate": "--max-model-len --max-num-batched-tokens --max-num-queued-tokens --block-size",
    "models fit": "--max-model-len",
    "models fetch": "--max-model-len",
    "bench model": "--prompt-tokens --gen-tokens --context",
    "bench serve": "--prompt-tokens --gen-tokens",
    "bench attention": "--contexts",
    "bench kernels": "--tokens",
}
SMALL = {"--num-speculative-tokens"}  # at most 64: nobody writes thousands
CASES = [(name, option) for name, options in OPTIONS.items() for option in options.split()]


def parameter(name: str, option: str) -> tuple[click.Command, click.Parameter]:
    command: click.Command = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return command, next(param for param in command.params if option in param.opts)


@pytest.mark.parametrize(("name", "option"), CASES)
def test_every_option_that_takes_a_count_of_tokens_takes_4k(name: str, option: str) -> None:
    command, param = parameter(name, option)
    context = click.Context(command)
    assert param.type.convert("4k", param, context) in (4096, (4096,))
    with pytest.raises(click.BadParameter, match="not a number of tokens"):
        param.type.convert("4q", param, context)


@pytest.mark.parametrize("name", OPTIONS)
def test_no_option_whose_name_speaks_of_tokens_is_left_out(name: str) -> None:
    command, _ = parameter(name, OPTIONS[name].split()[0])
    counts = {param.opts[0] for param in command.params if isinstance(param.type, TokenCount | TokenCountList)}
    named = {param.opts[0] for param in command.params if param.opts[0].endswith(("-tokens", "-model-len"))}
    assert (counts | named) - SMALL <= set(OPTIONS[name].split())


def test_a_mistake_ends_with_2_and_names_the_option() -> None:
    result = CliRunner().invoke(cli, ["serve", "--max-model-len", "8q"])
    assert result.exit_code == 2
    assert "--max-model-len" in result.stderr and "such as 8k" in result.stderr and "Traceback" not in result.stderr


def test_bounds_hold_for_counts_with_a_unit() -> None:
    result = CliRunner().invoke(cli, ["serve", "--check-config", "--block-size", "1m"])
    assert result.exit_code == 2 and "at most 4096" in result.stderr
    result = CliRunner().invoke(cli, ["generate", "--prompt", "x", "--max-tokens", "0"])
    assert result.exit_code == 2 and "at least 1" in result.stderr


def test_a_variable_and_python_take_it_too() -> None:
    result = CliRunner().invoke(cli, ["serve", "--show-config"], env={"HOMENODE_MAX_MODEL_LEN": "8k", "COLUMNS": "200"})
    assert any("--max-model-len" in line and "8192" in line for line in result.stdout.splitlines())
    assert EngineConfig.of("m", {"max_model_len": "8k"}).model.max_model_len == 8192


def test_a_workload_takes_it() -> None:
    found = synthetic("closed:clients=1,in=2k,out=0.5k,n=1")
    assert found is not None and (found.jobs[0].prompt, found.jobs[0].output) == (2048, 512)
    with pytest.raises(UserError, match="has no number"):
        synthetic("closed:clients=1k,in=2k,out=1,n=1")


def test_settings_that_count_tokens_are_whole_numbers() -> None:
    counted = [s for c in (EngineConfig, ProxyConfig) for s in settings_of(c) if s.option.parse is parse_tokens]
    assert {setting.kind for setting in counted} == {int}
