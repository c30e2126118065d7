"""All connections of an agent: coming, going, greeting, and how they end. Tells its `Listener` (the agent) what happened; for one thread."""

from __future__ import annotations

import logging
import os
import select
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from homenode.errors import HomenodeError, InternalError, PeerError
from homenode.transfer.buffers import exported_fds
from homenode.transfer.carriers.carrier import Carrier, Listening, LocalBuffer
from homenode.transfer.connection import Connection, LostError, connect_error
from homenode.transfer.framing import FrameError
from homenode.transfer.greeting import Admission, Greeting, GreetingError, Identity
from homenode.transfer.lane import FDS_PER_LANE, Announced, Lanes
from homenode.transfer.message import Envelope, Gone, Greeted, Hello, Message, Refused, decode, encode
from homenode.transfer.payload import Incoming

_log = logging.getLogger(__name__)
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_DEATH_S = 0.05  # between a connection's end and its process's, when the process is dying
_MOST_REMAINS = 4096
_ACCEPTS = 16  # before others have their turn
_MOST_BEFORE = 8192  # records of a lane before a frame: more than it holds
_MOST_AFTER = 32  # before others have their turn
_OF_LINKS = (Hello, Greeted, Refused, Gone)  # the machine does not hear of these


@dataclass(frozen=True)
class LinkLimits:
    """Bounds of time, in seconds."""

    greeting_s: float = 5.0
    stall_s: float = 30.0


