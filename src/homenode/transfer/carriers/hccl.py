"""Channel `hccl`: the engine of a `RegisteredCarrier` that moves pages by way of two NPUs."""

from __future__ import annotations

import bisect
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue

import msgspec

from homenode.compute.kv_memory import KvLayout
from homenode.errors import HomenodeError, HostError, PeerError
from homenode.host.refusals import start_thread
from homenode.net.frame_mac import Direction
from homenode.transfer.carriers.carrier import Addresses, KvBackend
from homenode.transfer.carriers.hccl_link import (
    ANSWER_S,
    CHUNK,
    JOIN_S,
    MOST_SPANS,
    ControlStream,
    HcclAnswer,
    HcclLibrary,
    HcclLink,
    HcclMove,
    HcclOpening,
    HcclRequest,
    Span,
    chunks,
    size_of,
    valid_root,
)
from homenode.transfer.carriers.registered import RegisteredCarrier
from homenode.transfer.carriers.sockets import TcpCarrier

_log = logging.getLogger(__name__)
_MOST_SERVED = 64  # connections
_BACKLOG = 16
_CONNECTING_PAUSE_S = 0.01
_LOOK_S = 1.0  # how often threads look whether all ends
_WRITTEN_S = 3 * ANSWER_S  # when whoever serves has written what it will, or never does

Vet = Callable[[socket.socket], object]


