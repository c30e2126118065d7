"""Variables of the field are shown as the settings that they are."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.errors import UserError
from homenode.host.plan.variables import value_of_variable


@pytest.mark.parametrize(
    ("flag", "variable", "text", "shown"),
    [
        ("--kv-cache-memory", "VLLM_CPU_KVCACHE_SPACE", "1.5", str(3 << 29)),
        ("--cpu-threads-bind", "VLLM_CPU_OMP_THREADS_BIND", "0-1", "0-1"),
        ("--memory-nodes", "CPU_VISIBLE_MEMORY_NODES", "0", "0"),
        ("--reserve-cpus", "VLLM_CPU_NUM_OF_RESERVED_CPU", "1", "1"),
    ],
)
def test_a_variable_is_shown_with_its_value_and_its_name(
    flag: str, variable: str, text: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    monkeypatch.setenv("COLUMNS", "300")
    rows = CliRunner().invoke(cli, ["serve", "--show-config"]).stdout.splitlines()
    (row,) = (line for line in rows if f"{flag} " in line)
    assert shown in row and variable in row
    given = CliRunner().invoke(cli, ["serve", "--show-config", flag, "2"]).stdout.splitlines()
    (row,) = (line for line in given if f"{flag} " in line)
    assert variable not in row, "the flag wins"


def test_a_size_of_none_is_the_default_and_a_wrong_one_is_refused() -> None:
    assert value_of_variable("--kv-cache-memory", {"VLLM_CPU_KVCACHE_SPACE": "0"}) is None
    with pytest.raises(UserError, match="VLLM_CPU_KVCACHE_SPACE"):
        value_of_variable("--kv-cache-memory", {"VLLM_CPU_KVCACHE_SPACE": "much"})
