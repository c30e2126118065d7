"""A connection to another host over TLS, for whoever reads and writes a plain socket: Python or the native core,
waiting or not.

The owner gets one end of a socket pair; a thread of its own carries bytes between the other end and the network,
encrypted there. So nobody who waits for many connections waits for a handshake, or computes for it. Both buffers are
bounded: who does not read is not read for.

What the owner has written before it closed its end is still sent; `streams.drain` waits for that before a process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import select
import socket
import struct
import termios
import threading
import time

from homenode.errors import HomenodeError, HostError, PeerError
from homenode.host.refusals import start_thread
from homenode.host.socket_pair import open_socket_pair
from homenode.net import streams
from homenode.net.keys import KeyFolder
from homenode.net.tls import TlsEnd, TlsError

_log = logging.getLogger(__name__)
_REFUSED = "a connection is refused"
_CHUNK = 256 << 10
_PAIR_BUFFER = 1 << 20  # bytes; the kernel gives what it allows
_FAREWELL_S = 5.0  # for what was written before the owner closed its end
_SILENT_MS = 30_000  # for so long sent bytes may stay unacknowledged
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}
_IN, _OUT, _GONE = select.POLLIN, select.POLLOUT, select.POLLHUP | select.POLLERR | select.POLLNVAL


class SecureSocket(socket.socket):
    """The owner's end. It is of the family AF_UNIX; `peer_host` and `local_host` are addresses of the connection behind
    it."""

    def __init__(self, descriptor: int, carriage: _Carriage) -> None:
        super().__init__(fileno=descriptor)
        self._carriage = carriage
        self.peer_host, self.local_host = carriage.peer_host, carriage.local_host

    @property
    def failure(self) -> TlsError | None:
        """Return why the stream has ended, if it did not end in order."""
        return self._carriage.failure

    def wait_greeted(self, deadline: float) -> None:
        """Wait until both ends have proved who they are (`deadline` of time.monotonic). TlsError where they have not,
        and the socket is closed."""
        self._carriage.settled.wait(max(0.0, deadline - time.monotonic()))
        failure = self.failure
        if failure is None and not self._carriage.greeted:
            failure = TlsError("late", f"{self._carriage.peer} has not ended its handshake in time")
        if failure is not None:
            self.close()
            raise failure


def secure_stream(
    sock: socket.socket, keys: KeyFolder, protocol: str, role: str, *, connects: bool, timeout_s: float
) -> SecureSocket:
    """Take a connected socket over, and begin the handshake, which may take `timeout_s`. UserError for keys that cannot
    be used, PeerError where the connection has ended already, HostError when the machine refuses; then it is closed.
    """
    try:
        carriage = _Carriage(sock, keys, protocol, role, connects=connects, timeout_s=timeout_s)
    except BaseException:
        sock.close()
        raise
    return carriage.start()


def local_host(sock: socket.socket) -> str:
    """The address of this host that the other end of a connection sees, with or without TLS."""
    return sock.local_host if isinstance(sock, SecureSocket) else str(sock.getsockname()[0])


def failure_of(sock: socket.socket) -> TlsError | None:
    """Return why a stream has ended, where it is one of TLS and something was wrong."""
    return sock.failure if isinstance(sock, SecureSocket) else None


class _Carriage:
    """The thread's side of a stream."""

    def __init__(
        self, sock: socket.socket, keys: KeyFolder, protocol: str, role: str, *, connects: bool, timeout_s: float
    ) -> None:
        try:
            self.peer_host, self.local_host = str(sock.getpeername()[0]), str(sock.getsockname()[0])
            self.peer = "{}:{}".format(*sock.getpeername()[:2])
            sock.setblocking(False)
            _watch_over(sock)
        except OSError as error:
            raise PeerError(f"a connection ended before it began: {error.strerror}", code="lost") from error
        self._tls = TlsEnd(keys, protocol, role, connects=connects, peer=self.peer)
        self._sock, self._timeout_s = sock, timeout_s
        self.failure: TlsError | None = None
        self.greeted = self.ended = False
        self.settled = threading.Event()  # it is greeted, or has failed
        try:
            self._inner, self._outer = open_socket_pair()
        except OSError as error:
            raise HostError(f"no connection over TLS can be made: {error.strerror}", errno=error.errno) from error
        for end in (self._inner, self._outer):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PAIR_BUFFER)
        self._inner.setblocking(False)
        self._buffer_out = memoryview(bytearray(_CHUNK))
        self._taking = False  # what was taken is not in `_wire` yet
        self._wire = memoryview(b"")  # encrypted, to be sent
        self._buffer_in = memoryview(bytearray(_CHUNK))
        self._plain = memoryview(b"")  # decrypted, to be given to the owner
        self._poll_for: dict[int, int] = {}
        self._readable = {sock.fileno(), self._inner.fileno()}  # there may be something to read
        self._closing = False  # the owner says nothing more
        self._over = False  # the other end says nothing more

    def start(self) -> SecureSocket:
        owner = SecureSocket(self._outer.detach(), self)
        streams.add(self)
        try:
            start_thread(threading.Thread(target=self._run, name="homenode-tls", daemon=True))
        except BaseException:
            owner.close()
            self._close()
            raise
        return owner

    @property
    def idle(self) -> bool:
        """Return whether nothing that the owner wrote waits here."""
        if self.ended or not self.greeted:
            return True
        try:
            waiting = struct.unpack("i", fcntl.ioctl(self._inner, termios.FIONREAD, b"\0" * 4))[0]
        except (OSError, ValueError):
            return True
        return not waiting and not self._taking and not self._wire  # in the order in which bytes go

    def _run(self) -> None:
        try:
            self._greet(time.monotonic() + self._timeout_s)
            self.settled.set()
            self._carry()
        except TlsError as error:
            self.failure = error
            _log.log(logging.DEBUG if error.code == "lost" else logging.WARNING, "%s: %s", _REFUSED, error.message)
            self._say_farewell()
        except OSError as error:
            if not self.greeted:
                why = f"failed in its handshake ({error.strerror}); does that host have --peer-keys, too?"
                self.failure = TlsError("lost", f"the connection to {self.peer} {why}")
        except HomenodeError as error:  # keys that cannot be used any more
            self.failure = TlsError("keys", error.message)
            _log.error("%s", error.message)
        except Exception:  # whatever it is: the owner hears of it, and the connection ends
            self.failure = TlsError("internal", f"an internal error over what {self.peer} said")
            _log.exception("a connection over TLS failed")
        finally:
            self.settled.set()
            self._close()

    def _close(self) -> None:
        self.ended = True
        self._inner.close()
        self._sock.close()
        streams.discard(self)

    # The greeting

    def _greet(self, deadline: float) -> None:
        """TlsError where it fails, takes too long, or the owner leaves."""
        while True:
            done = self._tls.greet()
            self._wire = memoryview(self._tls.take_wire())
            while self._wire:
                self._send()
                if self._wire:
                    self._wait_greeting(_OUT, deadline)
            if done:
                self.greeted = True
                return
            self._wait_greeting(_IN, deadline)
            self._receive()

    def _wait_greeting(self, events: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._sock, events)
        poll.register(self._inner, 0)  # the end of an owner who has left
        found = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if self._inner.fileno() in found:
            raise TlsError("lost", f"the connection to {self.peer} was given up in its handshake")
        if not found:
            raise TlsError("late", f"{self.peer} has not ended its handshake within {self._timeout_s:g} s")

    def _say_farewell(self) -> None:
        """Tell the other end why, as far as it listens at once."""
        with contextlib.suppress(OSError):
            self._sock.send(self._tls.take_wire())

    # Payload

    def _carry(self) -> None:
        """Carry bytes both ways until either end is over."""
        poll, farewell = select.poll(), 0.0
        while not self._is_over():
            if self._take() | self._send() | self._hear() | self._give():
                continue
            if self._closing and not farewell:
                farewell = time.monotonic() + _FAREWELL_S
            if farewell and time.monotonic() > farewell:
                return
            self._register(poll)
            for descriptor, events in poll.poll(_FAREWELL_S * 1000 if farewell else None):
                if events & ~_OUT:
                    self._readable.add(descriptor)
        if self._closing:
            self._tls.end()
            self._say_farewell()

    def _is_over(self) -> bool:
        return (self._closing and not self._wire) or (self._over and not self._plain)

    def _register(self, poll: select.poll) -> None:
        wanted = {
            self._sock.fileno(): (_OUT if self._wire else 0) | (0 if self._plain or self._over else _IN),
            self._inner.fileno(): (_OUT if self._plain else 0) | (0 if self._wire or self._closing else _IN),
        }
        for descriptor, events in wanted.items():
            if self._poll_for.get(descriptor, 0) == events:
                continue
            if events:
                poll.register(descriptor, events)
            else:  # else the end of a stream that waits for the other one would be told again and again
                poll.unregister(descriptor)
            self._poll_for[descriptor] = events

    def _take(self) -> bool:
        """Take what the owner says; whether there was something."""
        self._taking = True
        try:
            return self._take_some()
        finally:
            self._taking = False

    def _take_some(self) -> bool:
        if self._wire or self._closing or self._inner.fileno() not in self._readable:
            return False
        try:
            count = self._inner.recv_into(self._buffer_out)
        except BlockingIOError:
            self._readable.discard(self._inner.fileno())
            return False
        except OSError:
            count = 0
        if count < len(self._buffer_out):
            self._readable.discard(self._inner.fileno())
        if count:
            self._tls.write(self._buffer_out[:count])
            self._wire = memoryview(self._tls.take_wire())
        else:
            self._closing = True
        return True

    def _send(self) -> bool:
        if not self._wire:
            return False
        try:
            count = self._sock.send(self._wire)
        except BlockingIOError:
            return False
        self._wire = self._wire[count:]
        return True

    def _receive(self) -> bool:
        """Take bytes from the network, the end of them among these; whether there were any."""
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            data = None
        if data is None or len(data) < _CHUNK:
            self._readable.discard(self._sock.fileno())
        if data is None:
            return False
        if data:
            self._tls.feed(data)
        else:
            self._tls.feed_end()
        return True

    def _hear(self) -> bool:
        """Decrypt what came, if the owner has taken what came before."""
        if self._plain or self._over:
            return False
        try:
            count = self._tls.read_into(self._buffer_in)
            if not count and self._sock.fileno() in self._readable and self._receive():
                count = self._tls.read_into(self._buffer_in)
        except EOFError:
            self._over = True
            return True
        except TlsError as error:
            if error.code != "lost":
                raise
            self._over = True  # a process that was killed announces nothing
            return True
        except OSError:
            self._over = True
            return True
        self._plain = self._buffer_in[:count]
        if not self._wire:
            self._wire = memoryview(self._tls.take_wire())  # what TLS itself has to say
        return bool(count)

    def _give(self) -> bool:
        if not self._plain:
            return False
        try:
            count = self._inner.send(self._plain, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:  # the owner has left: what it has said is still sent
            self._over, self._plain = True, memoryview(b"")
            self._closing = True
            return True
        self._plain = self._plain[count:]
        return True


def _watch_over(sock: socket.socket) -> None:
    """Have a dead host show, and small frames go out at once."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, name, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)
