"""Ranks that sum and gather through shared memory, the native `RankGroup`, and what carries their values to those of
other hosts.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import numpy as np

from homenode import _native
from homenode.compute.native.refusals import host_errors, peer_errors
from homenode.compute.ops import FloatArray
from homenode.errors import UserError


class RankMemory:
    """The memory of a group of ranks, as its maker has it, who may be none of them."""

    def __init__(self, memory: _native.NativeRankMemory) -> None:
        self._memory = memory

    @property
    def fd(self) -> int:
        """The memfd, sealed against shrinking, to be given to every rank; open as long as this object."""
        return self._memory.fd

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self._memory.ranks

    @staticmethod
    def attach(fd: int) -> RankMemory:
        """Return the memory of another process; the descriptor is not kept. UserError when it is not what it should be,
        HostError when the machine refuses.
        """
        with host_errors():
            try:
                return RankMemory(_native.NativeRankMemory.attach(fd))
            except ValueError as error:
                raise UserError(f"the shared memory of a group of ranks: {error}") from error

    @property
    def handle(self) -> _native.NativeRankMemory:
        """The native core's own."""
        return self._memory

    def leave(self, gone: Sequence[int] = ()) -> None:
        """End every wait in the group, now and later. `gone`: the ranks that are known to be lost, whom the others'
        PeerError will name.
        """
        self._memory.end(list(gone))


# Threads that carry values of a rank from host to host, until they are closed or the group is over, which closing one
# brings about.
RankSender = _native.RankSender
RankReceiver = _native.RankReceiver


def send_rank(
    memory: RankMemory, rank: int, hosts: Sequence[tuple[socket.socket, Sequence[int]]], timeout_s: float
) -> RankSender:
    """Send what a rank of this host writes to other hosts: for each a connection, which is taken over, and the ranks
    there, ascending.

    The group is over when what was written is not gone within `timeout_s`, or a connection ends. UserError for ranks
    that there are not.
    """
    with host_errors():
        try:
            return _native.send_rank(
                memory.handle, rank, [(sock.detach(), list(ranks)) for sock, ranks in hosts], timeout_s
            )
        except ValueError as error:
            raise UserError(f"sending the values of a rank: {error}") from error


def receive_rank(memory: RankMemory, rank: int, sock: socket.socket, timeout_s: float) -> RankReceiver:
    """Be a rank of another host here: take its seat, and write there what `send_rank` sends. As `send_rank`; UserError
    as well for a seat that is taken.
    """
    with host_errors():
        try:
            return _native.receive_rank(memory.handle, rank, sock.detach(), timeout_s)
        except ValueError as error:
            raise UserError(f"receiving the values of a rank: {error}") from error


class NativeRankGroup:
    """`RankGroup` over a memfd: for the native backend's programs, whose threads all take part, and for arrays.

    Values that do not fit into half of a rank's memory cross in pieces. One call at a time: a program's step keeps the
    group to itself.
    """

    def __init__(self, group: _native.RankGroupHandle) -> None:
        self._group = group
        self.rank = group.rank
        self.size = group.size

    @staticmethod
    def make(size: int, bytes_per_rank: int = 4 << 20) -> RankMemory:
        """Memory for a group of `size` ranks, of which nothing is taken until the ranks join. UserError for impossible
        sizes, HostError when the machine refuses.
        """
        with host_errors():
            try:
                return RankMemory(_native.NativeRankMemory.create(size, bytes_per_rank))
            except ValueError as error:
                raise UserError(str(error)) from error

    @classmethod
    def attach(cls, fd: int, rank: int, timeout_s: float, spin_us: int = 0) -> NativeRankGroup:
        """Become `rank` of the group that the memfd is of; the descriptor is not kept.

        Call it on a CPU of the rank's own NUMA node, whose memory is then taken. Every call waits at most `timeout_s`,
        the first `spin_us` of it watching, which must be 0 where ranks share CPUs. UserError when the memory is not
        what it should be, or has such a rank already; HostError when the machine refuses.
        """
        return cls.join(RankMemory.attach(fd), rank, timeout_s, spin_us)

    @classmethod
    def join(cls, memory: RankMemory, rank: int, timeout_s: float, spin_us: int = 0) -> NativeRankGroup:
        """`attach` to memory that this process has already."""
        with host_errors():
            try:
                return cls(_native.join_ranks(memory.handle, rank, timeout_s, spin_us))
            except ValueError as error:
                raise UserError(f"the shared memory of a group of ranks: {error}") from error

    @property
    def handle(self) -> _native.RankGroupHandle:
        """The native core's own."""
        return self._group

    def sum(self, values: FloatArray) -> None:
        """See `RankGroup.sum`. ValueError for an array that is not C-contiguous float32."""
        if values.dtype != np.float32 or not values.flags.c_contiguous:
            raise ValueError(
                f"a sum over ranks takes C-contiguous float32 arrays; seen {values.dtype} with strides {values.strides}"
            )
        if values.size:
            with peer_errors():
                self._group.sum(values.reshape(1 if values.ndim < 2 else values.shape[0], -1))

    def gather(self, values: FloatArray, widths: Sequence[int]) -> FloatArray:
        """See `RankGroup.gather`. ValueError for widths that are not those of the ranks."""
        with peer_errors():
            return self._group.gather(np.ascontiguousarray(values, np.float32), list(widths))

    def time_sums(
        self, cpus: Sequence[int], spin_us: int, rows: int, columns: int, rounds: int
    ) -> tuple[list[float], list[float]]:
        """Seconds of each of `rounds` sums of [rows, columns] by a pool on these CPUs, and of as many copies; all ranks
        measure at once.
        """
        with host_errors(), peer_errors():
            return _native.time_sums(self._group, _native.ThreadPool(list(cpus), spin_us, True), rows, columns, rounds)

    def leave(self) -> None:
        """See `RankGroup.leave`."""
        self._group.leave()
