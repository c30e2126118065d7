"""Facts that planning an engine has to know of its machine, read at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from homenode.engine.config import EngineConfig
from homenode.engine.cpu_claims import busy_cpus
from homenode.engine.devices import is_accelerator
from homenode.engine.plan.accelerators.device_detection import memory_of_devices
from homenode.engine.plan.free_cores import takes_lists
from homenode.host.bind.base.optional_calls import refused_at_start, refused_needs
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.memory.mempolicy_fallback import MemoryPolicy, current_policy
from homenode.host.discovery.read import read_host
from homenode.host.plan.neighbours import HostNeighbours
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.host.topology.source import LiveSource


@dataclass(frozen=True)
class MachineFacts:
    """`devices`: of the engine's workers. `devices_memory`: bytes that workers may take of accelerators, as far as
    known. `memory_policy`: of this process, None where the kernel does not tell. `neighbours`: who else uses its CPUs.
    `refused`: calls that help every engine and that this process may not make, one of them to bind threads to CPUs;
    `refused_needs`: those that some settings cannot do without, by name.
    """

    host: Host
    devices: tuple[str, ...]
    devices_memory: Mapping[str, int] = field(default_factory=dict)
    memory_policy: MemoryPolicy | None = None
    neighbours: HostNeighbours = field(default_factory=HostNeighbours)
    refused: tuple[Finding, ...] = ()
    refused_needs: Mapping[str, Finding] = field(default_factory=dict)

    @property
    def binding_refused(self) -> Finding | None:
        """Return what to tell where this process may bind no thread to CPUs."""
        return next((finding for finding in self.refused if finding.code == "affinity_refused"), None)


def busy_where_it_counts(config: EngineConfig, host: Host) -> Mapping[int, float]:
    """The part of a short look in which others ran on each CPU. Empty where that decides nothing, as it may take a
    moment.
    """
    choice = config.compute.threads is not None and len(host.allowance.physical_cpus) > 1
    return busy_cpus() if choice and not takes_lists(config.placement, host) else {}


def read_machine(config: EngineConfig, devices: Sequence[str]) -> MachineFacts:
    """The facts of this machine for an engine whose workers have these devices."""
    host = read_host(LiveSource(), accelerators=any(map(is_accelerator, devices)))
    return MachineFacts(
        host,
        tuple(devices),
        memory_of_devices(devices, config),
        current_policy(Syscalls()),
        refused=refused_at_start(len(host.nodes)),
        refused_needs=refused_needs(),
    )
