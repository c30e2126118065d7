"""The allowance: what this process may use of its machine: CPUs, CPU time, memory. Read from /proc and /sys only;
nothing is decided here.

Sources: sched(7), cpuset(7), sched_setaffinity(2), and those of `cgroups`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from homenode.cpuset import format_cpu_list
from homenode.host.topology.cgroups import read_group_limits
from homenode.host.topology.facts import FactReader
from homenode.host.topology.memory import available_on, read_available
from homenode.host.topology.online import read_node_cpus, read_node_ids, read_online
from homenode.host.topology.siblings import cores_within_nodes, read_cores
from homenode.host.topology.source import LiveSource, Source
from homenode.host.topology.status import process_cpus, process_memory_nodes

# Where a mask that is narrower than the machine comes from.
MASK_ORIGINS = ("none", "cpuset", "inherited", "openmp")


@dataclass(frozen=True)
class Allowance:
    """`cpus`: allowed logical CPUs, online ones. `physical_cpus`: one of them for each core. `cpu_quota`: CPUs' worth
    of time, None for all.

    `memory_limit`: bytes this process's cgroups allow in all (None: no limit). `memory_available`: bytes it can still
    take from `mems` without swapping, page cache among them; it never rests and so takes no part in comparisons.
    `mems`: nodes it may take memory from. `cpuset`: online CPUs that its cpuset permits, None when unknown.
    `mask_origin`: "none" (every online CPU is allowed), "cpuset" (the mask is the cpuset), "inherited" (narrower:
    taskset, a batch system, a parent), "openmp" (narrower by accident: an OpenMP library bound the first thread of this
    process or of one above it to a single place, and threads and processes inherit masks). `beyond_accident`: the
    allowance without an accidental mask, where that is known. `beside`: CPUs that this process may use as well, and
    that were kept out of `cpus`, as others than compute threads are to run there.
    """

    cpus: tuple[int, ...]
    physical_cpus: tuple[int, ...]
    cpu_quota: float | None
    memory_limit: int | None
    memory_available: int = field(compare=False)
    mems: tuple[int, ...] = ()
    cpuset: tuple[int, ...] | None = None
    mask_origin: str = "none"
    beyond_accident: Allowance | None = field(default=None, repr=False)
    beside: tuple[int, ...] = ()

    @classmethod
    def of_process(cls, source: Source | None = None) -> Allowance:
        """Read it for the calling process, or for the one that made the recording."""
        reader = FactReader(source or LiveSource())
        return read_allowance(reader, read_online(reader), read_node_ids(reader))

    @property
    def usable_threads(self) -> int:
        """Threads that can run at once at full speed: physical cores, or fewer where the quota (rounded down) is
        smaller. At least 1."""
        quota = len(self.physical_cpus) if self.cpu_quota is None else int(self.cpu_quota)
        return max(1, min(len(self.physical_cpus), quota))

    def widened(self) -> Allowance:
        """The same without an accidental mask: what the cpuset permits of the online CPUs. Any other mask is a limit
        and stays.

        A mask stays too where the cpuset is not known: it might be that narrow.
        """
        return self.beyond_accident or self


def read_allowance(
    reader: FactReader, online: tuple[int, ...], nodes: Collection[int], cores: Mapping[int, int] | None = None
) -> Allowance:
    """The allowance over the online CPUs and nodes. `cores`: names of cores by CPU; read here when None."""
    limits = read_group_limits(reader)
    mask = process_cpus(reader)
    if mask is None:
        reader.note(
            "no_affinity_mask",
            "/proc/self/status does not say which CPUs this process may use; every online one is taken",
        )
    cpus = _within(mask, online)
    cpuset = _cpuset(reader, limits.cpus, mask and cpus, online)
    permitted = cpuset or online
    cores = _read_cores(reader, permitted, nodes) if cores is None else cores
    origin = _mask_origin(cpus, online, permitted, cores, reader.source.env)
    told = process_memory_nodes(reader) or ()
    mems = tuple(node for node in told if node in nodes) or tuple(nodes) or told
    narrow = set(mems) < set(nodes)
    free = available_on(reader, mems) if narrow else read_available(reader)
    seen = Allowance(
        cpus=cpus,
        physical_cpus=_one_per_core(cpus, cores),
        cpu_quota=limits.cpu_quota,
        memory_limit=limits.memory_limit,
        memory_available=free if limits.memory_room is None else min(free, limits.memory_room),
        mems=mems,
        cpuset=cpuset,
        mask_origin=origin,
    )
    if origin != "openmp" or not cpuset:
        return seen
    wide = replace(
        seen,
        cpus=cpuset,
        physical_cpus=_one_per_core(cpuset, cores),
        mask_origin="none" if cpuset == online else "cpuset",
    )
    return replace(seen, beyond_accident=wide)


def _cpuset(
    reader: FactReader, reported: tuple[int, ...] | None, cpus: tuple[int, ...] | None, online: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The online CPUs of the cpuset; None when it is not told. Notes `cpuset_disagrees`: the kernel keeps a mask
    inside the cpuset, so one that lacks CPUs of the mask is that of another group.
    """
    cpuset = None if reported is None else _within(reported, online)
    if not cpuset or not cpus or set(cpus) <= set(cpuset):
        return cpuset
    group, own = format_cpu_list(cpuset), format_cpu_list(cpus)
    message = f"the control group's cpuset is {group}, and this process may run on {own}: the mask is taken"
    reader.note(
        "cpuset_disagrees", message, "Check what is mounted at /sys/fs/cgroup: these files are of another group."
    )
    return None


