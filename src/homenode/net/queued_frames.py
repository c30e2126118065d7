"""Messages as frames to a process that may be behind: what cannot be sent at once waits, and descriptors of shared
memory go beside them."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from homenode.net.message_frames import FrameDecoder, encode_frame

_CHUNK = 256 * 1024


class QueuedFrameSocket:
    """An end that never blocks. What cannot be sent at once waits until `flush` is called when the socket has
    room.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder = FrameDecoder()
        self._waiting: deque[tuple[memoryview, list[int]]] = deque()
        self._lock = threading.Lock()  # around what waits: two threads send
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor for a selector; -1 once closed."""
        return self._sock.fileno()

    @property
    def behind(self) -> bool:
        """Return whether something waits to be sent."""
        return bool(self._waiting)

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> bool:
        """Send one message, with copies of descriptors; False when some of it has to wait. What cannot arrive any more
        is dropped: the end of the stream tells. CapacityError when it is too large for a frame.
        """
        return self.send_frame(encode_frame(message), descriptors)

    def send_frame(self, frame: bytes, descriptors: Sequence[int] = ()) -> bool:
        """The same for a message that is a frame already."""
        with self._lock:
            if self._closed:
                return True
            self._waiting.append((memoryview(frame), [os.dup(fd) for fd in descriptors]))
            return self._push()

    def flush(self) -> bool:
        """Send what waits; False when some still has to."""
        with self._lock:
            return self._closed or self._push()

    def receive(self) -> list[bytes] | None:
        """The bodies of the frames that have come, none when there is nothing; None at the end of the stream. PeerError
        for a damaged one.
        """
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError:  # a killed worker may leave a reset connection
            return None
        return self._decoder.feed(data) if data else None

    def close(self) -> None:
        """End the connection and drop what waits."""
        with self._lock:
            self._closed = True
            while self._waiting:
                self._drop()
            self._sock.close()

    def _push(self) -> bool:
        while self._waiting:
            data, descriptors = self._waiting[0]
            try:
                sent = socket.send_fds(self._sock, [data], descriptors) if descriptors else self._sock.send(data)
            except BlockingIOError:
                return False
            except OSError:  # it is gone
                while self._waiting:
                    self._drop()
                return True
            if descriptors:
                _close_all(descriptors)
            if sent == len(data):
                self._waiting.popleft()
            else:
                self._waiting[0] = (data[sent:], [])
        return True

    def _drop(self) -> None:
        _close_all(self._waiting.popleft()[1])


def _close_all(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)
