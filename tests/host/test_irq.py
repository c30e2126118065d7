"""Interrupts of this machine, routed and put back: every test reads /proc/irq itself and leaves it as it was."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.cpuset import parse_cpu_list
from homenode.host.bind.base.state import State
from homenode.host.bind.base.target import IrqRoute, Target
from homenode.host.bind.interrupts.irqbalance import find_irqbalance
from homenode.host.bind.irq import Interrupts, restore, route_target, verify_target
from homenode.host.bind.undo import recall, recorded, undo
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.host.topology.source import LiveSource
from tests.examples import examples
from tests.host.children import CPUS, ONE, OTHER, Child, child, two_cpus
from tests.host.fake_irqbalance import fake_irqbalance

_IRQ = Path("/proc/irq")
NO_DAEMON = Interrupts(find_daemon=lambda: None)


def lists() -> dict[int, str]:
    """Where every interrupt may go, straight from /proc."""
    found = {}
    for file in _IRQ.glob("*/smp_affinity_list"):
        with contextlib.suppress(OSError):
            found[int(file.parent.name)] = file.read_text().strip()
    return found


def movable() -> list[tuple[str, str, int]]:
    """PCI address, handler and number of the interrupts that this user may route: tried by writing what is there."""
    host = read_host(LiveSource(), accelerators=False)
    names = {one.irq: one.actions for one in host.interrupts if one.actions}
    found = []
    for device in host.devices:
        for irq in device.irqs:
            with contextlib.suppress(OSError):
                if irq in names and parse_cpu_list(NO_DAEMON.read(irq)) == CPUS:
                    NO_DAEMON.write(irq, NO_DAEMON.read(irq))
                    found.append((device.address, names[irq][0], irq))
    return found


@pytest.fixture
def host() -> Host:
    return read_host(LiveSource(), accelerators=False)


@pytest.fixture
def free() -> Iterator[list[tuple[str, str, int]]]:
    """Interrupts to play with; all are put back to what they were, whatever happens."""
    if find_irqbalance() is not None:
        pytest.skip("irqbalance runs here and moves interrupts meanwhile")
    with alone():
        found = movable() if len(CPUS) > 1 and _IRQ.exists() else []
        if not found:
            pytest.skip("no interrupt of a PCI device here can be routed by this user to two CPUs")
        before = lists()
        try:
            yield found
        finally:
            now = lists()
            for irq, text in before.items():
                if now.get(irq, text) != text:
                    NO_DAEMON.write(irq, text)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """No two runs of these tests on one machine at once: each would take the other's routes for what was before."""
    folder = Path(tempfile.gettempdir()) / f"homenode-irq-tests-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with State(folder).locked("interrupts", 60):
        yield


@pytest.fixture
def state(tmp_path: Path) -> State:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return State(folder)


@pytest.fixture
def running() -> Iterator[Child]:
    with child() as process:
        yield process


def target(*routes: IrqRoute) -> Target:
    return Target((ONE,), irqs=routes)


def test_one_interrupt_is_routed_and_no_other(
    free: list[tuple[str, str, int]], host: Host, state: State, running: Child
) -> None:
    address, action, irq = free[0]
    before = lists()
    planned = target(IrqRoute(address, action, (OTHER,)))
    report = route_target(running.pid, planned, host, state, NO_DAEMON)
    assert report.ok and not report.findings, report
    after = lists()
    ours = {number for number in after if after[number] != before[number]}
    assert irq in ours
    assert all(after[number] == str(OTHER) for number in ours)
    names = {one.irq: one.actions for one in host.interrupts}
    device = next(device for device in host.devices if device.address == address)
    assert all(number in device.irqs and any(name.startswith(action) for name in names[number]) for number in ours)
    assert verify_target(planned, host, NO_DAEMON).ok
    assert undo(running.pid, state, restore_irqs=lambda entries: restore(entries, interrupts=NO_DAEMON)).ok
    assert lists() == before


def test_verify_finds_an_interrupt_that_was_moved_away(
    free: list[tuple[str, str, int]], host: Host, running: Child
) -> None:
    address, action, irq = free[0]
    planned = target(IrqRoute(address, action, (OTHER,)))
    route_target(running.pid, planned, host, None, NO_DAEMON)
    assert verify_target(planned, host, NO_DAEMON).ok
    NO_DAEMON.write(irq, str(ONE))
    report = verify_target(planned, host, NO_DAEMON)
    assert [(finding.severity, finding.code) for finding in report.findings] == [("error", "irq_off_plan")]
    assert f"irq {irq} " in report.findings[0].message
    assert not report.ok


