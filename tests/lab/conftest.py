"""What tests with an engine in their own process share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from homenode.host.bind.base.syscalls import Syscalls


@pytest.fixture
def as_before() -> Iterator[None]:
    """An engine in this process binds it to CPUs and nodes, and what later tests start would inherit that."""
    cpus, (mode, nodes) = os.sched_getaffinity(0), Syscalls().get_mempolicy()
    gc.collect()  # engines of earlier tests are gone
    yield
    os.sched_setaffinity(0, cpus)
    Syscalls().set_mempolicy(mode, nodes)
