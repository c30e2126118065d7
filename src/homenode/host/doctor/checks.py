"""Findings of what engines and their runtimes are known to stumble over: variables that bind by accident, ids that are
not 0, 1, 2, ... Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from homenode.cpuset import format_cpu_list
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.units import format_count

_OPENMP = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_OFF = ("", "false", "none", "disabled")
_LLAMA_CPUS, _LLAMA_NODES, _CPU_SET = 512, 8, 1024


def runtime_findings(host: Host) -> list[Finding]:
    """All findings of all checks below, in their order."""
    return [finding for one in _CHECKS for finding in one(host)]


def _openmp(host: Host) -> Iterable[Finding]:
    names = _binding_variables(host.variables)
    if names and host.allowance.mask_origin != "openmp":  # where it has happened already, that is said of the mask
        listed = " ".join(f"{name}={host.variables[name]}" for name in names)
        message = (
            f"{listed}: an OpenMP runtime binds the thread that first uses it (in PyTorch the main one), and all "
            "born later inherit that mask"
        )
        remedy = (
            "Start servers that place their threads themselves without it: env "
            f"{' '.join(f'-u {name}' for name in names)} ..."
        )
        yield Finding("warning", "openmp_binds", message, remedy)


def _binding_variables(env: Mapping[str, str]) -> list[str]:
    # OpenMP 5.2, section 21.1.6: then places count for nothing.
    off = env.get("OMP_PROC_BIND", "").strip().lower() == "false"
    wanted = [name for name in _OPENMP if env.get(name, "").strip().lower() not in _OFF]
    return [name for name in wanted if not (off and name == "OMP_PLACES")]


def _slurm(host: Host) -> Iterable[Finding]:
    text = host.variables.get("SLURM_CPU_BIND", host.variables.get("SLURM_CPU_BIND_TYPE", ""))
    if text and "none" not in text.split(","):
        message = (
            f"Slurm binds tasks to CPUs (SLURM_CPU_BIND={text}); without its cgroup plugin that is a mask only, "
            "which numactl -N escapes"
        )
        yield Finding(
            "info",
            "slurm_binds",
            message,
            "srun --cpu-bind=none where homenode should place the workers inside the allocation.",
        )


def _many_cpus(host: Host) -> Iterable[Finding]:
    highest = max(host.cpu_by_id, default=0)
    if highest >= _CPU_SET:
        message = (
            f"CPU ids reach {highest}: programs with a fixed cpu_set_t know {_CPU_SET} CPUs, and the mask of this "
            "process is refused to them"
        )
        remedy = (
            f"Start such programs by `homenode run --cpus` on CPUs below {_CPU_SET}; homenode itself has no such limit."
        )
        yield Finding("warning", "cpus_beyond_1023", message, remedy)
    if highest >= _LLAMA_CPUS or len(host.nodes) > _LLAMA_NODES:
        message = (
            f"llama.cpp --numa knows {_LLAMA_CPUS} CPUs and {_LLAMA_NODES} nodes; here CPU ids reach {highest}, "
            f"with {format_count(len(host.nodes), 'node')}"
        )
        yield Finding(
            "info",
            "beyond_llama_numa",
            message,
            "Start it by `homenode run --strategy cpu-threads` and without --numa.",
        )


def _sparse_cpus(host: Host) -> Iterable[Finding]:
    beyond = [cpu for cpu in host.cpu_by_id if cpu >= len(host.cpus)]
    if beyond and host.accelerators.kind == "cuda":
        message = (
            f"{format_count(len(host.cpus), 'CPU is', 'CPUs are')} online and ids go beyond that: vLLM's automatic "
            f"--numa-bind does not see CPUs {format_cpu_list(beyond)}"
        )
        yield Finding(
            "warning",
            "cpu_ids_sparse",
            message,
            "Use `homenode run --numa-bind`, or vLLM with --numa-bind-cpus written out.",
        )


def _sparse_nodes(host: Host) -> Iterable[Finding]:
    ids = [node.id for node in host.nodes]
    if ids and ids != list(range(len(ids))):
        message = (
            f"node ids are {format_cpu_list(ids)}: tools that count from 0, or index distances by id, read wrong "
            "or stop at the gap"
        )
        remedy = (
            "`homenode plan` is right here; vLLM's automatic --numa-bind wants a node1, llama.cpp --numa stops at "
            "the first gap."
        )
        yield Finding("info", "node_ids_sparse", message, remedy)


def _computeless(host: Host) -> Iterable[Finding]:
    own = sorted({chip.memory_node for chip in host.accelerators.chips if chip.memory_node is not None})
    own = [node for node in own if node in host.node_by_id and not host.node_by_id[node].cpus]
    if own:
        message = (
            f"the accelerators' own memory shows as nodes {format_cpu_list(own)}: a program bound nowhere may put "
            "its memory there"
        )
        yield Finding(
            "info",
            "accelerator_memory_nodes",
            message,
            "Bind memory (`homenode run` does); never name these nodes in --numa-bind-nodes.",
        )


_CHECKS: tuple[Callable[[Host], Iterable[Finding]], ...] = (
    _openmp,
    _slurm,
    _many_cpus,
    _sparse_cpus,
    _sparse_nodes,
    _computeless,
)
