"""The vendor's libraries as channel `hccl` needs them, and the link over which two processes agree on what they move.

By their C interfaces: HCCL sends and receives between two NPUs, and AscendCL has the memory of an NPU, copies to and
from it, and streams. HCCL 8 and AscendCL, as of CANN 7 and 8: hccl/hccl.h, acl/acl_rt.h."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from homenode.errors import HostError, PeerError, UnsupportedError
from homenode.net.deadlines import read_exactly, write_all
from homenode.net.frame_mac import Direction, FrameMac, session_key
from homenode.net.frames import FrameParser, frame
from homenode.transfer.setup.surroundings import ACL, HCCL, library_file

ROOT_BYTES = 4108  # of HcclRootInfo
_UINT8 = 7  # HCCL_DATA_TYPE_UINT8
_TO_DEVICE, _TO_HOST = 1, 2  # ACL_MEMCPY_HOST_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_HOST
_HUGE_FIRST = 0  # ACL_MEM_MALLOC_HUGE_FIRST
_INITIALISED_BEFORE = 100002  # ACL_ERROR_REPEAT_INITIALIZE
_CONNECT_VARIABLE = "HCCL_CONNECT_TIMEOUT"  # seconds that HCCL waits for the other rank

Pointer = ctypes.c_void_p


class HcclLibrary:
    """Both libraries, on one NPU. Every call may come from any thread."""

    def __init__(self, device: int, connect_s: float, variables: Mapping[str, str] | None = None) -> None:
        """`device`: the NPU, as torch counts it. `connect_s`: how long HCCL may wait for another rank. UnsupportedError
        where a library is missing or has not what is needed, HostError where the NPU does not open.
        """
        variables = os.environ if variables is None else variables
        os.environ.setdefault(_CONNECT_VARIABLE, str(int(connect_s)))
        self._acl, self._hccl = (_load(name, variables) for name in (ACL, HCCL))
        self._device, self._threads = device, threading.local()
        code = _function(self._acl, "aclInit", ctypes.c_char_p)(None)
        if code not in (0, _INITIALISED_BEFORE):
            raise HostError(f"AscendCL does not start here: aclInit gives {code}")
        for name in ("aclrtMalloc", "aclrtMemcpy", "aclrtCreateStream", "aclrtSynchronizeStreamWithTimeout"):
            _function(self._acl, name)
        for name in ("HcclGetRootInfo", "HcclCommInitRootInfo", "HcclSend", "HcclRecv", "HcclCommDestroy"):
            _function(self._hccl, name)
        self.enter()

    def enter(self) -> None:
        """Have the calling thread use the NPU. HostError when it cannot be opened."""
        if getattr(self._threads, "entered", False):
            return
        code = _function(self._acl, "aclrtSetDevice", ctypes.c_int32)(self._device)
        if code:
            raise HostError(f"NPU {self._device} cannot be opened: aclrtSetDevice gives {code}")
        self._threads.entered = True

    # AscendCL

    def allocate(self, nbytes: int) -> int:
        """Memory of the NPU; its address there. HostError when there is none."""
        address = Pointer()
        self._check(
            _function(self._acl, "aclrtMalloc", ctypes.POINTER(Pointer), ctypes.c_size_t, ctypes.c_int)(
                ctypes.byref(address), nbytes, _HUGE_FIRST
            ),
            "aclrtMalloc",
        )
        return int(address.value or 0)

    def free(self, address: int) -> None:
        """Give it back."""
        _function(self._acl, "aclrtFree", Pointer)(address)

    def upload(self, device: int, host: int, nbytes: int) -> None:
        """Copy to the NPU's memory, and wait for it. HostError when that fails."""
        self._copy(device, host, nbytes, _TO_DEVICE)

    def download(self, host: int, device: int, nbytes: int) -> None:
        """Copy from the NPU's memory, and wait for it. HostError when that fails."""
        self._copy(host, device, nbytes, _TO_HOST)

    def _copy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        copy = _function(self._acl, "aclrtMemcpy", Pointer, ctypes.c_size_t, Pointer, ctypes.c_size_t, ctypes.c_int)
        self._check(copy(target, nbytes, source, nbytes, kind), "aclrtMemcpy")

    def create_stream(self) -> int:
        """A queue of what the NPU does. HostError when there is none."""
        stream = Pointer()
        self._check(
            _function(self._acl, "aclrtCreateStream", ctypes.POINTER(Pointer))(ctypes.byref(stream)),
            "aclrtCreateStream",
        )
        return int(stream.value or 0)

    def destroy_stream(self, stream: int) -> None:
        """Give it back."""
        _function(self._acl, "aclrtDestroyStream", Pointer)(stream)

    def wait(self, stream: int, seconds: float) -> None:
        """Wait until all that is queued is done. PeerError when it fails or is not by then."""
        wait = _function(self._acl, "aclrtSynchronizeStreamWithTimeout", Pointer, ctypes.c_int32)
        code = wait(stream, max(1, int(seconds * 1000)))
        if code:
            raise PeerError(f"HCCL: a transfer did not end well: {code}", code="lost")

    # HCCL

    def root(self) -> bytes:
        """Return what another process needs to make a communicator with this one. HostError when HCCL gives none."""
        made = ctypes.create_string_buffer(ROOT_BYTES)
        self._check(_function(self._hccl, "HcclGetRootInfo", ctypes.c_char_p)(made), "HcclGetRootInfo")
        return made.raw

    def join(self, root: bytes, rank: int) -> int:
        """A communicator of two, as this rank of them; waits for the other. PeerError when it does not come."""
        communicator = Pointer()
        given = ctypes.create_string_buffer(root, ROOT_BYTES)
        join = _function(
            self._hccl,
            "HcclCommInitRootInfo",
            ctypes.c_uint32,
            ctypes.c_char_p,
            ctypes.c_uint32,
            ctypes.POINTER(Pointer),
        )
        code = join(2, given, rank, ctypes.byref(communicator))
        if code:
            raise PeerError(
                f"HCCL makes no communicator with this peer: HcclCommInitRootInfo gives {code}", code="lost"
            )
        return int(communicator.value or 0)

    def leave(self, communicator: int) -> None:
        """Give it back."""
        _function(self._hccl, "HcclCommDestroy", Pointer)(communicator)

    def send(self, communicator: int, device: int, nbytes: int, rank: int, stream: int) -> None:
        """Queue it. PeerError when HCCL refuses."""
        self._move("HcclSend", communicator, device, nbytes, rank, stream)

    def receive(self, communicator: int, device: int, nbytes: int, rank: int, stream: int) -> None:
        """Queue it. PeerError when HCCL refuses."""
        self._move("HcclRecv", communicator, device, nbytes, rank, stream)

    def _move(self, name: str, communicator: int, device: int, nbytes: int, rank: int, stream: int) -> None:
        kinds = (Pointer, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32, Pointer, Pointer)
        code = _function(self._hccl, name, *kinds)(device, nbytes, _UINT8, rank, communicator, stream)
        if code:
            raise PeerError(f"HCCL: {name} gives {code}", code="lost")

    def _check(self, code: int, name: str) -> None:
        if code:
            raise HostError(f"NPU {self._device}: {name} gives {code}")