def test_binding_twice_undoes_to_before_the_first(
    free: list[tuple[str, str, int]], host: Host, state: State, running: Child
) -> None:
    address, action, _ = free[0]
    before = lists()
    for cpu in (ONE, OTHER, ONE):
        assert route_target(running.pid, target(IrqRoute(address, action, (cpu,))), host, state, NO_DAEMON).ok
    assert undo(running.pid, state, restore_irqs=lambda entries: restore(entries, interrupts=NO_DAEMON)).ok
    assert lists() == before


def test_what_the_kernel_places_itself_is_reported_and_stops_no_other(
    free: list[tuple[str, str, int]], host: Host, state: State, running: Child
) -> None:
    managed = [irq for irq in lists() if refusal_of(irq) in (errno.EIO, errno.EPERM)]
    device = next((device for device in host.devices for irq in device.irqs if irq in managed), None)
    if device is None:
        pytest.skip("no interrupt here is managed by the kernel")
    before = lists()
    planned = target(IrqRoute(device.address, "", (OTHER,)), IrqRoute(free[0][0], free[0][1], (OTHER,)))
    report = route_target(running.pid, planned, host, state, NO_DAEMON)
    assert report.ok
    assert [finding.code for finding in report.findings] == ["irq_refused"] * len(report.findings)
    assert {finding.message.split()[1] for finding in report.findings} == {
        str(irq) for irq in managed if irq in device.irqs
    }
    assert lists()[free[0][2]] == str(OTHER)
    assert all(lists()[irq] == before[irq] for irq in managed)
    off = verify_target(planned, host, NO_DAEMON)
    assert {finding.message.split()[1] for finding in off.findings} <= {str(irq) for irq in managed}
    # Older kernels do not tell.
    assert off.ok == all(NO_DAEMON.kept_by_kernel(irq) for irq in managed if irq in device.irqs)
    assert undo(running.pid, state, restore_irqs=lambda entries: restore(entries, interrupts=NO_DAEMON)).ok
    assert lists() == before


def refusal_of(irq: int) -> int | None:
    try:
        NO_DAEMON.write(irq, NO_DAEMON.read(irq))
    except OSError as error:
        return error.errno
    return None


def test_irqbalance_is_told_before_and_gets_them_back_after(
    free: list[tuple[str, str, int]], host: Host, state: State, running: Child
) -> None:
    address, action, irq = free[0]
    before = lists()
    with fake_irqbalance(banned=[7]) as fake:
        told = Interrupts(find_daemon=lambda: fake.daemon)
        report = route_target(running.pid, target(IrqRoute(address, action, (OTHER,))), host, state, told)
        assert [step.outcome for step in report.steps if step.what == "irqbalance"] == ["done"]
        assert 7 in fake.banned and irq in fake.banned
        assert undo(running.pid, state, restore_irqs=lambda entries: restore(entries, state=state, interrupts=told)).ok
        assert fake.banned == [7]
    assert lists() == before


def test_an_irqbalance_that_refuses_costs_a_warning_and_the_routes_hold(
    free: list[tuple[str, str, int]], host: Host, state: State, running: Child
) -> None:
    address, action, irq = free[0]
    with fake_irqbalance(obeys=12345) as fake:
        planned = target(IrqRoute(address, action, (OTHER,)))
        report = route_target(running.pid, planned, host, state, Interrupts(find_daemon=lambda: fake.daemon))
    assert report.ok
    assert [finding.code for finding in report.findings] == ["irqbalance_not_told"]
    assert lists()[irq] == str(OTHER)


