"""The machine as the kernel tells it while a server runs: which CPUs there are, and whether compute threads are where
they were planned. Read when somebody looks, on a thread beside the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from homenode.errors import HostError, UserError
from homenode.host.bind.base.state import State, open_state
from homenode.host.bind.engine_plan import RecordedPlan, plans_changed_at
from homenode.host.bind.thread_places import EngineThreads, engine_plans, look_at_threads
from homenode.host.discovery.read import read_host
from homenode.host.topology.describe import fingerprint
from homenode.host.topology.facts import FactReader
from homenode.host.topology.machine_map import machine_map
from homenode.host.topology.source import LiveSource
from homenode.host.topology.throttling import read_throttling
from homenode.server.page.machine_state import ComputeThread, MachineState, Throttled, ToldFinding

_HOST_AGAIN_S = 60.0  # CPUs go offline and come back rarely


class MachineWatch:
    """Looks at the machine, and keeps what does not change between two looks. For one thread at a time."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`pid`: of the process that has started the engines."""
        self._pid, self._clock = pid, clock
        self._read_at = float("-inf")
        self._map: dict[str, Any] = {}
        self._fingerprint = ""
        self._plans: Mapping[int, RecordedPlan] = {}
        self._plans_of: tuple[str, float] | None = None

    @property
    def map(self) -> dict[str, Any]:
        """Return the machine as `machine_map` has it, since the last look."""
        return self._map

    def look(self) -> MachineState:
        """Ask the kernel."""
        self._read_host()
        engines = self._look_at_engines()
        seen = read_throttling(FactReader(LiveSource(env={})))
        return MachineState(
            fingerprint=self._fingerprint,
            threads=[thread for engine in engines for thread in _threads(engine)],
            throttled=None if seen is None else Throttled(seen.periods, seen.throttled, round(seen.seconds, 3)),
            findings=[ToldFinding(**each.to_dict()) for engine in engines for each in engine.report.findings],
            known=bool(engines),
        )

    def _read_host(self) -> None:
        now = self._clock()
        if now - self._read_at < _HOST_AGAIN_S:
            return
        host = read_host(LiveSource(env={}), accelerators=False)
        self._map, self._fingerprint, self._read_at = machine_map(host), fingerprint(host), now

    def _look_at_engines(self) -> list[EngineThreads]:
        try:
            state = open_state()
            self._read_plans(state)
        except (HostError, UserError):  # a folder that is not to be had or not to be trusted
            return []
        seen = [look_at_threads(pid, plan) for pid, plan in self._plans.items()]
        return [engine for engine in seen if engine is not None]

    def _read_plans(self, state: State) -> None:
        """Read the plans of the engines, where any has changed."""
        stamp = (str(state.folder), plans_changed_at(state))
        if stamp != self._plans_of:
            self._plans = engine_plans(state, (self._pid,))
            self._plans_of = stamp


def _threads(engine: EngineThreads) -> list[ComputeThread]:
    elsewhere = sorted(engine.elsewhere)
    return [
        ComputeThread(place.cpu, engine.pid, *(("stray", elsewhere) if place.strayed else ("home",)))
        for place in engine.places
    ]
