"""Channels between workers on different hosts: each reader of a stage's rows has a TCP connection to their writer, and
ranks are as in `tcp_ranks`.

Who reads listens, and tells the engine where; who writes asks there. Both wait until they are needed, so nobody waits
while channels are opened. Rows come as a header (step number, rows, columns) and float32 values in the order of the
machine, which both ends state by the greeting's MAGIC only: hosts of another byte order are not served.
"""

from __future__ import annotations

import itertools
import logging
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from homenode.compute.ops import FloatArray
from homenode.engine.channels.base import OpenChannels, WorkerChannels
from homenode.engine.channels.host_ranks import HostRanksName
from homenode.engine.channels.messages import Channel, Join
from homenode.engine.channels.tcp_ranks import TcpRanks
from homenode.engine.channels.topics import Ask, Group, Key, Rows, RowsOffer, accept_call, call
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.errors import PeerError
from homenode.net.deadlines import read_into
from homenode.net.greeting import Credentials
from homenode.net.message_frames import FrameSocket, decode_body
from homenode.net.socket_set import SocketSet

_log = logging.getLogger(__name__)
_HEADER = struct.Struct("<QII")
_GREETING_S = 10.0


class TcpChannels:
    """`Channels` over TCP: what a worker is told is only which rows, and which group, are its own."""

    def __init__(self, workers: Sequence[WorkerPlan], generation: int, forget: Callable[[int], None]) -> None:
        """`workers`: stage after stage. `forget`: tells whoever knows addresses that those of earlier generations are
        no more.
        """
        self._of: dict[int, list[Channel]] = {worker.number: [] for worker in workers}
        stages = [[w for w in workers if w.stage == stage] for stage in range(workers[-1].stage + 1)]
        for before, after in itertools.pairwise(stages):
            for reader in after:
                words = f"{generation}.{reader.stage}.{reader.rank}"
                self._of[before[0].number].append(Channel("outlet", "tcp", words))
                self._of[reader.number].append(Channel("inlet", "tcp", words))
        for ranks in stages:
            for worker in ranks if len(ranks) > 1 else ():
                self._of[worker.number].append(Channel("ranks", "tcp", f"{generation}.{worker.stage}"))
        forget(generation)

    def of(self, worker: int) -> tuple[list[Channel], list[int]]:
        """See `Channels.of`."""
        return self._of[worker], []

    def leave(self) -> None:
        """See `Channels.leave`. Every worker is told by its own connection, and ends its own."""

    def close(self) -> None:
        """See `Channels.close`."""


def open_tcp(engine: str, ip: str, credentials: Credentials, host: str) -> Callable[[Join], OpenChannels]:
    """Opens a worker's ends. `engine`: where it listens. `ip`: this host's address, at which others reach it. `host`:
    what all workers here call it, and none elsewhere.
    """

    def open_for(join: Join) -> OpenChannels:
        part, timeout = join.part, join.config.parallel.worker_timeout
        most = join.config.scheduler.max_num_batched_tokens

        def opened(channels: Sequence[Channel], descriptors: Sequence[int]) -> WorkerChannels:
            links, outlets = WorkerChannels(), []
            leaves: list[Callable[[], None]] = []
            closes: list[Callable[[], None]] = []
            for channel in channels:
                words = [int(word) for word in channel.address.split(".")]
                if channel.role == "ranks":
                    name = HostRanksName(Group(*words), part.ranks, host, ip, credentials)
                    ranks = TcpRanks(engine, name, part.rank, timeout, join.config.compute.spin_us)
                    links.group = ranks.group
                    leaves.append(ranks.leave)
                    closes.append(ranks.close)
                elif channel.role == "inlet":
                    links.inlet = inlet = TcpInlet(engine, ip, credentials, Key(*words), timeout, most)
                    leaves.append(inlet.leave)
                else:
                    outlets.append(TcpOutlet(engine, credentials, Key(*words), timeout))
                    leaves.append(outlets[-1].leave)
            if outlets:
                links.outlet = _Everybody(outlets)
            links.leave, links.close = lambda: _call_all(leaves), lambda: _call_all([*leaves, *closes])
            return links

        return opened

    return open_for


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for each in calls:
        each()


