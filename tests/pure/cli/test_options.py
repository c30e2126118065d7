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

from homenode.cli.flags.settings import ConfigSetting, build, settings_of, shown_settings, with_settings
from homenode.engine.config import EngineConfig
from homenode.options import option
from homenode.server.http.config import ServerConfig
from homenode.server.proxy.config import ProxyConfig
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


ALL = [(config, setting) for config in (ServerConfig, EngineConfig, ProxyConfig) for setting in settings_of(config)]
SECRETS = [(config, setting) for config, setting in ALL if setting.option.secret]
MANY = [(config, setting) for config, setting in ALL if setting.many]
EMPTY = ["", " ", "\t"]
VALUES = {  # of settings that hold several: what the flag takes, and what it means
    "api_key": ("k1, k2", ("k1", "k2")),
    "allowed_origins": ("https://a.b, http://c:1", ("https://a.b", "http://c:1")),
    "media_domains": ("a.b, c.d", ("a.b", "c.d")),
    "served_model_name": ("a, b", ("a", "b")),
    "prefill": ("http://a:1,http://b:2", ("http://a:1", "http://b:2")),
    "decode": ("http://a:1 , http://b:2", ("http://a:1", "http://b:2")),
    "pd_peer_init_port": ("7,8", (7, 8)),
    "pd_peer_alloc_port": ("7,8", (7, 8)),
    "pd_pull_done_port": ("7,8", (7, 8)),
    "pd_allowed_peers": ("10.0.0.0/8, 10.1.2.3", ("10.0.0.0/8", "10.1.2.3/32")),
    "encoder_cpus": ("0-2,5", (0, 1, 2, 5)),
    "numa_bind_nodes": ("1", (1,)),
    "numa_bind_cpus": ("0-3", ("0-3",)),
    "numa_mirror_tensors": ("lm_head*", ("lm_head*",)),
}


def taken(config: type[Any], setting: ConfigSetting, *arguments: str, env: dict[str, str] | None = None) -> Result:
    """What a command with all settings of `config` makes of one of them."""
    seen: dict[str, Any] = {}

    @click.command()
    @click.argument("model", required=False)
    @with_settings(config)
    def all_of_them(**values: Any) -> None:
        seen.update(values)

    result = CliRunner().invoke(all_of_them, list(arguments), env=env)
    value = seen.get(setting.name)
    if isinstance(value, tuple):
        value = tuple(item for part in value for item in (part if isinstance(part, tuple) else (part,)))
    result.value, result.model = value, seen.get("model")  # type: ignore[attr-defined]
    return result


@pytest.mark.parametrize(("config", "setting"), SECRETS, ids=[setting.flag for _, setting in SECRETS])
def test_no_empty_secret_is_taken_wherever_it_comes_from(
    config: type[Any], setting: ConfigSetting, tmp_path: Path
) -> None:
    texts = EMPTY + ([",", " , ", "k1,", ",k1"] if setting.many else [])
    files = [f'{setting.flag} = "{text}"' for text in (" ", *texts) if "\t" not in text]
    files += [f'{setting.flag} = ["k1", ""]'] if setting.many else []
    file = tmp_path / "settings.toml"
    for text in texts:
        for result in (
            taken(config, setting, f"--{setting.flag}", text),
            taken(config, setting, env={setting.variable: text}),
        ):
            assert result.exit_code == 2 and "empty" in result.output, (text, result.output)
    for content in files:
        file.write_text(content)
        result = taken(config, setting, "--config", str(file))
        assert result.exit_code == 2 and "empty" in result.output, (content, result.output)
    assert taken(config, setting).exit_code == 0  # without any


@pytest.mark.parametrize(("config", "setting"), MANY, ids=[setting.flag for _, setting in MANY])
def test_variables_and_files_take_the_text_that_flags_take(
    config: type[Any], setting: ConfigSetting, tmp_path: Path
) -> None:
    text, wanted = VALUES[setting.name]
    file = tmp_path / "settings.toml"
    for content in (f'{setting.flag} = "{text}"', f'{setting.flag} = ["{text}"]'):
        file.write_text(content)
        assert taken(config, setting, "--config", str(file)).value == wanted  # type: ignore[attr-defined]
    assert taken(config, setting, f"--{setting.flag}", text).value == wanted  # type: ignore[attr-defined]
    assert taken(config, setting, env={setting.variable: text}).value == wanted  # type: ignore[attr-defined]


@pytest.mark.parametrize(("config", "setting"), ALL, ids=[setting.flag for _, setting in ALL])
def test_a_file_value_of_another_kind_is_refused_by_name(
    config: type[Any], setting: ConfigSetting, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    wrong = ["{ a = 1 }", "1979-05-27", "[[1]]"] + (["2.5"] if setting.kind in (int, str) else [])
    for value in wrong + ([] if setting.kind is bool else ["true"]) + ([] if setting.many else ["[1]"]):
        file.write_text(f"{setting.flag} = {value}")
        result = taken(config, setting, "--config", str(file))
        assert result.exit_code == 2 and result.exception is not None and isinstance(result.exception, SystemExit)
        assert setting.flag in result.output, result.output


def test_a_file_can_name_the_model(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('model = "some/model"')
    setting = next(settings_of(ServerConfig))
    assert taken(ServerConfig, setting, "--config", str(file)).model == "some/model"  # type: ignore[attr-defined]
    assert taken(ServerConfig, setting, "--config", str(file), "other").model == "other"  # type: ignore[attr-defined]
