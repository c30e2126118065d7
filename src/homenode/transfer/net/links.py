"""Connections of an agent: their bytes read, taken apart and written, how they end, and what is said over them. They
tell their `Listener` what happened; for one thread."""

from __future__ import annotations

import logging
import os
import select
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from homenode.errors import InternalError
from homenode.net.admission import HandshakeLimits
from homenode.net.frames import FrameError
from homenode.net.poller import Poller
from homenode.transfer.carriers.carrier import Carrier, Listening, LocalBuffer
from homenode.transfer.net.acceptor import PeerAcceptor
from homenode.transfer.net.connection import Connection, Listener, LostError
from homenode.transfer.net.peer_watch import DeadPeerWatch, LaneListener
from homenode.transfer.wire.greeting import GreetingError, Identity
from homenode.transfer.wire.lane import Lanes
from homenode.transfer.wire.message import Envelope, Gone, Greeted, Hello, Message, Refused, decode, encode
from homenode.transfer.wire.stream import PageSender

_log = logging.getLogger(__name__)
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_OF_LINKS = (Hello, Greeted, Refused, Gone)  # the machine does not hear of these


@dataclass(frozen=True)
class LinkLimits:
    """Bounds of time, in seconds."""

    greeting_s: float = 5.0
    stall_s: float = 30.0


