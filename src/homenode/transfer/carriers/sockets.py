"""Channels that need no library. `shm`: memory of another process on this host, mapped, checked, copied and digested;
its descriptors come over Unix sockets. `tcp`: frames and pages over TCP."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import secrets
import socket
import stat
import struct
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from homenode.compute.kv_memory import TILE_TOKENS, Copier, EpochWords, KvLayout, KvMemory, KvRegion
from homenode.errors import HostError, PeerError, UserError
from homenode.net.keys import KeyFolder
from homenode.net.secure_stream import secure_stream
from homenode.net.settings import NetConfig
from homenode.transfer.carriers.carrier import (
    Caller,
    Chunk,
    KvBackend,
    Listening,
    LocalBuffer,
    PeerBuffer,
    TcpAddress,
    UnixAddress,
    parse_address,
)
from homenode.transfer.setup.checks import in_clear
from homenode.transfer.state.pages import hole
from homenode.transfer.wire.message import Buffer
from homenode.units import format_count

_WORD = 8
_GEOMETRY = ("layers", "kv_heads", "head_dim", "dtype", "tile_bytes", "sides")
_MOST_BLOCKS = 1 << 31
_MOST_REGIONS = 1024


class MappedBuffer:
    """Pages are read, and in push mode written, in place."""

    def __init__(
        self, layout: KvLayout, fds: Sequence[int], own: KvLayout, backend: KvBackend, *, writable: bool
    ) -> None:
        """Closes `fds` (the memory's and its epoch words') in any case. PeerError when they are not what `layout`
        says."""
        try:
            check_layout(layout, own)
            if len(fds) != 2:
                raise PeerError(f"{len(fds)} descriptors came for a buffer; two are due")
            _check_descriptor(fds[0], layout.nbytes)
            _check_descriptor(fds[1], layout.blocks * _WORD)
            self.layout = layout
            self._memory = backend.map_memory(fds[0], layout, writable=writable)
            self._words = backend.map_words(fds[1], layout.blocks)
        except (OSError, ValueError, UserError) as error:
            raise PeerError(f"a peer's memory cannot be mapped: {error}", code="buffer") from error
        finally:
            for fd in fds:
                os.close(fd)

    @property
    def memory(self) -> KvMemory:
        """The memory, to be read in place."""
        return self._memory

    @property
    def words(self) -> EpochWords:
        """The epoch words of its blocks."""
        return self._words

    def copy_from(self, copier: Copier, target: LocalBuffer, job: Chunk) -> list[bytes] | None:
        """Do as `PeerBuffer` says."""
        return run(copier, target.memory, self._memory, self._words, job)

    def copy_to(self, copier: Copier, source: LocalBuffer, job: Chunk) -> list[bytes] | None:
        """Do as `PeerBuffer` says."""
        return run(copier, self._memory, source.memory, source.words, job)

    def digests(self, job: Chunk) -> list[bytes] | None:
        """Do as `PeerBuffer` says."""
        return digests_of(self._memory, self._words, job)

    def close(self) -> None:
        """Let the mappings go; they end with whoever else still has them."""
        del self._memory, self._words


def run(copier: Copier, target: KvMemory, source: KvMemory, words: EpochWords | None, job: Chunk) -> list[bytes] | None:
    """The copy loop over memory that is mapped."""
    epochs = None if job.epochs is None or words is None else (words, job.epochs)
    where = (job.first_page, job.pages, job.tokens)
    return copier(
        target, job.target_table, source, job.source_table, *where, epochs=epochs, page_tokens=job.page_tokens
    )


def digests_of(memory: KvMemory, words: EpochWords | None, job: Chunk) -> list[bytes] | None:
    """Digests, with the epochs compared before and after."""
    if not _epochs_hold(words, job):
        return None
    digests = memory.digests(job.source_table, job.first_page, job.pages, job.tokens, job.page_tokens)
    return digests if _epochs_hold(words, job) else None


def _epochs_hold(words: EpochWords | None, job: Chunk) -> bool:
    """Tell whether the source's words are what they must be for the pages of this chunk."""
    if job.epochs is None or words is None:
        return True
    blocks, epochs = job.source_table[job.first_page : job.first_page + job.pages], job.epochs
    if min(blocks, default=0) < 0:
        there = [(block, epoch) for block, epoch in zip(blocks, epochs, strict=True) if block >= 0]
        blocks, epochs = [block for block, _ in there], [epoch for _, epoch in there]
    return words.hold(blocks, epochs)


