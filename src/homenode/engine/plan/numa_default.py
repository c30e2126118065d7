"""Whether --numa auto is meant where nobody has said anything: on a host with several nodes this engine may compute on. Elsewhere nothing changes."""

from __future__ import annotations

from homenode.engine.config import EngineConfig
from homenode.host.binding.mempolicy_fallback import MemoryPolicy
from homenode.host.binding.syscalls import MPOL_DEFAULT, MPOL_LOCAL
from homenode.host.placement.variables import memory_nodes, threads_bind
from homenode.host.topology.host import Host

_FREE = (MPOL_DEFAULT, MPOL_LOCAL)  # of a process: memory comes from where it is touched


def auto_is_meant(config: EngineConfig, host: Host, policy: MemoryPolicy | None) -> bool:
    """Pure. `policy`: the memory policy of this process, None where the kernel does not tell.

    Not for one of several engines, which have their places; nor where flags, variables or another program (numactl, `homenode run`) have placed
    threads or memory, which --numa would override.
    """
    placement = config.placement
    if config.replica is not None or config.parallel.data_parallel_size > 1 or config.compute.backend == "reference":
        return False
    if placement.numa is not None or placement.numa_bind or (policy is not None and policy.mode not in _FREE):
        return False
    if placement.numa_nodes or placement.numa_mirror_tensors or placement.numa_strict or placement.numa_measured:
        return False  # they say how --numa is meant, and are refused without it
    if (
        threads_bind(placement.cpu_threads_bind, host.variables)
        or memory_nodes(placement.memory_nodes, host.variables) is not None
    ):
        return False
    nodes = {
        cpu.node
        for number in host.allowance.cpus
        if (cpu := host.cpu_by_id.get(number)) is not None and cpu.node is not None
    }
    return len(nodes) > 1
