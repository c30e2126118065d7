"""Whatever is wrong with the words of a command that is asked for JSON, standard output has one object that says so."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from homenode.cli.main import cli


def _with_json(command: click.Command, name: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if any("--json" in param.opts for param in command.params):
        yield name
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from _with_json(found, (*name, word))


COMMANDS = list(_with_json(cli))


def said(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, list(words))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("wrong", ["--no-such-flag", "before"])
def test_a_flag_that_is_not_there_is_one_object(name: tuple[str, ...], wrong: str) -> None:
    words = ("--no-such-flag", "--json") if wrong == "before" else ("--json", wrong)
    code, out, err = said(*name, *words)
    assert code == 2 and "--no-such-flag" in err
    assert "--no-such-flag" in json.loads(out)["error"]["message"]


def test_a_wrong_value_is_one_object_with_its_flag() -> None:
    code, out, _ = said("plan", "--json", "--workers", "many")
    assert code == 2 and "--workers" in json.loads(out)["error"]["message"]


@pytest.mark.parametrize("words", [("plan", "--no-such-flag"), ("serve", "--json"), ("no-such-command", "--json")])
def test_who_asks_for_none_or_cannot_have_it_gets_text_alone(words: tuple[str, ...]) -> None:
    code, out, err = said(*words)
    assert (code, out) == (2, "") and err


def test_the_words_behind_a_double_dash_are_not_the_commands_own() -> None:
    assert said("verify", "--no-such-flag", "--", "--json")[1] == ""
