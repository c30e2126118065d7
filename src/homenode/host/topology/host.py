"""A host as plain values: what `homenode host` shows and every plan starts from. Made by `read.read_host`, from a live
or a recorded source.

Numbers are the kernel's own: CPU ids, node ids (they may be sparse), PCI addresses. Sets of CPUs are ascending tuples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from homenode.errors import PlacementError
from homenode.host.topology.accelerator_kinds import KINDS
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.finding import Finding


@dataclass(frozen=True, slots=True)
class Cpu:
    """One online logical CPU.

    `core`: the lowest online CPU of its physical core, a name for the core that is unique on the host. `cluster`, `l3`:
    likewise the lowest online CPU that shares the cluster (L2 group of Arm parts) or the last-level cache; None where
    the kernel does not say. `node`: its NUMA node, the lowest where emulated nodes overlap; None on a host without
    nodes. `capacity`: speed relative to the fastest core, 1024 = that. `highest_perf`: the highest performance that the
    firmware grants (ACPI CPPC, abstract units), None when not told. `low_power`: its core is made to save power, and
    nothing computes there unless asked. `priority`: its core may run faster than others of the same kind.
    """

    id: int
    core: int
    socket: int
    die: int
    cluster: int | None
    l3: int | None
    node: int | None
    capacity: int = 1024
    highest_perf: int | None = None
    low_power: bool = False
    priority: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One online NUMA node. `cpus` is empty for memory without processors; `memory` is 0 bytes for processors without
    memory.

    `distances`: from this node to every online node by id (ACPI SLIT: 10 is local). `huge_pages`: pages reserved, by
    size in bytes. `free`: bytes that could be taken there without swapping when it was read, None where that is not
    told (recordings leave it out); it never rests and so takes no part in comparisons.
    """

    id: int
    cpus: tuple[int, ...]
    memory: int | None
    distances: dict[int, int]
    huge_pages: dict[int, int] = field(default_factory=dict)
    free: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI function. `address` is `0000:c1:00.0`, lower case. `node` is None where the firmware does not say (-1).

    `local_cpus`: the CPUs near it; empty where that is not known, for which the kernel itself lists all CPUs.
    """

    address: str
    vendor: int
    device: int
    kind: int  # the 24-bit class code: base class, subclass, programming interface
    node: int | None
    local_cpus: tuple[int, ...]
    irqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """One numbered line of /proc/interrupts. `actions` are the names its handlers registered; the counters are not
    kept: they never rest."""

    irq: int
    chip: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator chip.

    `kind`: one of KINDS. `id`: the logical number, the one that the visible-devices variable of its kind
    means. `local_cpus`: as the vendor's tool or sysfs reports its affinity, in the order reported, not cut to the
    allowance; empty when unknown. `node`: the node whose CPUs are local to it (never a node without CPUs), None when
    unknown, as when the tool reports all CPUs of all nodes. `processes`: ids of processes running on it.
    `unreadable_affinity`: the line of the tool's topology that was to tell the affinity, where it is no CPU list.
    """

    kind: str
    id: int
    name: str
    address: str | None = None
    local_cpus: tuple[int, ...] = ()
    node: int | None = None
    memory_node: int | None = None  # the node its own memory appears as, where it does (GH200, POWER9 with NVLink)
    uuid: str = ""
    card: int | None = None  # NPU ID and Chip ID of Ascend's tools
    chip: int | None = None
    physical: int | None = None
    processes: tuple[int, ...] = ()
    mig_instances: tuple[str, ...] = ()  # UUIDs of NVIDIA's MIG instances on it; read only where a variable names some
    unreadable_affinity: str = ""


@dataclass(frozen=True)
class Accelerators:
    """The accelerators that the vendors' tools named. `errors`: what could not be understood, by code; who needs the
    fact raises it, who does not goes on.

    `device_type`: the Ascend family told from the chips' names: "A2", "A3", "310P", "950"; None when unknown or not
    Ascend. `hidden_by`: the variable that hides all accelerators of the host from this process, empty where none
    does.
    """

    chips: tuple[Accelerator, ...] = ()
    device_type: str | None = None
    errors: tuple[PlacementError, ...] = ()
    notes: tuple[Finding, ...] = ()
    hidden_by: str = ""

    def of_kind(self, kind: str) -> tuple[Accelerator, ...]:
        """Chips of one kind, ascending by id."""
        return tuple(sorted((chip for chip in self.chips if chip.kind == kind), key=lambda chip: chip.id))

    @property
    def kind(self) -> str | None:
        """The kind that plans are made for, the first of KINDS; None without accelerators."""
        return next((kind for kind in KINDS if any(chip.kind == kind for chip in self.chips)), None)

    @property
    def likely_kind(self) -> str | None:
        """The same; without accelerators that of the vendor whose tool cannot be understood, if there is one."""
        return self.kind or next(
            (kind.name for kind in KINDS.values() if kind.trouble and self._is_troubled(kind.trouble)), None
        )

    @property
    def has_own_strategies(self) -> bool:
        """Return whether the kind that plans are made for is bound as its vendor documents."""
        return self.kind is not None and KINDS[self.kind].has_own_strategies

    def _is_troubled(self, codes: str) -> bool:
        return any(error.code.startswith(codes) for error in self.errors)


@dataclass(frozen=True)
class Host:
    """One machine, as one process sees it."""

    machine: str
    kernel: str
    cpus: tuple[Cpu, ...]
    offline: tuple[int, ...]
    nodes: tuple[Node, ...]
    devices: tuple[PciDevice, ...]
    interrupts: tuple[Interrupt, ...]
    accelerators: Accelerators
    allowance: Allowance
    numa_balancing: bool | None
    transparent_huge_pages: str  # always | madvise | never | "" when unknown
    cpu_model: str = ""  # as /proc/cpuinfo names it, empty when unknown
    isolated: tuple[int, ...] = ()  # isolcpus: the scheduler puts nothing there by itself
    variables: dict[str, str] = field(default_factory=dict)
    notes: tuple[Finding, ...] = ()

    @cached_property
    def cpu_by_id(self) -> dict[int, Cpu]:
        """Online CPUs by number."""
        return {cpu.id: cpu for cpu in self.cpus}

    @cached_property
    def node_by_id(self) -> dict[int, Node]:
        """Online nodes by number."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def cores(self) -> dict[int, tuple[int, ...]]:
        """Online CPUs of every core, by the core's name."""
        found: dict[int, list[int]] = {}
        for cpu in self.cpus:
            found.setdefault(cpu.core, []).append(cpu.id)
        return {core: tuple(sorted(ids)) for core, ids in found.items()}

    @property
    def smt(self) -> bool:
        """Return whether any core has more than one online CPU."""
        return any(len(ids) > 1 for ids in self.cores.values())

    def distance(self, node: int, other: int) -> int:
        """Return the distance from node to node; 10 on the node itself and 255 where the firmware says nothing."""
        if node == other:
            return 10
        known = self.node_by_id.get(node)
        return known.distances.get(other, 255) if known else 255
