"""What this process may use of its machine: CPUs, CPU time, memory. Read from /proc and /sys only; nothing is decided here.

Sources: sched(7), cpuset(7), sched_setaffinity(2), and those of `cgroups`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from homenode.host.topology.cgroups import read_group_limits
from homenode.host.topology.facts import FactReader
from homenode.host.topology.memory import read_meminfo
from homenode.host.topology.siblings import read_cores
from homenode.host.topology.source import LiveSource, Source
from homenode.host.topology.status import process_cpus, process_memory_nodes

# Where a mask that is narrower than the machine comes from.
MASK_ORIGINS = ("none", "cpuset", "inherited", "openmp")


@dataclass(frozen=True)
class Allowance:
    """`cpus`: allowed logical CPUs, online ones. `physical_cpus`: one of them for each core. `cpu_quota`: CPUs' worth of time, None for all.

    `memory_limit`: bytes this process's cgroups allow in all (None: no limit). `memory_available`: bytes it can still take without swapping;
    it never rests and so takes no part in comparisons. `mems`: nodes it may take memory from. `cpuset`: CPUs that its cpuset permits, None when
    unknown. `mask_origin`: "none" (every online CPU is allowed), "cpuset" (the mask is the cpuset), "inherited" (narrower: taskset, a batch
    system, a parent), "openmp" (narrower by accident: the OpenMP library of some ancestor pinned itself to one place and the mask was inherited).
    """

    cpus: tuple[int, ...]
    physical_cpus: tuple[int, ...]
    cpu_quota: float | None
    memory_limit: int | None
    memory_available: int = field(compare=False)
    mems: tuple[int, ...] = ()
    cpuset: tuple[int, ...] | None = None
    mask_origin: str = "none"
    permitted: tuple[int, ...] = field(default=(), repr=False)  # `cpus` as they would be without an accidental mask
    permitted_physical: tuple[int, ...] = field(default=(), repr=False)

    @classmethod
    def of_process(cls, source: Source | None = None) -> Allowance:
        """Read it for the calling process, or for the one that made the recording."""
        from homenode.host.topology.cpus import read_online

        reader = FactReader(source or LiveSource())
        online = read_online(reader)
        return read_allowance(reader, online, None)

    @property
    def usable_threads(self) -> int:
        """Threads that can run at once at full speed: physical cores, or fewer where the quota (rounded down) is smaller. At least 1."""
        quota = len(self.physical_cpus) if self.cpu_quota is None else int(self.cpu_quota)
        return max(1, min(len(self.physical_cpus), quota))

    def widened(self) -> Allowance:
        """The same without an accidental mask: what the cpuset permits of the online CPUs. Any other mask is a limit and stays."""
        if self.mask_origin != "openmp" or not self.permitted:
            return self
        origin = "cpuset" if self.cpuset is not None and self.permitted == self.cpuset else "none"
        return replace(self, cpus=self.permitted, physical_cpus=self.permitted_physical, mask_origin=origin)


def read_allowance(
    reader: FactReader, online: Sequence[int], cores: Mapping[int, int] | None, nodes: Sequence[int] | None = None
) -> Allowance:
    """The allowance over the `online` CPUs. `cores`: names of cores by CPU, read here when None; `nodes`: online nodes, when known."""
    limits = read_group_limits(reader)
    mask = process_cpus(reader)
    here = set(online)
    cpus = tuple(online) if mask is None else tuple(cpu for cpu in mask if cpu in here)
    cpuset = None if limits.cpus is None else tuple(cpu for cpu in limits.cpus if cpu in here)
    permitted = cpuset or tuple(online)
    cores = read_cores(reader, permitted) if cores is None else cores
    origin = _mask_origin(cpus, permitted, tuple(online), cpuset, cores, reader.source.env)
    free = read_meminfo(reader, "/proc/meminfo").get("MemAvailable", 0)
    mems = process_memory_nodes(reader) or ()
    if nodes is not None:
        mems = tuple(node for node in mems if node in set(nodes)) or tuple(nodes)
    return Allowance(
        cpus=cpus,
        physical_cpus=_one_per_core(cpus, cores),
        cpu_quota=limits.cpu_quota,
        memory_limit=limits.memory_limit,
        memory_available=free if limits.memory_room is None else min(free, limits.memory_room),
        mems=mems,
        cpuset=cpuset,
        mask_origin=origin,
        permitted=permitted if origin == "openmp" else (),
        permitted_physical=_one_per_core(permitted, cores) if origin == "openmp" else (),
    )


def _one_per_core(cpus: Sequence[int], cores: Mapping[int, int]) -> tuple[int, ...]:
    """The first of `cpus` on every core, ascending; a CPU whose siblings are not known is a core of its own."""
    firsts: dict[int, int] = {}
    for cpu in cpus:
        firsts.setdefault(cores.get(cpu, cpu), cpu)
    return tuple(firsts.values())


def _mask_origin(
    cpus: tuple[int, ...],
    permitted: tuple[int, ...],
    online: tuple[int, ...],
    cpuset: tuple[int, ...] | None,
    cores: Mapping[int, int],
    env: Mapping[str, str],
) -> str:
    if cpus == online:
        return "none"
    if cpuset is not None and cpus == permitted:
        return "cpuset"
    one_place = len({cores.get(cpu, cpu) for cpu in cpus}) == 1
    narrower = cpuset is not None and set(cpus) < set(permitted)
    return "openmp" if one_place and narrower and _openmp_binds(env) and not _launcher_binds(env) else "inherited"


def _openmp_binds(env: Mapping[str, str]) -> bool:
    """Whether an OpenMP library that starts with these variables binds its first thread (OpenMP 5.2, sections 21.1.6 and 21.1.7)."""
    bind = env.get("OMP_PROC_BIND", "").strip().lower()
    if bind == "false":
        return False
    if bind or env.get("OMP_PLACES", "").strip() or env.get("GOMP_CPU_AFFINITY", "").strip():
        return True
    words = env.get("KMP_AFFINITY", "").lower().replace(" ", "").split(",")
    return bool({"compact", "scatter", "balanced", "explicit", "physical", "logical"} & set(words))


def _launcher_binds(env: Mapping[str, str]) -> bool:
    """Whether a batch system or an MPI launcher may have set the mask: then it is meant, whatever OpenMP does besides."""
    slurm = env.get("SLURM_CPU_BIND", "") + env.get("SLURM_CPU_BIND_TYPE", "")
    return ("SLURM_LOCALID" in env and "none" not in slurm) or "OMPI_COMM_WORLD_LOCAL_RANK" in env or "MPI_LOCALRANKID" in env
