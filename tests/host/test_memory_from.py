"""Memory taken from a chosen node: the policy holds inside, for new threads too, and is as before afterwards."""

from __future__ import annotations

import errno
import mmap
import threading
from collections.abc import Iterable

import pytest

from homenode.errors import HostError
from homenode.host.bind.base.syscalls import MPOL_BIND, Syscalls
from homenode.host.bind.memory.memory_from import bytes_by_node, memory_from, share_on, went_elsewhere

SIZE = 32 << 20


@pytest.fixture
def node() -> int:
    try:
        found = Syscalls().get_mems_allowed()
        with memory_from(found[-1]):
            pass
    except (OSError, HostError) as error:
        pytest.skip(f"memory policies are refused here: {error}")
    return found[-1]


def touched(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, 4096):
        memory[at] = 1
    return memory


def test_what_is_touched_inside_comes_from_the_node_and_the_policy_goes_back(node: int) -> None:
    calls = Syscalls()
    before = calls.get_mempolicy()
    seen: list[tuple[int, tuple[int, ...]]] = []
    counted = bytes_by_node()
    with memory_from(node):
        seen.append(calls.get_mempolicy())
        thread = threading.Thread(target=lambda: seen.append(calls.get_mempolicy()))
        thread.start()
        thread.join()
        memory = touched(SIZE)
    assert [(mode & 0xFF, nodes) for mode, nodes in seen] == [(MPOL_BIND, (node,))] * 2, (
        "of this thread and of one started inside"
    )
    assert calls.get_mempolicy() == before
    share = share_on(node, counted, bytes_by_node(), SIZE)
    assert share is not None and share > 0.98 and not went_elsewhere(share)
    memory.close()


def test_the_policy_goes_back_when_the_block_fails(node: int) -> None:
    calls = Syscalls()
    before = calls.get_mempolicy()
    with pytest.raises(RuntimeError), memory_from(node):
        raise RuntimeError
    assert calls.get_mempolicy() == before


def test_a_node_that_is_not_there_is_refused_by_name(node: int) -> None:
    with pytest.raises(HostError, match=r"from node 4000: .*cpuset"), memory_from(4000):
        pass


class Forbidding(Syscalls):
    def set_mempolicy(self, mode: int, nodes: Iterable[int] = ()) -> None:
        raise OSError(errno.EPERM, "set_mempolicy: Operation not permitted")


def test_a_container_that_forbids_it_is_told_what_to_do() -> None:
    class Told(Forbidding):
        def get_mempolicy(self) -> tuple[int, tuple[int, ...]]:
            return 0, ()

    with pytest.raises(HostError, match="--cap-add SYS_NICE"), memory_from(0, Told()):
        pass


def test_shares() -> None:
    assert share_on(1, {0: 5, 1: 10}, {0: 5, 1: 60}, 100) == 0.5
    assert share_on(1, {}, {1: 60}, 100) is None, "the kernel does not tell"
    assert share_on(0, {0: 1}, {0: 900}, 100) == 1.0
    assert went_elsewhere(0.5) and not went_elsewhere(0.99) and not went_elsewhere(None)
