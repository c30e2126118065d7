"""The service manager of the system, told as sd_notify(3) has it: that the service is ready, reloads, ends, and lives.

The manager names a datagram socket in NOTIFY_SOCKET, a path or (`@...`) an abstract name, and where it watches the
service WATCHDOG_USEC: it has to be told at least so often, or the service is started anew. Without these variables
nobody is told anything. What cannot be told keeps nobody from serving.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from homenode.errors import PeerError

_LOG = logging.getLogger("homenode.server")
_SHARE = 3  # of the watchdog's time: so often it is fed
_LONGEST_S = 3600 * 24 * 365.0

Alive = Callable[[float], Awaitable[bool]]  # is given how many seconds the answer may take


class ServiceManager:
    """The manager of this process, if it has one. `watchdog_s`: seconds after which it thinks the service dead; 0: it
    does not watch.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = watchdog_s
        self._stopping = self._failed = False

    @classmethod
    def of_process(cls, variables: Mapping[str, str] | None = None) -> ServiceManager:
        """The one that the environment names. Other values than numbers, and watchdogs of other processes, count as
        none.
        """
        variables = os.environ if variables is None else variables
        address = variables.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        mine = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        micros = variables.get("WATCHDOG_USEC", "")
        watched = mine and micros.isascii() and micros.isdecimal()
        return cls(address, min(int(micros) / 1e6, _LONGEST_S) if watched else 0.0)

    def ready(self) -> None:
        """Requests are taken from now on, or again."""
        if not self._stopping:
            self._tell("READY=1")

    def reloading(self) -> None:
        """Settings are read again; `ready` follows."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The service ends, as soon as what runs is done."""
        if not self._stopping:
            self._stopping = True
            self._tell("STOPPING=1")

    @asynccontextmanager
    async def watched(self, alive: Alive) -> AsyncIterator[None]:
        """Within it the watchdog is fed as long as `alive` says so, which may raise PeerError or TimeoutError, too."""
        feeding = asyncio.ensure_future(self._feed(alive)) if self._address and self.watchdog_s else None
        try:
            yield
        finally:
            if feeding is not None:
                feeding.cancel()

    async def _feed(self, alive: Alive) -> None:
        silent = False  # and told so
        while True:
            try:
                if await alive(self.watchdog_s / 2):
                    silent = False
                    self._tell("WATCHDOG=1")
            except (PeerError, TimeoutError) as error:
                if not silent:
                    _LOG.warning("the watchdog of the system is not fed: %s", error or "the engine does not answer")
                silent = True
            except Exception:  # a fault of ours: the next look may do without it
                if not silent:
                    _LOG.exception("the watchdog of the system is not fed: whether the engines live cannot be told")
                silent = True
            await asyncio.sleep(self.watchdog_s / _SHARE)

    def _tell(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as way:
                way.setblocking(False)
                way.sendto(text.encode("utf-8", "surrogateescape"), os.fsencode(self._address))
        except OSError as error:
            if not self._failed:
                _LOG.warning("the service manager cannot be told %s: %s (NOTIFY_SOCKET)", text.split("\n")[0], error)
            self._failed = True


async def always_alive(timeout_s: float) -> bool:
    """Who gets to answer lives: there is no engine to be asked."""
    return True
