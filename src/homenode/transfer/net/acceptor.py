"""Connections as they come to be: made or taken, vetted, and greeted. For one thread."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence

from homenode.errors import HomenodeError, HostError, PeerError
from homenode.net.admission import HandshakeLimits
from homenode.net.poller import Poller
from homenode.transfer.carriers.carrier import Caller, Carrier, Listening, LocalBuffer, exported_fds
from homenode.transfer.net.connection import Connection, Listener, LostError, connect_error
from homenode.transfer.net.peer_watch import LaneListener
from homenode.transfer.wire.greeting import Greeting, GreetingError, Identity
from homenode.transfer.wire.message import Refused

_log = logging.getLogger(__name__)
_ACCEPTS = 16  # before others have their turn
_PAUSE_S = 0.5  # when there are no descriptors: who connects waits, and is not looked at in vain all the time


class PeerAcceptor:
    """`connections` has all of them by number; `begun` is called for each that is to be watched, `refused` with the
    code of what is not wanted."""

    def __init__(
        self,
        carrier: Carrier,
        identity: Identity,
        exported: Sequence[LocalBuffer],
        listener: Listener,
        poller: Poller,
        hearing: LaneListener,
        *,
        writable: bool,
        admission: HandshakeLimits,
        begun: Callable[[Connection], None],
        refused: Callable[[str], None],
    ) -> None:
        self.connections: dict[int, Connection] = {}
        self._carrier, self._identity, self._exported, self._writable = carrier, identity, exported, writable
        self._listener, self._poller, self._hearing, self._admission = listener, poller, hearing, admission
        self._begun, self._refused = begun, refused
        self._listening: list[Listening] = []
        self._goes_on: float | None = None  # nothing is accepted until then
        self._last = 0

    # They come

    def listen(self, listening: Sequence[Listening]) -> None:
        """Accept what comes to these sockets."""
        self._listening += listening
        self._watch(listening)

    def _watch(self, listening: Sequence[Listening]) -> None:
        for one in listening:
            self._poller.watch(one.sock.fileno(), lambda _events, now, sock=one.sock: self._accept(sock, now))  # type: ignore[misc]

    @property
    def due(self) -> float | None:
        """Return when `look_at_the_clock` has something to do."""
        return self._goes_on

    def look_at_the_clock(self, now: float) -> None:
        """Accept again, after a pause."""
        if self._goes_on is not None and self._goes_on <= now:
            self._goes_on = None
            self._watch(self._listening)

    def close(self) -> None:
        """Accept nothing more."""
        for listening in self._listening:
            self._poller.unwatch(listening.sock.fileno())
            listening.sock.close()
        self._listening.clear()
        self._goes_on = None

    def _accept(self, sock: socket.socket, now: float) -> None:
        for _ in range(_ACCEPTS):
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error, now)
                return
            accepted.setblocking(False)
            if not self._take_in(accepted, now):
                return

    def _take_in(self, sock: socket.socket, now: float) -> bool:
        """Tell whether there may be more of them."""
        try:
            connection = self._add(sock, "", now)
            self._vet(connection)
        except PeerError as error:
            self._refused(str(error.facts.get("code", "refused")))
            return True
        except HomenodeError as error:
            self._pause(error, now)
            return False
        self._begun(connection)
        return True

    def _pause(self, error: Exception, now: float) -> None:
        """No descriptors, or no memory: the backlog keeps the others waiting for a while."""
        self._refused("accept")
        _log.warning("no connection can be accepted: %s", error)
        for listening in self._listening:
            self._poller.unwatch(listening.sock.fileno())
        self._goes_on = now + _PAUSE_S

    # They are made

    def connect(self, address: str, now: float) -> None:
        """Connect as `links.Links.connect` does."""
        try:
            connection = self._add(self._carrier.connect(address), address, now)
        except HomenodeError as error:
            self._listener.on_not_connected(address, error.message)
            return
        self._begun(connection)

    def connected(self, connection: Connection) -> bool:
        """The attempt has come to an end, and the connection is open; False, and it is gone: it was made to somebody
        not wanted. LostError where there is nobody."""
        reason = connect_error(connection.sock)
        if reason:
            raise LostError(f"nobody takes connections at {connection.address}: {reason}")
        try:
            self._vet(connection)
        except HomenodeError as error:
            self._listener.on_not_connected(connection.address, error.message)
            return False
        if not connection.interest:  # it goes on with another socket
            self._begun(connection)
        return True

    # Both

    def _add(self, sock: socket.socket, address: str, now: float) -> Connection:
        """A connection in its first state. HostError, and `sock` is closed, when there are no descriptors for what goes
        with it."""
        fds: list[int] = []
        try:
            greeting = Greeting(self._identity, self._carrier.secret, connects=bool(address))
            if self._carrier.passes_memory:
                fds += exported_fds(self._exported, writable=self._writable)
            lane = self._hearing.create(greeting.own.lane)
            for fd in (lane.fd, lane.waker_fd) if lane is not None else ():
                fds.append(os.dup(fd))
        except BaseException as error:
            sock.close()
            for fd in fds:
                os.close(fd)
            if isinstance(error, OSError):
                raise HostError(f"a lane cannot be passed to another process: {error}") from error
            raise
        self._last += 1
        connection = Connection(sock, self._last, greeting, address=address, fds=fds, now=now)
        connection.lane_in = lane
        self.connections[connection.number] = connection
        return connection

    def _vet(self, connection: Connection) -> None:
        """Find out who it is, and have its stream protected; PeerError (and the connection is gone) for somebody not
        wanted, HostError when the machine refuses."""
        try:
            caller = self._carrier.vet(connection.sock)
            refusal = None if connection.address else self._admission.enter(caller.address)
            if refusal is not None:
                if caller.pidfd is not None:
                    os.close(caller.pidfd)
                raise PeerError(refusal, code="crowd")
            self._protect(connection, caller)
        except HomenodeError:
            del self.connections[connection.number]
            self._poller.unwatch(connection.fd)
            connection.close()
            raise
        connection.open(caller)

    def _protect(self, connection: Connection, caller: Caller) -> None:
        """Only those that were let in get a handshake: it costs a thread."""
        self._poller.unwatch(connection.fd)  # where protecting fails, the socket is closed
        try:
            sock = self._carrier.protect(connection.sock, connects=bool(connection.address))
        except HomenodeError:
            if not connection.address:
                self._admission.leave(caller.address, greeted=False)
            raise
        connection.adopt(sock)

    def greet(self, connection: Connection, body: bytes) -> bool:
        """A frame before the greeting is over; whether it is. GreetingError when it has failed."""
        greeted = connection.greet(body)
        if greeted is None:
            return False
        assert connection.caller is not None
        if not connection.address:
            self._admission.greet(connection.caller.address)
        try:
            connection.caller = self._carrier.meet(connection.caller, greeted[0].carrier)
            self._hearing.open(connection, *greeted)
            self._listener.on_greeted(connection, *greeted)
        except PeerError as error:
            connection.introduced = False
            code = str(error.facts.get("code", "buffer"))
            raise GreetingError(code, error.message, Refused(error.message[:4000], code[:64])) from error
        return True

    def end(self, connection: Connection) -> None:
        """Take note that it has ended: others may come instead."""
        del self.connections[connection.number]
        self._poller.unwatch(connection.fd)
        if connection.caller is not None and not connection.address:
            self._admission.leave(connection.caller.address, connection.greeted)
