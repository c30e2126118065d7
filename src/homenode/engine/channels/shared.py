"""Channels between workers of one host: shared memory, by the native core."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from homenode.compute.native.ranks import NativeRankGroup, RankMemory
from homenode.compute.native.ring import RingMemory, RingReader, RingWriter
from homenode.compute.ops import FloatArray
from homenode.engine.channels.base import OpenChannels, WorkerChannels
from homenode.engine.channels.messages import Channel, Join
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.errors import PeerError
from homenode.units import format_count

_SPARE_SLOTS = 2  # beside one for each stage: the one being read, and the one being written


class SharedChannels:
    """`Channels` in memfds: a group for the ranks of each stage that has several, a ring between each two stages."""

    def __init__(self, workers: Sequence[WorkerPlan], hidden: int, max_tokens: int) -> None:
        """`workers`: stage after stage. `hidden`: columns of the rows between stages, of which a step has at most
        `max_tokens`. HostError when the machine refuses.
        """
        self._of: dict[int, list[tuple[Channel, int]]] = {worker.number: [] for worker in workers}
        self._memories: list[RankMemory | RingMemory] = []
        stages = [[w for w in workers if w.stage == stage] for stage in range(workers[-1].stage + 1)]
        for ranks in stages:
            if len(ranks) > 1:
                self._share(NativeRankGroup.make(len(ranks)), [(worker, "ranks") for worker in ranks])
        for before, after in itertools.pairwise(stages):
            ring = RingMemory.make(max_tokens, hidden, readers=len(after), slots=len(stages) + _SPARE_SLOTS)
            self._share(ring, [(before[0], "outlet"), *((worker, "inlet") for worker in after)])

    def _share(self, memory: RankMemory | RingMemory, ends: Sequence[tuple[WorkerPlan, Any]]) -> None:
        self._memories.append(memory)
        for worker, role in ends:
            self._of[worker.number].append((Channel(role, "shm"), memory.fd))

    def of(self, worker: int) -> tuple[list[Channel], list[int]]:
        """See `Channels.of`."""
        return [channel for channel, _ in self._of[worker]], [fd for _, fd in self._of[worker]]

    def leave(self) -> None:
        """See `Channels.leave`."""
        for memory in self._memories:
            memory.leave()

    def close(self) -> None:
        """See `Channels.close`. The memory goes with its last user."""
        self._memories.clear()
        self._of.clear()


def open_shared(join: Join) -> OpenChannels:
    """Opens a worker's ends of `SharedChannels`; to be called on a CPU of its node."""
    part, timeout = join.part, join.config.parallel.worker_timeout
    spin_us = join.config.compute.spin_us

    def opened(channels: Sequence[Channel], descriptors: Sequence[int]) -> WorkerChannels:
        links, ends = WorkerChannels(), []
        with contextlib.ExitStack() as stack:
            for descriptor in descriptors:
                stack.callback(os.close, descriptor)
            for channel, fd in zip(channels, descriptors, strict=True):
                if channel.role == "ranks":
                    links.group = NativeRankGroup.attach(fd, part.rank, timeout, spin_us)
                    ends.append(links.group.leave)
                elif channel.role == "inlet":
                    reader = RingReader(fd, part.rank, spin_us)
                    links.inlet = RingInlet(reader, timeout)
                    ends.append(reader.leave)
                else:
                    writer = RingWriter(fd, spin_us)
                    links.outlet = RingOutlet(writer, timeout)
                    ends.append(writer.leave)
        links.leave = _all(ends)
        return links

    return opened


class RingInlet:
    """`Inlet` that is read where it lies."""

    def __init__(self, ring: RingReader, timeout_s: float) -> None:
        self._ring, self._timeout = ring, timeout_s

    def take(self, number: int, rows: int, columns: int) -> FloatArray:
        """See `Inlet.take`."""
        came = self._ring.read(number, columns, self._timeout)
        if len(came) != rows:
            raise PeerError(f"step {number} has {format_count(rows, 'row')}, and the stage before sent {len(came)}")
        return came

    def free(self) -> None:
        """See `Inlet.free`."""
        self._ring.release()


class RingOutlet:
    """`Outlet` that writes once for all its readers."""

    def __init__(self, ring: RingWriter, timeout_s: float) -> None:
        self._ring, self._timeout = ring, timeout_s

    def put(self, number: int, rows: Any) -> None:
        """See `Outlet.put`."""
        self._ring.write(number, rows, self._timeout)


def _all(calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
    def call_all() -> None:
        for call in calls:
            call()

    return call_all