def test_the_commands_route_verify_and_undo(
    free: list[tuple[str, str, int]], host: Host, state: State, running: Child, tmp_path: Path
) -> None:
    mine = {irq for _, _, irq in free}
    named = {one.irq for one in host.interrupts if one.actions}
    address = next(
        (device.address for device in host.devices if device.irqs and mine.issuperset(named.intersection(device.irqs))),
        None,
    )
    irq = next((irq for own, _, irq in free if own == address), 0)
    if not irq:
        pytest.skip("every device here has an interrupt that this user cannot route")
    tool = tmp_path / "bin/nvidia-smi"  # tells of a GPU at the address of a device that this machine really has
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\ncase "$*" in *query-gpu*) echo "0, GPU-1, 0000{address}, NVIDIA H200";; *) exit 1;; esac\n'
    )
    tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}", "HOMENODE_STATE_DIR": str(state.folder)}
    before = lists()

    def homenode(*words: str) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "homenode.cli.main", *words, "--pid", str(running.pid), "--json"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
        return result.returncode, json.loads(result.stdout)

    code, report = homenode("bind", "--yes")
    assert code == 0, report
    assert {"what": f"irq {irq}", "outcome": "done"}.items() <= next(
        step for step in report["steps"] if step["what"] == f"irq {irq}"
    ).items()
    after = lists()
    assert len(parse_cpu_list(after[irq])) == 1
    assert homenode("verify")[0] == 0
    NO_DAEMON.write(irq, before[irq])
    code, report = homenode("verify")
    assert code == 1
    assert [finding["code"] for finding in report["findings"]] == ["irq_off_plan"]
    NO_DAEMON.write(irq, after[irq])
    assert homenode("bind", "--undo")[0] == 0
    assert lists() == before


@two_cpus
def test_an_interrupt_that_has_changed_hands_is_left_alone(free: list[tuple[str, str, int]]) -> None:
    _, _, irq = free[0]
    before = lists()
    report = restore(
        [{"irq": irq, "list": str(ONE), "action": "of_another_driver", "banned": False}], interrupts=NO_DAEMON
    )
    assert [step.outcome for step in report.steps] == ["skipped"]
    assert lists() == before


