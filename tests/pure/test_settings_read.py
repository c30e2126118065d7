"""No setting of a plan is silently ignored: each changes the plan, is refused by name, or is told as without effect;
and what is told has none."""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.cli.placement.flag_demand import demand_from_flags, plan_for
from homenode.cli.placement.plan_flags import PlanFlags
from homenode.errors import UserError
from homenode.host.discovery.read import read_host
from homenode.host.discovery.snapshot import save_recording
from homenode.host.plan.plan import Plan
from homenode.host.plan.select import STRATEGIES
from homenode.host.plan.settings_read import ALWAYS_READ, SETTINGS_READ
from homenode.testing.hosts.synthetic import synthetic

HOSTS = {"cpu": "2s/4n/32c/smt2", "gpu": "2s/2n/32c/gpu=4", "npu": "2s/2n/64c/arm/npu=4:A2"}
# Values that say something else than what holds without them, wherever a strategy reads the setting.
VALUES: dict[str, tuple[Any, ...]] = {
    "device_type": ("A3",),
    "visible_devices": ("1,0",),
    "local_rank": (1,),
    "reserve_cpus": (3,),
    "numa_bind_nodes": ((1, 0, 1, 0), (7,)),
    "numa_bind_cpus": (("1", "2", "3", "4"), ("99",)),
    "cpu_threads_bind": ("nobind", "2-3|4-5", "rubbish", ""),
    "memory_nodes": ("1", "9", "", "x"),
    "kv_transfer": (True,),
    "vllm_version": ("0.31",),
    "workers": (3,),
    "devices": (1, 7),
    "data_parallel_size": (2,),
    "data_parallel_rank": (1, 5),
    "tensor_parallel_size": (2, 8),
    "pipeline_parallel_size": (3,),
    "api_server_count": (3,),
    "external_launcher": (True,),
    "additional_config": ('{"enable_cpu_binding": false}', "rubbish", "[]", '{"enable_cpu_binding": "false"}'),
    "cpu_binding": (False,),
}
# What a setting may come beside.
BESIDE: tuple[dict[str, Any], ...] = (
    {},
    {"local_rank": 0},
    {"data_parallel_size": 2},
    {"local_rank": 0, "data_parallel_size": 2},
    {"local_rank": 1, "data_parallel_size": 2, "external_launcher": True},
    {"cpu_threads_bind": "nobind"},
    {"cpu_threads_bind": "0-3|4-7", "workers": 2},
)
# Settings that some strategy reads only beside others, or that make others read.
DEPENDENT = {
    "local_rank",
    "reserve_cpus",
    "memory_nodes",
    "kv_transfer",
    "vllm_version",
    "devices",
    "data_parallel_size",
    "data_parallel_rank",
    "tensor_parallel_size",
    "external_launcher",
}
NOTHING = PlanFlags(
    **{
        **dict.fromkeys(field.name for field in fields(PlanFlags)),
        "numa_bind": False,
        "numa_bind_nodes": (),
        "numa_bind_cpus": (),
        "kv_transfer": False,
        "data_parallel_size": 1,
        "data_parallel_rank": 0,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "external_launcher": False,
        "ignore_openmp_mask": False,
    }
)


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same few hosts are read some thousand times."""
    hosts = {text: read_host(synthetic(text)) for text in HOSTS.values()}
    monkeypatch.setattr("homenode.cli.placement.flag_demand.open_source", hosts.__getitem__)
    monkeypatch.setattr("homenode.host.discovery.read.read_host", lambda host: host)
    monkeypatch.setattr(type(hosts[HOSTS["cpu"]]), "env", property(lambda host: host.variables), raising=False)


def planned(flags: PlanFlags) -> Plan | UserError:
    try:
        return plan_for(flags, *demand_from_flags(flags, before_start=True))
    except UserError as error:
        return error


WITHOUT_NAME = ("insufficient_cpus", "numa_node_unknown", "rank_out_of_range", "pool_too_small", "bad_threads_bind")


def holds_anyway(setting: str, beside: dict[str, Any]) -> bool:
    """Where a plan is as the setting wants it without it, too, nothing need be told."""
    if setting == "vllm_version":
        return True  # for one worker, and on Arm, all releases keep the same
    return (setting == "external_launcher" and "local_rank" in beside) or (
        setting in ("data_parallel_size", "tensor_parallel_size") and beside.get("workers") == 2
    )


def placed(plan: Plan) -> dict[str, Any]:
    """All that a plan says but its findings."""
    return {name: value for name, value in plan.to_dict().items() if name != "findings"}


def names(text: str, setting: str) -> bool:
    """Whether a text names the flag itself, not a longer one."""
    return re.search(rf"--(no-)?{setting.replace('_', '-')}(?![\w-])", text) is not None


def test_there_are_values_for_every_setting_and_a_row_for_every_strategy() -> None:
    assert set(VALUES) == {field.name for field in fields(PlanFlags)} - ALWAYS_READ
    assert set(STRATEGIES) < set(SETTINGS_READ)
    assert all(set(by_kind) == set(HOSTS) for by_kind in SETTINGS_READ.values())
    assert set().union(*(read for by_kind in SETTINGS_READ.values() for read in by_kind.values())) == set(VALUES)


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_setting_changes_the_plan_is_refused_or_is_told(strategy: str, kind: str) -> None:
    wrong = []
    for beside, (setting, values) in itertools.product(BESIDE, VALUES.items()):
        base = replace(NOTHING, strategy=strategy, source=HOSTS[kind], **beside)
        before = planned(base)
        if setting in beside or isinstance(before, UserError) or (beside and setting not in DEPENDENT):
            continue
        for value in values:
            after = planned(replace(base, **{setting: value}))
            if isinstance(after, UserError):
                # What the host lacks is told with what it has; what was written wrongly with where it was written.
                if after.facts.get("code") not in WITHOUT_NAME and not names(after.message, setting):
                    wrong.append((beside, setting, value, f"refused without its name: {after.message}"))
                continue
            told = [f for f in after.findings if names(f.message, setting)]
            changed = placed(after) != placed(before)
            if not changed and not told and not holds_anyway(setting, beside):
                wrong.append((beside, setting, value, "dropped without a word"))
            if changed and any(f.code == "setting_ignored" for f in told):
                wrong.append((beside, setting, value, "told as ignored, and it is not"))
    assert wrong == [], "\n".join(map(str, wrong))


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_told_where_nothing_was_given(strategy: str, kind: str) -> None:
    made = planned(replace(NOTHING, strategy=strategy, source=HOSTS[kind]))
    assert isinstance(made, UserError) or "setting_ignored" not in [f.code for f in made.findings]


def recorded_with(tmp_path: Path, **variables: str) -> str:
    file = tmp_path / "host.json"
    recording = save_recording(file, synthetic(HOSTS["cpu"]))
    recording["env"] = variables
    file.write_text(json.dumps(recording))
    return str(file)


@pytest.mark.parametrize(
    ("variable", "value", "strategy"),
    [
        ("HOMENODE_CPU_THREADS_BIND", "0-3", "fair"),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-3", "fair"),
        ("VLLM_CPU_OMP_THREADS_BIND", "what only vLLM understands", "fair"),
        ("HOMENODE_MEMORY_NODES", "1", "numa-bind"),
        ("CPU_VISIBLE_MEMORY_NODES", "1", "fair"),
        ("HOMENODE_RESERVE_CPUS", "2", "numa-bind"),
    ],
)
def test_a_variable_without_effect_is_told_by_its_name(
    tmp_path: Path, variable: str, value: str, strategy: str
) -> None:
    made = planned(replace(NOTHING, strategy=strategy, source=recorded_with(tmp_path, **{variable: value})))
    assert isinstance(made, Plan)
    told = [finding for finding in made.findings if finding.code == "setting_ignored"]
    assert [(f.severity, f.message.split("=")[0]) for f in told] == [("info", variable)]


def test_our_own_variable_must_be_readable_whether_or_not_it_is_used(tmp_path: Path) -> None:
    refused = planned(replace(NOTHING, source=recorded_with(tmp_path, HOMENODE_CPU_THREADS_BIND="rubbish")))
    assert isinstance(refused, UserError) and refused.facts["code"] == "bad_threads_bind"


@pytest.mark.parametrize("strategy", ["ascend", "global-slice", "topo-affinity", "numa-bind"])
def test_on_ascend_the_two_lists_are_ignored_whatever_they_say(strategy: str) -> None:
    flags = replace(NOTHING, strategy=strategy, source=HOSTS["npu"], numa_bind_nodes=(7,), numa_bind_cpus=("x",))
    made = planned(flags)
    assert isinstance(made, Plan)
    told = {f.severity for f in made.findings if "numa-bind-nodes" in f.message or "numa-bind-cpus" in f.message}
    assert told == {"info"}


# The commands that take these flags.


def run(*words: str) -> Any:
    return CliRunner().invoke(cli, words)


COMMANDS = {name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))}
FLAGS = {
    name: {parameter.name for parameter in command.params if isinstance(parameter, click.Option)}
    for name, command in COMMANDS.items()
    if command is not None
}


def test_the_commands_that_plan_take_all_of_these_flags() -> None:
    planning = {name for name, flags in FLAGS.items() if "ignore_openmp_mask" in flags}
    assert planning == {"bind", "doctor", "plan", "run", "verify"}
    assert all({field.name for field in fields(PlanFlags)} <= FLAGS[name] for name in planning)


SILENT = [
    ("--numa-bind-nodes", "7"),
    ("--strategy", "fair", "--memory-nodes", "9"),
    ("--strategy", "fair", "--cpu-threads-bind", "rubbish"),
    ("--memory-nodes", ""),
    ("--device-type", "A3"),
    ("--no-cpu-binding",),
    ("--additional-config", "not json"),
    ("--tensor-parallel-size", "4"),
    ("--cpus", "0", "--workers", "2"),
    ("--cpus", "0", "--cpu-threads-bind", "0"),
    ("--memory-nodes", "0", "--reserve-cpus", "1"),
]


@pytest.mark.parametrize("words", SILENT, ids=" ".join)
@pytest.mark.parametrize("command", ["run", "verify"])
def test_run_and_verify_say_on_stderr_what_has_no_effect(command: str, words: tuple[str, ...]) -> None:
    tail = ("--dry-run", "--", "true") if command == "run" else ("--pid", str(os.getpid()))
    result = run(command, *words, *tail)
    assert result.exit_code in (0, 1, 2), result.output
    last = [word for word in words if word.startswith("--") and word not in ("--strategy", "--cpus")][-1]
    assert names(" ".join(result.stderr.split()), last.removeprefix("--").removeprefix("no-")), result.stderr


def test_what_the_requirements_do_not_depend_on_is_told() -> None:
    result = run(
        "plan", "--from", HOSTS["cpu"], "--requirements", "--reserve-cpus", "2", "--strategy", "fair", "--json"
    )
    told = [f["message"] for f in json.loads(result.stdout)["findings"] if f["code"] == "setting_ignored"]
    assert [message.split(" is ")[0] for message in told] == ["--reserve-cpus 2"]


@pytest.mark.parametrize(
    "words",
    [
        ("bind", "--pid", "1", "--undo", "--cpus", "0"),
        ("bind", "--pid", "1", "--undo", "--dry-run"),
        ("bind", "--pid", "1", "--undo", "--no-memory"),
        ("bind", "--pid", "1", "--undo", "--workers", "2"),
        ("bind", "--pid", "1", "--dry-run", "--watch", "1"),
        ("verify", "--pid", "1", "--cpus", "0", "--repair"),
        ("plan", "--requirements", "--explain"),
        ("plan", "--stages", "builtin", "--workers", "2"),
        ("plan", "--stages", "builtin", "--strategy", "fair"),
        ("plan", "--stages", "builtin", "--numa", "shard"),
        ("plan", "--stages", "builtin", "--weights", "builtin"),
        ("plan", "--weights", "builtin", "--workers", "2"),
        ("plan", "--batch", "2"),
        ("plan", "--layer-split", "1,1"),
        ("run", "--cpus", "0", "--strategy", "fair", "--", "true"),
        ("run", "--cpus", "0", "--from", "2s/4n/64c", "--", "true"),
        ("run", "--numa-bind", "--strategy", "fair", "--", "true"),
        ("doctor", "--pid", "1", "--from", "2s/4n/64c"),
        ("plan", "--strategy", "cpu-threads", "--workers", "3", "--tensor-parallel-size", "2"),
    ],
    ids=" ".join,
)
def test_flags_of_which_one_would_be_dropped_are_refused_by_name(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    flags = [word for word in words if word.startswith("--") and word != "--"]
    assert any(flag in " ".join(result.stderr.split()) for flag in flags), result.stderr
    assert "Traceback" not in result.output
