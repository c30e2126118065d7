"""The recorded hosts of tests/hosts, and what hwloc read from the same machines (tools/record_hosts.py makes both)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from homenode.host.discovery.read import read_host
from homenode.host.discovery.snapshot import load_recording
from homenode.host.topology.host import Host
from homenode.host.topology.source import RecordedSource
from tests.paths import ROOT

HOSTS = ROOT / "tests" / "hosts"
NAMES = tuple(sorted(path.stem for path in HOSTS.glob("*.json") if path.stem != "expected"))


def recording(name: str) -> RecordedSource:
    """The recording with this name."""
    return load_recording(HOSTS / f"{name}.json")


@cache
def recorded_host(name: str) -> Host:
    """The host in a recording; a host never changes, so each is read once."""
    return read_host(recording(name))


@cache
def opinions() -> dict[str, dict[str, Any]]:
    """By host: `cpus`, `cores`, `sockets`, `l3`, `nodes`, `node_cpus`, `distances`. Sets of CPUs are lists, several
    with bars between.
    """
    return dict(json.loads((HOSTS / "expected.json").read_text(encoding="utf-8")))