def _load(name: str, variables: Mapping[str, str]) -> ctypes.CDLL:
    file = library_file(name, variables)
    if file is None:
        raise UnsupportedError(
            f"transfer_channel hccl needs {name} of the vendor's CANN toolkit, which is in no folder of "
            "LD_LIBRARY_PATH; take shm on one host, or tcp",
            param="transfer_channel",
        )
    try:
        return ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise UnsupportedError(
            f"transfer_channel hccl: {file} does not load: {error}; take shm on one host, or tcp",
            param="transfer_channel",
        ) from error


def _function(library: ctypes.CDLL, name: str, *kinds: Any) -> Any:
    """A function of the library that returns a code. UnsupportedError where it has none of that name."""
    found = getattr(library, name, None)
    if found is None:
        raise UnsupportedError(
            f"transfer_channel hccl needs {name}, which {library._name} has not; take shm on one host, or tcp",
            param="transfer_channel",
        )
    if kinds:
        found.argtypes, found.restype = kinds, ctypes.c_int
    return found


CHUNK = 4 << 20  # bytes of a request
MOST_SPANS = 2048  # of a request
ANSWER_S = 20.0  # for an answer, and for the bytes of a request
JOIN_S = 60.0  # for HCCL to set up a communicator
_NONCE = 32
_MOST_FRAME = 64 << 10
_READ = 1 << 16

Span = tuple[int, int]  # address, bytes


