"""A CPU that goes offline on a machine of several nodes: read, refused, planned without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from homenode.cpuset import format_cpu_list
from tests.host.children import child
from tests.lab.machine import WHOLE, homenode, own_machine, several_nodes, start

pytestmark = [several_nodes, own_machine]


@pytest.fixture
def gone() -> Iterator[int]:
    """The last CPU of the last node, on its way out and back."""
    cpu = WHOLE[-1].cpus[-1]
    switch = Path(f"/sys/devices/system/cpu/cpu{cpu}/online")
    if len(WHOLE[-1].cpus) < 2 or not switch.exists():
        pytest.skip(f"CPU {cpu} is the only one of its node, or cannot be taken offline")
    yield cpu
    switch.write_text("1")


def take_offline(cpu: int) -> None:
    Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text("0")


def test_what_is_planned_and_refused_without_it(gone: int) -> None:
    node = WHOLE[-1]
    left = format_cpu_list(node.cpus[:-1])
    with child() as running:
        assert homenode("bind", "--pid", running.pid, "--cpus", node.cpu_list).code == 0
        take_offline(gone)
        seen = homenode("host", "--json").json
        assert seen["cpus"]["offline"] == str(gone)
        assert next(one["cpus"] for one in seen["nodes"] if one["id"] == node.id) == left
        (worker,) = homenode("plan", "--numa-bind", "--numa-bind-nodes", node.id, "--json").json["workers"]
        assert worker["cpus"] == left
        for done in (
            start("run", "--cpus", gone, "--", "true"),
            homenode("verify", "--pid", running.pid, "--cpus", node.cpu_list),
        ):
            assert done.code == 2 and f"{gone}" in done.err and "online" in done.err.replace("offline", "online")
        assert homenode("verify", "--pid", running.pid, "--cpus", left).code == 0
