"""Another host, as a network namespace of this one, and everything that goes there and back, read off the wire."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import socket
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S

_NEW_NET = 0x40000000  # CLONE_NEWNET of sched.h
_ALL = 0x0003  # ETH_P_ALL
_FORCE = 33  # SO_RCVBUFFORCE
_ROOM = 64 << 20
_QUIET_S, _LAST_S = 0.05, 2.0  # the last packets have come: none for so long, or so much later


class FarHost:
    """A namespace with an address, `there`; this one has `here`. `run` runs something in a thread that is there, whose
    sockets and children are there too."""

    def __init__(self) -> None:
        number = os.getpid() % 60000
        self.name, self.device = f"hn-{number}", f"hn{number}"
        self.here, self.there = f"10.213.{number >> 8}.1", f"10.213.{number >> 8}.2"
        for command in (
            f"ip netns add {self.name}",
            f"ip link add {self.device} type veth peer name far netns {self.name}",
            f"ip addr add {self.here}/24 dev {self.device}",
            f"ip link set {self.device} up",
            f"ip -n {self.name} addr add {self.there}/24 dev far",
            f"ip -n {self.name} link set far up",
            f"ip -n {self.name} link set lo up",
        ):
            subprocess.run(command.split(), check=True, capture_output=True, timeout=PATIENCE_S)
        self._pool = ThreadPoolExecutor(1, initializer=self._go_there)

    def _go_there(self) -> None:
        with Path(f"/run/netns/{self.name}").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NEW_NET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.submit(work, *arguments).result(PATIENCE_S)

    def close(self) -> None:
        self._pool.shutdown()
        for command in (f"ip netns del {self.name}", f"ip link del {self.device}"):
            subprocess.run(command.split(), capture_output=True, timeout=PATIENCE_S)


@contextlib.contextmanager
def far_host() -> Iterator[FarHost]:
    """Skips where there can be none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network namespace needs root and iproute2")
    try:
        host = FarHost()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        yield host
    finally:
        host.close()


class Capture:
    """The TCP streams that pass a device, while it is open; `streams` has each direction's bytes in order."""

    def __init__(self, device: str) -> None:
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
        self._sock.setsockopt(socket.SOL_SOCKET, _FORCE, _ROOM)
        self._sock.bind((device, 0))
        self._sock.setblocking(False)
        self._pieces: dict[bytes, dict[int, bytes]] = defaultdict(dict)
        self._stop, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        ends: float | None = None  # once it is to stop
        while ends is None or time.monotonic() < ends:
            ready, _, _ = select.select([self._sock, *([self._stop] if ends is None else [])], [], [], _QUIET_S)
            if self._stop in ready:
                ends = time.monotonic() + _LAST_S
            elif not ready and ends is not None:
                return
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._take(self._sock.recv(1 << 17))

    def _take(self, packet: bytes) -> None:
        if len(packet) < 54 or packet[12:14] != b"\x08\x00" or packet[23] != socket.IPPROTO_TCP:
            return
        tcp = 14 + (packet[14] & 15) * 4
        end = 14 + int.from_bytes(packet[16:18], "big") or len(packet)  # 0: larger than the field can say
        payload = packet[tcp + (packet[tcp + 12] >> 4) * 4 : max(end, len(packet) if end == 14 else 0)]
        if payload:
            key = packet[26:34] + packet[tcp : tcp + 4]
            self._pieces[key].setdefault(int.from_bytes(packet[tcp + 4 : tcp + 8], "big"), payload)

    def close(self) -> list[bytes]:
        """What went over, each stream in one piece."""
        os.write(self._wake, b"x")
        self._thread.join(PATIENCE_S)
        self._sock.close()
        for fd in (self._stop, self._wake):
            os.close(fd)
        return [_in_order(pieces) for pieces in self._pieces.values()]


def _in_order(pieces: dict[int, bytes]) -> bytes:
    found, at = bytearray(), None
    for begin in sorted(pieces):
        data = pieces[begin]
        if at is not None and begin < at:  # sent again
            data = data[at - begin :]
        found += data
        at = max(at or 0, begin + len(pieces[begin]))
    return bytes(found)
