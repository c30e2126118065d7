"""A TCP relay that changes a byte of what it passes on, or ends in the middle of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

# What has come, how much went before -> what goes on; None: nothing does, ever again.
Change = Callable[[bytes, int], bytes | None]


def as_it_is(data: bytes, before: int) -> bytes | None:
    return data


def flipped(at: int) -> Change:
    """A bit of byte `at`."""

    def change(data: bytes, before: int) -> bytes:
        if not before <= at < before + len(data):
            return data
        changed = bytearray(data)
        changed[at - before] ^= 4
        return bytes(changed)

    return change


def cut(at: int) -> Change:
    """The stream ends before byte `at`."""
    return lambda data, before: data if before + len(data) <= at else data[: at - before] or None


class Relay:
    """One connection after another to `address`; `passed` counts the bytes that went there."""

    def __init__(self, address: str, change: Change) -> None:
        self.passed = 0
        _, host, port = address.split(":")
        self._target, self._change = (host, int(port)), change
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                there = socket.create_connection(self._target)
                self._sockets += [here, there]
                for source, target, change in ((here, there, self._change), (there, here, as_it_is)):
                    threading.Thread(target=self._pump, args=(source, target, change), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, change: Change) -> None:
        before = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                passed = change(data, before)
                before += len(data)
                if passed is None:
                    break
                target.sendall(passed)
                if change is self._change:
                    self.passed += len(passed)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in [self._listening, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextlib.contextmanager
def relaying(address: str, change: Change = as_it_is) -> Iterator[Relay]:
    relay = Relay(address, change)
    try:
        yield relay
    finally:
        relay.close()