def check_layout(layout: KvLayout, own: KvLayout) -> None:
    """PeerError unless every tile the layout can name lies within its file, and its geometry is this process's own."""
    for name in _GEOMETRY:
        if getattr(layout, name) != getattr(own, name):
            raise PeerError(
                f"{name} of a peer's memory is {getattr(layout, name)!r}, here it is {getattr(own, name)!r}"
            )
    if not (
        0 < layout.blocks < _MOST_BLOCKS
        and layout.nbytes > 0
        and layout.block_size > 0
        and layout.block_size % TILE_TOKENS == 0
    ):
        raise PeerError(
            f"a peer's memory of {format_count(layout.blocks, 'block')} of "
            f"{format_count(layout.block_size, 'token')} in {layout.nbytes} bytes makes no sense"
        )
    if len(layout.regions) > _MOST_REGIONS or (wrong := hole(layout)) is not None:
        what = f"{len(layout.regions)} regions" if len(layout.regions) > _MOST_REGIONS else wrong
        raise PeerError(f"the regions of a peer's memory do not make up its layers and heads: there are {what}")
    ends = [_end_of(layout, region) for region in layout.regions]
    if layout.has_copies:
        _check_apart(layout, ends)


def _end_of(layout: KvLayout, region: KvRegion) -> int:
    """Return where it ends in the file. PeerError when that is behind the file's end."""
    head_bytes = layout.head_bytes
    strides = (region.layer_stride, region.block_stride, region.head_stride)
    if region.offset < 0 or min(strides) < head_bytes:
        raise PeerError("the heads of a region of a peer's memory overlap")
    first, past = layout.layers_of(region)
    steps = (past - first - 1, layout.blocks - 1, region.past_head - region.first_head - 1)
    end = region.offset + sum(count * stride for count, stride in zip(steps, strides, strict=True)) + head_bytes
    if end > layout.nbytes:
        raise PeerError(f"a region of a peer's memory ends at byte {end} of {layout.nbytes}")
    return end


def _check_apart(layout: KvLayout, ends: Sequence[int]) -> None:
    """PeerError when regions that have a head in common lie over each other in the file: what is written to one copy of
    it would change another."""
    for (one, end), (other, past) in combinations(zip(layout.regions, ends, strict=True), 2):
        if one.offset < past and other.offset < end and _share_heads(layout, one, other):
            raise PeerError("regions of a peer's memory lie over each other")


def _share_heads(layout: KvLayout, one: KvRegion, other: KvRegion) -> bool:
    (first, past), (begin, end) = layout.layers_of(one), layout.layers_of(other)
    heads = one.first_head < other.past_head and other.first_head < one.past_head
    return heads and first < end and begin < past


