"""A plan: who runs where, and why. Frozen, with JSON both ways, so that it can be printed, stored, compared and
replayed elsewhere.

{"strategy", "devices": {"total", "running"}, "pools": {device: cpulist},
 "workers": [{"local_rank", "device", "cpus", "roles": {role: cpulist}, "memory_node", "memory_nodes", "why"}],
 "processes": [{"name", "cpus", "memory_nodes", "why"}], "kernel_threads": {name: cpulist}, "findings": [{"severity",
 "code", "message", "remedy"}], "host"}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.host.topology.finding import Finding

ROLES = ("irq", "main", "acl", "release")


@dataclass(frozen=True, slots=True)
class WorkerBinding:
    """One worker process.

    `device`: logical id of its accelerator, or the worker's number for CPU workers. `cpus`: its whole pool, in the
    policy's order. `roles`: CPUs by role; `main` is where the process and its unnamed threads run, `irq` takes its
    device's interrupts, `acl` and `release` its driver's submit and release threads. Roles may overlap where a pool is
    small. `memory_nodes`: where its memory is bound, best first; empty: not bound. `bound` False: the process is left
    as it is (`nobind`).
    """

    local_rank: int
    device: int
    cpus: tuple[int, ...]
    roles: dict[str, tuple[int, ...]]
    memory_nodes: tuple[int, ...]
    why: str
    bound: bool = True

    @property
    def memory_node(self) -> int | None:
        """The node its memory should come from first."""
        return self.memory_nodes[0] if self.memory_nodes else None

    @property
    def main_cpus(self) -> tuple[int, ...]:
        """Return where the process itself runs."""
        return self.roles.get("main") or self.cpus


@dataclass(frozen=True, slots=True)
class ProcessBinding:
    """CPUs and memory for a process that is no worker: an engine core, an API server, the reserve. Empty `cpus`: left
    unbound."""

    name: str
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision of a policy. `pools` are of all devices that the policy places, `workers` only of those that were
    asked for.

    `kernel_threads`: CPUs of threads that a device's driver has in the kernel, by their name. They belong to the host
    and to no worker.
    """

    strategy: str
    devices_total: int
    devices_running: tuple[int, ...]
    pools: dict[int, tuple[int, ...]]
    workers: tuple[WorkerBinding, ...]
    processes: tuple[ProcessBinding, ...] = ()
    findings: tuple[Finding, ...] = ()
    host: str = ""  # fingerprint of the host it was made for
    kernel_threads: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def with_findings(self, more: Sequence[Finding]) -> Plan:
        """The same plan with findings added behind."""
        return replace(self, findings=(*self.findings, *more))

    def worker_of(self, local_rank: int) -> WorkerBinding | None:
        """The worker of one local rank."""
        return next((worker for worker in self.workers if worker.local_rank == local_rank), None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form given above."""
        return {
            "strategy": self.strategy,
            "devices": {"total": self.devices_total, "running": list(self.devices_running)},
            "pools": {str(device): format_cpu_list(cpus) for device, cpus in self.pools.items()},
            "workers": [_worker_to_dict(worker) for worker in self.workers],
            "processes": [_process_to_dict(process) for process in self.processes],
            "kernel_threads": {name: format_cpu_list(cpus) for name, cpus in self.kernel_threads.items()},
            "findings": [finding.to_dict() for finding in self.findings],
            "host": self.host,
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Plan:
        """The inverse of `to_dict`, but for the order of CPUs inside a pool: lists of CPUs are written ascending."""
        return cls(
            strategy=raw["strategy"],
            devices_total=raw["devices"]["total"],
            devices_running=tuple(raw["devices"]["running"]),
            pools={int(device): parse_cpu_list(text) for device, text in raw["pools"].items()},
            workers=tuple(_worker_from_dict(worker) for worker in raw["workers"]),
            processes=tuple(_process_from_dict(process) for process in raw["processes"]),
            findings=tuple(Finding.from_dict(finding) for finding in raw["findings"]),
            host=raw["host"],
            kernel_threads={name: parse_cpu_list(text) for name, text in raw.get("kernel_threads", {}).items()},
        )

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict())


def _worker_to_dict(worker: WorkerBinding) -> dict[str, Any]:
    return {
        "local_rank": worker.local_rank,
        "device": worker.device,
        "cpus": format_cpu_list(worker.cpus),
        "roles": {role: format_cpu_list(cpus) for role, cpus in worker.roles.items()},
        "memory_node": worker.memory_node,
        "memory_nodes": list(worker.memory_nodes),
        "bound": worker.bound,
        "why": worker.why,
    }


def _worker_from_dict(raw: dict[str, Any]) -> WorkerBinding:
    return WorkerBinding(
        local_rank=raw["local_rank"],
        device=raw["device"],
        cpus=parse_cpu_list(raw["cpus"]),
        roles={role: parse_cpu_list(text) for role, text in raw["roles"].items()},
        memory_nodes=tuple(raw["memory_nodes"]),
        why=raw["why"],
        bound=raw["bound"],
    )


def _process_to_dict(process: ProcessBinding) -> dict[str, Any]:
    return {
        "name": process.name,
        "cpus": format_cpu_list(process.cpus),
        "memory_nodes": list(process.memory_nodes),
        "why": process.why,
    }


def _process_from_dict(raw: dict[str, Any]) -> ProcessBinding:
    return ProcessBinding(raw["name"], parse_cpu_list(raw["cpus"]), tuple(raw["memory_nodes"]), raw["why"])
