"""Channels between workers over socket pairs: slow, and enough for tests of whatever uses channels."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from homenode.compute.ops import FloatArray
from homenode.engine.channels.base import WorkerChannels
from homenode.engine.channels.messages import Channel, Join
from homenode.errors import PeerError


class SocketChannels:
    """The engine's side. `stage_of`: of each worker, ranks of a stage in a row."""

    def __init__(self, stage_of: Sequence[int]) -> None:
        self._ends: list[list[tuple[Channel, socket.socket]]] = [[] for _ in stage_of]
        for worker, stage in enumerate(stage_of):
            first = stage_of.index(stage)
            if worker != first:
                self._connect(first, "ranks", worker, "ranks")
            if stage:
                self._connect(stage_of.index(stage - 1), "outlet", worker, "inlet")

    def _connect(self, one: int, its_role: Any, other: int, other_role: Any) -> None:
        a, b = socket.socketpair()
        self._ends[one].append((Channel(its_role, "shm"), a))
        self._ends[other].append((Channel(other_role, "shm"), b))

    def of(self, worker: int) -> tuple[list[Channel], list[int]]:
        return [channel for channel, _ in self._ends[worker]], [end.fileno() for _, end in self._ends[worker]]

    def leave(self) -> None:
        for ends in self._ends:
            for _, end in ends:
                _shut(end)

    def close(self) -> None:
        for ends in self._ends:
            for _, end in ends:
                end.close()


def open_sockets(join: Join) -> Callable[[Sequence[Channel], Sequence[int]], WorkerChannels]:
    """The worker's side."""

    def opened(channels: Sequence[Channel], descriptors: Sequence[int]) -> WorkerChannels:
        ends: dict[str, list[socket.socket]] = {"ranks": [], "inlet": [], "outlet": []}
        for channel, descriptor in zip(channels, descriptors, strict=True):
            end = socket.socket(fileno=descriptor)
            end.settimeout(join.config.parallel.worker_timeout)
            ends[channel.role].append(end)
        everything = [end for some in ends.values() for end in some]
        return WorkerChannels(
            inlet=_Inlet(ends["inlet"][0]) if ends["inlet"] else None,
            outlet=_Outlet(ends["outlet"]) if ends["outlet"] else None,
            group=SocketGroup(join.part.rank, join.part.ranks, ends["ranks"]) if ends["ranks"] else None,
            leave=lambda: _each(_shut, everything),
            close=lambda: _each(socket.socket.close, everything),
        )

    return opened


class _Inlet:
    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def take(self, number: int, rows: int, columns: int) -> FloatArray:
        came = int(np.frombuffer(_exactly(self._end, 8), np.int64)[0])
        if came != number:
            raise PeerError(f"rows of step {came} came, and those of step {number} were expected")
        return _receive(self._end, rows)

    def free(self) -> None:
        pass


class _Outlet:
    def __init__(self, ends: Sequence[socket.socket]) -> None:
        self._ends = ends

    def put(self, number: int, rows: Any) -> None:
        for end in self._ends:
            _send(end, np.asarray(rows), np.int64(number).tobytes())


class SocketGroup:
    """`RankGroup`: everybody sends to rank 0, which adds and answers."""

    def __init__(self, rank: int, size: int, ends: Sequence[socket.socket]) -> None:
        self.rank, self.size, self._ends = rank, size, ends

    def sum(self, values: FloatArray) -> None:
        parts = self._exchange(values)
        values[...] = parts[0]
        for part in parts[1:]:
            values += part

    def gather(self, values: FloatArray, widths: Sequence[int]) -> FloatArray:
        return np.concatenate(self._exchange(values), axis=1)

    def leave(self) -> None:
        for end in self._ends:
            _shut(end)

    def _exchange(self, values: FloatArray) -> list[FloatArray]:
        if self.rank:
            _send(self._ends[0], values)
            return [_receive(self._ends[0], len(values)) for _ in range(self.size)]
        parts = [values.copy(), *(_receive(end, len(values)) for end in self._ends)]
        for end in self._ends:
            for part in parts:
                _send(end, part)
        return parts


def _send(end: socket.socket, rows: FloatArray, before: bytes = b"") -> None:
    try:
        end.sendall(
            before + np.array(rows.shape, np.int64).tobytes() + np.ascontiguousarray(rows, np.float32).tobytes()
        )
    except OSError as error:
        raise PeerError(f"rows could not be sent: {error}") from error


def _receive(end: socket.socket, rows: int) -> FloatArray:
    shape = np.frombuffer(_exactly(end, 16), np.int64)
    if shape[0] != rows:
        raise PeerError(f"{shape[0]} rows came, and {rows} were expected")
    return np.frombuffer(_exactly(end, int(shape[0] * shape[1]) * 4), np.float32).reshape(shape).copy()


def _exactly(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            piece = end.recv(size - len(data))
        except OSError as error:
            raise PeerError(f"rows did not come: {error}") from error
        if not piece:
            raise PeerError("rows did not come: the channel is over")
        data += piece
    return bytes(data)


def _each(act: Callable[[socket.socket], None], ends: Sequence[socket.socket]) -> None:
    for end in ends:
        act(end)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is over already
