"""Memory of a chosen node for what a block of code allocates and for the threads it starts, read back afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from homenode.errors import HostError
from homenode.host.bind.base.syscalls import MPOL_BIND, Syscalls
from homenode.host.bind.memory.memory_map import read_memory_map

_MOST_ELSEWHERE = 0.02  # of what was allocated: the thread stacks and the interpreter's own pages


@contextmanager
def memory_from(node: int, calls: Syscalls | None = None) -> Iterator[None]:
    """Memory that this thread, and those it starts inside, touch first comes from `node` alone; then the policy is as
    before.

    HostError when the kernel refuses, as it does inside containers without the right to set memory policies.
    """
    calls = calls or Syscalls()
    try:
        mode, nodes = calls.get_mempolicy()
        calls.set_mempolicy(MPOL_BIND, (node,))
    except OSError as error:
        raise HostError(
            f"memory cannot be taken from node {node}: {error.strerror or error}. In a container this needs the "
            "right to set memory policies "
            "(docker run --cap-add SYS_NICE), and the node must be among its cpuset's memory nodes",
            node=node,
            errno=error.errno,
        ) from error
    try:
        yield
    finally:
        calls.set_mempolicy(mode, nodes)


def bytes_by_node() -> dict[int, int]:
    """Bytes of this process's private memory by node; empty where the kernel does not tell."""
    memory = read_memory_map(os.getpid())
    return memory.bytes_by_node() if memory else {}


def share_on(node: int, before: dict[int, int], after: dict[int, int], size: int) -> float | None:
    """Return of `size` bytes allocated between two readings of `bytes_by_node`, the share that came to `node`; None
    where nothing was told.
    """
    return min(1.0, (after.get(node, 0) - before.get(node, 0)) / size) if before and after and size else None


def went_elsewhere(share: float | None) -> bool:
    """Return whether so much is on other nodes that a figure would not be of this one."""
    return share is not None and share < 1 - _MOST_ELSEWHERE
