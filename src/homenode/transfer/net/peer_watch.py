"""Things that the agent's threads wait for beside descriptors and mail: lanes through shared memory, and the deaths of
processes. For one thread."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from homenode.errors import PeerError
from homenode.net.frames import FrameError
from homenode.net.poller import Poller
from homenode.transfer.net.connection import Connection
from homenode.transfer.wire.lane import FDS_PER_LANE, Announced, LaneReader, Lanes
from homenode.transfer.wire.message import Hello

_DEATH_S = 0.05  # between a connection's end and its process's, when the process is dying
_MOST_REMAINS = 4096


@dataclass
class _Remains:
    """`until`: when it is told as lost without proof of death."""

    number: int
    pidfd: int
    reason: str
    until: float


class DeadPeerWatch:
    """`gone(number, reason, dead)`, see `connection.Listener.on_gone`, is called for each, once without and once with
    proof of death."""

    def __init__(self, poller: Poller, gone: Callable[[int, str, bool], None]) -> None:
        self._poller, self._gone = poller, gone
        self._remains: dict[int, _Remains] = {}
        self._untold: deque[_Remains] = deque()  # those of them not told as lost yet, by `until`

    @property
    def due(self) -> float | None:
        """Return when `look_at_the_clock` has something to tell."""
        return self._untold[0].until if self._untold else None

    def tell(self, number: int, pidfd: int | None, reason: str, now: float) -> None:
        """A connection has ended; takes `pidfd` over. The end of it alone does not show that its process writes no
        more."""
        if pidfd is None:
            self._gone(number, reason, False)
        elif is_dead(pidfd):
            os.close(pidfd)
            self._gone(number, reason, True)
        else:
            self._keep(_Remains(number, pidfd, reason, now + _DEATH_S))

    def forget(self, number: int) -> None:
        """Nothing more is told of it."""
        remains = self._remains.pop(number, None)
        if remains is not None:
            self._poller.unwatch(remains.pidfd)
            os.close(remains.pidfd)

    def forget_all(self) -> None:
        """Nothing more is told."""
        for number in list(self._remains):
            self.forget(number)

    def look_at_the_clock(self, now: float) -> None:
        """Tell of those as lost whose process did not turn out to be dead."""
        while self._untold and self._untold[0].until <= now:
            remains = self._untold.popleft()
            if remains.number in self._remains:
                self._gone(remains.number, remains.reason, False)

    def _keep(self, remains: _Remains) -> None:
        if len(self._remains) >= _MOST_REMAINS:
            self.forget(next(iter(self._remains)))
        self._remains[remains.number] = remains
        self._untold.append(remains)
        self._poller.watch(remains.pidfd, lambda _events, _now: self._proved_dead(remains))

    def _proved_dead(self, remains: _Remains) -> None:
        self.forget(remains.number)
        self._gone(remains.number, remains.reason, True)


def is_dead(pidfd: int) -> bool:
    """Tell whether the process has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


_MOST_BEFORE = 8192  # records of a lane before a frame: more than it holds
_MOST_AFTER = 32  # before others have their turn


class LaneListener:
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
        """Open the lanes of which both greetings tell; takes the lane's descriptors, the last ones, from the others.
        PeerError for what is none."""
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
        """Have lanes wake whoever sleeps there too, without a detour."""
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
        """Return those over whose lanes something was promised. Their bells are quiet."""
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


_APPLYING_S = 0.3e-3  # more than a scheduler needs to apply the result of a step
_WARM_S = 0.3e-3  # so long what was walked through is expected to stay in the caches
_SLOW_READING = 4e9  # bytes a second, by the other side of what it announces


class ExpectedAnnouncements:
    """Announcements that peers have hinted at, for the thread that leads an agent. A promise that is not kept costs it
    the time it looked; who breaks many in a row is not believed (`csrc/host/lane.h`)."""

    def __init__(
        self,
        lanes: LaneListener,
        nbytes: int,
        walk_through: Callable[[Connection], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`nbytes`: so many may be read by the other side before it announces them. `walk_through`: see
        `fast_path.FastPath.rehearse`."""
        self._lanes, self._walk_through, self._clock = lanes, walk_through, clock
        self._patience_s = _APPLYING_S + nbytes / _SLOW_READING
        self._open: list[Connection] = []  # by these
        self._until = 0.0

    def notice(self) -> bool:
        """Tell whether something is promised that was not before: `watch` will look for it."""
        promised = self._lanes.promised()
        if self._open or not promised:
            return False
        self._open, self._until = promised, self._clock() + self._patience_s
        self._walk_through(promised[0])
        return True

    def kept(self) -> None:
        """Something has come."""
        self._open = []

    def watch(self, epoll: int, until: float) -> bool | None:
        """Look for what was promised, then for whatever else may come until then, and at a descriptor of epoll: whether
        there is something. None: there is nowhere to look."""
        looked = True
        while self._open:
            left = self._until - self._clock()
            if left <= 0:
                self._give_up()
                looked = False  # since their bells were quiet
            elif self._lanes.watch(epoll, min(left, _WARM_S)):
                return True
            else:
                self._walk_through(self._open[0])
        left = until - self._clock()
        return self._lanes.watch(epoll, max(left, 0.0)) if left > 0 or not looked else False

    def _give_up(self) -> None:
        for connection in self._open:
            if connection.lane_in is not None:
                connection.lane_in.clear_hint()
        self._open = []
