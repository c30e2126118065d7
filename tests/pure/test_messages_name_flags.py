"""Remedies name flags that exist: read from the source's own strings and from the commands as click declares them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from homenode.cli.main import cli
from tests.paths import ROOT

SOURCE = ROOT / "src" / "homenode"
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9](?![\w-])")

# Flags of other programs, which the same message names; a word of the flag itself where the sentence is put together of
# parts.
OTHERS = {
    "--cap-add": ("docker", "container", "cap-add"), "--cpuset-mems": ("docker",),
    "--cpuset-cpus": ("docker", "cpuset"), "--memory": ("docker",),
    "--pid": ("docker", "container", "bind", "verify"), "--bind-to": ("mpirun",), "--cpu-bind": ("srun",),
    "--banirq": ("banirq",),
    "--membind": ("numactl",), "--physcpubind": ("numactl",),
}  # fmt: skip
# Files whose strings are flags of other programs to read or to call, not messages.
NO_MESSAGES = (
    "host/bind/rank_hints.py",
    "host/topology/accelerators/nvidia.py",
    "testing/hosts/tools.py",
    "compute/devices.py",
    "compute/torch/probe.py",
    "installation.py",
    "bench/runner.py",
    # Names of other programs' flags; what is said of them is in tests/pure/test_equivalents.py.
    "equivalents/vllm.py",
    "equivalents/llama_cpp.py",
    "equivalents/sglang.py",
    "equivalents/variables.py",
)
# Modules whose messages an engine of ours shows, too (serve, generate, chat): they place its workers. What they say of
# flags that serve lacks concerns accelerators and ranks of other programs, or a setting that an engine always gives.
OF_ENGINES = {
    "engine/plan/placement.py": set(),
    "engine/plan/replica_bindings.py": set(),
    "host/plan/policies/cpu_threads.py": set(),
    "host/plan/threads_bind.py": set(),
    "host/plan/thread_layout.py": set(),
    "host/plan/numa_bind_lists.py": set(),
    "host/plan/numa/node_teams.py": set(),
    "host/plan/numa/policy.py": set(),
    "host/plan/resources/nodes.py": set(),
    # Where the number of workers, or the devices of a plan for GPUs, are not given.
    "host/plan/policies/numa_bind.py": {"--workers", "--devices"},
    "host/plan/check.py": {"--strategy"},  # where devices are placed
    "host/plan/variables.py": {"--local-rank", "--vllm-version"},
}


@cache
def flags_of_commands() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}

    def walk(command: click.Command, name: str) -> None:
        if isinstance(command, click.Group):
            for each in command.list_commands(click.Context(command)):
                inner = command.get_command(click.Context(command), each)
                assert inner is not None
                walk(inner, f"{name} {each}".strip())
        found[name] = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)} | {"--help"}

    walk(cli, "")
    return found


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file that are no docstrings; of an f-string all of its parts together, and of neighbours that are
    joined.
    """
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if id(node) in inner or id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@cache
def named_flags() -> tuple[tuple[str, int, str, str], ...]:
    """File, line, flag and the text around it, of all messages."""
    return tuple(_named_flags())


def _named_flags() -> Iterator[tuple[str, int, str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name in NO_MESSAGES or not _FLAG.search(path.read_text(encoding="utf-8")):
            continue
        for line, text in strings(path):
            for flag in _FLAG.findall(text):
                yield name, line, flag, text


def test_flags_that_messages_name_exist() -> None:
    known = set().union(*flags_of_commands().values())
    found = list(named_flags())
    assert len(found) > 200, "the source was not understood"
    lacking = [
        (name, line, flag)
        for name, line, flag, text in found
        if flag not in known and not any(word in text for word in OTHERS.get(flag, ()))
    ]
    assert lacking == []


def test_a_command_that_a_message_names_has_the_flags_behind_it() -> None:
    found = []
    for name, line, flag, text in named_flags():
        for group, words in re.findall(rf"homenode ([a-z]+)([^`.;,:()]*) {flag}(?![\w-])", text):
            inner = f"{group} {words.split()[0]}" if words.split() else group
            found.append((name, line, inner if inner in flags_of_commands() else group, flag))
    assert len(found) > 5, "the source was not understood"
    assert [each for each in found if each[3] not in flags_of_commands()[each[2]]] == []


@pytest.mark.parametrize("module", OF_ENGINES)
def test_what_an_engine_may_say_names_flags_of_serve(module: str) -> None:
    both = flags_of_commands()["serve"]
    lacking = {
        flag
        for name, _, flag, text in named_flags()
        if name == module
        and flag not in both
        and not any(word in text for word in OTHERS.get(flag, ()))
        and "homenode" not in text
    }
    assert lacking == OF_ENGINES[module]