def _check_descriptor(fd: int, nbytes: int) -> None:
    """A file long enough that cannot be made shorter: reading a mapping past a file's end would kill this process
    (SIGBUS)."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size < nbytes:
        raise PeerError(f"a descriptor of {status.st_size} bytes came where memory of {nbytes} bytes was announced")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise PeerError("a descriptor that is no memfd came for a buffer") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise PeerError("a peer's memory is not sealed against shrinking (F_SEAL_SHRINK)")


def private_memory(backend: KvBackend, layout: KvLayout) -> KvMemory:
    """KV memory of this process alone. HostError when there is none."""
    try:
        fd = os.memfd_create("homenode-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, layout.nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            return backend.map_memory(fd, layout, writable=True)
        finally:
            os.close(fd)
    except OSError as error:
        raise HostError(f"no memory for {format_count(layout.blocks, 'page')} on their way: {error}") from error


_SO_PEERPIDFD = 77  # Linux 6.5; socket(7)
_BACKLOG = 128


class ShmCarrier:
    """Frames over Unix sockets; memory by its descriptors."""

    name = "shm"
    passes_memory = True
    reaches_memory = True
    secret: str | None = None  # the kernel says who is there

    def __init__(self, own: KvLayout, backend: KvBackend) -> None:
        """`own`: this process's layout; a peer's must have the same geometry."""
        self._own, self._backend = own, backend

    def listen(self, ports: Sequence[int]) -> list[Listening]:
        """One abstract name for each port asked for; the numbers mean nothing here."""
        return [self._bind() for _ in range(max(1, len(ports)))]

    def _bind(self) -> Listening:
        address = UnixAddress(f"homenode-{secrets.token_hex(16)}")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.bind("\0" + address.name)
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            raise HostError(f"no Unix socket for KV transfer can be opened: {error}") from error
        return Listening(sock, str(address))

    def connect(self, address: str) -> socket.socket:
        """Connected when it returns: a Unix socket that somebody listens on takes no time, a full backlog is an
        error."""
        where = parse_address(address)
        if not isinstance(where, UnixAddress):
            raise PeerError(f"{address} cannot be reached over transfer_channel shm; set tcp on both sides")
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise HostError(f"no connection to {address} can be made: {error.strerror}") from error
        try:
            sock.setblocking(False)
            sock.connect("\0" + where.name)
        except OSError as error:
            sock.close()
            raise PeerError(f"nobody takes connections at {address}: {error.strerror}") from error
        return sock

    def vet(self, sock: socket.socket) -> Caller:
        """Accept only processes of this process's user; others get no word."""
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            raise PeerError(f"a process of user {uid} connected; only those of user {os.geteuid()} may", code="uid")
        return Caller(f"pid {pid}", pid, _pidfd(sock, pid))

    def protect(self, sock: socket.socket, *, connects: bool) -> socket.socket:
        """Nothing is needed within a host."""
        return sock

    def identity(self, exported: Sequence[LocalBuffer]) -> bytes:
        """Nothing: the descriptors say it all."""
        return b""

    def meet(self, caller: Caller, carrier: bytes) -> Caller:
        """Nothing to add."""
        return caller

    def attach(self, buffer: Buffer, fds: Sequence[int], carrier: bytes, *, writable: bool) -> PeerBuffer | None:
        """Map a peer's memory and its epoch words."""
        return MappedBuffer(buffer.layout, fds, self._own, self._backend, writable=writable)

    def close(self) -> None:
        """Nothing is held."""


