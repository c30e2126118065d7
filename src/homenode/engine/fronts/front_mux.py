"""An engine's end of the streams of several fronts: whoever asked is answered, and nobody waits for a front that does
not listen.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable

from homenode.engine.fronts.messages import AbortFront, FrontHello
from homenode.engine.fronts.numbers import front_of
from homenode.engine.messages import (
    Abort,
    Heartbeat,
    ListRequests,
    Output,
    Outputs,
    Ping,
    ReleaseKv,
    RequestList,
    ResetPrefixCache,
    Submit,
    ToFront,
)
from homenode.errors import PeerError
from homenode.net.descriptors import receive_fd
from homenode.net.message_frames import FrameSocket, decode_body, encode_frame

_MOST_BEHIND = 256 * 2**20  # bytes that are kept for a front that does not read; after that it is hung up on
# When an engine ends is not a front's decision.
_FromFront = Submit | Abort | ReleaseKv | ResetPrefixCache | Ping | ListRequests
_log = logging.getLogger(__name__)


class FrontMux:
    """Outputs, and answers to questions, go to the front that asked, all else to the coordinator, who is front 0."""

    def __init__(self, coordinator: FrameSocket, put: Callable[[object], None]) -> None:
        """`put` takes what fronts say, for the engine's loop."""
        self._coordinator, self._put = coordinator, put
        self._lines: dict[int, _Line] = {}
        self._lock = threading.Lock()  # around the lines

    def open(self, door: socket.socket) -> None:
        """Take fronts that come through `door`, from now on."""
        threading.Thread(target=self._take_callers, args=(door,), name="homenode-door", daemon=True).start()

    def send(self, message: ToFront) -> None:
        """Send to those it is for. CapacityError, and then nobody has got anything, when a part of it is too large for
        a frame.
        """
        match message:
            case Outputs(outputs):
                frames = [(front, encode_frame(Outputs(part))) for front, part in _by_front(outputs).items()]
                for front, frame in frames:
                    self._send_to(front, frame)
            case Heartbeat(number) | RequestList(number) if front_of(number):
                self._send_to(front_of(number), encode_frame(message))
            case _:
                self._coordinator.send(message)

    def _send_to(self, front: int, frame: bytes) -> None:
        with self._lock:
            line = self._lines.get(front)
        if line is not None:  # else it has left, and its requests are about to be aborted
            line.send(frame)

    def _take_callers(self, door: socket.socket) -> None:
        try:
            while (caller := receive_fd(door, FrontHello)) is not None:
                self._add(caller[0].front, caller[1])
        except (OSError, PeerError) as error:
            _log.error("no more fronts are taken: %s", error)

    def _add(self, front: int, connected: socket.socket) -> None:
        line = _Line(connected)
        with self._lock:
            known = self._lines.get(front)
        if known is not None:  # what it had is aborted before anything new is taken
            known.hang_up()
            known.reader.join()
        with self._lock:
            self._lines[front] = line
        line.reader = threading.Thread(
            target=self._read, args=(front, line, FrameSocket(connected)), name="homenode-front", daemon=True
        )
        line.reader.start()

    def _read(self, front: int, line: _Line, frames: FrameSocket) -> None:
        """Feed the loop until the front leaves; then nobody waits for its requests."""
        try:
            while (body := frames.receive()) is not None:
                self._put(_own(decode_body(body, _FromFront), front))
        except PeerError as error:
            _log.error("front %d is hung up on: %s", front, error.message)
        self._put(AbortFront(front))
        with self._lock:
            del self._lines[front]
        line.close()


class _Line:
    """The way out to one front. What it does not read at once is kept and sent by a thread that there is
    only as long.
    """

    reader: threading.Thread

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()  # around the rest
        self._behind: deque[bytes] = deque()
        self._size = 0
        self._gone = False

    def send(self, frame: bytes) -> None:
        """Never waits."""
        with self._lock:
            if self._gone:
                return
            if not self._behind:
                sent = self._push(frame)
                if sent == len(frame) or self._gone:
                    return
                frame = frame[sent:]
                threading.Thread(target=self._catch_up, name="homenode-behind", daemon=True).start()
            self._behind.append(frame)
            self._size += len(frame)
            if self._size > _MOST_BEHIND:
                _log.error("a front has not read for so long that %d bytes wait for it; it is hung up on", self._size)
                self._hang_up()

    def hang_up(self) -> None:
        """The front finds the stream ended, as does the thread that reads it."""
        with self._lock:
            self._hang_up()

    def close(self) -> None:
        """Close it, for who has read it to its end."""
        self.hang_up()
        self._socket.close()

    def _push(self, frame: bytes) -> int:
        """Return how many bytes went out at once."""
        try:
            return self._socket.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self._hang_up()
            return 0

    def _catch_up(self) -> None:
        while True:
            with self._lock:
                if not self._behind:
                    return
                frame = self._behind[0]
            try:
                self._socket.sendall(frame)
            except OSError:
                self.hang_up()
                return
            with self._lock:
                if self._gone:
                    return
                self._behind.popleft()
                self._size -= len(frame)

    def _hang_up(self) -> None:
        if not self._gone:
            self._gone = True
            self._behind.clear()
            self._size = 0
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other end was closed before


def _by_front(outputs: list[Output]) -> dict[int, list[Output]]:
    parts: dict[int, list[Output]] = {}
    for output in outputs:
        parts.setdefault(front_of(output.id), []).append(output)
    return parts


def _own(message: _FromFront, front: int) -> _FromFront:
    """The message, if it is about what is this front's own: tickets and caches are everybody's. PeerError otherwise."""
    match message:
        case ReleaseKv() | ResetPrefixCache():
            return message
        case Submit(requests):
            numbers = [request.id for request in requests]
        case Abort(ids):
            numbers = ids
        case Ping(number) | ListRequests(number):
            numbers = [number]
    if any(front_of(number) != front for number in numbers):
        raise PeerError(f"a {type(message).__name__} has a number of another front")
    return message