@given(st.data())
@settings(
    deadline=None,
    derandomize=True,
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_restoring_gives_back_exactly_what_was(
    free: list[tuple[str, str, int]], host: Host, running: Child, data: Any
) -> None:
    before = lists()
    masks = st.lists(st.sampled_from(CPUS), min_size=1, unique=True).map(tuple)
    chosen = data.draw(st.lists(st.sampled_from(free), min_size=1, unique=True))
    for _, _, irq in chosen:  # where they are at the beginning is any place as well
        NO_DAEMON.write(irq, ",".join(map(str, data.draw(masks))))
    start = lists()
    with tempfile.TemporaryDirectory() as folder:
        state = State(Path(folder))
        for _ in range(data.draw(st.integers(1, 3))):
            routes = [IrqRoute(address, action, data.draw(masks)) for address, action, _ in chosen]
            assert route_target(running.pid, target(*routes), host, state, NO_DAEMON).ok
        assert undo(running.pid, state, restore_irqs=lambda entries: restore(entries, interrupts=NO_DAEMON)).ok
    assert lists() == start
    for _, _, irq in chosen:
        NO_DAEMON.write(irq, before[irq])


@dataclass(frozen=True)
class Written(Interrupts):
    """Interrupts of a folder, some of which refuse: errno by number. A write replaces the file, as the
    kernel's does.
    """

    refuse: dict[int, int] = field(default_factory=dict)

    def write(self, irq: int, cpus: str) -> None:
        if irq in self.refuse:
            raise OSError(self.refuse[irq], os.strerror(self.refuse[irq]))
        (Path(self.root) / f"proc/irq/{irq}/smp_affinity_list").write_text(cpus)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A root with interrupts 40 to 43 of one NPU."""
    lines = ["           CPU0       CPU1"]
    for irq in range(40, 44):
        (tmp_path / f"proc/irq/{irq}").mkdir(parents=True)
        (tmp_path / f"proc/irq/{irq}/smp_affinity_list").write_text("0-1")
        (tmp_path / f"sys/bus/pci/devices/0000:c1:00.0/msi_irqs/{irq}").mkdir(parents=True)
        lines.append(
            f"{irq:>4}:{0:>11}{0:>11}   ITS-MSI {irq} Edge      "
            f"{'sq_send_trigger_irq' if irq == 40 else 'cq_update_irq'}"
        )
    (tmp_path / "proc/interrupts").write_text("\n".join(lines))
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-1")
    return tmp_path


NPU = (IrqRoute("0000:c1:00.0", "sq_send_trigger_irq", (0,)), IrqRoute("0000:c1:00.0", "cq_update_irq", (1,)))


def test_what_nobody_can_route_is_off_the_plan_without_being_an_error(folder: Path) -> None:
    (folder / "proc/irq/41/smp_affinity_list").chmod(0o444)
    report = verify_target(
        target(*NPU), read_host(LiveSource(str(folder), {}), accelerators=False), Interrupts(str(folder), lambda: None)
    )
    severities = {finding.message.split()[1]: finding.severity for finding in report.findings}
    assert severities == {"40": "error", "41": "warning", "42": "error", "43": "error"}
    assert next("managed" in finding.message for finding in report.findings if finding.severity == "warning")


def written(root: Path) -> list[str]:
    return [(root / f"proc/irq/{irq}/smp_affinity_list").read_text() for irq in range(40, 44)]


@pytest.mark.parametrize("code", [errno.EIO, errno.EPERM, errno.EINVAL, errno.ENOSPC, errno.EBUSY])
def test_a_refusal_names_the_interrupt_and_its_reason_and_the_rest_goes_on(
    folder: Path, running: Child, code: int
) -> None:
    host = read_host(LiveSource(str(folder)), accelerators=False)
    files = Written(str(folder), lambda: None, {41: code, 43: code})
    report = route_target(running.pid, target(*NPU), host, None, files)
    assert report.ok
    assert written(folder) == ["0", "0-1", "1", "0-1"]
    assert [finding.message.split(" ")[1] for finding in report.findings] == ["41", "43"]
    assert all(errno.errorcode[code] in finding.message and finding.remedy for finding in report.findings)


def test_where_nothing_can_be_written_the_whole_step_is_one_line(folder: Path, running: Child, state: State) -> None:
    class ReadOnly(Interrupts):
        def refusal(self, irq: int) -> str:
            return os.strerror(errno.EROFS)

    host = read_host(LiveSource(str(folder)), accelerators=False)
    report = route_target(running.pid, target(*NPU), host, state, ReadOnly(str(folder), lambda: None))
    (step,) = report.steps
    assert (step.what, step.outcome) == ("interrupts", "skipped")
    assert "/proc/irq cannot be written to (Read-only file system), 4 stay as they are" in step.detail
    assert not report.findings
    assert state.names("bindings") == ()
    findings = verify_target(target(*NPU), host, ReadOnly(str(folder), lambda: None)).findings
    assert {finding.severity for finding in findings} == {"warning"}


def test_a_target_without_interrupts_does_nothing(running: Child, host: Host, state: State) -> None:
    assert route_target(running.pid, target(), host, state, NO_DAEMON).steps == ()
    assert verify_target(target(), host, NO_DAEMON).steps == ()


def test_what_is_remembered_says_which_bans_are_ours(folder: Path, running: Child, state: State) -> None:
    host = read_host(LiveSource(str(folder)), accelerators=False)
    with fake_irqbalance(banned=[41]) as fake:
        route_target(running.pid, target(*NPU), host, state, Written(str(folder), lambda: fake.daemon))
        assert fake.banned == [40, 41, 42, 43]
        known = recall(recorded(state)[0], state)
        kept = known.irqs if known else ()
        assert [(entry["irq"], entry["list"], entry["banned"]) for entry in kept] == [
            (40, "0-1", True),
            (41, "0-1", False),
            (42, "0-1", True),
            (43, "0-1", True),
        ]
        report = restore(kept, state=state, interrupts=Written(str(folder), lambda: fake.daemon))
        assert fake.banned == [41]
        assert report.steps[-1].what == "irqbalance"


@pytest.mark.parametrize(
    "entry", [{"irq": "40"}, {"irq": 40}, {"irq": 40, "list": "x", "action": "sq_send_trigger_irq"}, {}]
)
def test_a_damaged_entry_is_told_and_harms_nothing(folder: Path, entry: dict[str, Any]) -> None:
    report = restore([entry], interrupts=Written(str(folder), lambda: None))
    assert report.ok
    assert written(folder) == ["0-1"] * 4
    assert all(step.outcome in ("skipped", "failed") for step in report.steps)


def test_a_process_that_has_ended_gets_no_interrupts(folder: Path, state: State) -> None:
    with child() as process:
        gone = process.pid
    host = read_host(LiveSource(str(folder)), accelerators=False)
    report = route_target(gone, target(*NPU), host, state, Written(str(folder), lambda: None))
    assert [(step.what, step.outcome) for step in report.steps] == [("interrupts", "skipped")]
    assert written(folder) == ["0-1"] * 4


def test_when_nothing_can_be_kept_it_is_said_and_routed_all_the_same(
    folder: Path, state: State, running: Child
) -> None:
    (state.folder / "bindings").write_text("in the way")
    host = read_host(LiveSource(str(folder)), accelerators=False)
    report = route_target(running.pid, target(*NPU), host, state, Written(str(folder), lambda: None))
    assert [finding.code for finding in report.findings] == ["undo_not_possible"]
    assert written(folder) == ["0", "1", "1", "1"]