def _pidfd(sock: socket.socket, pid: int) -> int | None:
    """A descriptor that becomes readable when the process has ended; None where the kernel gives none (or another PID
    namespace)."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pass
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


_BACKLOG = 128
_SILENT_MS = 30_000  # for so long sent bytes may stay unacknowledged
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}


_PROTOCOL = "homenode-kv/1"
_HANDSHAKE_S = 5.0


class TcpCarrier:
    """Frames and pages over TCP, encrypted where there are keys. With a secret MACs are made on loopback too."""

    name = "tcp"
    passes_memory = False
    reaches_memory = False

    def __init__(
        self,
        host: str,
        secret: str | None = None,
        allowed: Sequence[str] = (),
        net: NetConfig | None = None,
        past_tls: str = "",
    ) -> None:
        """`allowed`: networks that peers are in, apart from loopback; none: any who knows the secret. `net`: what keeps
        other hosts from listening. `past_tls`: the library that moves pages by itself, which no TLS protects.

        Raises UserError for a host that cannot be bound and published, one off loopback whose bytes would go in clear,
        or in clear without a secret, and for keys that cannot be used.
        """
        self.secret = secret
        self._net, self._past_tls = net or NetConfig(), past_tls
        self._keys = None if self._net.peer_keys is None else KeyFolder(Path(self._net.peer_keys))
        if self._keys is not None:
            self._keys.check()
        self._allowed = [ipaddress.ip_network(network) for network in allowed]
        self._host = _numeric(host)
        if (problem := in_clear(self._net, host if self._host.is_loopback else str(self._host), past_tls)) is not None:
            raise problem
        if not self._host.is_loopback and secret is None and self._keys is None:
            raise UserError(
                f"pd_peer_host {host} can be reached from other machines, so frames need a MAC: set pd_secret to "
                "the same value on both "
                "sides, or bind 127.0.0.1.",
                param="pd_secret",
            )

    @property
    def host(self) -> str:
        """The address that others reach this process at."""
        return str(self._host)

    def listen(self, ports: Sequence[int]) -> list[Listening]:
        """Bind all of them, or none: UserError names the port that is taken."""
        bound: list[Listening] = []
        try:
            for port in ports or (0,):
                bound.append(self._bind(port))
        except BaseException:
            for listening in bound:
                listening.sock.close()
            raise
        return bound

    def _bind(self, port: int) -> Listening:
        sock = socket.socket(socket.AF_INET if self._host.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind((str(self._host), port))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            what = (
                "is in use by another program"
                if error.errno == errno.EADDRINUSE
                else f"cannot be bound: {error.strerror}"
            )
            raise UserError(
                f"KV transfer: port {port} of {self._host} {what}. Choose another, or none for a free one."
            ) from error
        return Listening(sock, str(TcpAddress(str(self._host), sock.getsockname()[1])))

    def connect(self, address: str) -> socket.socket:
        """A connection under way; whether it was made shows when the socket can be written to."""
        where = parse_address(address)
        if not isinstance(where, TcpAddress):
            raise PeerError(f"{address} cannot be reached over transfer_channel {self.name}; set shm on both sides")
        if not self._is_allowed(where.host):
            raise PeerError(f"{address} is in none of pd_allowed_peers; nothing is sent there")
        if (problem := in_clear(self._net, where.host, self._past_tls, "a peer")) is not None:
            raise PeerError(problem.message)
        if not where.loopback and self.secret is None and self._keys is None:
            raise PeerError(
                f"{address} is on another machine, and no pd_secret is set; nothing is sent there without MACs"
            )
        try:
            sock = socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            raise HostError(f"no connection to {address} can be made: {error.strerror}") from error
        sock.setblocking(False)
        code = sock.connect_ex((where.host, where.port))
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            raise PeerError(f"nobody takes connections at {address}: {os.strerror(code)}")
        return sock

    def vet(self, sock: socket.socket) -> Caller:
        """Anybody may connect; the greeting shows who knows the secret. Sets what makes a dead machine show."""
        try:
            host = sock.getpeername()[0]
            if not self._is_allowed(host):
                raise PeerError(f"{host} connected, which is in none of pd_allowed_peers", code="not allowed")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, name, value)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)
            return Caller(host)
        except OSError as error:
            raise PeerError(f"a connection ended before it began: {error.strerror}", code="lost") from error

    def protect(self, sock: socket.socket, *, connects: bool) -> socket.socket:
        """Begin TLS where there are keys. PeerError where it cannot be begun."""
        if self._keys is None:
            return sock
        try:
            stream = secure_stream(sock, self._keys, _PROTOCOL, "engine", connects=connects, timeout_s=_HANDSHAKE_S)
        except UserError as error:
            raise PeerError(error.message, code="keys") from error
        stream.setblocking(False)
        return stream

    def _is_allowed(self, host: str) -> bool:
        """Whoever asks a server may name an address to hand KV over to: the operator says which ones are ours."""
        address = ipaddress.ip_address(host)
        return not self._allowed or address.is_loopback or any(address in network for network in self._allowed)

    def identity(self, exported: Sequence[LocalBuffer]) -> bytes:
        """Nothing."""
        return b""

    def meet(self, caller: Caller, carrier: bytes) -> Caller:
        """Nothing to add."""
        return caller

    def attach(self, buffer: Buffer, fds: Sequence[int], carrier: bytes, *, writable: bool) -> PeerBuffer | None:
        """Nothing to reach: None."""
        for fd in fds:
            os.close(fd)
        return None

    def close(self) -> None:
        """Nothing is held."""


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address a host name stands for; it is what is published, so it must be one others can connect to."""
    try:
        found = ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError, ValueError) as error:
        raise UserError(
            f"pd_peer_host {host!r} is no address of this machine: {error}", param="pd_peer_host"
        ) from error
    if found.is_unspecified:
        raise UserError(
            f"pd_peer_host {host} stands for all addresses, and others must be told one of them. Name it.",
            param="pd_peer_host",
        )
    return found
