"""The ranks of a stage that may be on several hosts: those of one share memory, and what a rank writes is sent to the
other hosts.

Every rank tells the engine where the memory of its host is reached, and learns where that of all others is; then it
connects to each other host and has what it writes carried there by the native core. That is done meanwhile: whoever
sums before it is done waits, at most the group's time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence

from homenode.compute.native.ranks import NativeRankGroup, RankSender, send_rank
from homenode.engine.channels.host_ranks import HostRanksName, join_host_ranks
from homenode.engine.channels.topics import Seated, Values, call
from homenode.errors import HomenodeError, PeerError
from homenode.net.message_frames import FrameSocket, decode_body
from homenode.net.socket_set import SocketSet
from homenode.units import format_count

_log = logging.getLogger(__name__)
_GREETING_S = 10.0
_MOST_ADDRESSES = 1 << 20  # bytes


class TcpRanks:
    """A rank's end. `group`: what it sums with."""

    def __init__(self, engine: str, name: HostRanksName, rank: int, timeout_s: float, spin_us: int) -> None:
        """`engine`: where it listens. Call it on a CPU of the rank's node. Raises as `join_host_ranks` and
        `NativeRankGroup.join`.
        """
        self._engine, self._name, self._rank, self._timeout = engine, name, rank, timeout_s
        self._streams = SocketSet()
        self._host_ranks = join_host_ranks(name, rank, timeout_s)
        try:
            self.group = NativeRankGroup.join(self._host_ranks.memory, rank, timeout_s, spin_us)
        except BaseException:
            self._host_ranks.close()
            raise
        self._lock = threading.Lock()
        self._sender: RankSender | None = None
        threading.Thread(target=self._reach_others, name="homenode-ranks", daemon=True).start()

    def leave(self) -> None:
        """End all waiting in it, on all hosts."""
        self.group.leave()
        self._streams.leave()

    def close(self) -> None:
        """Give everything back but the group, which is over."""
        self.leave()
        with self._lock:
            sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
        self._host_ranks.close()

    def _reach_others(self) -> None:
        try:
            hosts = hosts_of(self._addresses(), self._host_ranks.address)
            with contextlib.ExitStack() as stack:
                reached = []
                for address, ranks in hosts:
                    sock = call(
                        address,
                        self._name.credentials,
                        Values(self._name.group, self._rank),
                        min(self._timeout, _GREETING_S),
                    )
                    reached.append((stack.enter_context(sock), ranks))
                with self._lock:
                    if reached and not self._streams.ended:
                        self._sender = send_rank(self._host_ranks.memory, self._rank, reached, self._timeout)
        except (HomenodeError, OSError) as error:
            if not self._streams.ended:
                _log.error(
                    "rank %d of stage %d has no connection to others: %s", self._rank, self._name.group.stage, error
                )
                self.group.leave()

    def _addresses(self) -> list[str]:
        """Return the addresses of all ranks. Not all of them may be there for long, as one of them loads."""
        seated = Seated(self._name.group, self._rank, self._name.ranks, self._host_ranks.address)
        while True:
            begin = time.monotonic()
            with self._streams.keep(call(self._engine, self._name.credentials, seated, _GREETING_S)) as sock:
                # The engine answers, or does not, within the first of these.
                sock.settimeout(self._timeout + _GREETING_S)
                body = FrameSocket(sock, limit=_MOST_ADDRESSES).receive()
            if body is not None:
                addresses: list[str] = decode_body(body, list[str])
                if len(addresses) == self._name.ranks:
                    return addresses
                raise PeerError(
                    f"the engine told {format_count(len(addresses), 'address', 'addresses')} of "
                    f"{format_count(self._name.ranks, 'rank')}"
                )
            if self._streams.ended or time.monotonic() - begin < self._timeout / 2:
                raise PeerError("the engine does not tell where the others are")


def hosts_of(addresses: Sequence[str], mine: str) -> list[tuple[str, list[int]]]:
    """The other hosts, each with its ranks. PeerError when this one is not among them."""
    found: dict[str, list[int]] = {}
    for rank, address in enumerate(addresses):
        found.setdefault(address, []).append(rank)
    if found.pop(mine, None) is None:
        raise PeerError("the engine does not know this host's address")
    return list(found.items())
