"""The probe of `bench.machine.nodes` on the compiled core, with memory bound to the node that is to be read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from homenode.bench.machine.nodes import BenchTeam
from homenode.errors import HostError
from homenode.host.bind.memory.memory_from import bytes_by_node, memory_from, share_on, went_elsewhere

if TYPE_CHECKING:
    from homenode.compute.native import NativeBackend, NativeMeter


class NativeProbe:
    """isa: an instruction set level, None for the best. bind: whether memory has to be asked for by node; where there
    is one node it need not."""

    def __init__(self, isa: str | None, bind: bool) -> None:
        self._isa = isa
        self._bind = bind
        self._level = ""

    @property
    def level(self) -> str:
        """The level of the last meter made."""
        return self._level

    def meter(self, team: BenchTeam, memory: int, read_bytes: int) -> tuple[NativeMeter, float | None]:
        """See `Probe.meter`. The threads are started while the policy is set, so they have it from then on."""
        before = bytes_by_node()
        with memory_from(memory) if self._bind else nullcontext():
            backend = self._backend(team)
            meter = backend.meter(read_bytes)
        share = share_on(memory, before, bytes_by_node(), read_bytes)
        if self._bind and went_elsewhere(share):
            raise HostError(
                f"of {read_bytes >> 20} MiB asked of node {memory}, {share or 0:.0%} are there: the kernel put the "
                "rest elsewhere, "
                "and a figure would not be of this node. Free memory on it, or leave it out with a cpuset"
            )
        return meter, share

    def barrier_us(self, cpus: Sequence[int], groups: Sequence[Sequence[int]]) -> float:
        """Microseconds until the threads of these CPUs have met at a barrier, in these groups."""
        from homenode.compute.native.thread_latency import barrier_us

        return barrier_us(cpus, groups)

    def round_trip_ns(self, cpu: int, other: int) -> float:
        """Nanoseconds until a thread of `cpu` has the answer of one of `other`."""
        from homenode.compute.native.thread_latency import round_trip_ns

        return round_trip_ns(cpu, other)

    def _backend(self, team: BenchTeam) -> NativeBackend:
        from homenode.compute.native import NativeBackend

        backend = NativeBackend(team.cpus, level=self._isa, groups=team.groups)
        self._level = str(backend.statistics()["level"])
        return backend
