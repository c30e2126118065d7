"""The thread that publishes events over ZeroMQ, and answers who asks for them again.

A batch is three frames: topic, number (eight bytes, big-endian), and the events (`events`). Who lost some asks the
replay socket with an empty frame and the first number wanted, and gets an empty frame, topic, number and events of
each; the last has the number -1 and no events. Where what is wanted is not kept any more, the answer is a snapshot:
that all was cleared, and all that is held, with the number of the newest batch: it takes the place of all up to that.

No reader is waited for: what a slow one has not taken is bounded (`hwm`), and lost to it beyond that.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import zmq

from homenode.engine.kv.block_journal import BlockChange, without_passing
from homenode.engine.kv_events.events import AllBlocksCleared, KvEvent, encode_batch, encode_event
from homenode.engine.kv_events.told_events import EventForm, StoreChanges, ToldEvents
from homenode.engine.kv_events_config import KvEventsSettings, is_bound, is_open_to_others
from homenode.errors import HostError
from homenode.host.refusals import start_thread

_log = logging.getLogger(__name__)
_END = (-1).to_bytes(8, "big", signed=True)
_NUMBER_BYTES = 8
_LONGEST_READ = 2048  # a request is a number, a subscription a topic of up to 255 characters; nothing longer is read
_REQUESTS_WAITING = 64  # of one reader
_LOOK_EVERY_S = 1.0
_LINGER_MS = 200
Elsewhere = Callable[[], StoreChanges]


class EventPublisher:
    """Binds its endpoints when it is made. `give` is for the thread of the engine's loop and returns at once."""

    def __init__(
        self, settings: KvEventsSettings, rank: int, form: EventForm, elsewhere: Elsewhere | None = None
    ) -> None:
        """`rank`: of one of several engines, whose endpoints are its own. `elsewhere`: takes what has
        changed outside of KV memory; asked once a second while things change. HostError names the endpoint that cannot
        be had.
        """
        self._settings, self._rank, self._elsewhere = settings.of_rank(rank), rank, elsewhere
        self._told = ToldEvents(form)
        self._topic = settings.topic.encode("utf-8", "surrogatepass")
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        self._next = 0
        self._lock = threading.Lock()  # around what waits
        self._waiting: list[BlockChange] = []
        self._states: frozenset[bytes] | None = None
        self._closing = False
        self._look_at = 0.0
        self._taking: list[BlockChange] = []  # what `_told` is being changed by
        self._taking_stores: StoreChanges = {}
        self._ended = False
        self._context = zmq.Context()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._readers = self._open(zmq.PUB, "endpoint", self._settings.endpoint, settings.hwm)
            self._asked: zmq.Socket[bytes] | None = None
            if self._settings.replay_endpoint is not None:
                most = settings.buffer_steps + 2  # of one answer
                self._asked = self._open(zmq.ROUTER, "replay_endpoint", self._settings.replay_endpoint, most)
        except BaseException:
            self._give_back()
            raise
        self._thread = threading.Thread(target=self._run, name="homenode-kv-events", daemon=True)

    def _open(self, kind: int, key: str, endpoint: str, most: int) -> zmq.Socket[bytes]:
        opened = self._context.socket(kind)
        opened.setsockopt(zmq.LINGER, _LINGER_MS)
        opened.setsockopt(zmq.SNDHWM, most)
        opened.setsockopt(zmq.MAXMSGSIZE, _LONGEST_READ)  # as all of these it counts only before `bind`
        if kind == zmq.ROUTER:
            opened.setsockopt(zmq.RCVHWM, _REQUESTS_WAITING)
        opened.setsockopt(zmq.IPV6, int("[" in endpoint))
        try:
            if is_bound(endpoint):
                if _is_served(endpoint):  # `bind` would take it from its owner, who does not notice
                    raise zmq.ZMQError(errno.EADDRINUSE)
                opened.bind(endpoint.replace("//localhost:", "//127.0.0.1:"))
            else:
                opened.connect(endpoint)
        except zmq.ZMQError as error:
            raise HostError(
                f"--kv-events-config: {key} {endpoint} cannot be had: {error.strerror}; give another one"
            ) from error
        if is_open_to_others(endpoint):
            _log.warning(
                "KV events: %s %s is open to every host that reaches it, and what is told there has the tokens of "
                "prompts; keep others out by a firewall, or give 127.0.0.1",
                key, endpoint,
            )  # fmt: skip
        return opened

    @property
    def described(self) -> dict[str, object]:
        """The endpoints with vLLM's keys, for whoever asks where events are to be had."""
        own = self._settings
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": own.endpoint,
            "replay_endpoint": own.replay_endpoint,
            "buffer_steps": own.buffer_steps,
            "hwm": own.hwm,
            "topic": own.topic,
        }

    def start(self) -> None:
        """Begin to publish what is given; first that nothing is held, for who knew an earlier process."""
        start_thread(self._thread)

    @property
    def ended(self) -> bool:
        """Return whether nothing is published any more, since an error that was logged."""
        return self._ended

    def give(self, changes: Sequence[BlockChange], states: frozenset[bytes] | None = None) -> None:
        """Tell of what has changed. `states`: see `ToldEvents.take`."""
        if self._ended:
            return
        with self._lock:
            self._waiting += changes
            if len(self._waiting) > self._settings.max_queue_size:
                self._waiting = without_passing(self._waiting)
            self._states = states
        os.eventfd_write(self._wake, 1)

    def close(self, seconds: float) -> None:
        """Publish what was given, as far as it goes in so many seconds, and give the endpoints back."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join(seconds)
        if not self._thread.is_alive():
            self._give_back()

    def _give_back(self) -> None:
        self._context.destroy(linger=_LINGER_MS)
        os.close(self._wake)

    # The thread's own

    def _run(self) -> None:
        try:
            self._work()
        except Exception:
            _log.exception(
                "KV events have ended with this error: routers hear no more of this engine, which goes on without; "
                "restart the server to have events again, and report the error"
            )
            with self._lock:
                self._ended, self._waiting = True, []
            self._kept.clear()
            with suppress(Exception):  # who reads is not to believe for ever what was told so far
                self._send([AllBlocksCleared()])

    def _work(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        if self._asked is not None:
            poller.register(self._asked, zmq.POLLIN)
        self._send([AllBlocksCleared()])
        while True:
            due = None if not self._look_at else max(0, int(1000 * (self._look_at - time.monotonic())) + 1)
            ready = dict(poller.poll(due))
            ending = self._closing
            try:
                self._send([*(self._changed() if self._wake in ready else []), *self._seen_elsewhere()])
            except zmq.ZMQError as error:  # the batch is kept
                _log.warning("KV events: %s: %s; readers ask again for what they lack", type(error).__name__, error)
            except Exception:
                self._begin_again()
            if self._asked is not None and self._asked in ready:
                try:
                    self._answer(self._asked)
                except Exception as error:  # whatever it is: it has changed nothing
                    _log.warning("KV events: no replay for a reader: %s: %s", type(error).__name__, error)
            if ending:
                return

    def _begin_again(self) -> None:
        """Tell all that is held anew, after an error that left open what readers know."""
        _log.exception("KV events: an error, after which all that is held is told anew; report it if it comes again")
        with self._lock:
            states = self._states
        self._told = self._told.built_again(self._taking, states, self._taking_stores)
        self._taking, self._taking_stores = [], {}
        self._send(list(self._told.snapshot()))

    def _changed(self) -> list[KvEvent]:
        """Events of all that waits; from here on what lies elsewhere is looked at, too."""
        os.eventfd_read(self._wake)
        with self._lock:
            changes, self._waiting, states = self._waiting, [], self._states
        self._taking = changes
        if self._elsewhere is not None and not self._look_at:
            self._look_at = time.monotonic() + _LOOK_EVERY_S
        return self._told.take(changes, states)

    def _seen_elsewhere(self) -> list[KvEvent]:
        """Events of what lies elsewhere, when it is time to look."""
        if not self._look_at or self._elsewhere is None or (time.monotonic() < self._look_at and not self._closing):
            return []
        self._look_at = 0.0
        try:
            self._taking_stores = self._elsewhere()
        except Exception:
            _log.exception(
                "KV events: where blocks lie outside of KV memory is not told any more, since this error; restart the "
                "server to have it told again, and report the error"
            )
            self._elsewhere, self._taking_stores = None, {}
            return self._told.forget_stores()
        return self._told.take_stores(self._taking_stores)

    def _send(self, events: Sequence[KvEvent]) -> None:
        if not events:
            return
        payload = encode_batch(time.time(), [encode_event(event) for event in events], self._rank)
        number, self._next = self._next, self._next + 1
        self._kept.append((number, payload))
        self._readers.send_multipart([self._topic, number.to_bytes(_NUMBER_BYTES, "big"), payload], zmq.DONTWAIT)

    def _answer(self, asked: zmq.Socket[bytes]) -> None:
        who, *frames = asked.recv_multipart(zmq.DONTWAIT)
        if len(frames) != 2 or frames[0] or len(frames[1]) != _NUMBER_BYTES:
            _log.warning("KV events: somebody asked for a replay with %d frames, which is no request", len(frames))
            return
        first = int.from_bytes(frames[1], "big")
        for number, payload in self._from(first):
            asked.send_multipart([who, b"", self._topic, number.to_bytes(_NUMBER_BYTES, "big"), payload], zmq.DONTWAIT)
        asked.send_multipart([who, b"", b"", _END, b""], zmq.DONTWAIT)

    def _from(self, first: int) -> list[tuple[int, bytes]]:
        """Batches from number `first` on; where they are not all kept, a snapshot in place of all."""
        oldest = self._kept[0][0] if self._kept else self._next
        if first >= oldest or not self._next:
            return [each for each in self._kept if each[0] >= first]
        events = [encode_event(event) for event in self._told.snapshot()]
        return [(self._next - 1, encode_batch(time.time(), events, self._rank))]


def _is_served(endpoint: str) -> bool:
    """Return whether somebody listens at the path of an endpoint."""
    if not endpoint.startswith("ipc:///"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        tried.setblocking(False)
        try:
            return tried.connect_ex(endpoint.removeprefix("ipc://")) in (0, errno.EAGAIN)
        except OSError:  # no path for a socket, which `bind` says
            return False