class TcpInlet:
    """`Inlet` over TCP, into memory of its own."""

    def __init__(
        self, engine: str, host: str, credentials: Credentials, key: Key, timeout_s: float, max_rows: int
    ) -> None:
        self._engine, self._host, self._credentials, self._key = engine, host, credentials, key
        self._timeout, self._max_rows = timeout_s, max_rows
        self._streams = SocketSet()
        self._sock: socket.socket | None = None
        self._memory: FloatArray = np.zeros((0, 0), np.float32)

    def take(self, number: int, rows: int, columns: int) -> FloatArray:
        """See `Inlet.take`."""
        deadline = time.monotonic() + self._timeout
        sock = self._sock = self._sock or self._awaited(deadline)
        header = bytearray(_HEADER.size)
        read_into(sock, memoryview(header), deadline)
        came = _HEADER.unpack(header)
        if came != (number, rows, columns) or rows > self._max_rows:
            raise PeerError(
                f"rows of step {came[0]} came, {came[1]} x {came[2]}; awaited were those of step {number}, {rows} x "
                f"{columns}"
            )
        if self._memory.shape != (self._max_rows, columns):
            self._memory = np.empty((self._max_rows, columns), np.float32)
        values = self._memory[:rows]
        read_into(sock, memoryview(values.data).cast("B"), deadline)
        return values

    def free(self) -> None:
        """See `Inlet.free`."""

    def leave(self) -> None:
        """End all waiting in it."""
        self._streams.leave()

    def _awaited(self, deadline: float) -> socket.socket:
        """The connection of whoever writes. Strangers are sent away meanwhile."""
        try:
            with socket.create_server((self._host, 0)) as server:
                self._streams.keep(server)
                name = f"{self._host}:{server.getsockname()[1]}"
                with call(self._engine, self._credentials, RowsOffer(self._key, name), _GREETING_S):
                    pass
                while (left := deadline - time.monotonic()) > 0:
                    server.settimeout(left)
                    sock, _ = server.accept()
                    try:
                        stream, topic = accept_call(sock, self._credentials, min(left, _GREETING_S))
                    except PeerError as error:
                        _log.warning("a caller was sent away: %s", error.message)
                        continue
                    if topic == Rows(self._key):
                        return self._streams.keep(stream)
                    stream.close()
        except OSError as error:
            raise PeerError(f"nobody came with rows for stage {self._key.stage}: {error}") from error
        raise PeerError(f"nobody came with rows for stage {self._key.stage} in time")


class TcpOutlet:
    """`Outlet` over TCP, to one reader."""

    def __init__(self, engine: str, credentials: Credentials, key: Key, timeout_s: float) -> None:
        self._engine, self._credentials, self._key, self._timeout = engine, credentials, key, timeout_s
        self._streams = SocketSet()
        self._sock: socket.socket | None = None

    def put(self, number: int, rows: Any) -> None:
        """See `Outlet.put`."""
        values = np.ascontiguousarray(rows, np.float32)
        deadline = time.monotonic() + self._timeout
        sock = self._sock = self._sock or self._connected(deadline)
        try:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock.sendall(_HEADER.pack(number, *values.shape))
            sock.sendall(memoryview(values.data).cast("B"))
        except OSError as error:
            raise PeerError(
                f"the rows of step {number} could not be sent to stage {self._key.stage}: {error}"
            ) from error

    def leave(self) -> None:
        """End all waiting in it."""
        self._streams.leave()

    def _connected(self, deadline: float) -> socket.socket:
        left = max(0.001, deadline - time.monotonic())
        with self._streams.keep(call(self._engine, self._credentials, Ask(self._key), min(left, _GREETING_S))) as asked:
            asked.settimeout(left)
            body = FrameSocket(asked, limit=1024).receive()
        if body is None:
            raise PeerError(f"stage {self._key.stage} did not say in time where it awaits rows")
        left = max(0.001, deadline - time.monotonic())
        return self._streams.keep(
            call(decode_body(body, str), self._credentials, Rows(self._key), min(left, _GREETING_S))
        )


class _Everybody:
    """`Outlet` to several readers."""

    def __init__(self, outlets: Sequence[TcpOutlet]) -> None:
        self._outlets = outlets

    def put(self, number: int, rows: Any) -> None:
        """See `Outlet.put`."""
        for outlet in self._outlets:
            outlet.put(number, rows)