def _read_cores(reader: FactReader, cpus: Sequence[int], nodes: Collection[int]) -> dict[int, int]:
    told = read_cores(reader, cpus)
    if len(set(told.values())) == len(told):
        return told
    node_of = {cpu: node for node in sorted(nodes, reverse=True) for cpu in read_node_cpus(reader, node)}
    return cores_within_nodes(told, node_of)


def _within(cpus: tuple[int, ...] | None, online: tuple[int, ...]) -> tuple[int, ...]:
    """The online ones of `cpus`; all that are online when nothing is told: the kernel lets a process run there."""
    here = set(online)
    return online if cpus is None else tuple(cpu for cpu in cpus if cpu in here)


def _one_per_core(cpus: Sequence[int], cores: Mapping[int, int]) -> tuple[int, ...]:
    """The first of `cpus` on every core, ascending; a CPU whose siblings are not known is a core of its own."""
    firsts: dict[int, int] = {}
    for cpu in cpus:
        firsts.setdefault(cores.get(cpu, cpu), cpu)
    return tuple(firsts.values())


def _mask_origin(
    cpus: tuple[int, ...],
    online: tuple[int, ...],
    permitted: tuple[int, ...],
    cores: Mapping[int, int],
    env: Mapping[str, str],
) -> str:
    if cpus == online:
        return "none"
    if cpus == permitted:
        return "cpuset"
    one_place = len({cores.get(cpu, cpu) for cpu in cpus}) == 1
    accident = one_place and set(cpus) < set(permitted) and _openmp_binds(env) and not launcher_binds(env)
    return "openmp" if accident else "inherited"


def _openmp_binds(env: Mapping[str, str]) -> bool:
    """Return whether an OpenMP library that starts with these variables binds its first thread: the OpenMP
    specification on OMP_PROC_BIND and OMP_PLACES, the manuals of libgomp on GOMP_CPU_AFFINITY and of LLVM's runtime on
    KMP_AFFINITY.
    """
    bind = env.get("OMP_PROC_BIND", "").strip().lower().split(",")[0]
    if bind == "false":
        return False
    if (
        bind in ("true", "master", "primary", "close", "spread")
        or env.get("OMP_PLACES", "").strip()
        or env.get("GOMP_CPU_AFFINITY", "").strip()
    ):
        return True
    words = env.get("KMP_AFFINITY", "").lower().replace(" ", "").split(",")
    return bool({"compact", "scatter", "balanced", "explicit", "physical", "logical"} & set(words))


def launcher_binds(env: Mapping[str, str]) -> bool:
    """Return whether a batch system or an MPI launcher may have set the mask: then it is meant, whatever OpenMP does
    besides.
    """
    slurm = [name for name in ("SLURM_LOCALID", "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE") if name in env]
    unbound = any("none" in env[name].split(",") for name in slurm)
    return (bool(slurm) and not unbound) or "OMPI_COMM_WORLD_LOCAL_RANK" in env or "MPI_LOCALRANKID" in env
