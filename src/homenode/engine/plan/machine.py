"""What planning an engine has to know of its machine, read at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_accelerator
from homenode.engine.plan.device_detection import memory_of_devices
from homenode.host.binding.mempolicy_fallback import MemoryPolicy, current_policy
from homenode.host.binding.syscalls import Syscalls
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.host.topology.source import LiveSource


@dataclass(frozen=True)
class MachineFacts:
    """`devices`: of the engine's workers. `devices_memory`: bytes that workers may take of accelerators, as far as
    known. `memory_policy`: of this process, None where the kernel does not tell.
    """

    host: Host
    devices: tuple[str, ...]
    devices_memory: Mapping[str, int] = field(default_factory=dict)
    memory_policy: MemoryPolicy | None = None


def read_machine(config: EngineConfig, devices: Sequence[str]) -> MachineFacts:
    """The facts of this machine for an engine whose workers have these devices."""
    return MachineFacts(
        read_host(LiveSource(), accelerators=any(map(is_accelerator, devices))),
        tuple(devices),
        memory_of_devices(devices, config),
        current_policy(Syscalls()),
    )
