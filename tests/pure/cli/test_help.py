"""The help of the commands: in groups and short where there are very many options, 80 columns wide, and suggestions for
what is mistyped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from homenode.cli.flags.help_groups import HelpGroup
from homenode.cli.main import cli
from homenode.cli.server.serve import serve
from homenode.cli.server.serve_help import ServeCommand
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.transfer.setup.settings import typed_settings


def run(*arguments: str, columns: int = 80) -> Result:
    return CliRunner().invoke(cli, list(arguments), env={"COLUMNS": str(columns)}, terminal_width=columns)


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from commands(found, (*words, word))


def headings(text: str) -> list[str]:
    return re.findall(r"^([A-Z][^\n]*):$", text, re.MULTILINE)


def flags(text: str) -> set[str]:
    """The options that are explained: each begins a line."""
    return set(re.findall(r"^ {2}(?:-h, )?(--[a-z-]+)", text, re.MULTILINE))


HELPS = [*((*words, "--help") for words in commands(cli)), ("serve", "--help-all")]


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_no_line_of_a_help_is_longer_than_80_columns(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_the_whole_help_of_serve_has_every_option_under_a_heading() -> None:
    text = run("serve", "--help-all").output
    assert headings(text) == [group.value for group in HelpGroup]
    assert flags(text) == {p.opts[-1] for p in serve.params if isinstance(p, click.Option)} | {"--help"}


def test_the_first_help_of_serve_is_of_what_a_first_user_needs() -> None:
    text = run("serve", "--help").output
    assert {"--port", "--max-model-len", "--kv-cache-memory", "--threads", "--help-all"} <= flags(text)
    assert "--pd-role" not in text and "--ray-address" not in text
    assert headings(text)[:3] == ["Model", "Server", "Memory"]
    assert len(text.splitlines()) <= 70
    left = len(flags(run("serve", "--help-all").output)) - len(flags(text))
    assert f"{left} options more" in " ".join(text.split())


def test_every_setting_of_serve_has_a_group_and_the_tables_name_no_others() -> None:
    general = {"check_config", "show_config", "config", "help_all", "model"}
    names = {str(param.name) for param in serve.params}
    assert names - general == set(ServeCommand.groups)
    assert ServeCommand.first <= names


@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ("srve", "serve"),
        ("Bnech model", "bench"),
        ("version", "--version"),
        ("--vresion", "--version"),
        ("serve --prot 80", "--port"),
        ("serve --max-modle-len 80", "--max-model-len"),
        ("serve -prot 80", "--port"),
        ("serve --config-file x", "--config"),
        ("bench kernels --formats q4_01", "Q4_0 or Q4_1"),
        ("generate --prompt x --isa avx521", "avx512"),
        ("serve --no-acess-log", "--no-access-log"),
        ("serve --numa shrd", "shard"),
        ("serve --quantize q4-0", "q4_0"),
        ("plan --strategy numabind", "numa-bind"),
        ("plan --startegy fair", "--strategy"),
        ("bench modle", "model"),
        ("bench model --bacth 1", "--batch"),
        ("host recrod", "record"),
        ("host --jsno", "--json"),
        ("models ftech", "fetch"),
        ("models fit --form x", "--from"),
        ("simulate --compare nmua", "numa"),
        ("proxy --prefil http://x", "--prefill"),
        ("simulate --from 1s/1n/1c --model builtin --workload closed:clients=1,im=8,out=2", "in"),
    ],
)
def test_what_is_mistyped_is_refused_with_what_was_meant(line: str, suggested: str) -> None:
    result = run(*line.split())
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(f"Did you mean {suggested}?"), result.stderr


@pytest.mark.parametrize("line", ["qqqq", "serve --qqqq", "serve --numa qqqq", "bench qqqq"])
def test_nothing_is_suggested_where_nothing_is_near(line: str) -> None:
    result = run(*line.split())
    assert result.exit_code == 2
    assert "Did you mean" not in result.stderr


def test_a_mistyped_key_of_a_file_of_transfer_settings_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"pd_rloe is no setting of it \(did you mean pd_role\?\)"):
        typed_settings({"pd_rloe": "sender"}, "file.yaml")


def test_a_mistyped_setting_of_python_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"Did you mean max_model_len\?"):
        EngineConfig.of(None, {"max_modle_len": 5})
    with pytest.raises(UserError, match=r"Did you mean shard\?"):
        EngineConfig.of(None, {"numa": "shrd"})


def test_a_mistyped_setting_of_a_file_gets_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('max-modle-len = "8k"\n')
    result = run("serve", "--config", str(file))
    assert result.exit_code == 2
    assert "Did you mean max-model-len?" in result.stderr
