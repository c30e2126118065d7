"""Refusals of the machine, as the native core reports them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from homenode.errors import HostError, PeerError
from homenode.host.refusals import reason_of


@contextlib.contextmanager
def host_errors() -> Iterator[None]:
    """Refusals of the machine become HostError."""
    try:
        yield
    except OSError as error:
        raise HostError(reason_of(error), errno=error.errno) from error


@contextlib.contextmanager
def peer_errors() -> Iterator[None]:
    """Processes that went away or did not come in time become PeerError."""
    try:
        yield
    except (ConnectionAbortedError, TimeoutError) as error:
        raise PeerError(error.strerror or str(error)) from error
