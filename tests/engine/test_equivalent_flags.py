"""Flags, variables and files of other programs, through the commands: where a setting came from, and what is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from homenode.cli.main import cli


def run(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, [*words], env={"COLUMNS": "300", **(env or {})})


def shown(result: Result) -> dict[str, tuple[str, str]]:
    """By flag: the value and where it came from."""
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.split("│")] for line in result.stdout.splitlines() if "│ --" in line]
    return {row[1]: (row[2], row[3]) for row in rows}


def test_show_config_tells_the_name_by_which_a_setting_was_given(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('ctx-size = 128\nserved-model-name = ["a", "b"]\nmax_running_requests = 3\n')
    result = run("serve", "--show-config", "-tp", "2", "--config", str(file), env={"LLAMA_ARG_THREADS": "1"})
    settings = shown(result)
    assert settings["--tensor-parallel-size"] == ("2", "flag -tp")
    assert settings["--threads"] == ("1", "environment LLAMA_ARG_THREADS")
    assert settings["--max-model-len"] == ("128", "config file")
    assert settings["--max-num-seqs"] == ("3", "config file")
    assert settings["--served-model-name"] == ("a,b", "config file")


def test_a_flag_and_our_variable_win_over_a_variable_of_another_program() -> None:
    env = {"LLAMA_ARG_CTX_SIZE": "128", "HOMENODE_MAX_MODEL_LEN": "64"}
    assert shown(run("serve", "--show-config", env=env))["--max-model-len"] == ("64", "environment")
    assert shown(run("serve", "--show-config", "-c", "32", env=env))["--max-model-len"] == ("32", "flag -c")


@pytest.mark.parametrize(
    "words", [["-ngl", "99"], ["--swap-space", "4"], ["--mem-fraction-static", "0.8"], ["--no-mmap"]]
)
def test_what_has_no_effect_is_told_by_the_name_that_was_given(words: list[str]) -> None:
    result = run("serve", "--check-config", *words)
    assert result.exit_code == 0, result.output
    assert any(line.startswith(f"note: {' '.join(words)} is ") for line in result.stderr.splitlines())
    result = run("generate", "-p", "a", "-n", "1", *words)
    assert result.exit_code == 0 and words[0] in result.stderr


@pytest.mark.parametrize(
    "words", [["--enable-lora"], ["-C", "3"], ["--kv-cache-dtype", "fp8"], ["-tp", "2", "--tp", "3"]]
)
def test_what_is_refused_ends_the_start_by_name(words: list[str]) -> None:
    result = run("serve", "--check-config", *words)
    assert result.exit_code == 2
    assert words[0] in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("words", [["-c", "0.5"], ["-tp", "0"], ["--max-running-requests", "-5"]])
def test_a_wrong_value_is_refused_by_both_names(words: list[str]) -> None:
    result = run("serve", "--check-config", *words)
    assert result.exit_code == 2
    assert f"(set by {words[0]})" in " ".join(result.stderr.split())


def test_keys_of_other_programs_in_a_file_of_transfer_settings_are_told(tmp_path: Path) -> None:
    file = tmp_path / "kv.yaml"
    file.write_text("enable_pd: true\npd_role: sender\nsave_unfull_chunk: true\n")
    for given in (str(file), json.dumps({"pd_role": "sender", "save_unfull_chunk": True})):
        result = run("serve", "--check-config", "--kv-transfer-config", given)
        assert result.exit_code == 0, result.output
        assert "save_unfull_chunk of --kv-transfer-config is ignored" in " ".join(result.stderr.split())
