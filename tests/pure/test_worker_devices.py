"""The device of a worker is an accelerator in some plans and the number of a CPU worker in others: nobody takes one for
the other.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from homenode.cli.placement.binding_plan import BindingPlan, chip_of, claim_of
from homenode.host.plan.demand import Demand
from homenode.host.plan.policies import cpu_threads, numa_bind
from homenode.host.topology.host import Host
from tests.placement_hosts import host

WITH_GPUS, WITHOUT = host("2n/8c/gpu=2"), host("2n/8c")


@pytest.mark.parametrize(
    ("machine", "policy", "devices"),
    [
        (WITH_GPUS, cpu_threads, ()),
        (WITHOUT, cpu_threads, ()),
        (WITH_GPUS, numa_bind, (0, 1)),
    ],
)
def test_only_accelerators_are_claimed_and_have_interrupts(
    machine: Host, policy: ModuleType, devices: tuple[int, ...]
) -> None:
    made = policy.plan(machine, Demand(workers=2) if policy is cpu_threads else Demand())
    assert [worker.device for worker in made.workers] == [0, 1]
    assert claim_of(7, BindingPlan(None, machine, made, made.workers)).devices == devices
    chips = [chip_of(machine, made, worker) for worker in made.workers]
    assert tuple(chip.id for chip in chips if chip is not None) == devices
