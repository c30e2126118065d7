"""A value that is wrong is called by where it was set: the flag, the variable or the file; and no flag is named that
the command lacks.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from homenode.cli.main import cli
from homenode.host.topology.source import VARIABLES

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9](?![\w-])")
SERVE, GENERATE = ("serve", "--check-config"), ("generate", "--prompt", "x", "--max-tokens", "1")
PLAN, RUN = ("plan", "--strategy", "cpu-threads"), ("run", "--strategy", "cpu-threads", "--dry-run", "--", "true")
# A variable, a value that no machine can take, and the commands that read it.
WRONG = [
    ("VLLM_CPU_OMP_THREADS_BIND", "0|x", (SERVE, GENERATE, PLAN, RUN)),
    ("VLLM_CPU_OMP_THREADS_BIND", "0|" * 4000 + "0", (SERVE, GENERATE, PLAN, RUN)),
    ("VLLM_CPU_OMP_THREADS_BIND", "65000", (SERVE, GENERATE)),
    ("HOMENODE_CPU_THREADS_BIND", "0|x", (SERVE, GENERATE, PLAN)),
    ("CPU_VISIBLE_MEMORY_NODES", "x", (SERVE, GENERATE, PLAN, RUN)),
    ("CPU_VISIBLE_MEMORY_NODES", "900", (SERVE, GENERATE, PLAN)),
    ("HOMENODE_MEMORY_NODES", "x", (SERVE, GENERATE, PLAN)),
    ("HOMENODE_RESERVE_CPUS", "4096", (SERVE, GENERATE)),
    ("VLLM_CPU_NUM_OF_RESERVED_CPU", "4096", (SERVE, GENERATE)),
    ("VLLM_CPU_NUM_OF_RESERVED_CPU", "x", (SERVE, GENERATE, PLAN)),
    ("HOMENODE_THREADS", "60000", (SERVE, GENERATE)),
    ("HOMENODE_THREADS", "x", (SERVE, GENERATE)),
    ("HOMENODE_NUMA", "x", (SERVE, GENERATE)),
    ("HOMENODE_NUMA_NODES", "900", (SERVE, GENERATE)),
]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def invoke(command: tuple[str, ...], **variables: str) -> Result:
    return CliRunner().invoke(cli, command, env=variables)


def options(command: str) -> set[str]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    return {opt for param in found.params for opt in (*param.opts, *param.secondary_opts)} | {"--help"}


@pytest.mark.parametrize(
    ("name", "value", "command"), [(name, value, command) for name, value, commands in WRONG for command in commands]
)
def test_a_wrong_variable_is_named_and_no_flag_that_the_command_lacks(
    name: str, value: str, command: tuple[str, ...]
) -> None:
    result = invoke(command, **{name: value})
    assert result.exit_code == 2, result.output
    assert name in result.stderr and "Traceback" not in result.stderr
    assert set(_FLAG.findall(result.stderr)) <= options(command[0]), result.stderr


@pytest.mark.parametrize(
    ("flag", "value"), [("--cpu-threads-bind", "0|x"), ("--memory-nodes", "x"), ("--threads", "60000")]
)
def test_a_wrong_flag_is_named_even_where_a_variable_is_set(flag: str, value: str) -> None:
    name = f"HOMENODE_{flag[2:].upper().replace('-', '_')}"
    result = invoke((*SERVE, flag, value), **{name: "1"})
    assert result.exit_code == 2 and flag in result.stderr and name not in result.stderr


def test_a_wrong_value_of_a_file_is_said_to_be_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("threads = 60000\n")
    result = invoke((*SERVE, "--config", str(file)))
    assert result.exit_code == 2 and "--threads 60000" in result.stderr and "the file of --config" in result.stderr


def test_a_rank_of_a_launcher_is_called_by_its_variable() -> None:
    result = invoke(("run", "--strict", "--dry-run", "--", "true"), LOCAL_RANK="999")
    assert result.exit_code == 2 and "LOCAL_RANK" in result.stderr