class HcclAddress(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The address that a process serves at; `key` goes into the MACs, beside the secret that both know."""

    name: str
    host: str
    port: int
    key: bytes


class HcclTransfer:
    """A transfer under way."""

    def __init__(self, writes: bool, ours: list[Span], theirs: list[Span], connected: threading.Event) -> None:
        """`connected`: that there is a way to the other side."""
        self.writes, self.ours, self.theirs, self.connected = writes, ours, theirs, connected
        self.good = False
        self.done = threading.Event()

    def ended(self) -> bool:
        """Tell whether it has."""
        return self.done.is_set()


class HcclEngine:
    """The library that a `RegisteredCarrier` needs. May be used from several threads."""

    def __init__(self, library: HcclLibrary, host: str, secret: str | None, vet: Vet) -> None:
        """`host`: the address that others reach this process at. `vet`: raises PeerError for a connection of somebody
        who may not be. HostError when the address cannot be bound.
        """
        self.name = f"homenode-{os.urandom(8).hex()}"
        self._library, self._secret, self._vet = library, secret or "", vet
        self._key = os.urandom(32)
        self._exported: list[Span] = []  # ascending
        self._peers: dict[str, HcclClient] = {}
        self._served = 0
        self._lock = threading.Lock()
        self.closing = threading.Event()
        try:
            self._listener = socket.create_server((host, 0), family=_family(host), backlog=_BACKLOG)
        except OSError as error:
            raise HostError(f"HCCL: no address of {host} can be bound: {error.strerror}") from error
        self._listener.settimeout(_LOOK_S)
        self._address = HcclAddress(self.name, host, self._listener.getsockname()[1], self._key)
        start_thread(threading.Thread(target=self._accept, name="homenode-hccl", daemon=True))

    @property
    def metadata(self) -> bytes:
        """Return what another process must be given to reach this one's registered memory."""
        return msgspec.msgpack.encode(self._address)

    def register(self, spans: list[tuple[int, int]], *, exported: bool = True) -> None:
        """Memory of this process (address, bytes), until the end; others may reach it where it is `exported`."""
        if exported:
            with self._lock:
                self._exported = _merged([*self._exported, *spans])

    def add_peer(self, metadata: bytes) -> str:
        """Its name. Begins to connect. PeerError for metadata that is none."""
        try:
            address = msgspec.msgpack.decode(metadata, type=HcclAddress)
        except msgspec.MsgspecError as error:
            raise PeerError(f"what a peer says of HCCL cannot be read: {error}", code="buffer") from error
        if len(address.name) > 64 or len(address.host) > 64 or len(address.key) != 32 or not 0 < address.port < 1 << 16:
            raise PeerError("what a peer says of HCCL is out of all measure", code="buffer")
        if address.name not in self._peers:
            self._peers[address.name] = HcclClient(self._library, address, self._key_of(address.key), self.closing)
        return address.name

    def remove_peer(self, name: str) -> None:
        """Nothing of it is used any more."""
        if (peer := self._peers.pop(name, None)) is not None:
            peer.leave()

    def begin(self, operation: str, ours: Addresses, theirs: Addresses, peer: str) -> HcclTransfer:
        """READ or WRITE. PeerError for a peer that is gone."""
        asking = self._peers.get(peer)
        if asking is None:
            raise PeerError("HCCL: the peer is gone", code="lost")
        transfer = HcclTransfer(operation == "WRITE", _spans(ours), _spans(theirs), asking.connected)
        asking.queue.put(transfer)
        return transfer

    def wait(self, transfer: HcclTransfer, seconds: float) -> bool:
        """Tell whether it has ended by then, counted from when there is a connection, which HCCL takes seconds to
        make."""
        until = time.monotonic() + JOIN_S
        while not transfer.connected.is_set() and time.monotonic() < until:
            if transfer.done.wait(_CONNECTING_PAUSE_S):
                break
        return transfer.done.wait(seconds)

    def expect_peers(self) -> None:
        """Nothing to do: whoever connects is served by a thread of its own."""

    def close(self, unended: int) -> None:
        """End all connections."""
        self.closing.set()
        self._listener.close()
        for peer in list(self._peers.values()):
            peer.leave()
        if unended:
            _log.error("%d HCCL transfers are still under way at the end", unended)

    # Serving

    def _key_of(self, key: bytes) -> str:
        return f"{self._secret}{key.hex()}"

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            try:
                self._vet(sock)
                with self._lock:
                    if self._served >= _MOST_SERVED:
                        raise PeerError("HCCL: too many connections")
                    self._served += 1
                start_thread(threading.Thread(target=self._serve, args=(sock,), name="homenode-hccl", daemon=True))
            except HomenodeError as error:
                _log.warning("%s", error.message)
                sock.close()

    def _serve(self, sock: socket.socket) -> None:
        stream, link = None, None
        try:
            stream = ControlStream(sock, self._key_of(self._key), Direction.FROM_ACCEPTOR)
            opened = stream.receive(HcclOpening, ANSWER_S)
            if opened is None or not valid_root(opened.root):
                raise PeerError("HCCL: a connection does not begin as it should", code="garbage")
            stream.send(HcclAnswer())
            link = HcclLink(self._library, opened.root, 1)
            while not self.closing.is_set():
                request = stream.receive(HcclRequest, _LOOK_S)
                if isinstance(request, HcclOpening):
                    raise PeerError("HCCL: a second beginning", code="garbage")
                if request is not None:
                    self._move(stream, link, request)
        except HomenodeError as error:
            _log.info("%s", error.message)
        finally:
            with self._lock:
                self._served -= 1
            if link is not None:
                link.close()
            if stream is not None:
                stream.close()
            sock.close()

    def _move(self, stream: ControlStream, link: HcclLink, move: HcclMove) -> None:
        until = time.monotonic() + 2 * ANSWER_S
        if refusal := self._refusal(move):
            stream.send(HcclAnswer(refusal))
            return
        if not move.writes:
            nbytes = link.gather(move.spans)
            stream.send(HcclAnswer())
            link.send(nbytes)
            return
        stream.send(HcclAnswer())
        nbytes = size_of(move.spans)
        link.receive(nbytes)
        if time.monotonic() > until:
            raise PeerError("HCCL: bytes came too late to be of use", code="silent")
        link.scatter(move.spans, nbytes)
        stream.send(HcclAnswer())

    def _refusal(self, move: HcclMove) -> str:
        """Return why these pieces are not to be had; empty where they are."""
        if not move.spans or len(move.spans) > MOST_SPANS or any(size <= 0 for _, size in move.spans):
            return "no pieces, too many, or one without bytes"
        if size_of(move.spans) > CHUNK:
            return f"more than {CHUNK} bytes at once"
        with self._lock:
            exported = self._exported
        return "" if all(_inside(exported, span) for span in move.spans) else "memory that was not registered"


class HcclClient:
    """This process's side of a connection to one that serves: a thread does one transfer after the other."""

    def __init__(self, library: HcclLibrary, address: HcclAddress, key: str, closing: threading.Event) -> None:
        self._library, self._address, self._key, self._closing = library, address, key, closing
        self.queue: SimpleQueue[HcclTransfer] = SimpleQueue()
        self._leaving, self.connected = threading.Event(), threading.Event()
        self._stream: ControlStream | None = None
        self._link: HcclLink | None = None
        start_thread(threading.Thread(target=self._run, name="homenode-hccl", daemon=True))

    def leave(self) -> None:
        """End, after what is under way."""
        self._leaving.set()

    def _run(self) -> None:
        self._guarded(self._connected)
        while not (self._leaving.is_set() or self._closing.is_set()):
            try:
                transfer = self.queue.get(timeout=_LOOK_S)
            except Empty:
                continue
            transfer.good = self._guarded(partial(self._do, transfer))
            transfer.done.set()
        self._drop()
        while not self.queue.empty():
            self.queue.get().done.set()

    def _guarded(self, act: Callable[[], object]) -> bool:
        """Tell whether it went well; the connection is given up where it did not."""
        try:
            act()
        except HomenodeError as error:
            _log.warning("%s", error.message)
            self._drop()
            return False
        except Exception:
            _log.exception("HCCL: an internal error; the connection is given up")
            self._drop()
            return False
        return True

    def _do(self, transfer: HcclTransfer) -> None:
        stream, link = self._connected()
        for ours, theirs in chunks(transfer.ours, transfer.theirs):
            stream.send(HcclMove(transfer.writes, tuple(theirs)))
            nbytes = link.gather(ours) if transfer.writes else size_of(ours)
            stream.answered(ANSWER_S)
            if not transfer.writes:
                link.receive(nbytes)
                link.scatter(ours, nbytes)
                continue
            until = time.monotonic() + _WRITTEN_S
            try:
                link.send(nbytes)
                stream.answered(ANSWER_S)
            except PeerError:
                self._drop()
                self._closing.wait(max(0.0, until - time.monotonic()))  # it may be written until then
                raise

    def _connected(self) -> tuple[ControlStream, HcclLink]:
        """PeerError and HostError when there is no way to the other side."""
        if self._stream is not None and self._link is not None:
            return self._stream, self._link
        self._library.enter()
        where = (self._address.host, self._address.port)
        try:
            sock = socket.create_connection(where, ANSWER_S)
        except OSError as error:
            raise PeerError(f"HCCL: nobody takes connections at {where}: {error}", code="lost") from error
        try:
            stream = ControlStream(sock, self._key, Direction.FROM_CONNECTOR)
        except PeerError:
            sock.close()
            raise
        self._stream = stream
        root = self._library.root()
        stream.send(HcclOpening(root))
        stream.answered(JOIN_S)
        self._link = HcclLink(self._library, root, 0)
        self.connected.set()
        return stream, self._link

    def _drop(self) -> None:
        self.connected.clear()
        stream, link, self._stream, self._link = self._stream, self._link, None, None
        if stream is not None:
            stream.close()
        if link is not None:
            link.close()


def _spans(addresses: Addresses) -> list[Span]:
    return [(int(row[0]), int(row[1])) for row in addresses]


def _merged(spans: Sequence[Span]) -> list[Span]:
    """The same memory ascending, neighbours as one: a piece may reach from one into the next."""
    found: list[Span] = []
    for address, nbytes in sorted(spans):
        if found and address <= found[-1][0] + found[-1][1]:
            first = found[-1][0]
            found[-1] = (first, max(found[-1][1], address + nbytes - first))
        else:
            found.append((address, nbytes))
    return found


def _inside(exported: Sequence[Span], span: Span) -> bool:
    """Tell whether a piece lies in one of these, which are ascending."""
    at = bisect.bisect_right(exported, (span[0], 1 << 64)) - 1
    return at >= 0 and span[0] + span[1] <= exported[at][0] + exported[at][1]


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class HcclCarrier(RegisteredCarrier):
    """Registered memory, and messages of HCCL between two NPUs."""

    name, title = "hccl", "HCCL"

    def __init__(self, tcp: TcpCarrier, own: KvLayout, backend: KvBackend, device: int) -> None:
        """`device`: the NPU, as torch counts it. UnsupportedError without the vendor's libraries, HostError where the
        NPU does not open.
        """
        engine = HcclEngine(HcclLibrary(device, JOIN_S), tcp.host, tcp.secret, tcp.vet)
        super().__init__(tcp, own, backend, engine)
