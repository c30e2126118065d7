"""The settings that each strategy reads. What else was given is told as without effect; what says the opposite of the
strategy is refused. Pure.

A setting is one of the flags of a plan, by its name (`reserve_cpus`), whether it was given as a flag or as a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from homenode.errors import UserError
from homenode.host.plan.demand import Demand
from homenode.host.plan.parallelism import world_size
from homenode.host.plan.strategy import Strategy
from homenode.host.plan.threads_bind import AUTO, NOBIND
from homenode.host.topology.accelerator_kinds import KINDS
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host

REQUIREMENTS = "requirements"  # `plan --requirements`, which counts cores and places nobody
LISTED = "listed"  # `run --cpus` and the like: the user says where, and no strategy is asked

# For every strategy: which host is read, and how.
ALWAYS_READ = frozenset({"strategy", "source", "numa_bind", "ignore_openmp_mask"})
NUMA_BIND_LISTS = frozenset({"numa_bind_nodes", "numa_bind_cpus"})

_RANK = frozenset({"local_rank", "visible_devices"})
_SIZES = frozenset({"data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size"})
_ENGINES = _SIZES | {"data_parallel_rank", "external_launcher", "api_server_count"}
_SWITCH = frozenset({"additional_config", "cpu_binding"})
_ASCEND = _RANK | _SWITCH

# By strategy and kind of host: "cpu" (CPU workers), "gpu", "npu".
SETTINGS_READ: Mapping[str, Mapping[str, frozenset[str]]] = {
    Strategy.FAIR: {
        "cpu": _RANK | {"reserve_cpus", "workers"},
        "gpu": _RANK | {"reserve_cpus"},
        "npu": _RANK | {"reserve_cpus"},
    },
    Strategy.ASCEND: dict.fromkeys(("cpu", "gpu", "npu"), _ASCEND | {"device_type"}),
    Strategy.GLOBAL_SLICE: dict.fromkeys(("cpu", "gpu", "npu"), _ASCEND),
    Strategy.TOPO_AFFINITY: dict.fromkeys(("cpu", "gpu", "npu"), _ASCEND),
    Strategy.NUMA_BIND: {
        "cpu": NUMA_BIND_LISTS | _ENGINES | {"local_rank", "workers"},
        "gpu": NUMA_BIND_LISTS | _ENGINES | _RANK | {"devices"},
        "npu": NUMA_BIND_LISTS | _ASCEND | {"device_type"},  # this policy says itself that the lists are ignored
    },
    Strategy.CPU_THREADS: dict.fromkeys(
        ("cpu", "gpu", "npu"),
        (_ENGINES - {"api_server_count"})
        | {"local_rank", "workers", "cpu_threads_bind", "memory_nodes", "reserve_cpus", "kv_transfer", "vllm_version"},
    ),
    REQUIREMENTS: dict.fromkeys(("cpu", "gpu", "npu"), _SIZES | {"devices", "workers", "api_server_count"}),
    LISTED: dict.fromkeys(("cpu", "gpu", "npu"), frozenset({"memory_nodes"})),
}


def _is_external_launcher_read(strategy: str, kind: str, demand: Demand) -> bool:
    """It says how the local rank is counted, and under numa-bind for whom the processes that schedule are."""
    engines_are_named = strategy == Strategy.NUMA_BIND and kind == "gpu" and demand.parallelism.data_parallel_size > 1
    return demand.local_rank is not None or engines_are_named


def _is_data_parallel_rank_read(strategy: str, kind: str, demand: Demand) -> bool:
    """It says which local ranks are meant; with an external launcher these say so alone, and it names a process that
    schedules."""
    if demand.parallelism.external_launcher:
        return strategy == Strategy.NUMA_BIND and kind == "gpu"
    return demand.local_rank is not None


def _has_threads(strategy: str, kind: str, demand: Demand) -> bool:
    return strategy != Strategy.CPU_THREADS or demand.threads_bind.strip() != NOBIND


def _keeps_by_rule(strategy: str, kind: str, demand: Demand) -> bool:
    """A number of CPUs that was given is held to the rule as well, and told where it is smaller."""
    return strategy != Strategy.CPU_THREADS or demand.threads_bind.strip() == AUTO


# What is read only together with others, and when.
_ONLY_WHEN: Mapping[str, Callable[[str, str, Demand], bool]] = {
    "external_launcher": _is_external_launcher_read,
    "data_parallel_rank": _is_data_parallel_rank_read,
    "devices": lambda strategy, kind, demand: strategy != Strategy.NUMA_BIND or world_size(demand.parallelism) == 1,
    "memory_nodes": _has_threads,
    "reserve_cpus": _has_threads,
    "kv_transfer": _keeps_by_rule,
    "vllm_version": _keeps_by_rule,
}


@dataclass(frozen=True, slots=True)
class GivenSetting:
    """A setting that somebody gave: `name` as in the table, `shown` as it was written (`--reserve-cpus 2`,
    `HOMENODE_RESERVE_CPUS=2`)."""

    name: str
    shown: str
    is_flag: bool = True

    @property
    def source(self) -> str:
        """The flag or the variable alone."""
        return self.shown.replace("=", " ").split(" ")[0]


def host_kind(host: Host, demand: Demand) -> str:
    """Return for whom a plan is made here: "cpu" (CPU workers), "gpu" or "npu"; as it would be, where the vendor's tool
    cannot be understood.
    """
    found = host.accelerators
    if demand.visible == ():
        found = replace(found, chips=())
    return "cpu" if found.likely_kind is None else KINDS[found.likely_kind].group


def settings_read(strategy: str, kind: str, demand: Demand) -> frozenset[str]:
    """The settings that have a part in this plan, by name."""
    named = SETTINGS_READ[strategy][kind]
    return ALWAYS_READ | {name for name in named if name not in _ONLY_WHEN or _ONLY_WHEN[name](strategy, kind, demand)}


def without_effect(strategy: str, kind: str, demand: Demand, given: Sequence[GivenSetting]) -> list[Finding]:
    """A finding for each given setting that the plan does not depend on."""
    read = settings_read(strategy, kind, demand)
    return [_ignored(strategy, kind, setting) for setting in given if setting.name not in read]


def refuse_contradictions(strategy: str, kind: str, demand: Demand, given: Sequence[GivenSetting]) -> None:
    """Raises UserError for flags that ask for another strategy than the one that is asked for, and for counts that do
    not go together."""
    flags = {setting.name: setting for setting in given if setting.is_flag}
    read = settings_read(strategy, kind, demand)
    for name in sorted(NUMA_BIND_LISTS & flags.keys() - read):
        if kind != "npu" and not is_ascend(strategy):
            _contradicts(strategy, flags[name], "says how --numa-bind is meant", "Give --numa-bind as well")
    if "cpu_threads_bind" in flags and "cpu_threads_bind" not in read:
        _contradicts(strategy, flags["cpu_threads_bind"], "asks for --strategy cpu-threads", "Take that strategy")
    told = world_size(demand.parallelism)
    if demand.workers is not None and {"workers", *_SIZES} <= read and told > 1 and demand.workers != told:
        sizes = " ".join(flags[name].shown for name in sorted(_SIZES & flags.keys()))
        raise UserError(
            f"--workers {demand.workers} and {sizes} contradict each other, as the sizes make {told} workers; "
            "give one of them",
            param="--workers",
        )


def _contradicts(strategy: str, setting: GivenSetting, meaning: str, remedy: str) -> None:
    where = "--cpus says where to run" if strategy == LISTED else f"--strategy {strategy} is asked for"
    raise UserError(f"{setting.shown} {meaning}, and {where}. {remedy}, or leave it out.", param=setting.source)


def _ignored(strategy: str, kind: str, setting: GivenSetting) -> Finding:
    if setting.name in NUMA_BIND_LISTS and is_ascend(strategy):
        why = "Ascend pools come from the NPUs' affinity or their logical numbers"
        return Finding("info", "setting_ignored", f"{setting.shown} is ignored: {why}")
    severity = "warning" if setting.is_flag else "info"
    message = f"{setting.shown} is ignored: {_reason(strategy, kind)}"
    return Finding(severity, "setting_ignored", message, _remedy(kind, setting))


def _reason(strategy: str, kind: str) -> str:
    hosts = {"cpu": "CPU workers", "gpu": "GPUs", "npu": "NPUs"}
    if strategy == REQUIREMENTS:
        return "the number of cores that --requirements counts does not depend on it"
    if strategy == LISTED:
        return "the CPUs or memory nodes are named, and no strategy is asked"
    return f"the plan of --strategy {strategy} for {hosts[kind]} does not depend on it as the other settings are"


def _remedy(kind: str, setting: GivenSetting) -> str:
    readers = [
        "--requirements" if strategy == REQUIREMENTS else f"--strategy {strategy}"
        for strategy, by_kind in SETTINGS_READ.items()
        if setting.name in by_kind[kind] and strategy != LISTED
    ]
    others = f", or take what reads it: {', '.join(readers)}" if readers else "; nothing on this kind of host reads it"
    return f"Leave {setting.source} out{others}"


def is_ascend(strategy: str) -> bool:
    """Return whether a strategy is one of the documented Ascend binding, with its switch and its gate."""
    return strategy in (Strategy.ASCEND, Strategy.GLOBAL_SLICE, Strategy.TOPO_AFFINITY)
