"""Ask irqbalance to leave interrupts alone, over its own socket, instead of stopping it.

The daemon listens on a stream socket named after its process: a file below /run/irqbalance since version 1.6, an
abstract name before (and, where it cannot make the file, an abstract name of 107 NULs). A connection carries one
command in one message with the sender's credentials, of which user 0 is required; the daemon answers, if there is
anything to say, and closes. `setup` is answered by

    SLEEP 10 IRQ 43 LOAD 0 DIFF 0 CLASS 0 ... BANNED 00000000,00000000

with the interrupts that are banned by --banirq or by an earlier command, and `settings ban irqs 43 44` (or NONE)
replaces that list. Before version 1.9.5 only the first 500 bytes of a command are read and the rest is cut off in the
midst of a number; to find that out before it does harm, `setup` is sent with padding beyond that: the kernel tells the
sender of data that was never read (ECONNRESET). Versions 1.3 to 1.6 write beyond their buffer when they answer `setup`
while interrupts are banned: it is asked once for a change, no more, and that the daemon closes in good order is taken
as the proof that it has read a ban.

Source: irqbalance.c and ui/irqbalance-ui.c of irqbalance 1.2 to 1.9.5; irqbalance(1); unix(7).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from homenode.errors import HostError
from homenode.units import format_count

DEADLINE_S = (
    15.0  # while it takes new bans into account it sleeps for one interval, 10 s by default, before it answers again
)
SHORT_BUFFER, LONG_BUFFER = 500, 16384  # bytes of a command that are read, before and since version 1.9.5
_NAME = "irqbalance"
_RUN = Path("/run/irqbalance")
_NAMELESS = b"\0" * 108
_BAN, _SETUP = b"settings ban irqs ", b"setup"
_MOST_ANSWER = 1 << 20
_RETRY_S = 0.02
_FACTS_PER_IRQ = ("IRQ", "LOAD", "DIFF", "CLASS")
_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid


@dataclass(frozen=True, slots=True)
class Irqbalance:
    """A running daemon. `addresses`: where its socket may be, most likely first."""

    pid: int
    addresses: tuple[str | bytes, ...]


@dataclass(frozen=True, slots=True)
class Bans:
    """Interrupts that it leaves alone, and how long a command it reads whole (bytes)."""

    irqs: frozenset[int]
    command_bytes: int


def find_irqbalance(proc: Path = Path("/proc"), run: Path = _RUN) -> Irqbalance | None:
    """The daemon that can be seen from here; None when none runs."""
    for entry in proc.iterdir():
        if entry.name.isdecimal() and _comm(entry) == _NAME:
            name = f"{_NAME}{entry.name}.sock"
            return Irqbalance(int(entry.name), (str(run / name), b"\0" + name.encode(), _NAMELESS))
    return None


def read_bans(daemon: Irqbalance, deadline_s: float = DEADLINE_S) -> Bans:
    """Return what it leaves alone now.

    Raises HostError when it cannot be asked: no socket, not root, no answer in time, or an answer of no sense.
    """
    answer, whole = _talk(daemon, _SETUP.ljust(2 * SHORT_BUFFER), deadline_s)
    if not answer:
        raise HostError(
            f"irqbalance (process {daemon.pid}) closed the connection without an answer; it obeys user 0 only"
        )
    return Bans(parse_setup(answer.decode("ascii", "replace")), LONG_BUFFER if whole else SHORT_BUFFER)


def set_bans(daemon: Irqbalance, irqs: Collection[int], command_bytes: int, deadline_s: float = DEADLINE_S) -> None:
    """Make it leave exactly `irqs` alone: those banned before have to be among them. Raises HostError when it did not
    take the command."""
    command = _command(irqs)
    if len(command) >= command_bytes:
        raise HostError(
            f"this irqbalance reads commands of less than {command_bytes} bytes, banning "
            f"{format_count(len(irqs), 'interrupt')} takes {len(command)}"
        )
    _, whole = _talk(daemon, command, deadline_s)
    if not whole:
        raise HostError(f"irqbalance (process {daemon.pid}) did not read the whole command")


def parse_setup(text: str) -> frozenset[int]:
    """Banned interrupts in an answer to `setup`. Raises HostError when it is none, or not a whole one."""
    words = text.split()
    end = words.index("BANNED") if "BANNED" in words else -1
    facts = words[2:end]
    width = 2 * len(_FACTS_PER_IRQ)
    rows = [facts[at : at + width] for at in range(0, len(facts), width)]
    if end < 2 or words[0] != "SLEEP" or not all(_is_row(row) for row in rows):
        raise HostError(f"irqbalance answered {text[:80]!r} where its settings were asked for")
    return frozenset(int(row[1]) for row in rows)


def _is_row(row: list[str]) -> bool:
    return tuple(row[::2]) == _FACTS_PER_IRQ and row[1].isascii() and row[1].isdecimal() and len(row[1]) < 10


def _command(irqs: Iterable[int]) -> bytes:
    """Ascending: a 0 ends the list wherever it stands behind another number."""
    return _BAN + (" ".join(map(str, sorted(set(irqs)))) or "NONE").encode()


def _comm(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _talk(daemon: Irqbalance, command: bytes, deadline_s: float) -> tuple[bytes, bool]:
    """The answer until the daemon closes, and whether it has read the whole command."""
    end = time.monotonic() + deadline_s
    try:
        with _connect(daemon, end) as line:
            line.settimeout(max(_RETRY_S, end - time.monotonic()))
            own = _PEER.pack(os.getpid(), os.geteuid(), os.getegid())
            line.sendmsg([command], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, own)])
            return _answer(line, daemon, end)
    except TimeoutError:
        raise HostError(f"irqbalance (process {daemon.pid}) did not answer within {deadline_s:g} s") from None
    except OSError as error:
        raise HostError(f"irqbalance (process {daemon.pid}) cannot be talked to: {error.strerror or error}") from error


def _connect(daemon: Irqbalance, end: float) -> socket.socket:
    refusal: OSError = FileNotFoundError(errno.ENOENT, "it has no socket here")
    for address in daemon.addresses:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            _connect_to(line, address, end)
            _check_peer(line, daemon)
        except OSError as error:
            line.close()
            if isinstance(error, TimeoutError):
                raise
            refusal = error if error.errno not in (errno.ENOENT, errno.ECONNREFUSED) else refusal
        else:
            return line
    raise refusal


def _connect_to(line: socket.socket, address: str | bytes, end: float) -> None:
    """Its queue holds one connection: EAGAIN while that is taken, which no poll waits for."""
    line.setblocking(False)
    while True:
        try:
            return line.connect(address)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise TimeoutError from None
            time.sleep(_RETRY_S)


def _check_peer(line: socket.socket, daemon: Irqbalance) -> None:
    """Anybody may take an abstract name; commands go to the daemon alone."""
    pid, uid, _ = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if pid != daemon.pid or uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, f"its socket is held by process {pid} of user {uid}")


def _answer(line: socket.socket, daemon: Irqbalance, end: float) -> tuple[bytes, bool]:
    answer = b""
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        line.settimeout(left)
        try:
            part = line.recv(65536)
        except ConnectionResetError:
            return answer, False
        if not part:
            return answer, True
        answer += part
        if len(answer) > _MOST_ANSWER:
            raise HostError(f"irqbalance (process {daemon.pid}) answers without an end")
