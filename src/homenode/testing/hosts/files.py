"""The files that the kernel of a made-up host shows under /sys and /proc.

Formats: the kernel's Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-devices-node,
proc_pid_status(5), cgroup-v2.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from homenode.cpuset import format_cpu_list
from homenode.testing.hosts.devices import devices_of, gpus_of
from homenode.testing.hosts.shape import Shape, SyntheticCore

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_GROUP = "/sys/fs/cgroup/g1"
_KFD = "/sys/class/kfd/kfd/topology/nodes"
_SIMDS, _FIRST_GPU_ID = 1216, 40000  # an MI300X has 304 compute units of four SIMDs
_HERE, _SAME_SOCKET, _OTHER_SOCKET = 10, 12, 32
_OWN_MEMORY, _OTHER_MEMORY = 14, 40  # of nodes without CPUs
_ALL_CAPABILITIES = "000001ffffffffff"
_QUOTA_PERIOD_US = 100_000
_BIG_KHZ, _LITTLE_KHZ = 5_000_000, 3_500_000
_BIG_CAPACITY, _LITTLE_CAPACITY = 1024, 446


def kernel_files(shape: Shape) -> dict[str, str]:
    """All files, by path."""
    files: dict[str, str] = {}
    for part in (
        _machine_files(shape),
        _cpu_files(shape),
        _node_files(shape),
        _process_files(shape),
        _device_files(shape),
        _amd_files(shape),
    ):
        files.update(part)
    return files


def _machine_files(shape: Shape) -> Iterator[tuple[str, str]]:
    every = f"0-{shape.cpu_count - 1}" if shape.cpu_count > 1 else "0"
    yield "/proc/sys/kernel/osrelease", "6.12.0"
    yield "/proc/sys/kernel/numa_balancing", "1" if len(shape.node_ids) > 1 else "0"
    yield (
        "/proc/meminfo",
        f"MemTotal: {sum(memory for _, memory in _memories(shape)) // 1024 or shape.memory // 1024} kB",
    )
    yield "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"
    yield f"{_CPU}/online", format_cpu_list(shape.online)
    yield f"{_CPU}/offline", format_cpu_list(shape.offline)
    yield f"{_CPU}/possible", every
    yield f"{_CPU}/present", every
    yield f"{_CPU}/isolated", ""
    if shape.little and shape.machine == "x86_64":
        for name, little in (("cpu_core", False), ("cpu_atom", True)):
            cpus = [cpu for core in shape.layout if core.little == little for cpu in core.cpus if cpu in shape.online]
            if cpus:
                yield f"/sys/devices/{name}/cpus", format_cpu_list(cpus)


def _cpu_files(shape: Shape) -> Iterator[tuple[str, str]]:
    sockets = _lists(shape, lambda core: core.socket)
    caches = _lists(shape, lambda core: core.l3)
    clusters = _lists(shape, lambda core: core.cluster)
    for core in shape.layout:
        siblings = format_cpu_list(shape.online.intersection(core.cpus))
        common = [
            ("topology/core_cpus_list", siblings),
            ("topology/thread_siblings_list", siblings),
            ("topology/core_id", str(core.place)),
            ("topology/package_cpus_list", sockets[core.socket]),
            ("topology/physical_package_id", str(core.socket)),
            ("topology/die_cpus_list", sockets[core.socket]),
            ("topology/die_id", "0"),
            *([("topology/cluster_cpus_list", clusters[core.cluster])] if core.cluster is not None else []),
            *([("cache/index3/level", "3"), ("cache/index3/type", "Unified")] if core.l3 is not None else []),
            *([("cache/index3/shared_cpu_list", caches[core.l3])] if core.l3 is not None else []),
            *_speed(shape, core),
        ]
        for cpu in core.cpus:
            if cpu:
                yield f"{_CPU}/cpu{cpu}/online", "1" if cpu in shape.online else "0"
            if cpu in shape.online:
                yield from ((f"{_CPU}/cpu{cpu}/{name}", text) for name, text in common)


def _speed(shape: Shape, core: SyntheticCore) -> list[tuple[str, str]]:
    if shape.machine == "aarch64":
        return [("cpu_capacity", str(_LITTLE_CAPACITY if core.little else _BIG_CAPACITY))]
    return [("cpufreq/cpuinfo_max_freq", str(_LITTLE_KHZ if core.little else _BIG_KHZ))] if shape.little else []


def _lists(shape: Shape, key: Callable[[SyntheticCore], int | None]) -> Mapping[int | None, str]:
    """The online CPUs of the cores with equal keys, as a list text by key."""
    found: dict[int | None, list[int]] = {}
    for core in shape.layout:
        found.setdefault(key(core), []).extend(shape.online.intersection(core.cpus))
    return {name: format_cpu_list(cpus) for name, cpus in found.items()}


def _memories(shape: Shape) -> list[tuple[int, int]]:
    """Nodes and the bytes of memory they have."""
    bare = (
        shape.node_ids[shape.cpu_node_count - shape.memoryless : shape.cpu_node_count] if shape.cpu_node_count else ()
    )
    return [(node, 0 if node in bare else shape.memory) for node in (shape.node_ids if shape.cpu_node_count else ())]


def _node_files(shape: Shape) -> Iterator[tuple[str, str]]:
    if not shape.cpu_node_count:
        return
    cpus = _lists(shape, lambda core: core.node)
    memories = dict(_memories(shape))
    ids = sorted(shape.node_ids)
    yield f"{_NODE}/online", format_cpu_list(ids)
    yield f"{_NODE}/possible", format_cpu_list(ids)
    yield f"{_NODE}/has_cpu", format_cpu_list(node for node in ids if cpus.get(node))
    yield f"{_NODE}/has_memory", format_cpu_list(node for node in ids if memories[node])
    rows = _distances(shape)
    for node in ids:
        yield f"{_NODE}/node{node}/cpulist", cpus.get(node, "")
        yield f"{_NODE}/node{node}/meminfo", f"Node {node} MemTotal: {memories[node] // 1024} kB"
        yield f"{_NODE}/node{node}/distance", " ".join(map(str, rows[node]))
        yield f"{_NODE}/node{node}/hugepages/hugepages-2048kB/nr_hugepages", "0"


def _distances(shape: Shape) -> dict[int, list[int]]:
    """The rows of all nodes, each in ascending order of the nodes it is about. A memory-only node lies beside a node
    with CPUs, in turn."""
    with_cpus = shape.node_ids[: shape.cpu_node_count]
    socket = {node: place * shape.sockets // len(with_cpus) for place, node in enumerate(with_cpus)}
    beside = {node: with_cpus[place % len(with_cpus)] for place, node in enumerate(shape.node_ids[len(with_cpus) :])}
    owning_node = {node: beside.get(node, node) for node in shape.node_ids}

    def distance(node: int, other: int) -> int:
        if node == other:
            return _HERE
        if node in beside or other in beside:
            return _OWN_MEMORY if owning_node[node] == owning_node[other] else _OTHER_MEMORY
        return _SAME_SOCKET if socket[node] == socket[other] else _OTHER_SOCKET

    ids = sorted(shape.node_ids)
    return {here: [distance(here, there) for there in ids] for here in ids}


def _process_files(shape: Shape) -> Iterator[tuple[str, str]]:
    every: Iterable[int] = range(shape.cpu_count)
    mask = shape.allowed if shape.allowed is not None else shape.cpuset if shape.cpuset is not None else every
    mems = shape.mems if shape.mems is not None else shape.node_ids or (0,)
    lines = (
        f"Cpus_allowed_list: {format_cpu_list(mask)}",
        f"Mems_allowed_list: {format_cpu_list(mems)}",
        f"CapEff: {_ALL_CAPABILITIES}",
    )
    yield "/proc/self/status", "\n".join(lines)
    yield "/proc/self/cgroup", "0::/g1"
    cpuset = shape.cpuset if shape.cpuset is not None else every
    yield f"{_GROUP}/cpuset.cpus.effective", format_cpu_list(shape.online.intersection(cpuset))
    yield f"{_GROUP}/cpuset.mems.effective", format_cpu_list(mems)
    quota = "max" if shape.quota is None else str(round(shape.quota * _QUOTA_PERIOD_US))
    yield f"{_GROUP}/cpu.max", f"{quota} {_QUOTA_PERIOD_US}"
    yield f"{_GROUP}/memory.max", "max"


def _device_files(shape: Shape) -> Iterator[tuple[str, str]]:
    cpus = _lists(shape, lambda core: core.node)
    everywhere = format_cpu_list(shape.online)
    lines = ["CPU0"]
    for device in devices_of(shape):
        folder = f"/sys/bus/pci/devices/{device.address}"
        yield f"{folder}/vendor", f"0x{device.vendor:04x}"
        yield f"{folder}/device", f"0x{device.device:04x}"
        yield f"{folder}/class", f"0x{device.kind:06x}"
        yield f"{folder}/numa_node", str(-1 if device.node is None else device.node)
        yield f"{folder}/local_cpulist", everywhere if device.node is None else cpus[device.node]
        for irq, action in device.interrupts:
            yield f"{folder}/msi_irqs/{irq}", "msix"
            lines.append(f"{irq}: 0 PCI-MSIX-{device.address} {irq - device.interrupts[0][0]}-edge {action}")
    yield "/proc/interrupts", "\n".join(lines)


def _amd_files(shape: Shape) -> Iterator[tuple[str, str]]:
    """Yield what AMD's compute driver tells of its GPUs, after the nodes with CPUs, which are agents too
    (Documentation/ABI/testing/sysfs-class-kfd).
    """
    gpus = gpus_of(shape) if shape.gpus[1] == "amd" else ()
    if not gpus:
        return
    agents = max(1, shape.cpu_node_count)
    for agent in range(agents):
        yield f"{_KFD}/{agent}/properties", "cpu_cores_count 1\nsimd_count 0\nlocation_id 0\ndomain 0\nunique_id 0"
    for gpu in gpus:
        bus = int(gpu.address.split(":")[1], 16)
        facts = {
            "cpu_cores_count": 0,
            "simd_count": _SIMDS,
            "location_id": bus << 8,
            "domain": 0,
            "unique_id": gpu.place + 1,
        }
        yield f"{_KFD}/{agents + gpu.place}/properties", "\n".join(f"{name} {value}" for name, value in facts.items())
        yield f"{_KFD}/{agents + gpu.place}/gpu_id", str(_FIRST_GPU_ID + gpu.place)
        yield f"{_KFD}/{agents + gpu.place}/name", "gfx942"
