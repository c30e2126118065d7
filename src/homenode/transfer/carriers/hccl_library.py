"""The vendor's libraries as channel `hccl` needs them, by their C interfaces: HCCL sends and receives between two NPUs,
and AscendCL has the memory of an NPU, copies to and from it, and streams.

HCCL 8 and AscendCL, as of CANN 7 and 8: hccl/hccl.h, acl/acl_rt.h.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homenode.errors import HostError, PeerError, UnsupportedError

HCCL, ACL = "libhccl.so", "libascendcl.so"
ROOT_BYTES = 4108  # of HcclRootInfo
_HOME_VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
_ASCEND = "/usr/local/Ascend"
_FOLDERS = (
    f"{_ASCEND}/ascend-toolkit/latest/lib64",
    f"{_ASCEND}/latest/lib64",
    "/usr/local/lib",
    "/usr/lib64",
    "/usr/lib",
)
_UINT8 = 7  # HCCL_DATA_TYPE_UINT8
_TO_DEVICE, _TO_HOST = 1, 2  # ACL_MEMCPY_HOST_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_HOST
_HUGE_FIRST = 0  # ACL_MEM_MALLOC_HUGE_FIRST
_INITIALISED_BEFORE = 100002  # ACL_ERROR_REPEAT_INITIALIZE
_CONNECT_VARIABLE = "HCCL_CONNECT_TIMEOUT"  # seconds that HCCL waits for the other rank

Pointer = ctypes.c_void_p


def library_file(name: str, variables: Mapping[str, str]) -> Path | None:
    """Where a library is: on LD_LIBRARY_PATH, in the toolkit that a variable names, or where it is installed."""
    folders = [folder for folder in variables.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders += [f"{variables[home]}/lib64" for home in _HOME_VARIABLES if variables.get(home)]
    found = (Path(folder) / name for folder in (*folders, *_FOLDERS))
    return next((file for file in found if file.is_file()), None)


def missing_libraries(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Those that are not to be found."""
    return tuple(name for name in (HCCL, ACL) if library_file(name, variables) is None)


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
        """Until all that is queued is done. PeerError when it fails or is not by then."""
        wait = _function(self._acl, "aclrtSynchronizeStreamWithTimeout", Pointer, ctypes.c_int32)
        code = wait(stream, max(1, int(seconds * 1000)))
        if code:
            raise PeerError(f"HCCL: a transfer did not end well: {code}", code="lost")

    # HCCL

    def root(self) -> bytes:
        """What another process needs to make a communicator with this one. HostError when HCCL gives none."""
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
