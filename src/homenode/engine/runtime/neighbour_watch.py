"""Looks once a second at who else claims CPUs of this host, and has the engine go where it disturbs nobody.

`plan.moves` decides. Before threads move, the CPUs that they go to are claimed, while nobody else plans; those that
they leave are given up when the kernel says that no thread is bound there any more. Steps are not interrupted: threads
move between two of them.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from homenode.cpuset import format_cpu_list
from homenode.engine.binding import EngineBinding
from homenode.engine.config import PlacementConfig
from homenode.engine.cpu_claims import CpuClaim, claims_of_others, lock_claims
from homenode.engine.devices import CPU
from homenode.engine.executor.base import Executor, MovableExecutor
from homenode.engine.executor.expert_usage import CountingExecutor
from homenode.engine.pinning import move_process_threads
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.free_cores import takes_lists
from homenode.engine.plan.machine import MachineFacts
from homenode.engine.plan.moves import EnginePlaces, RestPlace, moved_places, moved_workers
from homenode.engine.plan.placement import reserved_cores
from homenode.errors import HomenodeError
from homenode.host.bind.base.syscalls import thread_cpus
from homenode.host.bind.cpu_look import CpuLook
from homenode.host.plan.demand import Claim
from homenode.host.plan.neighbours import HostNeighbours, claimed_cores
from homenode.host.refusals import start_thread
from homenode.host.topology.host import Host

_log = logging.getLogger(__name__)
_EVERY_S = 1.0
_LOCK_S = 1.0  # for the claims; whoever cannot have them looks again later
_LONG_S = 60.0  # for threads to have moved: a step may take long


class NeighbourWatch:
    """A thread from `start` to `stop`. `host`: all that the engine may use. `places`: where it is, and what it has
    claimed with `claim`; `claims`: of others, when that was decided. `owns_process`: this process is the engine's, so
    that threads of it which do not compute move as well."""

    def __init__(
        self,
        host: Host,
        places: EnginePlaces,
        claim: CpuClaim,
        claims: Collection[Claim],
        executor: MovableExecutor,
        owns_process: bool,
    ) -> None:
        self._host, self._claim, self._executor, self._owns_process = host, claim, executor, owns_process
        self.places = places
        self._seen = tuple(claims)
        # CPUs that threads are bound to still, as far as is known; None: what is claimed is what they have.
        self._leaving: set[int] | None = None
        self._since = 0.0
        self._rest_changed: Callable[[tuple[int, ...]], None] = lambda cpus: None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="homenode-claims", daemon=True)

    def start(self, rest_changed: Callable[[tuple[int, ...]], None] = lambda cpus: None) -> None:
        """Begin. `rest_changed` is called with the CPUs for what does not compute, on a thread of its own. Where the
        machine has no thread for it, the engine stays where it is."""
        self._rest_changed = rest_changed
        try:
            start_thread(self._thread)
        except HomenodeError as error:
            _log.warning("this engine stays on its CPUs whoever else computes there: %s", error.message)

    def stop(self) -> None:
        """End; nothing is moved or claimed when this returns."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def look(self) -> None:
        """Look once, and do what follows. Raises what claims or the machine refuse."""
        if self._leaving is not None:
            self._settle(self._leaving)
            return
        claims = claims_of_others(self._claim)
        if claims == self._seen and not self._shares(claims):
            return
        wanted = moved_places(self._host, self.places, HostNeighbours(claims))
        if wanted.team != self.places.team:
            busy = CpuLook((os.getpid(), *self._executor.processes)).finish()
            wanted = self._claimed(busy)
        self._seen = claims
        self._go(wanted)

    def _watch(self) -> None:
        # Engines that were started at once do not look at once.
        wait_s = _EVERY_S * random.uniform(0.5, 1.5)
        while not self._stopped.wait(wait_s):
            wait_s = _EVERY_S
            try:
                self.look()
            except (HomenodeError, OSError, MemoryError) as error:
                _log.debug("the CPUs of others could not be looked at this time: %s", error)

    def _shares(self, claims: Collection[Claim]) -> bool:
        """Return whether a compute thread's core is claimed by others: a core may become free for it that nobody
        claims.
        """
        own = {self._host.cpu_by_id[cpu].core for cpu in self.places.team if cpu in self._host.cpu_by_id}
        return any(own & claimed_cores(self._host, claim) for claim in claims)

    def _claimed(self, busy: Mapping[int, float]) -> EnginePlaces:
        """Return what is decided while nobody else plans, with its CPUs claimed beside those that there are."""
        with lock_claims(self._claim, _LOCK_S) as claims:
            wanted = moved_places(self._host, self.places, HostNeighbours(claims.others, busy))
            if wanted.team != self.places.team:
                claims.take(self._claim, {*self._claim.cpus, *wanted.team})
        return wanted

    def _go(self, wanted: EnginePlaces) -> None:
        before, self.places = self.places, wanted
        if wanted == before:
            return
        left = set(before.team) - set(wanted.team)
        self._executor.move(wanted.workers)
        if wanted.rest != before.rest:
            self._move_rest(wanted.rest)
        if left:
            # Where the rest is to be there alone, its threads do not differ from those that compute.
            alone = bool(wanted.rest) and left.issuperset(wanted.rest)
            self._leaving, self._since = set() if alone else left, time.monotonic()
            _log.info(
                "compute threads move from CPUs %s to CPUs %s, which are free now",
                format_cpu_list(sorted(left)),
                format_cpu_list(sorted(set(wanted.team) - set(before.team))),
            )
            self._settle(self._leaving)

    def _move_rest(self, cpus: tuple[int, ...]) -> None:
        """Move the rest: those of a process that computes move with its compute threads."""
        if self._owns_process and os.getpid() not in self._executor.processes:
            move_process_threads(cpus)
        self._rest_changed(cpus)

    def _settle(self, leaving: Collection[int]) -> None:
        """Give up what was left, as soon as no thread is bound there."""
        for _ in range(20):
            if not self._bound_to(leaving):
                with lock_claims(self._claim, _LOCK_S) as claims:
                    claims.take(self._claim, self.places.team)
                self._leaving = None
                return
            if self._stopped.wait(0.02):
                return
        if time.monotonic() - self._since > _LONG_S:
            _log.warning(
                "threads are still bound to CPUs %s, which they were to leave: this engine claims them as before",
                format_cpu_list(sorted(leaving)),
            )
            self._since = float("inf")

    def _bound_to(self, cpus: Collection[int]) -> bool:
        """Return whether any thread that belongs to the engine may run on these CPUs only."""
        for pid in self._executor.processes:
            with suppress(OSError):  # it has just ended
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    with suppress(ProcessLookupError):
                        if set(thread_cpus(int(thread.name))) <= set(cpus):
                            return True
        return False


