"""Running processes bound on the real kernel, rolled back and undone; what /proc says is what counts."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from homenode.cpuset import parse_cpu_list
from homenode.errors import HostError, PlacementError, UserError
from homenode.host.bind import apply as apply_module
from homenode.host.bind.apply import apply
from homenode.host.bind.base.report import ActionResult, Report
from homenode.host.bind.base.state import State
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import ProcessId, identify
from homenode.host.bind.memory.memory_map import MemoryMap, Placement, Policy, Range
from homenode.host.bind.preflight import check_running
from homenode.host.bind.undo import Remembered, recall, recorded, remember_irqs, undo
from homenode.host.topology.source import RecordedSource
from tests.host.children import CPUS, ONE, OTHER, child, cpuset, masks, numa, two_cpus
from tests.waiting import wait_until

GONE = 4194303


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


class FailsAt(Syscalls):
    """The real calls, but the n-th attempt to set a mask is refused with `code`."""

    def __init__(self, nth: int, code: int) -> None:
        super().__init__()
        self._left = nth
        self._code = code

    def set_affinity(self, tid: int, cpus: Iterable[int]) -> None:
        self._left -= 1
        if self._left == 0:
            raise OSError(self._code, os.strerror(self._code))
        super().set_affinity(tid, cpus)


class Meanwhile(Syscalls):
    """The real calls; before the n-th mask is set something happens."""

    def __init__(self, nth: int, happens: object) -> None:
        super().__init__()
        self._left = nth
        self._happens = happens

    def set_affinity(self, tid: int, cpus: Iterable[int]) -> None:
        self._left -= 1
        if self._left == 0:
            assert callable(self._happens)
            self._happens()
        super().set_affinity(tid, cpus)


def outcomes(report: Report) -> list[tuple[str, str]]:
    return [(step.what, step.outcome) for step in report.steps]


@two_cpus
def test_every_thread_is_bound_and_driver_threads_get_their_roles(state: State) -> None:
    with child() as running:
        plain, acl, release = running.thread("worker"), running.thread("acl_thread"), running.thread("release_thread")
        report = apply(
            running.pid, Target((ONE,), {"acl_thread": (OTHER,), "release_thread": (ONE, OTHER)}), state=state
        )
        assert report.ok and not report.findings
        assert masks(running.pid) == {running.pid: (ONE,), plain: (ONE,), acl: (OTHER,), release: (ONE, OTHER)}
        later = running.thread("born late")
        assert masks(running.pid)[later] == (ONE,)


@two_cpus
def test_driver_threads_of_other_processes_are_not_touched(state: State) -> None:
    with child() as running, child() as neighbour:
        foreign = neighbour.thread("acl_thread")
        apply(running.pid, Target((ONE,), {"acl_thread": (OTHER,)}), state=state)
        assert masks(neighbour.pid) == {neighbour.pid: CPUS, foreign: CPUS}


@two_cpus
def test_a_thread_born_by_an_unbound_one_between_two_passes_is_caught(state: State) -> None:
    with child() as running:
        running.thread("first")
        born: list[int] = []
        # The main thread's mask is set first. It then starts a thread that moves itself away, as one born before would
        # have been.

        def happens() -> None:
            born.append(running.thread("second"))
            running.tell("move", born[0], OTHER)

        report = apply(running.pid, Target((ONE,)), state=state, calls=Meanwhile(2, happens))
        assert report.ok
        assert set(masks(running.pid).values()) == {(ONE,)}
        assert born[0] in masks(running.pid)


@two_cpus
def test_a_thread_that_vanishes_meanwhile_is_no_error(state: State) -> None:
    with child() as running:
        vanishing = running.thread("short")

        def happens() -> None:
            assert running.tell("end", "short") == "ended"
            wait_until(lambda: vanishing not in masks(running.pid))

        report = apply(running.pid, Target((ONE,)), state=state, calls=Meanwhile(2, happens))
        assert report.ok
        assert masks(running.pid) == {running.pid: (ONE,)}


@two_cpus
@pytest.mark.parametrize("nth", [2, 3, 4])
def test_a_mask_refused_half_way_puts_every_thread_back(state: State, nth: int) -> None:
    with child() as running:
        first = running.thread("one")
        running.thread("two")
        running.thread("three")
        os.sched_setaffinity(first, {OTHER})
        before = masks(running.pid)
        report = apply(running.pid, Target((ONE,)), state=state, calls=FailsAt(nth, errno.EPERM))
        assert masks(running.pid) == before
        assert outcomes(report) == [("affinity", "failed"), ("affinity", "undone")]
        assert [(finding.severity, finding.code) for finding in report.findings] == [("error", "affinity_refused")]
        assert "EPERM" in report.findings[0].message and "CAP_SYS_NICE" in report.findings[0].remedy
        assert not recorded(state)


@two_cpus
def test_a_thread_born_during_a_binding_that_fails_is_put_back_too(state: State) -> None:
    class BornThenRefused(FailsAt):
        def set_affinity(self, tid: int, cpus: Iterable[int]) -> None:
            if self._left == 2:
                born.append(running.thread("born"))
                assert masks(running.pid)[born[0]] == (ONE,)
            super().set_affinity(tid, cpus)

    with child() as running:
        born: list[int] = []
        others = [running.thread(name) for name in ("one", "two")]
        report = apply(running.pid, Target((ONE,)), state=state, calls=BornThenRefused(3, errno.EPERM))
        assert outcomes(report) == [("affinity", "failed"), ("affinity", "undone")]
        assert masks(running.pid) == dict.fromkeys([running.pid, *others, *born], CPUS)


@two_cpus
def test_the_very_first_mask_refused_is_an_error_and_changes_nothing(state: State) -> None:
    with child() as running:
        running.thread("one")
        with pytest.raises(HostError, match=f"process {running.pid}: EPERM.*as root"):
            apply(running.pid, Target((ONE,)), state=state, calls=FailsAt(1, errno.EPERM))
        assert set(masks(running.pid).values()) == {CPUS}
        assert not recorded(state)


@two_cpus
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_the_process_of_another_user_is_refused_with_the_remedy() -> None:
    with child() as running:
        reading, writing = os.pipe()
        stranger = os.fork()
        if stranger == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                apply(running.pid, Target((ONE,)))
            except HostError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(stranger, 0)
        with os.fdopen(reading) as said:
            message = said.read()
        assert f"process {running.pid}" in message and "EPERM" in message and "as root" in message
        assert masks(running.pid) == {running.pid: CPUS}


@two_cpus
def test_what_cannot_be_rolled_back_is_named(state: State) -> None:
    class Stubborn(FailsAt):
        def set_affinity(self, tid: int, cpus: Iterable[int]) -> None:
            if tuple(cpus) == CPUS:
                raise OSError(errno.EINVAL, "no way back")
            super().set_affinity(tid, cpus)

    with child() as running:
        running.thread("one")
        running.thread("two")
        report = apply(running.pid, Target((ONE,)), state=state, calls=Stubborn(3, errno.EPERM))
        assert [finding.code for finding in report.findings] == ["affinity_refused", "rollback_incomplete"]
        assert str(running.pid) in report.findings[1].message
        assert recall(identify(running.pid), state) is not None
        assert undo(running.pid, state).ok
        assert set(masks(running.pid).values()) == {CPUS}


@two_cpus
def test_a_mask_that_the_kernel_cuts_to_the_cpuset_is_refused(state: State) -> None:
    class Cutting(Syscalls):
        def set_affinity(self, tid: int, cpus: Iterable[int]) -> None:
            super().set_affinity(tid, {ONE} if tuple(cpus) == CPUS else cpus)

    with child() as running:
        os.sched_setaffinity(running.pid, {OTHER})
        with pytest.raises(UserError, match=f"cannot run on CPUs {ONE}-{OTHER}: its cpuset allows"):
            apply(running.pid, Target(CPUS), state=state, calls=Cutting())
        assert masks(running.pid) == {running.pid: (OTHER,)}


@two_cpus
def test_a_real_cpuset_is_not_left(state: State) -> None:
    nodes = Path("/sys/devices/system/node/has_memory")
    with cpuset(str(ONE), nodes.read_text() if nodes.exists() else "0") as entrance, child() as running:
        entrance.write_text(str(running.pid))
        assert masks(running.pid) == {running.pid: (ONE,)}
        for cpus in ((OTHER,), CPUS):
            with pytest.raises(UserError, match=rf"cannot run on CPUs .*its cpuset allows {ONE}\."):
                apply(running.pid, Target(cpus), state=state)
            assert masks(running.pid) == {running.pid: (ONE,)}


def test_processes_and_cpus_that_are_not_there_are_named(state: State) -> None:
    with pytest.raises(UserError, match=f"no process {GONE}"):
        apply(GONE, Target((ONE,)), state=state)
    with pytest.raises(UserError, match="CPU 4095 is not on this machine"):
        apply(os.getpid(), Target((4095,)), state=state)
    with pytest.raises(UserError, match="CPU 4000 is not on this machine, or is offline"):
        apply(os.getpid(), Target((ONE,), {"acl_thread": (4000,)}), state=state)
    with pytest.raises(UserError, match="NUMA node 977 is not on this machine"):
        apply(os.getpid(), Target((ONE,), memory_nodes=(977,)), state=state)
    assert not recorded(state)


def test_offline_cpus_and_nodes_without_memory_are_named() -> None:
    texts = {"cpu/online": "0-3,6-7", "node/online": "0,2,8", "node/has_memory": "0,8"}
    machine = RecordedSource("x86_64", {f"/sys/devices/system/{file}": text for file, text in texts.items()})
    check_running(Target((0, 7), {"acl_thread": (6,)}, (8, 0)), machine)
    for target, code, message in (
        (Target((3, 4, 5)), "no_such_cpu", "CPU 4-5 is not on this machine, or is offline .seen: online CPUs 0-3,6-7"),
        (Target((0,), memory_nodes=(1, 2)), "no_such_node", "NUMA node 1 is not on this machine .seen: nodes 0,2,8"),
        (
            Target((0,), memory_nodes=(2, 8)),
            "node_without_memory",
            "NUMA node 2 has no memory .seen: nodes with memory 0,8",
        ),
    ):
        with pytest.raises(PlacementError, match=message) as refused:
            check_running(target, machine)
        assert refused.value.code == code


@two_cpus
def test_a_process_that_ends_meanwhile_is_said_to_have_ended(state: State) -> None:
    with child() as running:
        running.thread("one")
        report = apply(running.pid, Target((ONE,)), state=state, calls=Meanwhile(2, running.end))
        assert outcomes(report) == [("affinity", "skipped")]
        assert "ended" in report.steps[0].detail


@two_cpus
def test_undo_restores_exactly_and_binding_twice_goes_back_to_before_the_first(state: State) -> None:
    with child() as running:
        first, second = running.thread("one"), running.thread("two")
        os.sched_setaffinity(second, {OTHER})
        before = {running.pid: CPUS, first: CPUS, second: (OTHER,)}
        assert masks(running.pid) == before
        apply(running.pid, Target((ONE,)), state=state)
        apply(running.pid, Target((OTHER,)), state=state)
        late = running.thread("late")
        assert set(masks(running.pid).values()) == {(OTHER,)}
        report = undo(running.pid, state)
        assert report.ok and outcomes(report) == [("affinity", "undone")]
        assert masks(running.pid) == {**before, late: CPUS}
        with pytest.raises(UserError, match=f"nothing is remembered of process {running.pid}"):
            undo(running.pid, state)


@two_cpus
def test_a_second_binding_that_fails_leaves_the_first_and_its_undoing(state: State) -> None:
    with child() as running:
        running.thread("one")
        apply(running.pid, Target((ONE,)), state=state)
        assert not apply(running.pid, Target((OTHER,)), state=state, calls=FailsAt(2, errno.EPERM)).ok
        assert set(masks(running.pid).values()) == {(ONE,)}
        assert undo(running.pid, state).ok
        assert set(masks(running.pid).values()) == {CPUS}


@two_cpus
def test_a_later_process_of_the_same_number_is_not_undone(state: State) -> None:
    with child() as running:
        apply(running.pid, Target((ONE,)), state=state)
        mine = recall(identify(running.pid), state)
        assert mine is not None
        state.remove(mine.name)
        other = Remembered(
            ProcessId(running.pid, mine.process.start - 1),
            mine.boot,
            CPUS,
            {(running.pid, mine.process.start - 1): CPUS},
            ((ONE,),),
        )
        state.save(other.name, other.to_dict())
        report = undo(running.pid, state)
        assert outcomes(report) == [("affinity", "skipped")]
        assert masks(running.pid) == {running.pid: (ONE,)}


@two_cpus
def test_a_record_of_another_boot_counts_for_nothing(state: State) -> None:
    with child() as running:
        apply(running.pid, Target((ONE,)), state=state)
        mine = recall(identify(running.pid), state)
        assert mine is not None
        state.save(mine.name, {**mine.to_dict(), "boot": "another"})
        with pytest.raises(UserError, match="nothing is remembered"):
            undo(running.pid, state)


@two_cpus
def test_a_damaged_record_is_named(state: State) -> None:
    with child() as running:
        apply(running.pid, Target((ONE,)), state=state)
        mine = recall(identify(running.pid), state)
        assert mine is not None
        for broken in (
            {},
            {**mine.to_dict(), "threads": [1]},
            {**mine.to_dict(), "main": 7},
            {**mine.to_dict(), "format": "other/1"},
        ):
            state.save(mine.name, broken)
            with pytest.raises(HostError, match="damaged"):
                undo(running.pid, state)
        # A damaged record does not stand in the way.
        assert not apply(running.pid, Target((OTHER,)), state=state).findings


@two_cpus
def test_interrupts_of_a_process_that_has_ended_are_given_back(state: State) -> None:
    given: list[object] = []

    def restore(entries: Sequence[object]) -> Report:
        given.extend(entries)
        return Report((ActionResult("interrupts", "undone"),))

    with child() as running:
        apply(running.pid, Target((ONE,)), state=state)
        remember_irqs(identify(running.pid), [{"irq": 27, "list": "0-1"}], state)
        remember_irqs(identify(running.pid), [{"irq": 27, "list": "0"}], state)
    with child() as bystander:
        # Tidies up, and must keep what still has interrupts to give back.
        apply(bystander.pid, Target((ONE,)), state=state)
        assert outcomes(undo(running.pid, state)) == [("affinity", "skipped"), ("interrupts", "skipped")]
        report = undo(running.pid, state, restore_irqs=restore)
    assert outcomes(report) == [("affinity", "skipped"), ("interrupts", "undone")]
    assert given == [{"irq": 27, "list": "0-1"}, {"irq": 27, "list": "0"}]
    assert [process.pid for process in recorded(state)] == [bystander.pid]


@two_cpus
def test_records_of_processes_that_have_ended_are_forgotten(state: State) -> None:
    with child() as running:
        apply(running.pid, Target((ONE,)), state=state)
    with child() as next_one:
        apply(next_one.pid, Target((ONE,)), state=state)
        assert [process.pid for process in recorded(state)] == [next_one.pid]


@two_cpus
def test_without_a_place_to_remember_the_binding_holds_with_a_warning_and_strict_refuses(tmp_path: Path) -> None:
    nowhere = State(tmp_path / "a" / "file that is not there" / "state")
    with child() as running:
        with pytest.raises(HostError):
            apply(running.pid, Target((ONE,)), state=nowhere, strict=True)
        assert masks(running.pid) == {running.pid: CPUS}
        report = apply(running.pid, Target((ONE,)), state=nowhere)
        assert report.ok and [finding.code for finding in report.findings] == ["undo_not_possible"]
        assert masks(running.pid) == {running.pid: (ONE,)}


@two_cpus
def test_a_target_without_cpus_leaves_unnamed_threads_alone(state: State) -> None:
    with child() as running:
        plain, acl = running.thread("worker"), running.thread("acl_thread")
        assert apply(running.pid, Target((), {"acl_thread": (OTHER,)}), state=state).ok
        assert masks(running.pid) == {running.pid: CPUS, plain: CPUS, acl: (OTHER,)}


@numa
def test_memory_that_is_at_home_already_is_said_to_be(state: State) -> None:
    with child() as running:
        running.tell("private", 1 << 20)
        nodes = parse_cpu_list(Path("/sys/devices/system/node/has_memory").read_text())
        report = apply(running.pid, Target((ONE,), memory_nodes=nodes), state=state)
        assert report.ok and not report.findings
        assert outcomes(report) == [("affinity", "done"), ("pages", "done")]
        assert "nothing to move" in report.steps[1].detail
        assert outcomes(apply(running.pid, Target((ONE,), memory_nodes=nodes), memory=False, state=state)) == [
            ("affinity", "done")
        ]


class Pinned(Syscalls):
    """The real masks, and a process whose pages are all on node 1 and pinned there."""

    def move_pages(
        self, pid: int, addresses: Sequence[int], nodes: Sequence[int] | None, flags: int = 2
    ) -> tuple[int, ...]:
        return (1 if nodes is None else -errno.EBUSY,) * len(addresses)


@two_cpus
@pytest.mark.parametrize("strict", [False, True])
def test_pages_that_stay_are_a_warning_and_strict_takes_all_back(
    state: State, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    policy = Policy("default")
    pinned = MemoryMap((Range(0x1000, 0x11000, "private", Placement(policy, {1: 16})),), policy)
    monkeypatch.setattr(apply_module, "read_memory_map", lambda pid: pinned)
    with child() as running:
        report = apply(running.pid, Target((ONE,), memory_nodes=(0,)), state=state, calls=Pinned(), strict=strict)
        codes = [finding.code for finding in report.findings]
        assert "64KiB busy or pinned" in next(step.detail for step in report.steps if step.what == "pages")
        if strict:
            assert not report.ok and codes == ["pages_not_moved", "binding_incomplete"]
            assert masks(running.pid) == {running.pid: CPUS}
            assert not recorded(state)
        else:
            assert report.ok and codes == ["pages_not_moved"]
            assert masks(running.pid) == {running.pid: (ONE,)}


@numa
@pytest.mark.parametrize(
    ("allowed", "steps"), [((0,), ["affinity", "memory nodes", "pages"]), ((5,), ["affinity", "memory nodes"])]
)
def test_memory_nodes_that_the_cpuset_forbids_are_named(
    state: State, monkeypatch: pytest.MonkeyPatch, allowed: tuple[int, ...], steps: list[str]
) -> None:
    monkeypatch.setattr(apply_module, "mems_allowed", lambda pid: allowed)
    monkeypatch.setattr(apply_module, "check_running", lambda target: None)
    with child() as running:
        report = apply(running.pid, Target((ONE,), memory_nodes=(0, 977)), state=state)
        assert [step.what for step in report.steps] == steps
        (finding,) = report.findings
        assert (finding.severity, finding.code) == ("warning", "memory_node_not_allowed")
        assert f"nodes {allowed[0]} only, planned are 0,977" in finding.message
