"""Every fallback of the memory policy, with a kernel that refuses on purpose."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping

import pytest

from homenode.errors import HostError
from homenode.host.bind.base.syscalls import (
    MPOL_BIND,
    MPOL_DEFAULT,
    MPOL_F_STATIC_NODES,
    MPOL_PREFERRED,
    MPOL_PREFERRED_MANY,
    Syscalls,
)
from homenode.host.bind.memory.mempolicy_fallback import MemoryPolicy, bind_memory


class FakeKernel(Syscalls):
    """Keeps one policy. `refuse`: errno by mode; `usable`: nodes with memory that the cpuset allows, the others are
    dropped as Linux does.
    """

    def __init__(
        self,
        refuse: Mapping[int, int] | None = None,
        usable: Iterable[int] = range(8),
        inherited: tuple[int, tuple[int, ...]] = (MPOL_DEFAULT, ()),
    ) -> None:
        super().__init__()
        self.refuse, self.usable, self.policy, self.asked, self.mute = (
            dict(refuse or {}),
            set(usable),
            inherited,
            list[int](),
            False,
        )

    def set_mempolicy(self, mode: int, nodes: Iterable[int] = ()) -> None:
        self.asked.append(mode)
        kept = tuple(sorted(self.usable & set(nodes)))
        code = self.refuse.get(mode, 0 if kept else errno.EINVAL)
        if code:
            raise OSError(code, f"set_mempolicy: {os.strerror(code)}")
        self.policy = (mode, kept)

    def get_mempolicy(self) -> tuple[int, tuple[int, ...]]:
        if self.mute:
            raise OSError(errno.EPERM, "get_mempolicy: not permitted")
        return self.policy


def test_bind_is_tried_first() -> None:
    kernel = FakeKernel()
    report = bind_memory((1,), kernel)
    assert kernel.policy == (MPOL_BIND, (1,))
    assert [(step.what, step.outcome, step.detail) for step in report.steps] == [("memory policy", "done", "bind:1")]
    assert report.findings == ()


@pytest.mark.parametrize("code", [errno.EPERM, errno.EINVAL, errno.EACCES])
def test_bind_refused_one_node_is_preferred(code: int) -> None:
    kernel = FakeKernel({MPOL_BIND: code})
    report = bind_memory((1,), kernel)
    assert kernel.policy == (MPOL_PREFERRED, (1,))
    assert [step.outcome for step in report.steps] == ["failed", "degraded"]
    assert f"refuses bind:1: set_mempolicy: {errno.errorcode[code]}" in report.findings[0].message
    assert report.findings[0].severity == "warning" and report.ok
    assert report.findings[0].remedy


def test_bind_refused_several_nodes_are_preferred_together() -> None:
    kernel = FakeKernel({MPOL_BIND: errno.EPERM})
    report = bind_memory((3, 2), kernel)
    assert kernel.policy == (MPOL_PREFERRED_MANY, (2, 3))
    assert report.steps[-1].detail == "prefer (many):2-3"


def test_a_kernel_before_5_15_prefers_the_best_node_alone() -> None:
    kernel = FakeKernel({MPOL_BIND: errno.EPERM, MPOL_PREFERRED_MANY: errno.EINVAL})
    report = bind_memory((3, 2), kernel)
    assert kernel.policy == (MPOL_PREFERRED, (3,))
    assert [step.outcome for step in report.steps] == ["failed", "failed", "degraded"]


def test_everything_refused_leaves_memory_alone() -> None:
    kernel = FakeKernel(dict.fromkeys((MPOL_BIND, MPOL_PREFERRED, MPOL_PREFERRED_MANY), errno.EPERM))
    report = bind_memory((0, 1), kernel)
    assert kernel.policy == (MPOL_DEFAULT, ())
    assert [step.outcome for step in report.steps] == ["failed", "failed", "failed", "skipped"]
    assert report.steps[-1].detail == "memory is left alone, CPUs only"
    assert "SYS_NICE" in report.findings[0].remedy


def test_a_kernel_without_numa_is_asked_once() -> None:
    kernel = FakeKernel(dict.fromkeys((MPOL_BIND, MPOL_PREFERRED, MPOL_PREFERRED_MANY), errno.ENOSYS))
    report = bind_memory((0, 1), kernel)
    assert kernel.asked == [MPOL_BIND]
    assert [step.outcome for step in report.steps] == ["failed", "skipped"]


def test_a_machine_whose_numbers_are_not_known_goes_on_with_cpus_only() -> None:
    report = bind_memory((0,), Syscalls("vax"))
    assert [step.outcome for step in report.steps] == ["failed", "skipped"]
    assert "vax" in report.findings[0].message


def test_a_node_without_memory_is_dropped_by_the_kernel_and_said() -> None:
    kernel = FakeKernel(usable=[0])
    report = bind_memory((1, 0), kernel)
    assert kernel.policy == (MPOL_BIND, (0,))
    assert report.steps[-1].outcome == "degraded"
    assert "made bind:0-1 into bind:0: node 1 has no memory, or is not in cpuset.mems" in report.findings[0].message


def test_only_a_node_without_memory_leaves_memory_alone() -> None:
    report = bind_memory((1,), FakeKernel(usable=[0]))
    assert [step.outcome for step in report.steps] == ["failed", "failed", "skipped"]
    assert "EINVAL" in report.findings[0].message


def test_an_inherited_binding_is_not_escaped() -> None:
    kernel = FakeKernel(inherited=(MPOL_BIND | MPOL_F_STATIC_NODES, (0,)))
    report = bind_memory((1, 0), kernel)
    assert kernel.policy == (MPOL_BIND, (0,))
    assert "inherited from the parent is bind:0; node 1 is outside it" in report.findings[0].message
    assert report.steps[-1].outcome == "degraded"


def test_an_inherited_binding_elsewhere_stays() -> None:
    kernel = FakeKernel(inherited=(MPOL_BIND, (0,)))
    report = bind_memory((1,), kernel)
    assert kernel.asked == [] and kernel.policy == (MPOL_BIND, (0,))
    assert report.steps[-1].outcome == "skipped"


def test_an_inherited_preference_is_no_limit() -> None:
    kernel = FakeKernel(inherited=(MPOL_PREFERRED, (0,)))
    assert bind_memory((1,), kernel).findings == ()
    assert kernel.policy == (MPOL_BIND, (1,))


def test_a_policy_that_cannot_be_read_back_is_said() -> None:
    kernel = FakeKernel()
    kernel.mute = True
    report = bind_memory((1,), kernel)
    assert report.steps[-1].outcome == "done" and "not read back" in report.steps[-1].detail


@pytest.mark.parametrize(
    "kernel",
    [
        FakeKernel({MPOL_BIND: errno.EPERM}),
        FakeKernel(usable=[0]),
        FakeKernel(inherited=(MPOL_BIND, (0,))),
        Syscalls("vax"),
    ],
    ids=["refused", "no memory", "inherited", "unknown machine"],
)
def test_strict_takes_no_fallback(kernel: Syscalls) -> None:
    with pytest.raises(HostError, match=r"\. [A-Z].*\.$"):
        bind_memory((0, 1), kernel, strict=True)


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (MemoryPolicy(MPOL_BIND, (0, 1, 8)), "bind:0-1,8"),
        (MemoryPolicy(MPOL_DEFAULT, ()), "default"),
        (MemoryPolicy(42, ()), "mode 42"),
    ],
)
def test_policies_are_written_as_numa_maps_does(policy: MemoryPolicy, text: str) -> None:
    assert str(policy) == text
