"""A server that treats commands as irqbalance does: what it reads, whom it obeys, what it answers, when it closes."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from homenode.host.bind.interrupts.irqbalance import Irqbalance

_BAN = b"settings ban irqs "


@dataclass
class FakeIrqbalance:
    """`buffer`: bytes of a command that it reads (500 before 1.9.5, then 16384). `reply`: what it says to `setup`
    instead of its settings; `mute`: it takes connections and says nothing. `obeys`: the user it takes commands of.
    """

    buffer: int = 500
    banned: list[int] = field(default_factory=list)
    reply: bytes | None = None
    mute: bool = False
    obeys: int = field(default_factory=os.geteuid)
    commands: list[bytes] = field(default_factory=list)
    daemon: Irqbalance = field(default_factory=lambda: Irqbalance(0, ()))

    def serve(self, listener: socket.socket, stop: threading.Event) -> None:
        kept = []  # connections of a mute daemon stay open
        while True:
            with contextlib.suppress(TimeoutError):
                line, _ = listener.accept()
                if stop.is_set():
                    return line.close()
                if self.mute:
                    kept.append(line)
                    continue
                with contextlib.closing(line), contextlib.suppress(ConnectionError):
                    self._handle(line)

    def _handle(self, line: socket.socket) -> None:
        line.settimeout(5)
        command, ancillary, _, _ = line.recvmsg(self.buffer, socket.CMSG_SPACE(12))
        users = [
            struct.unpack("iII", data)[1]
            for level, kind, data in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        ]
        if self.obeys not in users or (self.buffer > 500 and len(command) == self.buffer):
            return
        self.commands.append(command)
        if command.startswith(_BAN):
            self.banned = _strtoul_list(command[len(_BAN) :])
        elif command.startswith(b"setup"):
            line.sendall(self._settings() if self.reply is None else self.reply)

    def _settings(self) -> bytes:
        rows = "".join(f"IRQ {irq} LOAD 18446744073709551615 DIFF 3 CLASS 0 " for irq in self.banned)
        return f"SLEEP 10 {rows}BANNED 00000000,00000000".encode()


def _strtoul_list(text: bytes) -> list[int]:
    """Numbers up to the first thing that is none, or is 0 and not the first."""
    if text.startswith(b"NONE"):
        return []
    numbers = []
    for at, word in enumerate(text.split()):
        digits = re.match(rb"\d*", word)
        number = int(digits[0] or 0) if digits else 0
        if number == 0 and at:
            break
        numbers.append(number)
    return numbers


@contextlib.contextmanager
def fake_irqbalance(**behaviour: object) -> Iterator[FakeIrqbalance]:
    """One that listens on an abstract name, padded to the whole address as old versions do not, and others do."""
    fake = FakeIrqbalance(**behaviour)  # type: ignore[arg-type]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    address = f"\0irqbalance{os.getpid()}-{id(fake)}.sock".encode()
    listener.bind(address)
    listener.listen(1)
    fake.daemon = Irqbalance(os.getpid(), (f"/run/no-such-folder/irqbalance{os.getpid()}.sock", address))
    stop = threading.Event()
    server = threading.Thread(target=fake.serve, args=(listener, stop), daemon=True)
    server.start()
    try:
        yield fake
    finally:
        stop.set()
        listener.setblocking(True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.connect(address)
            server.join(5)
        listener.close()
