"""Rows on their way from one stage to the next through shared memory of one host."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from homenode import _native
from homenode.compute.native.refusals import host_errors, peer_errors
from homenode.compute.ops import FloatArray
from homenode.errors import UserError


class RingMemory:
    """The memory of a ring, as its maker has it, who may be neither of its ends: `slots` steps of at most max_tokens
    rows of `columns` float32.
    """

    def __init__(self, memory: _native.NativeRingMemory) -> None:
        self._memory = memory

    @classmethod
    def make(cls, max_tokens: int, columns: int, readers: int = 1, slots: int = 3) -> RingMemory:
        """A ring for one writer and `readers` readers, each of whom has every row: nothing is taken until the writer
        joins.

        A reader keeps one slot while it computes. UserError for impossible sizes, HostError when the machine refuses.
        """
        with host_errors():
            try:
                return cls(_native.NativeRingMemory.create(slots, readers, max_tokens, columns))
            except ValueError as error:
                raise UserError(str(error)) from error

    @property
    def fd(self) -> int:
        """The memfd, sealed against shrinking, to be given to both ends; open as long as this object."""
        return self._memory.fd

    def leave(self) -> None:
        """End every wait at both ends, now and later. What was written before can still be read."""
        self._memory.end()


def _attach(fd: int) -> _native.NativeRingMemory:
    try:
        return _native.NativeRingMemory.attach(fd)
    except ValueError as error:
        raise UserError(f"the shared memory of a ring: {error}") from error


class RingWriter:
    """The end that writes, one thread at a time."""

    def __init__(self, fd: int, spin_us: int = 0) -> None:
        """Open the end of the ring that a memfd is of; the descriptor is not kept. UserError when it is none, HostError
        when the machine refuses.
        """
        with host_errors():
            self._memory = _attach(fd)
            self._ring = _native.ring_writer(self._memory, spin_us)

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """All bytes of the ring, for whoever wants to pin them; valid as long as the array."""
        return self._memory.bytes

    def write(self, number: int, rows: FloatArray | _native.NativeOutput, timeout_s: float) -> None:
        """Hand on the rows of step `number`, an array [tokens, columns] or a program's result; numbers ascend.

        Waits while the readers have all slots, at most `timeout_s`. PeerError when they did not make room by then, or
        the ring is over; ValueError for rows that do not fit it.
        """
        with peer_errors():
            if isinstance(rows, _native.NativeOutput):
                self._ring.write_output(number, rows, timeout_s)
            else:
                self._ring.write(number, np.ascontiguousarray(rows, np.float32), timeout_s)

    def leave(self) -> None:
        """See `RingMemory.leave`. May be called from any thread, more than once."""
        self._ring.leave()


class RingReader:
    """One of the ends that read, one thread at a time."""

    def __init__(self, fd: int, reader: int = 0, spin_us: int = 0) -> None:
        """Reader number `reader` of the ring that a memfd is of; see `RingWriter`."""
        with host_errors():
            self._memory = _attach(fd)
            try:
                self._ring = _native.ring_reader(self._memory, reader, spin_us)
            except ValueError as error:
                raise UserError(str(error)) from error

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """See `RingWriter.memory`."""
        return self._memory.bytes

    def read(self, number: int, columns: int, timeout_s: float) -> FloatArray:
        """The rows of step `number` as they lie in their slot, [tokens, columns], not to be written to.

        They stay there until the next call, or `release`, whichever is first; after that the array holds other values.
        Waits at most `timeout_s`. PeerError when they did not come by then, when the ring is over, or when the next
        step in it is another; ValueError for other columns.
        """
        with peer_errors():
            return self._ring.read(number, columns, timeout_s)

    def release(self) -> None:
        """Let the writer have the slot of the last rows again, before the next are asked for."""
        self._ring.release()

    def leave(self) -> None:
        """See `RingMemory.leave`. May be called from any thread, more than once."""
        self._ring.leave()
