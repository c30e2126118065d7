"""All connections of an agent, and what is said over them. Tells its `Listener` what happened; for one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from homenode.transfer.carriers.carrier import Carrier, Listening, LocalBuffer
from homenode.transfer.connection import Connection
from homenode.transfer.greeting import HandshakeLimits, Identity
from homenode.transfer.listener import Listener
from homenode.transfer.streams import Streams
from homenode.transfer.wire.framing import FrameError
from homenode.transfer.wire.lane import Lanes
from homenode.transfer.wire.message import Envelope, Message, encode
from homenode.transfer.wire.page_stream import PageSender


@dataclass(frozen=True)
class LinkLimits:
    """Bounds of time, in seconds."""

    greeting_s: float = 5.0
    stall_s: float = 30.0


class Links(Streams):
    """See the module. `poller` is what its owner waits with."""

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
        """As `Streams`."""
        super().__init__(carrier, identity, exported, listener, writable=writable, admission=admission, lanes=lanes)
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
        """When `look_at_the_clock` has something to tell, apart from limits."""
        return min((at for at in (self._departed.due, self._reception.due) if at is not None), default=None)

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
        """Those whose process did not turn out to be dead are told as lost, and others are accepted again."""
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
