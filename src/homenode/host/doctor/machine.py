"""Findings of a machine and of what a process may use of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from homenode.cpuset import format_cpu_list
from homenode.host.topology.allowance import launcher_binds
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host, PciDevice
from homenode.units import format_bytes, format_count

_NETWORK, _NVME = 0x02, 0x0108  # PCI class codes whose place matters for what they feed: base class, base and subclass
_MOST_NAMED = 4


def machine_findings(host: Host) -> list[Finding]:
    """All findings of all checks below, in their order."""
    return [finding for one in _CHECKS for finding in one(host)]


def _mask(host: Host) -> Iterable[Finding]:
    own, all_cpus = host.allowance.cpus, len(host.cpus)
    permitted = host.allowance.cpuset or tuple(host.cpu_by_id)
    seen = (
        f"this process may use CPUs {format_cpu_list(own)}, {len(own)} of the {len(permitted)} that it could be given"
    )
    if host.allowance.mask_origin == "openmp":
        message = f"{seen}: an OpenMP runtime seems to have bound a process above it by accident"
        yield Finding(
            "warning",
            "mask_by_accident",
            message,
            "Unset OMP_PROC_BIND and OMP_PLACES, or plan with --ignore-openmp-mask.",
        )
    elif _one_core_of_many(host, own, permitted):
        message = (
            f"{seen}: one core. An OpenMP runtime (libgomp) leaves such a mask to whatever is started from a process "
            "that loaded it with OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY set, and so does taskset"
        )
        remedy = (
            "Start what started this without those variables, or give the mask back: "
            f"taskset -c {format_cpu_list(permitted)} COMMAND."
        )
        yield Finding("warning", "mask_of_one_core", message, remedy)
    elif host.allowance.mask_origin == "inherited":
        message = (
            f"{seen}: the mask is inherited (taskset, Slurm, mpirun, a parent). homenode keeps to it; numactl -N "
            "and CPU lists with ! escape it"
        )
        yield Finding(
            "info",
            "mask_inherited",
            message,
            "Start it without taskset, with SLURM_CPU_BIND=none or mpirun --bind-to none, if it is not meant.",
        )
    elif host.allowance.mask_origin == "cpuset":
        message = f"the cpuset of this process permits CPUs {format_cpu_list(own)}, {len(own)} of {all_cpus}"
        yield Finding(
            "info", "cpuset_narrow", message, "docker --cpuset-cpus, the pod's CPU limits, or AllowedCPUs= decide that."
        )


def _one_core_of_many(host: Host, own: Sequence[int], permitted: Sequence[int]) -> bool:
    """Return whether a mask is of one core though others could be had, and no batch system or MPI launcher has seen to
    it.
    """
    cores = {host.cpu_by_id[cpu].core for cpu in permitted if cpu in host.cpu_by_id}
    mine = {host.cpu_by_id[cpu].core for cpu in own if cpu in host.cpu_by_id}
    inherited = host.allowance.mask_origin == "inherited" and not launcher_binds(host.variables)
    return inherited and len(mine) == 1 < len(cores)


def _partial_cores(host: Host) -> Iterable[Finding]:
    allowed = set(host.allowance.cpus)
    cut = [cpus for cpus in host.cores.values() if not allowed.isdisjoint(cpus) and not allowed.issuperset(cpus)]
    if cut:
        others = format_cpu_list(cpu for cpus in cut for cpu in cpus if cpu not in allowed)
        message = (
            f"of {format_count(len(cut), 'core')} only some SMT siblings are allowed; whoever computes on the "
            f"others ({others}) slows these down"
        )
        yield Finding(
            "warning", "cores_in_part", message, f"Allow whole cores: add CPUs {others} to the cpuset or mask."
        )


def _quota(host: Host) -> Iterable[Finding]:
    quota, cpus = host.allowance.cpu_quota, len(host.allowance.cpus)
    if quota is not None and quota < cpus:
        message = (
            f"the control group may use {format_count(quota, 'CPU')} worth of time on {format_count(cpus, 'CPU')}: "
            "a program that starts a thread on each is throttled"
        )
        yield Finding(
            "warning",
            "quota_below_cpus",
            message,
            f"Start {format_count(max(1, int(quota)), 'thread')} (OMP_NUM_THREADS), or raise cpu.max to "
            f"{format_count(cpus, 'CPU')}.",
        )


def _offline(host: Host) -> Iterable[Finding]:
    if host.offline:
        message = f"offline CPUs: {format_cpu_list(host.offline)}; {len(host.cpus)} are online"
        yield Finding(
            "info",
            "cpus_offline",
            message,
            "echo 1 > /sys/devices/system/cpu/cpuN/online for each, if they should work.",
        )


def _isolated(host: Host) -> Iterable[Finding]:
    unused = set(host.isolated).difference(host.allowance.cpus)
    if unused:
        message = (
            f"CPUs {format_cpu_list(unused)} are isolated (isolcpus) and this process may not use them: nobody "
            "does unless told to"
        )
        yield Finding(
            "info",
            "isolated_unused",
            message,
            "Give them to the server (taskset, cpuset), or take isolcpus out of the kernel's command line.",
        )
    used = set(host.isolated).intersection(host.allowance.cpus)
    if used:
        message = (
            f"CPUs {format_cpu_list(used)} are isolated (isolcpus): threads of one process pile up on one of them "
            "unless each is bound by itself"
        )
        yield Finding(
            "warning", "isolated_cpus", message, "Take them out of isolcpus, or out of this process's cpuset."
        )


def _unequal(host: Host) -> Iterable[Finding]:
    kinds = sorted({cpu.capacity for cpu in host.cpus}, reverse=True)
    if len(kinds) > 1:
        counts = ", ".join(
            f"{sum(cpu.capacity == kind for cpu in host.cpus)} at {kind / 1024:.0%}" for kind in kinds[:_MOST_NAMED]
        )
        message = f"the CPUs are not equally fast ({counts}): threads with equal shares wait for the slowest"
        yield Finding(
            "info",
            "cores_unequal",
            message,
            "Keep compute threads on one kind (homenode run --cpus LIST); `homenode host` shows which is which.",
        )


def _balancing(host: Host) -> Iterable[Finding]:
    if host.numa_balancing and len(host.nodes) > 1:
        message = (
            "automatic NUMA balancing is on: it samples accesses by page faults and may move memory that no policy "
            "holds"
        )
        yield Finding(
            "info", "numa_balancing_on", message, "Turn it off while serving: sysctl kernel.numa_balancing=0."
        )


def _huge_pages(host: Host) -> Iterable[Finding]:
    setting = "/sys/kernel/mm/transparent_hugepage/enabled"
    if host.transparent_huge_pages == "never":
        message = (
            "transparent huge pages are off: weights and KV memory are mapped in small pages, which costs address "
            "translations"
        )
        yield Finding("warning", "huge_pages_off", message, f"echo madvise > {setting}")
    elif host.transparent_huge_pages == "always":
        message = (
            "transparent huge pages are on for every program: those that do not ask may see stalls and use more memory"
        )
        yield Finding("info", "huge_pages_always", message, f"echo madvise > {setting} leaves it to programs that ask.")
    reserved = sum(size * count for node in host.nodes for size, count in node.huge_pages.items())
    known = any(node.huge_pages for node in host.nodes)
    if known and not reserved:
        yield Finding(
            "info", "huge_pages_none_reserved", "no huge pages are reserved; nothing of homenode needs them", ""
        )


def _memory_limit(host: Host) -> Iterable[Finding]:
    limit, installed = host.allowance.memory_limit, sum(node.memory or 0 for node in host.nodes)
    if limit is not None and installed and limit < installed:
        left = format_bytes(host.allowance.memory_available)
        message = (
            f"the control group may use {format_bytes(limit)} of {format_bytes(installed)} memory; {left} are free "
            "to take"
        )
        remedy = "docker --memory, the pod's memory limit, or MemoryHigh= and MemoryMax= of a unit decide that."
        yield Finding("info", "memory_limited", message, remedy)


def _node_memory(host: Host) -> Iterable[Finding]:
    bare = [node.id for node in host.nodes if node.memory == 0 and node.cpus]
    if bare:
        message = f"CPUs without memory of their own: node {format_cpu_list(bare)}; all they touch is remote"
        yield Finding(
            "warning",
            "nodes_without_memory",
            message,
            "Populate their memory channels, or keep compute off their CPUs.",
        )
    devices = {chip.memory_node for chip in host.accelerators.chips} - {None}
    far = [node.id for node in host.nodes if not node.cpus and node.memory and node.id not in devices]
    if far:
        message = f"memory without CPUs (CXL, HBM, or an accelerator's own): node {format_cpu_list(far)}"
        yield Finding(
            "info",
            "nodes_without_cpus",
            message,
            "Plans leave them out; name them with --memory-nodes if they are meant.",
        )


def _allowed_memory(host: Host) -> Iterable[Finding]:
    filled = [node.id for node in host.nodes if node.memory != 0]
    mems = set(host.allowance.mems or filled)
    own = {host.cpu_by_id[cpu].node for cpu in host.allowance.cpus if cpu in host.cpu_by_id}
    shut = sorted(node for node in filled if node in own and node not in mems)
    if shut:
        message = (
            f"CPUs of node {format_cpu_list(shut)} are allowed and its memory is not (cpuset.mems: "
            f"{format_cpu_list(mems)}): theirs comes from afar"
        )
        yield Finding(
            "warning",
            "memory_node_shut",
            message,
            f"Add {format_cpu_list(shut)} to cpuset.mems (docker --cpuset-mems), or leave out their CPUs.",
        )
    elif len(filled) > 1 and len(mems.intersection(filled)) == 1:
        message = (
            f"memory may come from node {format_cpu_list(mems)} alone, of {len(filled)}: its bandwidth is all there is"
        )
        yield Finding(
            "info",
            "memory_of_one_node",
            message,
            "Widen cpuset.mems (docker --cpuset-mems) and the CPUs with it, if more should be used.",
        )


def _distances(host: Host) -> Iterable[Finding]:
    ids = [node.id for node in host.nodes]
    uneven = [(a, b) for a in ids for b in ids if a < b and host.distance(a, b) != host.distance(b, a)]
    if uneven:
        a, b = uneven[0]
        message = (
            f"{len(uneven)} node distances differ by direction, such as {a} to {b}: {host.distance(a, b)}, back: "
            f"{host.distance(b, a)}"
        )
        yield Finding(
            "info",
            "distances_asymmetric",
            message,
            "See the firmware's SLIT table and its settings; plans take the distance as seen from the CPU.",
        )


def _placeless(host: Host) -> Iterable[Finding]:
    if len(host.nodes) < 2:
        return
    placeless = [device for device in host.devices if device.node is None]
    # An accelerator whose PCI function is not known here may be near all nodes alike (Ascend A3): the plan says what
    # that means.
    own = {chip.address for chip in host.accelerators.chips if chip.node is None}
    chips = [device.address for device in placeless if device.address in own]
    if chips:
        message = (
            f"the firmware does not say which node is near {format_count(len(chips), 'accelerator')}: {_named(chips)}"
        )
        remedy = (
            "Name the nodes: --strategy numa-bind --numa-bind-nodes ...; or set numa_node in "
            "/sys/bus/pci/devices/ADDRESS as root."
        )
        yield Finding("warning", "accelerators_without_node", message, remedy)
    others = [device.address for device in placeless if _feeds(device)]
    if others:
        message = (
            "the firmware does not say which node is near "
            f"{format_count(len(others), 'network or NVMe function')}: {_named(others)}"
        )
        yield Finding(
            "info",
            "devices_without_node",
            message,
            "Update the firmware, or set numa_node in /sys/bus/pci/devices/ADDRESS as root.",
        )


def _feeds(device: PciDevice) -> bool:
    return device.kind >> 16 == _NETWORK or device.kind >> 8 == _NVME


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )


_CHECKS: tuple[Callable[[Host], Iterable[Finding]], ...] = (
    _mask,
    _partial_cores,
    _quota,
    _offline,
    _isolated,
    _unequal,
    _balancing,
    _huge_pages,
    _memory_limit,
    _node_memory,
    _allowed_memory,
    _distances,
    _placeless,
)
