"""A place for an engine: the CPUs of its threads and the nodes of its memory, as `placement` and
`plan.replica_bindings` decide them. Plain values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from homenode.host.topology.finding import Finding
from homenode.numa_policy import NumaPolicy


@dataclass(frozen=True)
class DriverRoles:
    """CPUs by role for the process that drives NPU `device`: where it runs, its driver's threads, its interrupts.

    `cpus`: all of them, in the plan's order. `address`: of the PCI function, None where only the board's query tells
    it, by `card` and `chip`. `lines`: the log lines that are documented for it. `kernel_threads`: CPUs of threads that
    the driver has in the kernel, by name.
    """

    device: int
    cpus: tuple[int, ...]
    roles: dict[str, tuple[int, ...]]
    address: str | None = None
    card: int | None = None
    chip: int | None = None
    lines: tuple[str, ...] = ()
    kernel_threads: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineBinding:
    """`team`: the CPU of each compute thread, UNPINNED for a thread that may run anywhere.

    `others`: CPUs of the engine's remaining threads, empty: wherever they are. `memory_nodes`: nodes its memory is
    bound to, empty: not bound. `spare`: CPUs of cores without a compute thread, where nothing was said about them;
    empty where there are none.

    `numa`: the policy that was settled for `--numa`, None where none was asked for; `numa_why`: in words.
    `thread_memory`: under a policy, the node that each compute thread takes its memory from, in the order of `team`;
    empty on a host without nodes. `mirror_tensors`: patterns of the matrices that are mirrored under shard. `strict`:
    pages that are not where they belong are a reason not to serve.

    `sets`: for each compute thread the CPUs that it may run on, its own among them, where it is not bound to that one
    alone; empty: each thread is bound to its CPU.

    `workers`: of one of several engines, the place of each of its workers where settings name them; else empty.
    `roles`: of a worker on an NPU, CPUs by role; None where there are none to tell apart.
    """

    team: tuple[int, ...]
    others: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()
    spare: tuple[int, ...] = ()
    numa: NumaPolicy | None = None
    numa_why: str = ""
    thread_memory: tuple[int, ...] = ()
    mirror_tensors: tuple[str, ...] = ()
    strict: bool = False
    sets: tuple[tuple[int, ...], ...] = ()
    workers: tuple[EngineBinding, ...] = ()
    roles: DriverRoles | None = None

    @property
    def free_of_compute(self) -> tuple[int, ...]:
        """Return where the loop, the scheduler and the front disturb no compute thread; empty where there is no such
        CPU, or none is known.
        """
        cpus = self.others or self.spare
        return cpus if set(cpus).isdisjoint(self.team) else ()

    @property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """The CPUs that each compute thread is bound to; none for one that may run anywhere."""
        return self.sets or tuple((cpu,) if cpu >= 0 else () for cpu in self.team)

    def told(self, findings: Iterable[Finding]) -> EngineBinding:
        """The same place with further findings."""
        return replace(self, findings=(*self.findings, *findings))


@dataclass(frozen=True)
class Replica:
    """One of several engines behind one front: `number` of `count`, in its own place.

    `allowed`: the CPUs the front was allowed when it began: it moves to a few of them, which an engine that is started
    again would inherit. `memory`: bytes it may take for weights, buffers and KV memory, its share of what was free
    before any of them was started.
    """

    number: int
    count: int
    binding: EngineBinding
    allowed: tuple[int, ...] = ()
    memory: int | None = None

    @property
    def node(self) -> int | None:
        """The one NUMA node its memory is bound to; None where there is none, or several."""
        return self.binding.memory_nodes[0] if len(self.binding.memory_nodes) == 1 else None

    @property
    def name(self) -> str:
        """Return what its process is called."""
        return f"homenode-worker-{self.number}"
