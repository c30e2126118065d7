"""The ranks of a stage that are on one host, and share the group's memory there, though nobody who knows both has
started them.

The first to come makes the memory and keeps it: it listens on an abstract Unix socket, whose name only those can tell
who know the secret of the start, and hands the descriptor to the others. An abstract name has no file that could be
left behind, and goes with its process. It listens as well on TCP, for what ranks of other hosts write. Both ends prove
that they know the secret, and the kernel says that both are of the same user.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from homenode.compute.native.ranks import NativeRankGroup, RankMemory, RankReceiver, receive_rank
from homenode.engine.channels.topics import (
    Group,
    MemoryRequest,
    Topic,
    Values,
    accept_call,
    decode_topic,
    encode_topic,
)
from homenode.errors import HomenodeError, HostError, PeerError
from homenode.host.refusals import reason_of
from homenode.net.accept import GREETING_S, CallServer
from homenode.net.greeting import Credentials, answer, introduce, name_of
from homenode.net.message_frames import FrameDecoder, decode_body, encode_frame
from homenode.net.socket_set import SocketSet

_log = logging.getLogger(__name__)
_AGAIN_S = 0.02  # before a keeper that is about to come or to go is looked for again
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


@dataclass(frozen=True)
class HostRanksName:
    """A name that all ranks of a stage know beforehand. `host`: what its workers call their host; `ip`: its address, at
    which others reach it.
    """

    group: Group
    ranks: int
    host: str
    ip: str
    credentials: Credentials

    @property
    def socket(self) -> str:
        """Return where its keeper listens, if there is one."""
        words = f"{self.host}.{self.group.generation}.{self.group.stage}"
        return "\0homenode-" + name_of(self.credentials.secret, words)


@dataclass(frozen=True)
class HostRanks:
    """`memory`: of all the group. `address`: where ranks of other hosts come to; unlike that of any other site.
    `close`: gives back what the keeper has beside the memory, and ends the group if values came from others.
    """

    memory: RankMemory
    address: str
    close: Callable[[], None] = lambda: None


def join_host_ranks(name: HostRanksName, rank: int, timeout_s: float) -> HostRanks:
    """Return the group of this host: made if this is the first rank here. PeerError when whoever keeps it does not hand
    it over in time, HostError when the machine refuses.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        server = _bound(name)
        if server is not None:
            return HostRanksServer(name, server, timeout_s).host_ranks
        try:
            return _asked(name, rank, deadline)
        except (PeerError, ConnectionError) as error:  # it has ended since, or was about to begin
            if time.monotonic() + _AGAIN_S > deadline:
                raise PeerError(
                    f"the memory of stage {name.group.stage} was not handed over on this host: {error}"
                ) from error
        time.sleep(_AGAIN_S)


def _bound(name: HostRanksName) -> socket.socket | None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(name.socket)
        server.listen()
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise HostError(f"listening for ranks of this host failed: {reason_of(error)}", errno=error.errno) from error
    return server


def _asked(name: HostRanksName, rank: int, deadline: float) -> HostRanks:
    left = max(0.001, deadline - time.monotonic())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(left)
        try:
            sock.connect(name.socket)
            _check_user(sock)
            introduce(
                sock,
                "the keeper of this host",
                name.credentials.secret,
                encode_topic(MemoryRequest(name.group, rank)),
                time.monotonic() + min(left, GREETING_S),
            )
            sock.settimeout(left)
            data, descriptors, _, _ = socket.recv_fds(sock, 1024, 1)
        except TimeoutError as error:
            raise PeerError(str(error)) from error
    frames = FrameDecoder(1024).feed(data)
    if len(descriptors) != 1 or len(frames) != 1:
        for descriptor in descriptors:
            os.close(descriptor)
        raise PeerError("the keeper handed nothing over")
    try:
        return HostRanks(RankMemory.attach(descriptors[0]), decode_body(frames[0], str))
    finally:
        os.close(descriptors[0])


def _check_user(sock: socket.socket) -> None:
    """PeerError unless the other end is of this user, or of root."""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid not in (0, os.geteuid()):
        raise PeerError(f"a process of user {uid} is at the other end")


class HostRanksServer:
    """The rank that made the memory of its site."""

    def __init__(self, name: HostRanksName, here: socket.socket, timeout_s: float) -> None:
        """`here`: the bound Unix socket."""
        self._name, self._timeout = name, timeout_s
        self._streams = SocketSet()
        self._streams.keep(here)
        try:
            others = self._streams.keep(socket.create_server((name.ip, 0)))
            self._memory = NativeRankGroup.make(name.ranks)
        except OSError as error:
            self._streams.leave()
            raise HostError(
                f"listening for ranks on {name.ip} failed: {reason_of(error)}", errno=error.errno
            ) from error
        except BaseException:
            self._streams.leave()
            raise
        self._lock = threading.Lock()
        self._receivers: list[RankReceiver] = []
        self._address = f"{name.ip}:{others.getsockname()[1]}"
        for server, greet in ((here, self._greet_here), (others, self._greet_other)):
            CallServer(server, partial(self._greet, greet), lambda: self._streams.ended, "homenode-site")

    @property
    def host_ranks(self) -> HostRanks:
        """Return what it keeps."""
        return HostRanks(self._memory, self._address, self.close)

    def close(self) -> None:
        """Listen no more, and receive no more."""
        self._streams.leave()
        with self._lock:
            receivers, self._receivers = self._receivers, []
        for receiver in receivers:
            receiver.close()

    def _greet(self, greet: Callable[[socket.socket], None], sock: socket.socket, greeted: Callable[[], None]) -> None:
        try:
            greet(sock)
        except (HomenodeError, OSError) as error:
            _log.warning("a caller was sent away: %s", error)
        finally:
            greeted()

    def _greet_here(self, sock: socket.socket) -> None:
        """Hand the memory to a rank of this host: descriptors go through Unix sockets only."""
        with sock:
            _check_user(sock)
            topic = decode_topic(answer(sock, self._name.credentials.secret, time.monotonic() + GREETING_S))
            match topic:
                case MemoryRequest(group) if group == self._name.group:
                    socket.send_fds(sock, [encode_frame(self._address)], [self._memory.fd])
                case _:
                    raise _off_topic(topic)

    def _greet_other(self, sock: socket.socket) -> None:
        """Receive what a rank of another host writes; those of this host have no need of that."""
        stream, topic = accept_call(sock, self._name.credentials, GREETING_S)
        with stream:
            match topic:
                case Values(group, rank) if group == self._name.group:
                    with self._lock:
                        if not self._streams.ended:
                            self._receivers.append(receive_rank(self._memory, rank, stream, self._timeout))
                case _:
                    raise _off_topic(topic)


def _off_topic(topic: Topic) -> PeerError:
    return PeerError(f"a worker called about something else ({type(topic).__name__})")
