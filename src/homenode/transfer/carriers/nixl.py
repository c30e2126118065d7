"""Channel `nixl`: the NIXL library as the engine of a `RegisteredCarrier`, by way of which pages are read."""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import os
import threading
import time
from typing import Any

from homenode.compute.kv_memory import KvLayout
from homenode.errors import HostError, PeerError, UnsupportedError
from homenode.installation import extra_command
from homenode.transfer.carriers.carrier import Addresses, KvBackend
from homenode.transfer.carriers.registered import RegisteredCarrier
from homenode.transfer.carriers.sockets import TcpCarrier

_log = logging.getLogger(__name__)
BUILDS = ("nixl_cu12", "nixl_cu13", "nixl")  # modules
_YOUNG_S = 5.0
_YOUNG_PAUSE_S = 1e-3
_OLD_PAUSE_S = 20e-3
_JOIN_S = 5.0


def _api() -> Any:
    """NIXL's Python face. UnsupportedError without it. The builds are tried before the package that chooses one: it
    loads torch for that."""
    for build in BUILDS:
        try:
            api = importlib.import_module(f"{build}._api")
            # It writes to standard output, which is ours for results.
            for handler in list(logging.getLogger("nixl").handlers):
                logging.getLogger("nixl").removeHandler(handler)
            _end_without_destructors()
            return api
        except ImportError as error:
            reason = str(error)
    raise UnsupportedError(
        f"transfer_channel nixl needs the nixl package, which does not load here ({reason}): "
        f"{extra_command('nixl', 'nixl-cu12')}",
        param="transfer_channel",
    )


@functools.cache
def _end_without_destructors() -> None:
    """NIXL's wheel brings a libnl-route. Where the system's is loaded beside it (UCX does, for the system's InfiniBand
    libraries), the two unregister each other's objects as the process ends, which then ends by SIGSEGV whatever it had
    to tell (seen with NIXL 1.5.1 alone). Python has cleaned up by then."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc; keeps the exit status
        libc.on_exit(libc._exit, None)


class Transfer:
    """A transfer under way."""

    def __init__(self, engine: NixlEngine, handle: Any, status: str) -> None:
        self._engine, self._handle, self._status = engine, handle, status

    def ended(self) -> bool:
        """Tell whether it has; its handle is then given back."""
        if self._status == "PROC":
            self._status = self._engine.look_at(self._handle)
        if self._status != "PROC" and self._handle is not None:
            self._engine.release(self._handle)
            self._handle = None
        return self._status != "PROC"

    @property
    def good(self) -> bool:
        """Tell whether it ended well."""
        return self._status == "DONE"


class NixlEngine:
    """One agent of NIXL with the UCX backend. May be used from several threads."""

    def __init__(self) -> None:
        """UnsupportedError without the package, HostError when it does not start."""
        api = _api()
        self.name = f"homenode-{os.urandom(8).hex()}"
        try:
            self._agent: Any = api.nixl_agent(self.name, api.nixl_agent_config(enable_prog_thread=False, backends=[]))
            # Without it a killed peer is never noticed.
            self._agent.create_backend("UCX", {"ucx_error_handling_mode": "peer"})
        except Exception as error:
            raise HostError(f"NIXL does not start here: {error}") from error
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._closing = False
        self._young_until = 0.0
        self._thread: threading.Thread | None = None
        self._registered: list[Any] = []

    @property
    def metadata(self) -> bytes:
        """Return what another agent must be given to reach this one's registered memory."""
        with self._lock:
            return bytes(self._agent.get_agent_metadata())

    def register(self, spans: list[tuple[int, int]], *, exported: bool = True) -> None:
        """Memory of this process (address, bytes), until the end; NIXL lets others reach all of it, `exported` or not.
        HostError when NIXL will not have it."""
        with self._lock:
            try:
                self._registered.append(
                    self._agent.register_memory([(address, nbytes, 0, "") for address, nbytes in spans], "DRAM")
                )
            except Exception as error:
                raise HostError(f"NIXL does not take KV memory: {error}") from error

    def add_peer(self, metadata: bytes) -> str:
        """Its name. PeerError for metadata that is none."""
        self.expect_peers()
        with self._lock:
            try:
                name = self._agent.add_remote_agent(metadata)
            except Exception as error:
                raise PeerError(f"NIXL does not take a peer's metadata: {error}", code="buffer") from error
        return name.decode() if isinstance(name, bytes) else str(name)

    def remove_peer(self, name: str) -> None:
        """Nothing of it is used any more."""
        with self._lock:
            try:
                self._agent.remove_remote_agent(name)
            except Exception as error:
                _log.warning("NIXL does not let go of peer %s: %s", name, error)

    def begin(self, operation: str, ours: Addresses, theirs: Addresses, peer: str) -> Transfer:
        """READ or WRITE. PeerError when it cannot be begun, so that nothing is written."""
        with self._lock:
            handle = None
            try:
                local, remote = (self._agent.get_xfer_descs(side, "DRAM") for side in (ours, theirs))
                handle = self._agent.initialize_xfer(operation, local, remote, peer)
                return Transfer(self, handle, str(self._agent.transfer(handle)))
            except Exception as error:
                if handle is not None:
                    self._release(handle)
                raise PeerError(f"NIXL: {error}", code="lost") from error

    def wait(self, transfer: Transfer, seconds: float) -> bool:
        """Tell whether it has ended by then."""
        until = time.monotonic() + seconds
        while not transfer.ended():
            if time.monotonic() > until:
                return False
            os.sched_yield()
        return True

    def look_at(self, handle: Any) -> str:
        """PROC, DONE or ERR; what cannot be asked about is not going on any more."""
        with self._lock:
            try:
                return str(self._agent.check_xfer_state(handle))
            except Exception as error:
                _log.warning("NIXL: a transfer failed: %s", error)
                return "ERR"

    def release(self, handle: Any) -> None:
        """A transfer that has ended."""
        with self._lock:
            self._release(handle)

    def _release(self, handle: Any) -> None:
        try:
            self._agent.release_xfer_handle(handle)
        except Exception as error:
            _log.warning("NIXL does not take a handle back: %s", error)

    # Progress

    def expect_peers(self) -> None:
        """A connection is new: look after it often for a while."""
        self._young_until = time.monotonic() + _YOUNG_S
        self._woken.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._progress, name="homenode-nixl", daemon=True)
            self._thread.start()

    def _progress(self) -> None:
        while not self._closing:
            with self._lock:
                try:
                    self._agent.get_new_notifs()
                except Exception as error:
                    _log.warning("NIXL: %s", error)
            self._woken.clear()
            self._woken.wait(_YOUNG_PAUSE_S if time.monotonic() < self._young_until else _OLD_PAUSE_S)

    def close(self, unended: int) -> None:
        """Give memory back, unless transfers are under way that use it."""
        self._closing = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        if unended:
            _log.error(
                "%d NIXL transfers are still under way at the end; their memory is kept until the process ends", unended
            )
            return
        for descriptors in self._registered:
            try:
                self._agent.deregister_memory(descriptors)
            except Exception as error:
                _log.warning("NIXL does not give memory back: %s", error)
        self._registered.clear()
        self._agent = None


class NixlCarrier(RegisteredCarrier):
    """Registered memory and NIXL's UCX backend."""

    name, title = "nixl", "NIXL"

    def __init__(self, tcp: TcpCarrier, own: KvLayout, backend: KvBackend) -> None:
        """UnsupportedError where NIXL is not installed, HostError where it does not start."""
        super().__init__(tcp, own, backend, NixlEngine())
