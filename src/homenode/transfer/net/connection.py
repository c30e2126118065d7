"""One connection: a socket, its greeting, frames and payloads in and out. Nothing here waits, and nothing here
decides."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
from collections.abc import Iterable
from typing import Protocol

from homenode.errors import PeerError
from homenode.net.frame_mac import FrameMac
from homenode.net.frames import FrameError, FrameParser, frame
from homenode.net.secure_stream import failure_of
from homenode.transfer.carriers.carrier import Caller
from homenode.transfer.wire.greeting import MAX_HELLO, Greeting, GreetingError
from homenode.transfer.wire.lane import Announced, LaneReader, LaneWriter
from homenode.transfer.wire.message import MAX_FRAME, Envelope, Hello, Message, Refused, encode
from homenode.transfer.wire.stream import (
    PageReceiver,
    PageSender,
    PagesReader,
    PayloadReader,
    WriteQueue,
    discarding,
    into,
)

MOST_FDS = 32  # taken with a Hello
_READ = 16 << 10
_READ_MORE = 1 << 20  # inside a large frame
_TURNS = 4  # reads or writes of blocks before others have their turn
_FD = struct.Struct("i")


class LostError(PeerError):
    """The connection has ended."""


class Connection:
    """A stream to one peer, and its lane. `number` is what the machine calls the peer; `address` what was connected to,
    empty for one that came."""

    def __init__(
        self, sock: socket.socket, number: int, greeting: Greeting, *, address: str, fds: list[int], now: float
    ) -> None:
        """`fds` go with this side's Hello and are closed when it is sent."""
        self.sock, self.number, self.address = sock, number, address
        self.fd = sock.fileno()
        self.caller: Caller | None = None
        self.began = now
        self.connecting = bool(address)
        self.ending = ""  # to be closed when all is sent, and why
        self.greeted = False
        self.introduced = True  # False: refused after the greeting, so that nobody was told of it
        self.forgotten = False  # nobody wants to hear of its end
        self.received = 0
        self.interest = 0  # of epoll
        self.sent = self.taken = 0  # frames since the greeting
        self.lane_in: LaneReader | None = None
        self.lane_out: LaneWriter | None = None
        self.early: Announced | None = None  # out of `lane_in`: a frame that went before it has not come yet
        self._greeting: Greeting | None = greeting
        self._parser = FrameParser(MAX_HELLO)
        self._mac: FrameMac | None = None
        self._incoming: PayloadReader | PagesReader | None = None
        self._outgoing = WriteQueue()
        self._fds_out, self._fds_in = fds, list[int]()
        self._pending_since: float | None = None  # of a frame or payload that is not complete
        self._blocked_since: float | None = None  # of writing
        self._to = b""
        self._scratch = memoryview(bytearray(_READ))

    # In

    def adopt(self, sock: socket.socket) -> None:
        """Go on with another socket, which epoll knows nothing of."""
        self.sock, self.fd, self.interest = sock, sock.fileno(), 0

    def open(self, caller: Caller) -> None:
        """The socket is connected: begin to greet."""
        self.caller, self.connecting = caller, False
        assert self._greeting is not None
        for body in self._greeting.opening():
            self._outgoing.push(frame(body))

    def receive(self, now: float) -> bool:
        """Read what there is, within bounds. False when there was nothing; LostError at the end of the stream,
        GreetingError where TLS has not come to be."""
        try:
            count = self._receive()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise self._lost(f"the connection failed: {error.strerror}") from error
        if count == 0:
            raise self._lost("the other side closed the connection")
        self.received += count
        return True

    def _lost(self, reason: str) -> LostError | GreetingError:
        """The end of the stream in words: for one of TLS, what was wrong with it."""
        failure = failure_of(self.sock)
        if failure is None:
            return LostError(reason)
        return LostError(failure.message) if self.greeted else GreetingError(failure.code, failure.message)

    def _receive(self) -> int:
        if self._incoming is not None:
            return self._receive_payload(self._incoming)
        if not self.greeted and self._greeting is not None and self._greeting.other is None:
            return self._receive_with_fds()
        missing = self._parser.missing
        if missing > _READ:
            data = self.sock.recv(min(missing, _READ_MORE))
            self._parser.feed(data)
            return len(data)
        data = self.sock.recv(_READ)
        self._parser.feed(data)
        return len(data)

    def _receive_payload(self, incoming: PayloadReader | PagesReader) -> int:
        total = incoming.receive(self.sock)
        try:
            for _ in range(_TURNS - 1):
                if incoming.complete or not total:
                    break
                total += incoming.receive(self.sock)
        except (BlockingIOError, InterruptedError):
            pass
        return total

    def _receive_with_fds(self) -> int:
        """Before the other's Hello is complete descriptors are taken; from then on the kernel throws away what
        comes."""
        if self.sock.family != socket.AF_UNIX:
            count = self.sock.recv_into(self._scratch)
        else:
            count, ancillary, _, _ = self.sock.recvmsg_into(
                [self._scratch], socket.CMSG_SPACE(MOST_FDS * _FD.size), socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self._fds_in += [fd for (fd,) in _FD.iter_unpack(data[: len(data) // _FD.size * _FD.size])]
            if len(self._fds_in) > MOST_FDS:
                raise GreetingError("fds", f"more than {MOST_FDS} descriptors came with a greeting")
        self._parser.feed(self._scratch[:count])
        return count

    def next(self, now: float) -> bytes | PayloadReader | PagesReader | None:
        """The next frame's body, or a payload that has become complete; None when neither has. FrameError for a damaged
        stream."""
        incoming = self._incoming
        if incoming is None:
            body = self._parser.next()
            if body is not None or not self._parser.held:
                self._pending_since = None
            elif self._pending_since is None:
                self._pending_since = now  # bytes that trickle in do not change it
            return body
        incoming.take(self._parser)
        if not incoming.complete:
            self._pending_since = now
            return None
        incoming.check()
        self._incoming = self._pending_since = None
        return incoming

    def accept_payload(self, views: Iterable[memoryview], token: int) -> None:
        """Read what follows into these views; `next` tells when it has."""
        self._incoming = into(views, token, self._payload_mac())

    def accept_pages(self, pages: PageReceiver, token: int) -> None:
        """The same for pages of a connection that is `bare`."""
        self._incoming = PagesReader(pages, token)

    def discard_payload(self, nbytes: int) -> None:
        """Drop what follows."""
        self._incoming = discarding(nbytes, self._payload_mac())

    def _payload_mac(self) -> hashlib.blake2b | None:
        return self._parser.mac.start() if self._parser.mac is not None else None

    # Greeting

    def greet(self, body: bytes) -> tuple[Hello, list[int]] | None:
        """A frame before the greeting is over. The other's Hello, and the descriptors that came with it (now the
        caller's), when it is. GreetingError when it has failed."""
        greeting = self._greeting
        assert greeting is not None
        bare = greeting.macs is None
        answers = greeting.take(body)
        if greeting.macs is not None and bare:
            if len(answers) > 1:
                self._outgoing.push(frame(answers.pop(0)))
            self._parser.mac, self._mac = greeting.macs
        for answer in answers:
            self._outgoing.push(frame(answer, self._mac))
        if not greeting.done:
            return None
        assert greeting.other is not None
        self._greeting, self.greeted, self._parser.limit = None, True, MAX_FRAME
        self._to = greeting.other.incarnation
        fds, self._fds_in = self._fds_in, []
        return greeting.other, fds

    def refuse(self, refusal: Refused, reason: str) -> None:
        """Tell why, and end when it is told."""
        self.ending = reason
        _close_all(self._fds_out)
        self._outgoing.push(frame(encode(Envelope(self._to, refusal)), self._mac))

    def announced(self) -> Announced | None:
        """Return what came next over the lane; None: nothing that is due yet. PeerError for garbage."""
        lane = self.lane_in
        if lane is None:
            return None
        said = self.early or lane.take()
        self.early = said if said is not None and said.after > self.taken else None
        return None if self.early is not None else said

    # Out

    def send(self, body: bytes) -> None:
        """Queue a frame. FrameError when the other side is too far behind."""
        self.sent += 1
        self._outgoing.push(frame(body, self._mac))

    def send_payload(self, body: bytes, views: Iterable[memoryview], token: int) -> None:
        """Queue a frame and blocks after it."""
        self.send(body)
        self._outgoing.push_payload(views, token, self._mac.start() if self._mac is not None else None)

    def send_pages(self, body: bytes, pages: PageSender, token: int) -> None:
        """The same for pages of a connection that is `bare`."""
        self.send(body)
        self._outgoing.push_pages(pages, token)

    @property
    def bare(self) -> bool:
        """Tell whether no MACs are made."""
        return self._mac is None and self._parser.mac is None

    @property
    def peer_incarnation(self) -> bytes:
        """Whom frames are for."""
        return self._to

    def flush(self, now: float) -> tuple[list[int], bool]:
        """Write what can be written: the tokens of payloads that are through, and whether anything is left. LostError
        when the connection failed."""
        tokens: list[int] = []
        outgoing = self._outgoing
        before = outgoing.written
        try:
            for _ in range(_TURNS):
                if not outgoing:
                    break
                tokens += outgoing.flush(self.sock, self._rights())
                _close_all(self._fds_out)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise self._lost(f"the connection failed: {error.strerror}") from error
        left = bool(outgoing)
        if not left or outgoing.written != before:
            self._blocked_since = None
        if left and self._blocked_since is None:
            self._blocked_since = now
        return tokens, left

    def _rights(self) -> list[tuple[int, int, bytes]]:
        """The descriptors that go with the first bytes of a Hello."""
        if not self._fds_out:
            return []
        return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(self._fds_out)}i", *self._fds_out))]

    # Ending

    @property
    def sending(self) -> bool:
        """Tell whether something is not written yet."""
        return bool(self._outgoing)

    @property
    def unsettled(self) -> bool:
        """Tell whether time counts against it."""
        return not self.greeted or self._pending_since is not None or self._blocked_since is not None

    def overdue(self, now: float, greeting_s: float, stall_s: float) -> str:
        """Return why the connection must end, or nothing."""
        if not self.greeted and now - self.began > greeting_s:
            return f"no complete greeting within {greeting_s:g} s"
        if self._pending_since is not None and now - self._pending_since > stall_s:
            return f"a frame was begun and not ended within {stall_s:g} s"
        if self._blocked_since is not None and now - self._blocked_since > stall_s:
            return f"nothing was taken from this side for {stall_s:g} s"
        return ""

    def close(self) -> tuple[int | None, list[int]]:
        """Close the socket: the token of a payload that was coming in, and of those that were not through."""
        self.sock.close()
        _close_all(self._fds_out)
        _close_all(self._fds_in)
        incoming = self._incoming.token if self._incoming is not None else None
        self._incoming = None
        return incoming, self._outgoing.tokens()


def connect_error(sock: socket.socket) -> str:
    """Return why a connection under way was not made; empty when it was."""
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return "" if code == 0 else os.strerror(code or errno.EIO)


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


__all__ = ["Connection", "FrameError", "GreetingError", "LostError", "connect_error"]


class Listener(Protocol):
    """`action_executor.ActionExecutor`."""

    def on_greeted(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        """Both Hellos were good; takes `fds` over. PeerError: the other side is refused after all."""

    def on_message(self, connection: Connection, message: Message) -> None:
        """A frame for this process."""

    def on_announced(self, connection: Connection, said: Announced) -> None:
        """The same, of a `Ready` that came over a lane."""

    def on_payload(self, connection: Connection, incoming: PayloadReader | PagesReader) -> None:
        """A payload has come completely."""

    def on_sent(self, token: int, ok: bool) -> None:
        """A payload is through, or never will be."""

    def on_not_connected(self, address: str, reason: str) -> None:
        """`connect` came to nothing."""

    def on_lost(self, connection: Connection, reason: str, incoming: int | None) -> None:
        """A greeted connection has ended, perhaps inside the payload with token `incoming`."""

    def on_gone(self, number: int, reason: str, dead: bool) -> None:
        """Take note of what `machine.PeerLost` tells."""