def watch_of(
    plan: EnginePlan, machine: MachineFacts, claim: CpuClaim, executor: Executor, owns_process: bool
) -> NeighbourWatch | None:
    """The watch of an engine that runs where it was free to choose: one whose CPUs are listed, and one that computes on
    accelerators or on other hosts, stays where it is; one of several goes where its front says. `machine`: as it was
    planned for."""
    inner = _inner(executor)
    bindings = tuple(worker.binding for worker in plan.worker_layout.workers)
    native = plan.config.compute.backend == "native" and all(w.device == CPU for w in plan.worker_layout.workers)
    chosen = not takes_lists(plan.config.placement, machine.host) and plan.executor != "ray"
    if plan.assignment.replica or not (native and chosen and claim.cpus and isinstance(inner, MovableExecutor)):
        return None
    places = EnginePlaces(
        bindings,
        plan.worker_layout.loop,
        _rest_place(plan.config.placement, machine.host),
        takes_sets=any(binding.sets for binding in bindings),
    )
    return NeighbourWatch(machine.host, places, claim, machine.neighbours.claims, inner, owns_process)


def move_of(plan: EnginePlan, executor: Executor, owns_process: bool) -> Callable[[EngineBinding], None]:
    """Return what has one of several engines go where its front says; nothing of any other, and of one that cannot."""
    replica, inner = plan.assignment.replica, _inner(executor)
    native = plan.config.compute.backend == "native" and all(w.device == CPU for w in plan.worker_layout.workers)
    if replica is None or not native or plan.executor == "ray" or not isinstance(inner, MovableExecutor):
        return lambda place: None
    at = [replica.binding, *(worker.binding for worker in plan.worker_layout.workers)]

    def move(place: EngineBinding) -> None:
        before, *workers = at
        if len(before.team) == len(place.team) and place != before:
            at[:] = [place, *moved_workers(workers, before, place)]
            inner.move(at[1:])
            if owns_process and os.getpid() not in inner.processes and place.others:
                move_process_threads(place.others)

    return move


def _inner(executor: Executor) -> Executor:
    return executor.inner if isinstance(executor, CountingExecutor) else executor


def _rest_place(placement: PlacementConfig, host: Host) -> RestPlace:
    if reserved_cores(placement, host):
        return RestPlace.RESERVED
    return RestPlace.WITHIN if placement.numa_bind else RestPlace.ANYWHERE