class HcclOpening(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Make a communicator: `root` is HCCL's word for it, opaque."""

    root: bytes


class HcclMove(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Pieces of the memory of whoever serves that are to be read, or written (`writes`)."""

    writes: bool
    spans: tuple[Span, ...]


class HcclAnswer(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Go on; with a `refusal`: no."""

    refusal: str = ""


HcclRequest = HcclOpening | HcclMove


class ControlStream:
    """Messages over a connected socket, which it owns. Both sides prove that they know the key."""

    def __init__(self, sock: socket.socket, key: str, direction: Direction) -> None:
        """PeerError when the other side does not answer."""
        self._sock, self._parser = sock, FrameParser(_MOST_FRAME)
        own = os.urandom(_NONCE)
        deadline = time.monotonic() + ANSWER_S
        try:
            write_all(sock, own, deadline)
            theirs = read_exactly(sock, _NONCE, deadline)
        except PeerError as error:
            raise PeerError(f"HCCL: the other side does not answer: {error}", code="lost") from error
        connector, acceptor = (own, theirs) if direction is Direction.FROM_CONNECTOR else (theirs, own)
        session = session_key(key, connector, acceptor)
        other = Direction.FROM_ACCEPTOR if direction is Direction.FROM_CONNECTOR else Direction.FROM_CONNECTOR
        self._mac, self._parser.mac = FrameMac(session, direction), FrameMac(session, other)

    def send(self, message: msgspec.Struct) -> None:
        """PeerError when it does not go."""
        try:
            self._sock.settimeout(ANSWER_S)
            self._sock.sendall(frame(msgspec.msgpack.encode(message), self._mac, _MOST_FRAME))
        except OSError as error:
            raise PeerError(f"HCCL: the connection is lost: {error}", code="lost") from error

    def receive(self, kind: Any, seconds: float) -> Any:
        """The next message; None when none has begun by then. PeerError for what is none, and at the end."""
        until = time.monotonic() + seconds
        try:
            while (body := self._parser.next()) is None:
                left = until - time.monotonic()
                if left <= 0:
                    if self._parser.held:
                        raise PeerError("HCCL: half a message came", code="silent")
                    return None
                self._sock.settimeout(left)
                try:
                    data = self._sock.recv(_READ)
                except TimeoutError:
                    continue
                if not data:
                    raise PeerError("HCCL: the other side has ended the connection", code="lost")
                self._parser.feed(data)
            return msgspec.msgpack.decode(body, type=kind)
        except (OSError, msgspec.MsgspecError) as error:
            raise PeerError(f"HCCL: {error}", code="lost") from error

    def answered(self, seconds: float) -> None:
        """Wait for an `HcclAnswer`. PeerError for a refusal, and when none comes."""
        answer = self.receive(HcclAnswer, seconds)
        if answer is None:
            raise PeerError("HCCL: the other side does not answer", code="silent")
        if answer.refusal:
            raise PeerError(f"HCCL: the other side refuses: {answer.refusal[:200]}", code="buffer")

    def close(self) -> None:
        """End the connection."""
        self._sock.close()


class HcclLink:
    """The ends of a communicator of two in this process, with memory of the NPU and of the host for one request. For
    one thread.
    """

    def __init__(self, library: HcclLibrary, root: bytes, rank: int) -> None:
        """`rank`: 0 asks, 1 serves. Waits for the other. PeerError, HostError."""
        library.enter()
        self._library, self._other = library, 1 - rank
        self._host = ctypes.create_string_buffer(CHUNK)
        self._address = ctypes.addressof(self._host)
        self._device = library.allocate(CHUNK)
        try:
            self._stream = library.create_stream()
            try:
                self._communicator = library.join(root, rank)
            except PeerError:
                library.destroy_stream(self._stream)
                raise
        except BaseException:
            library.free(self._device)
            raise

    def gather(self, spans: Sequence[Span]) -> int:
        """Take these pieces of this process's memory to the NPU; how many bytes."""
        nbytes = 0
        for address, size in spans:
            ctypes.memmove(self._address + nbytes, address, size)
            nbytes += size
        self._library.upload(self._device, self._address, nbytes)
        return nbytes

    def scatter(self, spans: Sequence[Span], nbytes: int) -> None:
        """Put what the NPU has into these pieces of this process's memory."""
        self._library.download(self._address, self._device, nbytes)
        begin = 0
        for address, size in spans:
            ctypes.memmove(address, self._address + begin, size)
            begin += size

    def send(self, nbytes: int) -> None:
        """Send to the other side, and wait. PeerError when it does not take it in time."""
        self._library.send(self._communicator, self._device, nbytes, self._other, self._stream)
        self._library.wait(self._stream, ANSWER_S)

    def receive(self, nbytes: int) -> None:
        """Receive from the other side, and wait. PeerError when it does not come in time."""
        self._library.receive(self._communicator, self._device, nbytes, self._other, self._stream)
        self._library.wait(self._stream, ANSWER_S)

    def close(self) -> None:
        """Give everything back."""
        self._library.leave(self._communicator)
        self._library.destroy_stream(self._stream)
        self._library.free(self._device)


def valid_root(root: bytes) -> bool:
    """Tell whether it has the size of HCCL's."""
    return len(root) == ROOT_BYTES


def size_of(spans: Sequence[Span]) -> int:
    """Bytes of all pieces."""
    return sum(size for _, size in spans)


def chunks(ours: Sequence[Span], theirs: Sequence[Span]) -> Iterator[tuple[list[Span], list[Span]]]:
    """Pairs of equal pieces, cut into requests of at most CHUNK bytes and MOST_SPANS pieces. Pure."""
    here: list[Span] = []
    there: list[Span] = []
    held = 0
    for (mine, nbytes), (yours, _) in zip(ours, theirs, strict=True):
        done = 0
        while done < nbytes:
            step = min(nbytes - done, CHUNK - held)
            here.append((mine + done, step))
            there.append((yours + done, step))
            done, held = done + step, held + step
            if held == CHUNK or len(here) == MOST_SPANS:
                yield here, there
                here, there, held = [], [], 0
    if here:
        yield here, there
