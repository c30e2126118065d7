"""Refusals of the machine, as the native core reports them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from homenode.errors import HostError


@contextlib.contextmanager
def host_errors() -> Iterator[None]:
    """Refusals of the machine become HostError."""
    try:
        yield
    except OSError as error:
        raise HostError(error.strerror or str(error), errno=error.errno) from error