class Links:
    """All connections of an agent. How they begin is in `acceptor`; what comes past them, and what is to be heard of a
    peer after its connection, in `poller`. `poller` is what its owner waits with."""

    def __init__(
        self,
        carrier: Carrier,
        identity: Identity,
        exported: Sequence[LocalBuffer],
        listener: Listener,
        *,
        writable: bool,
        limits: LinkLimits,
        admission: HandshakeLimits,
        lanes: Lanes | None = None,
    ) -> None:
        """`lanes`: where connections can have them; `identity` says whether those that come are given one."""
        self.refused: Counter[str] = Counter()  # by code
        self.poller = Poller()
        self.hearing = LaneListener(lanes, self.poller, listener.on_announced, self._failed)
        self._identity, self._listener = identity, listener
        self._departed = DeadPeerWatch(self.poller, listener.on_gone)
        self._reception = PeerAcceptor(
            carrier,
            identity,
            exported,
            listener,
            self.poller,
            self.hearing,
            writable=writable,
            admission=admission,
            begun=lambda connection: self._want(connection, _IN | _OUT if connection.connecting else _IN),
            refused=self._count,
        )
        self._connections = self._reception.connections
        self._frames = 0
        self.frames_out = 0
        self._limits = limits
        self._dirty: dict[int, Connection] = {}

    # The loop's side

    def listen(self, listening: Sequence[Listening]) -> None:
        """Accept what comes to these sockets."""
        self._reception.listen(listening)

    @property
    def frames_in(self) -> int:
        """Frames taken, and what came over lanes."""
        return self._frames + self.hearing.count

    @property
    def due(self) -> float | None:
        """Return when `look_at_the_clock` has something to tell, apart from limits."""
        return min((at for at in (self._departed.due, self._reception.due) if at is not None), default=None)

    @property
    def greeted(self) -> int:
        """Connections that have greeted."""
        return sum(connection.greeted for connection in self._connections.values())

    @property
    def unsettled(self) -> bool:
        """Tell whether `enforce_limits` may have something to end."""
        return any(connection.unsettled for connection in self._connections.values())

    @property
    def sending(self) -> bool:
        """Tell whether something is not written yet."""
        return any(connection.sending for connection in self._connections.values())

    def look_at_the_clock(self, now: float) -> None:
        """Tell of those as lost whose process did not turn out to be dead; others are accepted again."""
        self._departed.look_at_the_clock(now)
        self._reception.look_at_the_clock(now)

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
        self._reception.connect(address, now)

    def find(self, number: int) -> Connection | None:
        """A greeted connection by its number."""
        connection = self._connections.get(number)
        return connection if connection is not None and connection.greeted and not connection.ending else None

    def send(self, connection: Connection, message: Message, now: float) -> None:
        """Queue a frame; it goes out with `flush`."""
        self._queue(connection, message, connection.send, now)

    def send_payload(
        self, connection: Connection, message: Message, views: Iterable[memoryview], token: int, now: float
    ) -> None:
        """Queue a frame and blocks; `on_sent` follows."""
        self._queue(connection, message, lambda body: connection.send_payload(body, views, token), now, token)

    def send_pages(self, connection: Connection, message: Message, pages: PageSender, token: int, now: float) -> None:
        """The same over a connection that is `bare`."""
        self._queue(connection, message, lambda body: connection.send_pages(body, pages, token), now, token)

    def _queue(
        self,
        connection: Connection,
        message: Message,
        send: Callable[[bytes], None],
        now: float,
        token: int | None = None,
    ) -> None:
        body = encode(Envelope(connection.peer_incarnation, message))
        self.frames_out += 1
        try:
            send(body)
            self._dirty[connection.number] = connection
        except FrameError as error:
            self._count(error.code)
            if token is not None:
                self._listener.on_sent(token, False)
            self._end(connection, error.message, now)

    def flush(self, now: float) -> None:
        """Write what was queued."""
        while self._dirty:
            _, connection = self._dirty.popitem()
            if connection.number in self._connections:
                self._flush(connection, now)

    def close(self, number: int, reason: str, now: float) -> None:
        """End a connection and forget it; nothing more is told of it but what it still owes (`on_sent`, the payload's
        token)."""
        self._departed.forget(number)
        connection = self._connections.get(number)
        if connection is not None:
            connection.forgotten = True
            self._flush(connection, now)  # what was said before this
            if number in self._connections:
                self._end(connection, reason, now)

    def close_all(self) -> None:
        """End everything; nobody is told."""
        self._reception.close()
        for connection in list(self._connections.values()):
            connection.forgotten = True
            self._end(connection, "the agent ends", 0.0)
        self._departed.forget_all()

    def release(self) -> None:
        """Give the epoll descriptor back."""
        self.poller.close()

    # In

    def _want(self, connection: Connection, events: int) -> None:
        """Have epoll tell of these."""
        if connection.interest == events:
            return
        if connection.interest:
            self.poller.change(connection.fd, events)
        else:
            self.poller.watch(connection.fd, lambda got, now: self._on_events(connection, got, now), events)
        connection.interest = events

    def _on_events(self, connection: Connection, events: int, now: float) -> None:
        try:
            if connection.connecting:
                if self._reception.connected(connection):
                    self._flush(connection, now)
                return
            if events & _OUT:
                self._flush(connection, now)
            if (
                events & ~_OUT
                and connection.number in self._connections
                and not connection.ending
                and connection.receive(now)
            ):
                self._drain(connection, now)
        except (LostError, FrameError, GreetingError) as error:
            self._failed(connection, error, now)
        except InternalError:
            raise
        except Exception:
            _log.exception("an internal error over a peer's data; the peer is dropped")
            if connection.number in self._connections:
                self.drop(connection, "an internal error over this peer's data", now)

    def _drain(self, connection: Connection, now: float) -> None:
        """Everything that has come completely."""
        number = connection.number
        while number in self._connections and not connection.ending:
            came = connection.next(now)
            self.hearing.all(connection)  # it was said before what follows
            if came is None or number not in self._connections:
                return
            if not isinstance(came, bytes):
                self._listener.on_payload(connection, came)
            elif connection.greeted:
                self._take(connection, came, now)
            else:
                self._greet(connection, came, now)

    def _take(self, connection: Connection, body: bytes, now: float) -> None:
        self._frames += 1
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
        if (
            self._reception.greet(connection, body)
            and connection.caller is not None
            and connection.caller.pidfd is not None
        ):
            self.poller.watch(connection.caller.pidfd, lambda _events, then: self._died(connection, then))
        self._flush(connection, now)

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

    # Ends

    def drop(self, connection: Connection, reason: str, now: float) -> None:
        """End a connection for what came over it, and tell."""
        self._count("internal")
        self._end(connection, reason, now)

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
        """Take what was said over a lane before the connection ended: it counts."""
        try:
            self.hearing.all(connection)
        except FrameError as error:
            self._count(error.code)

    def _end(self, connection: Connection, reason: str, now: float) -> None:
        """Close it, answer what it owes, and tell."""
        self.hearing.close(connection)
        self._reception.end(connection)
        incoming, tokens = connection.close()
        for token in tokens:
            self._listener.on_sent(token, False)
        pidfd = connection.caller.pidfd if connection.caller is not None else None
        told = connection.greeted and connection.introduced
        if told:
            self._listener.on_lost(connection, reason, incoming)
            if pidfd is not None:
                self.poller.unwatch(pidfd)
        if told and not connection.forgotten:
            self._departed.tell(connection.number, pidfd, reason, now)
            return
        if pidfd is not None:
            os.close(pidfd)
        if not told and connection.address and not connection.forgotten:
            self._listener.on_not_connected(connection.address, reason)

    def _count(self, code: str) -> None:
        self.refused[code if len(self.refused) < 64 or code in self.refused else "other"] += 1
