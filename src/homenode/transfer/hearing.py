"""What comes over the lanes of connections, and when: looked for, rung for, or before the frame that follows it. For
one thread."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from homenode.errors import PeerError
from homenode.transfer.connection import Connection
from homenode.transfer.poller import Poller
from homenode.transfer.wire.framing import FrameError
from homenode.transfer.wire.lane import FDS_PER_LANE, Announced, LaneReader, Lanes
from homenode.transfer.wire.message import Hello

_MOST_BEFORE = 8192  # records of a lane before a frame: more than it holds
_MOST_AFTER = 32  # before others have their turn


class Hearing:
    """`announced` is called with each record, `failed` where one is garbage. `connections`: those that are heard, by
    number."""

    def __init__(
        self,
        lanes: Lanes | None,
        poller: Poller,
        announced: Callable[[Connection, Announced], None],
        failed: Callable[[Connection, FrameError, float], None],
    ) -> None:
        self.count = 0  # of records
        self.connections: dict[int, Connection] = {}
        self._lanes, self._poller, self._announced, self._failed = lanes, poller, announced, failed
        self._beside: select.epoll | None = None

    # Coming and going

    def create(self, wanted: bool) -> LaneReader | None:
        """A lane for a connection that is to have one, if there are lanes."""
        return self._lanes.create() if self._lanes is not None and wanted else None

    def open(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        """As both greetings say; takes the lane's descriptors, the last ones, from the others. PeerError for what is
        none."""
        if (lane := connection.lane_in) is not None:
            self.connections[connection.number] = connection
            self._poller.watch(lane.wake_fd, lambda _events, now: self._rung(connection, now))
            if self._beside is not None:
                self._beside.register(lane.wake_fd, select.EPOLLIN)
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
            while fds:
                os.close(fds.pop())
            raise

    def close(self, connection: Connection) -> None:
        """Nothing more of it is heard."""
        if self.connections.pop(connection.number, None) is not None and connection.lane_in is not None:
            self._poller.unwatch(connection.lane_in.wake_fd)
            if self._beside is not None:
                self._beside.unregister(connection.lane_in.wake_fd)

    def wait_beside(self, epoll: select.epoll) -> None:
        """Who sleeps there is woken by lanes too, without a detour."""
        self._beside = epoll
        for connection in self.connections.values():
            assert connection.lane_in is not None
            epoll.register(connection.lane_in.wake_fd, select.EPOLLIN)

    # What has come

    def watch(self, epoll: int, seconds: float) -> bool | None:
        """Look at lanes, and at a descriptor of epoll, for so long: whether there is something. None: there is no lane
        to look at."""
        there = list(self.connections.values())  # in one piece: who has the lock may take another in, or let one go
        lanes = [one.lane_in for one in there if one.lane_in is not None and one.early is None]
        return self._lanes.watch(lanes, epoll, seconds) if lanes and self._lanes is not None else None

    def promised(self) -> list[Connection]:
        """Those over whose lanes something was promised. Their bells are quiet."""
        found = []
        for connection in list(self.connections.values()):  # as above
            lane = connection.lane_in
            if lane is not None and connection.early is None and lane.wake_hinted:
                lane.clear_wake()
                found.append(connection)
        return found

    def one(self, now: float) -> bool:
        """One thing; for who was woken and is in a hurry. Whether there was something."""
        heard = self.count
        for connection in self.connections.values():
            try:
                said = self._next(connection)
            except FrameError as error:
                self._failed(connection, error, now)
                return True
            if said is not None:
                self.count += 1
                self._announced(connection, said)
                break
        for connection in self.connections.values():
            if connection.lane_in is not None and connection.lane_in.has_news:
                connection.lane_in.wake()  # nobody may have woken this side for it, while it was looked for
        return self.count != heard

    def all(self, connection: Connection) -> None:
        """All that was said over a lane before what comes next over the connection. FrameError for garbage."""
        if connection.number in self.connections:
            self._several(connection, _MOST_BEFORE)

    def _rung(self, connection: Connection, now: float) -> None:
        assert connection.lane_in is not None
        connection.lane_in.clear_wake()
        try:
            if self._several(connection, _MOST_AFTER) and connection.number in self.connections:
                connection.lane_in.wake()  # there may be more, when others had their turn
        except FrameError as error:
            self._failed(connection, error, now)

    def _several(self, connection: Connection, most: int) -> bool:
        """Take so many; whether there may be more."""
        for _ in range(most):
            if connection.number not in self.connections or (said := self._next(connection)) is None:
                return False
            self.count += 1
            self._announced(connection, said)
        return True

    def _next(self, connection: Connection) -> Announced | None:
        try:
            return connection.announced()
        except PeerError as error:
            raise FrameError("garbage", error.message) from error
