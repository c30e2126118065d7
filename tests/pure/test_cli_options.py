"""Declared settings become flags, variables and TOML keys; values keep their source; bad ones are named."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from homenode.cli.options import build, settings_of, shown_settings, with_settings
from homenode.options import option
from homenode.units import parse_bytes


@dataclass(frozen=True)
class Inner:
    size: int | None = option(None, "A size.", parse=parse_bytes, minimum=1)
    enable_thing: bool = option(True, "The thing.")


@dataclass(frozen=True)
class Outer:
    seats: int = option(4, "Seats.", minimum=1, maximum=9)
    kind: str = option("auto", "Kind.", choices=("auto", "slow"))
    names: tuple[str, ...] = option((), "Names.")
    api_key: str | None = option(None, "Key.", secret=True)
    inner: Inner = field(default_factory=Inner)


@click.command()
@with_settings(Outer)
@click.pass_context
def command(ctx: click.Context, **values: Any) -> None:
    click.echo(repr(build(Outer, values)))
    for row in shown_settings(ctx, Outer):
        click.echo("|".join(row))


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(command, list(arguments), env=env)


def test_defaults() -> None:
    result = run()
    assert result.output.splitlines()[0] == repr(Outer())
    assert "--enable-thing|True|default" in result.output


def test_flag_beats_variable_beats_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('seats = 2\nsize = "2KiB"\nenable-thing = false\n')
    lines = run(
        "--config", str(file), "--seats", "3", env={"HOMENODE_SIZE": "1KiB", "HOMENODE_SEATS": "5"}
    ).output.splitlines()
    assert lines[0] == repr(Outer(seats=3, inner=Inner(size=1024, enable_thing=False)))
    assert "--seats|3|flag" in lines
    assert "--size|1024|environment" in lines
    assert "--enable-thing|False|config file" in lines


def test_switches_several_values_and_secrets() -> None:
    lines = run("--no-enable-thing", "--names", "a", "--names", "b", "--api-key", "s3cret").output.splitlines()
    assert lines[0] == repr(Outer(names=("a", "b"), api_key="s3cret", inner=Inner(enable_thing=False)))
    assert "--api-key|(hidden)|flag" in lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seats", "0"), "at least 1"),
        (("--seats", "10"), "at most 9"),
        (("--seats", "two"), "not a whole number"),
        (("--size", "1XB"), "not a size"),
        (("--kind", "fast"), "fast"),
        (("--seat", "2"), "No such option"),
    ],
)
def test_bad_values_end_with_2_and_say_why(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    ("text", "words"), [("seats = [", "not TOML"), ("sheets = 3", "sheets"), ("seats = 0", "at least 1")]
)
def test_bad_files(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    result = run("--config", str(file))
    assert result.exit_code == 2
    assert words in result.output


def test_every_setting_of_the_server_is_declared_once() -> None:
    from homenode.engine.config import EngineConfig
    from homenode.server.config import ServerConfig

    flags = [s.flag for config in (ServerConfig, EngineConfig) for s in settings_of(config)]
    assert len(flags) == len(set(flags))
    assert {
        "max-num-batched-tokens",
        "max-num-seqs",
        "block-size",
        "kv-cache-memory",
        "port",
        "api-key",
        "threads",
    } <= set(flags)


def test_the_settings_page_is_up_to_date() -> None:
    from tools.settings_table import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.settings_table"


def test_the_package_is_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "homenode", "serve", "--port", "x"], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2 and "Usage: homenode serve" in ran.stderr and "'x' is not a whole number" in ran.stderr