class Listener(Protocol):
    """Who hears of what happens to connections."""

    def on_greeted(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        """Both Hellos were good; takes `fds` over. PeerError: the other side is refused after all."""

    def on_message(self, connection: Connection, message: Message) -> None:
        """A frame for this process."""

    def on_announced(self, connection: Connection, said: Announced) -> None:
        """The same, of a `Ready` that came over a lane."""

    def on_payload(self, connection: Connection, incoming: Incoming) -> None:
        """A payload has come completely."""

    def on_sent(self, token: int, ok: bool) -> None:
        """A payload is through, or never will be."""

    def on_not_connected(self, address: str, reason: str) -> None:
        """`connect` came to nothing."""

    def on_lost(self, connection: Connection, reason: str, incoming: int | None) -> None:
        """A greeted connection has ended, perhaps inside the payload with token `incoming`."""

    def on_gone(self, number: int, reason: str, dead: bool) -> None:
        """As `machine.PeerLost`."""


@dataclass
class _Remains:
    """A greeted connection that has ended, of a process that may live on. `until`: when it is told as lost without proof of death."""

    number: int
    pidfd: int
    reason: str
    until: float


class Links:
    """See the module."""

    def __init__(
        self,
        carrier: Carrier,
        identity: Identity,
        exported: Sequence[LocalBuffer],
        listener: Listener,
        *,
        writable: bool,
        limits: LinkLimits,
        admission: Admission,
        lanes: Lanes | None = None,
    ) -> None:
        """`lanes`: where connections can have them; `identity` says whether those that come are given one."""
        self.refused: Counter[str] = Counter()  # by code
        self.frames_in = self.frames_out = self.bytes_in = self.bytes_out = 0
        self._carrier, self._identity, self._exported, self._writable = carrier, identity, exported, writable
        self._listener, self._limits, self._admission = listener, limits, admission
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int, float], None]] = {}
        self._connections: dict[int, Connection] = {}
        self._remains: dict[int, _Remains] = {}
        self._untold: deque[_Remains] = deque()  # those of them not told as lost yet, by `until`
        self._listening: list[Listening] = []
        self._dirty: dict[int, Connection] = {}
        self._lanes = lanes
        self._beside: select.epoll | None = None
        self._heard: dict[int, Connection] = {}  # those with a lane to look at
        self._last = 0

    # The loop's side

    def watch(self, fd: int, handler: Callable[[int, float], None]) -> None:
        """Have `handler(events, now)` called when there is something to read."""
        self._handlers[fd] = handler
        self._epoll.register(fd, _IN)

    def listen(self, listening: Sequence[Listening]) -> None:
        """Accept what comes to these sockets."""
        for one in listening:
            self._listening.append(one)
            self.watch(one.sock.fileno(), lambda _events, now, sock=one.sock: self._accept(sock, now))  # type: ignore[misc]

    def fileno(self) -> int:
        """A descriptor that can be read from when `poll` has something."""
        return self._epoll.fileno()

    def wait_beside(self, epoll: select.epoll) -> None:
        """Who sleeps there is woken by lanes too, without a detour."""
        self._beside = epoll
        for connection in self._heard.values():
            assert connection.lane_in is not None
            epoll.register(connection.lane_in.bell, _IN)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """Wait; descriptors and events."""
        return self._epoll.poll(timeout)

    def handle(self, fd: int, events: int, now: float) -> None:
        """What `poll` told of one descriptor."""
        handler = self._handlers.get(fd)
        if handler is not None:  # else it was closed a moment ago
            handler(events, now)

    @property
    def due(self) -> float | None:
        """When `look_at_the_clock` has something to tell, apart from limits."""
        return self._untold[0].until if self._untold else None

    @property
    def greeted(self) -> int:
        """Connections that have greeted."""
        return sum(connection.greeted for connection in self._connections.values())

    @property
    def unsettled(self) -> bool:
        """Whether `enforce_limits` may have something to end."""
        return any(connection.unsettled for connection in self._connections.values())

    @property
    def sending(self) -> bool:
        """Whether something is not written yet."""
        return any(connection.sending for connection in self._connections.values())

    def look_at_the_clock(self, now: float) -> None:
        """Those whose process did not turn out to be dead are told as lost."""
        while self._untold and self._untold[0].until <= now:
            remains = self._untold.popleft()
            if remains.number in self._remains:
                self._listener.on_gone(remains.number, remains.reason, False)

    def enforce_limits(self, now: float) -> None:
        """End what is overdue. To be called about once a second."""
        for connection in list(self._connections.values()):
            reason = connection.overdue(now, self._limits.greeting_s, self._limits.stall_s)
            if reason:
                self.refused["overdue"] += 1
                self._end(connection, reason, now)

    # The agent's side

    def connect(self, address: str, now: float) -> None:
        """Begin to connect; `on_greeted` or `on_not_connected` follows, perhaps at once."""
        try:
            sock = self._carrier.connect(address)
            connection = self._add(sock, address, now)
        except HomenodeError as error:
            self._listener.on_not_connected(address, error.message)
            return
        self._want(connection, _IN | _OUT)

    def find(self, number: int) -> Connection | None:
        """A greeted connection by its number."""
        connection = self._connections.get(number)
        return connection if connection is not None and connection.greeted and not connection.ending else None

    def send(self, connection: Connection, message: Message, now: float) -> None:
        """Queue a frame; it goes out with `flush`."""
        self._queue(connection, message, None, now)

    def send_payload(self, connection: Connection, message: Message, views: Iterable[memoryview], token: int, now: float) -> None:
        """Queue a frame and blocks; `on_sent` follows."""
        self._queue(connection, message, (views, token), now)

    def _queue(self, connection: Connection, message: Message, payload: tuple[Iterable[memoryview], int] | None, now: float) -> None:
        body = encode(Envelope(connection.peer_incarnation, message))
        self.frames_out += 1
        try:
            if payload is None:
                connection.send(body)
            else:
                connection.send_payload(body, *payload)
            self._dirty[connection.number] = connection
        except FrameError as error:
            self._count(error.code)
            if payload is not None:
                self._listener.on_sent(payload[1], False)
            self._end(connection, error.message, now)

    def drop(self, connection: Connection, reason: str, now: float) -> None:
        """End a connection for what came over it, and tell."""
        self._count("internal")
        self._end(connection, reason, now)

    def flush(self, now: float) -> None:
        """Write what was queued."""
        while self._dirty:
            _, connection = self._dirty.popitem()
            if connection.number in self._connections:
                self._flush(connection, now)

    def close(self, number: int, reason: str, now: float) -> None:
        """End a connection and forget it; nothing more is told of it but what it still owes (`on_sent`, the payload's token)."""
        remains = self._remains.pop(number, None)
        if remains is not None:
            self._unwatch(remains.pidfd)
            os.close(remains.pidfd)
        connection = self._connections.get(number)
        if connection is not None:
            connection.forgotten = True
            self._flush(connection, now)  # what was said before this
            if number in self._connections:
                self._end(connection, reason, now)

    def close_all(self) -> None:
        """End everything; nobody is told."""
        for listening in self._listening:
            self._unwatch(listening.sock.fileno())
            listening.sock.close()
        self._listening.clear()
        for connection in list(self._connections.values()):
            connection.forgotten = True
            self._end(connection, "the agent ends", 0.0)
        for number in list(self._remains):
            self.close(number, "", 0.0)

    def release(self) -> None:
        """Give the epoll descriptor back."""
        self._epoll.close()

    # Coming

    def _accept(self, sock: socket.socket, now: float) -> None:
        for _ in range(_ACCEPTS):
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more descriptors: the backlog keeps the others waiting
                self.refused["accept"] += 1
                _log.warning("no connection can be accepted: %s", error.strerror)
                return
            accepted.setblocking(False)
            self._take_in(accepted, now)

    def _take_in(self, sock: socket.socket, now: float) -> None:
        try:
            connection = self._add(sock, "", now)
            self._vet(connection)
        except PeerError as error:
            self._count(str(error.facts.get("code", "refused")))
            return
        self._want(connection, _IN)

    def _add(self, sock: socket.socket, address: str, now: float) -> Connection:
        """A connection in its first state."""
        try:
            greeting = Greeting(self._identity, self._carrier.secret, connects=bool(address))
            fds = exported_fds(self._exported, writable=self._writable) if self._carrier.passes_memory else []
            lane = self._lanes.create() if self._lanes is not None and greeting.own.lane else None
            if lane is not None:
                fds += [os.dup(lane.fd), os.dup(lane.rope)]
        except BaseException:
            sock.close()
            raise
        self._last += 1
        connection = Connection(sock, self._last, greeting, address=address, fds=fds, now=now)
        connection.lane_in = lane
        self._connections[connection.number] = connection
        return connection

    def _vet(self, connection: Connection) -> None:
        """Who it is; PeerError (and the connection is gone) for somebody not wanted."""
        try:
            caller = self._carrier.vet(connection.sock)
            refusal = None if connection.address else self._admission.enter(caller.address)
            if refusal is not None:
                _close(caller.pidfd)
                raise PeerError(refusal, code="crowd")
        except PeerError:
            del self._connections[connection.number]
            self._unwatch(connection.fd)
            connection.close()
            raise
        connection.open(caller)

    def _want(self, connection: Connection, events: int) -> None:
        """Have epoll tell of these."""
        if connection.interest == events:
            return
        if connection.interest:
            self._epoll.modify(connection.fd, events)
        else:
            self._handlers[connection.fd] = lambda got, now: self._on_events(connection, got, now)
            self._epoll.register(connection.fd, events)
        connection.interest = events

    # Working

    def _on_events(self, connection: Connection, events: int, now: float) -> None:
        if connection.connecting:
            self._finish_connecting(connection, now)
            return
        try:
            if events & _OUT:
                self._flush(connection, now)
            if events & ~_OUT and connection.number in self._connections and not connection.ending and connection.receive(now):
                self._drain(connection, now)
        except (LostError, FrameError, GreetingError) as error:
            self._failed(connection, error, now)
        except InternalError:
            raise
        except Exception:
            _log.exception("an internal error over a peer's data; the peer is dropped")
            if connection.number in self._connections:
                self.drop(connection, "an internal error over this peer's data", now)

    def _finish_connecting(self, connection: Connection, now: float) -> None:
        reason = connect_error(connection.sock)
        try:
            if reason:
                raise LostError(f"nobody takes connections at {connection.address}: {reason}")
            self._vet(connection)
        except PeerError as error:
            if connection.number in self._connections:
                self._end(connection, error.message, now)
            else:
                self._listener.on_not_connected(connection.address, error.message)
            return
        self._flush(connection, now)

    def _drain(self, connection: Connection, now: float) -> None:
        """Everything that has come completely."""
        number = connection.number
        while number in self._connections and not connection.ending:
            came = connection.next(now)
            if connection.lane_in is not None and connection.greeted:
                self._hear(connection, _MOST_BEFORE)  # it was said before what follows
                if number not in self._connections:
                    return
            if came is None:
                return
            if isinstance(came, Incoming):
                self._listener.on_payload(connection, came)
            elif connection.greeted:
                self._take(connection, came, now)
            else:
                self._greet(connection, came, now)

    def hear(self, now: float) -> None:
        """What has come over a lane, one thing; for who was woken and is in a hurry."""
        for connection in self._heard.values():
            try:
                said = self._announced(connection)
            except FrameError as error:
                self._failed(connection, error, now)
                return
            if said is not None:
                self.frames_in += 1
                self._listener.on_announced(connection, said)
                return

    def _rung(self, connection: Connection, now: float) -> None:
        assert connection.lane_in is not None
        connection.lane_in.hear_bell()
        try:
            if self._hear(connection, _MOST_AFTER) and connection.number in self._connections:
                connection.lane_in.ring()  # there may be more, when others had their turn
        except FrameError as error:
            self._failed(connection, error, now)

    def _hear(self, connection: Connection, most: int) -> bool:
        """Take so many; whether there may be more."""
        for _ in range(most):
            if connection.number not in self._connections or (said := self._announced(connection)) is None:
                return False
            self.frames_in += 1
            self._listener.on_announced(connection, said)
        return True

    def _announced(self, connection: Connection) -> Announced | None:
        try:
            return connection.announced()
        except PeerError as error:
            raise FrameError("garbage", error.message) from error

    def watch_lanes(self, epoll: int, seconds: float) -> bool | None:
        """Look at lanes, and at a descriptor of epoll, for so long: whether there is something. None: there is no lane to look at."""
        lanes = [one.lane_in for one in self._heard.values() if one.lane_in is not None and one.early is None]
        return self._lanes.watch(lanes, epoll, seconds) if lanes and self._lanes is not None else None

    def _take(self, connection: Connection, body: bytes, now: float) -> None:
        self.frames_in += 1
        connection.taken += 1
        try:
            envelope = decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError("garbage", f"a frame is no message: {error}") from error
        message = envelope.message
        if envelope.to == self._identity.incarnation and type(message) not in _OF_LINKS:
            self._listener.on_message(connection, message)
        elif envelope.to != self._identity.incarnation:
            self._count("stale")
            connection.send(encode(Envelope(connection.peer_incarnation, Gone(self._identity.incarnation))))
            connection.ending = "a frame came for a process that is no more"
            self._flush(connection, now)
        elif isinstance(message, Gone):
            raise LostError("the other side has been restarted")
        elif isinstance(message, Refused):
            raise LostError(f"the other side refuses: {message.reason}")
        else:
            raise FrameError("garbage", "a second greeting came")

    def _greet(self, connection: Connection, body: bytes, now: float) -> None:
        greeted = connection.greet(body)
        if greeted is not None:
            assert connection.caller is not None
            if not connection.address:
                self._admission.greet(connection.caller.address)
            try:
                connection.caller = self._carrier.meet(connection.caller, greeted[0].carrier)
                self._open_lane(connection, *greeted)
                self._listener.on_greeted(connection, *greeted)
            except PeerError as error:
                connection.introduced = False
                code = str(error.facts.get("code", "buffer"))
                raise GreetingError(code, error.message, Refused(error.message[:4000], code[:64])) from error
            if connection.caller.pidfd is not None:
                self.watch(connection.caller.pidfd, lambda _events, then: self._died(connection, then))
        self._flush(connection, now)

    def _open_lane(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        """As both greetings say; takes the lane's descriptors, the last ones, from the others. PeerError for what is none."""
        if (lane := connection.lane_in) is not None:
            self._heard[connection.number] = connection
            self.watch(lane.bell, lambda _events, now: self._rung(connection, now))
            if self._beside is not None:
                self._beside.register(lane.bell, _IN)
        if not hello.lane:
            return
        try:
            if len(fds) < FDS_PER_LANE or not connection.address:
                raise PeerError("a lane without descriptors, or from who connects", code="lane")
            if self._lanes is not None:
                connection.lane_out = self._lanes.attach(*fds[-FDS_PER_LANE:])
            for _ in range(FDS_PER_LANE):
                os.close(fds.pop())
        except PeerError:
            _close_each(fds)
            raise

    def _flush(self, connection: Connection, now: float) -> None:
        try:
            tokens, left = connection.flush(now)
        except LostError as error:
            self._failed(connection, error, now)
            return
        if left or connection.interest & _OUT:
            self._want(connection, _IN | _OUT if left else _IN)
        for token in tokens:
            self._listener.on_sent(token, True)
        if connection.ending and not left:
            self._end(connection, connection.ending, now)

    # Going

    def _failed(self, connection: Connection, error: LostError | FrameError | GreetingError, now: float) -> None:
        """End a connection for what its stream did; one refused in its greeting is told first."""
        if connection.number not in self._connections:
            return
        if isinstance(error, LostError):
            self._hear_last(connection)
            if connection.number not in self._connections:
                return
        if not isinstance(error, LostError):
            self._count(error.code)
        refusal = error.refusal if isinstance(error, GreetingError) else None
        if refusal is not None:
            connection.refuse(refusal, error.message)
            self._flush(connection, now)
        else:
            self._end(connection, error.message, now)

    def _died(self, connection: Connection, now: float) -> None:
        """pidfd says that the process is gone. What it sent before counts."""
        try:
            while connection.number in self._connections and connection.receive(now):
                self._drain(connection, now)
        except (LostError, FrameError, GreetingError):
            pass
        self._hear_last(connection)
        if connection.number in self._connections:
            self._end(connection, "the process has ended", now)

    def _hear_last(self, connection: Connection) -> None:
        """What was said over a lane before the connection ended counts."""
        if connection.greeted and connection.number in self._heard:
            try:
                self._hear(connection, _MOST_BEFORE)
            except FrameError as error:
                self._count(error.code)

    def _end(self, connection: Connection, reason: str, now: float) -> None:
        """Close it, answer what it owes, and tell."""
        if self._heard.pop(connection.number, None) is not None and connection.lane_in is not None:
            self._unwatch(connection.lane_in.bell)
            if self._beside is not None:
                self._beside.unregister(connection.lane_in.bell)
        del self._connections[connection.number]
        self._unwatch(connection.fd)
        self.bytes_in += connection.received
        incoming, tokens = connection.close()
        for token in tokens:
            self._listener.on_sent(token, False)
        caller = connection.caller
        if caller is not None and not connection.address:
            self._admission.leave(caller.address, connection.greeted)
        if connection.greeted and connection.introduced:
            self._tell_lost(connection, reason, incoming, now)
            return
        _close(caller.pidfd if caller is not None else None)
        if connection.address and not connection.forgotten:
            self._listener.on_not_connected(connection.address, reason)

    def _tell_lost(self, connection: Connection, reason: str, incoming: int | None, now: float) -> None:
        self._listener.on_lost(connection, reason, incoming)
        pidfd = connection.caller.pidfd if connection.caller is not None else None
        if pidfd is not None:
            self._unwatch(pidfd)
        if connection.forgotten:
            _close(pidfd)
        elif pidfd is None:
            self._listener.on_gone(connection.number, reason, False)
        elif _is_dead(pidfd):
            os.close(pidfd)
            self._listener.on_gone(connection.number, reason, True)
        else:
            self._keep(_Remains(connection.number, pidfd, reason, now + _DEATH_S))

    def _keep(self, remains: _Remains) -> None:
        """Wait for the process to end too; the connection alone does not show that it writes no more."""
        if len(self._remains) >= _MOST_REMAINS:
            self.close(next(iter(self._remains)), "", 0.0)
        self._remains[remains.number] = remains
        self._untold.append(remains)
        self.watch(remains.pidfd, lambda _events, _now: self._proved_dead(remains))

    def _proved_dead(self, remains: _Remains) -> None:
        self.close(remains.number, "", 0.0)
        self._listener.on_gone(remains.number, remains.reason, True)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def _count(self, code: str) -> None:
        self.refused[code if len(self.refused) < 64 or code in self.refused else "other"] += 1


def _close_each(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


def _is_dead(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
