"""The bytes of an agent's connections: read and taken apart, written, and how connections end over them. For one
thread."""

from __future__ import annotations

import logging
import os
import select
from collections import Counter
from collections.abc import Sequence

import msgspec

from homenode.errors import InternalError
from homenode.transfer.carriers.carrier import Carrier, LocalBuffer
from homenode.transfer.connection import Connection, LostError
from homenode.transfer.departed import Departed
from homenode.transfer.greeting import GreetingError, HandshakeLimits, Identity
from homenode.transfer.hearing import Hearing
from homenode.transfer.listener import Listener
from homenode.transfer.poller import Poller
from homenode.transfer.reception import Reception
from homenode.transfer.wire.framing import FrameError
from homenode.transfer.wire.lane import Lanes
from homenode.transfer.wire.message import Envelope, Gone, Greeted, Hello, Refused, decode, encode

_log = logging.getLogger(__name__)
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_OF_LINKS = (Hello, Greeted, Refused, Gone)  # the machine does not hear of these


class Streams:
    """How connections begin is in `reception`, what comes past them in `hearing`, and what is to be heard of a peer
    after its connection in `departed`."""

    def __init__(
        self,
        carrier: Carrier,
        identity: Identity,
        exported: Sequence[LocalBuffer],
        listener: Listener,
        *,
        writable: bool,
        admission: HandshakeLimits,
        lanes: Lanes | None = None,
    ) -> None:
        """`lanes`: where connections can have them; `identity` says whether those that come are given one."""
        self.refused: Counter[str] = Counter()  # by code
        self.poller = Poller()
        self.hearing = Hearing(lanes, self.poller, listener.on_announced, self._failed)
        self._identity, self._listener = identity, listener
        self._departed = Departed(self.poller, listener.on_gone)
        self._reception = Reception(
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
        """What was said over a lane before the connection ended counts."""
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
