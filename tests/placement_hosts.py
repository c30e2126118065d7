"""Hosts for tests of plans: a machine in one line, and what a line cannot say."""

from __future__ import annotations

from dataclasses import replace

from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Accelerator, Accelerators, Host
from homenode.testing.hosts.synthetic import synthetic


def host(text: str, *, machine: str | None = None, chips: tuple[Accelerator, ...] | None = None) -> Host:
    """The synthetic host of `text`; of another architecture, or with these accelerators instead."""
    made = read_host(synthetic(text))
    accelerators = made.accelerators if chips is None else Accelerators(chips)
    return replace(made, machine=machine or made.machine, accelerators=accelerators)
