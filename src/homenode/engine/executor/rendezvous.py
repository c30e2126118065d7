"""The place where workers on other hosts find their engine, and each other: one listening socket of the engine.

A worker's own connection is passed on, byte by byte, to one end of a socket pair, whose other end the executor watches
like that of a child process: so starting a worker elsewhere takes the executor's thread no time. Only what is said of
steps comes this way; rows go between workers.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from homenode.engine.channels.topics import Ask, Group, IAm, Key, RowsOffer, Seated, accept_call
from homenode.errors import HomenodeError, HostError
from homenode.host.refusals import reason_of
from homenode.host.socket_pair import open_socket_pair
from homenode.net.accept import GREETING_S, CallServer
from homenode.net.greeting import Credentials
from homenode.net.keys import KeyFolder
from homenode.net.message_frames import FrameSocket
from homenode.net.settings import NetConfig, plain_text_problem

_log = logging.getLogger(__name__)
_CHUNK = 256 * 1024


class Rendezvous:
    """Listens on `host`, on a port of its own choice, until closed."""

    def __init__(self, host: str, patience_s: float, net: NetConfig | None = None) -> None:
        """`patience_s`: how long who asks for rows' address may have to wait. UserError where steps would leave this
        host in clear, HostError when the machine refuses.
        """
        self.credentials = _credentials(net or NetConfig(), host)
        self._timeout_s = patience_s
        try:
            self._server = socket.create_server((host, 0))
        except OSError as error:
            raise HostError(f"listening for workers on {host} failed: {reason_of(error)}", errno=error.errno) from error
        self.address = f"{host}:{self._server.getsockname()[1]}"
        self._changed = threading.Condition()
        self._awaited: dict[tuple[int, int], socket.socket] = {}  # the ends to pass on to, by worker and life
        self._addresses: dict[Key, str] = {}
        self._seats: dict[Group, dict[int, str]] = {}  # the addresses of ranks
        self._generation = 0
        self._closed = False
        CallServer(self._server, self._serve, lambda: self._closed, "homenode-rendezvous")

    def expect(self, worker: int, life: int) -> socket.socket:
        """The end at which this process of a worker will be heard, once it has called. An earlier one that never called
        is not awaited any more.
        """
        ours, theirs = open_socket_pair()
        with self._changed:
            for other in [key for key in self._awaited if key[0] == worker]:
                self._awaited.pop(other).close()
            self._awaited[worker, life] = theirs
        return ours

    def give_up(self, worker: int, life: int) -> None:
        """This process of a worker has ended: if it never called, its stream ends now."""
        with self._changed:
            end = self._awaited.pop((worker, life), None)
        if end is not None:
            end.close()

    def forget(self, generation: int) -> None:
        """Rows of earlier generations are awaited nowhere, and their ranks are gone."""
        with self._changed:
            self._generation = generation
            self._addresses = {key: address for key, address in self._addresses.items() if key.generation >= generation}
            self._seats = {group: seats for group, seats in self._seats.items() if group.generation >= generation}
            self._changed.notify_all()

    def close(self) -> None:
        """Listen no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for end in self._awaited.values():
                end.close()
            self._awaited.clear()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self, sock: socket.socket, greeted: Callable[[], None]) -> None:
        passed_on = None
        try:
            try:
                sock, topic = accept_call(sock, self.credentials, GREETING_S)
                if isinstance(topic, IAm):
                    passed_on = self._take_awaited(topic)
            finally:
                greeted()
            if passed_on is not None:
                _pass_on(sock, passed_on)
            elif isinstance(topic, RowsOffer):
                self._offered(topic)
            elif isinstance(topic, Ask):
                self._report(sock, topic.key)
            elif isinstance(topic, Seated):
                self._join_ranks(sock, topic)
        except HomenodeError as error:
            _log.warning("a caller was sent away: %s", error.message)
        finally:
            sock.close()

    def _take_awaited(self, caller: IAm) -> socket.socket | None:
        with self._changed:
            return self._awaited.pop((caller.worker, caller.life), None)

    def _offered(self, offer: RowsOffer) -> None:
        with self._changed:
            if offer.key.generation >= self._generation:
                self._addresses[offer.key] = offer.address
                self._changed.notify_all()

    def _join_ranks(self, sock: socket.socket, seated: Seated) -> None:
        deadline, group = time.monotonic() + self._timeout_s, seated.group
        with self._changed:
            if group.generation < self._generation:
                return
            seats = self._seats.setdefault(group, {})
            seats[seated.rank] = seated.address
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: len(seats) >= seated.ranks or group.generation < self._generation or self._closed,
                max(0.0, deadline - time.monotonic()),
            )
            addresses = [seats[rank] for rank in sorted(seats)] if len(seats) == seated.ranks else None
        if addresses is not None:
            FrameSocket(sock).send(addresses)

    def _report(self, sock: socket.socket, key: Key) -> None:
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            self._changed.wait_for(
                lambda: key in self._addresses or key.generation < self._generation or self._closed,
                max(0.0, deadline - time.monotonic()),
            )
            address = self._addresses.get(key)
        if address is not None:
            FrameSocket(sock).send(address)


def _credentials(net: NetConfig, host: str) -> Credentials:
    """A fresh secret, and what keeps the connections of workers safe."""
    problem = plain_text_problem(net, host, "what workers compute", "--executor ray: the address of this host")
    if problem is not None:
        raise problem
    keys = None if net.peer_keys is None else KeyFolder(Path(net.peer_keys))
    if keys is not None:
        keys.check()
    return Credentials(secrets.token_bytes(32), keys, net.peer_plain_text)


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    """Bytes of each to the other, until either ends."""
    back = threading.Thread(target=_pump, args=(other, one), name="homenode-to-worker", daemon=True)
    back.start()
    _pump(one, other)
    back.join()
    other.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
