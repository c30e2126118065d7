"""A model of a server of several while the server runs: its state, who uses it, and who waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from homenode.cpuset import format_cpu_list
from homenode.errors import InternalError
from homenode.server.http.failures import ApiError
from homenode.server.models.lent_cores import CoreOwner, lending_node
from homenode.server.models.lifecycle import TRANSITIONS, ModelSituation, ModelState
from homenode.server.models.model_entry import PlannedModel
from homenode.server.models.served_model import ServedModel
from homenode.server.monitoring.snapshots import LifeSnapshot

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 60.0
_SETTLE_AFTER_S = 60.0  # without requests
_STEADY_S = 60.0  # a model that worked for so long has failed for the first time again
FOR_EVER = float("inf")


class KeptModel:
    """`key`: its name, or another one while it takes the place of an earlier version (`replaces`). `served`: while it
    is loaded. `leases`: requests that use it. `reason`: why it failed; `retry_at`: before that nobody tries again.
    `loads`, `unloads`, `failures`: how often since the start of the server. `load_seconds`: what the last load took.
    `removed`: settings name it no more. `next_place`: where it is to be from its next load on; `moves`: that is now, as
    soon as it has no requests, as another model has its cores; `next_cpus`: its own, or those of its next version, as
    settings are by now. `keep_alive`: seconds that a client had it kept for; None: as its settings say. `lent`: CPUs
    that it has of others while it is loaded (`lent_cores`).
    """

    def __init__(self, planned: PlannedModel, key: str, replaces: KeptModel | None = None) -> None:
        self.planned, self.key, self.replaces = planned, key, replaces
        self.state = ModelState.UNLOADED
        self.served: ServedModel | None = None
        self.leases = 0
        self.last_used = time.monotonic()
        self.keep_alive: float | None = None
        self.loads, self.unloads, self.failures = 0, 0, 0
        self.reason: str | None = None
        self.retry_at = 0.0
        self.load_seconds = 0.0
        self.progress = (0, 0)
        self.leaves = self.removed = False
        self.next_place: PlannedModel | None = None
        self.next_cpus = frozenset(planned.cpus)
        self.moves = False
        self.lent: frozenset[int] = frozenset()
        self.loads_again = False
        self.wanted_by_itself: float | None = None
        self.looked_at = planned.problem is None  # its files were as they should be
        self.work: asyncio.Task[None] | None = None  # that loads or unloads it
        self.measuring: asyncio.Future[None] | None = None
        self._failed_in_row = 0
        self._loaded_at = 0.0
        self._waiting: dict[asyncio.Future[ModelLease | None], float] = {}

    @property
    def name(self) -> str:
        """Its own name."""
        return self.planned.name

    def move_out_of(self, others: Iterable[PlannedModel]) -> None:
        """Have it move if its own cores are to be those of others, and it is not to share them. Those that it was lent
        are given back when their owner is wanted.
        """
        new = set(self.planned.cpus if self.next_place is None else self.next_place.cpus)
        own = set(self.planned.cpus)
        self.moves = self.state in (ModelState.LOADED, ModelState.LOADING) and any(
            each.name != self.name and own & set(each.cpus) and not new & set(each.cpus) for each in others
        )

    @property
    def waiting(self) -> int:
        """Requests that wait for it."""
        return len(self._waiting)

    def to(self, state: ModelState) -> None:
        """Go over to another state."""
        if state not in TRANSITIONS[self.state]:
            raise InternalError(f"the model {self.name} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def want(self) -> None:
        """Have it loaded although nobody asks for it now."""
        self.wanted_by_itself = time.monotonic()
        self.leaves = False

    # Use

    def lease(self) -> ModelLease:
        """One more request uses it, until the lease is released."""
        return ModelLease(self)

    @property
    def busy(self) -> bool:
        """Return whether requests use it, those included that go on behind their answer."""
        return self.leases > 0 or (self.served is not None and bool(self.served.active))

    @property
    def passing(self) -> bool:
        """Return whether it goes when it has no requests, or some time later."""
        return self.leaves or self.moves or self.replaces is not None or self.expires_in != FOR_EVER

    def touch(self) -> None:
        """Note that it was used now."""
        self.last_used = time.monotonic()

    @property
    def place(self) -> PlannedModel:
        """Return where it is, or is to be: with the cores that it was lent."""
        if not self.lent:
            return self.planned
        cpus = tuple(sorted({*self.planned.cpus, *self.lent}))
        lent = f"; CPUs {format_cpu_list(sorted(self.lent))} are of models that nobody asks for"
        return replace(self.planned, cpus=cpus, reason=self.planned.reason + lent)

    def owner(self, lend_after_s: float) -> CoreOwner:
        """Return what is to be known of it where cores are lent. `lend_after_s`: how long nobody asked for one that
        lends.
        """
        lends = self.planned.entry.on_demand and self.state in (ModelState.UNLOADED, ModelState.FAILED)
        return CoreOwner(
            self.key,
            self.planned.cpus,
            None if self.removed else lending_node(self.planned),
            self.state.holds_memory or self._wanted_since is not None,
            self.last_used + lend_after_s if lends else float("inf"),
            self.lent,
        )

    def situation(self, *, held: bool, lent: frozenset[int] | None = None) -> ModelSituation:
        """Return what a decision has to know of it. `held`: its newcomers wait until others are served. `lent`: CPUs
        that it would have beside its own if it were loaded now.
        """
        soon_used = self.state is ModelState.LOADED and bool(self._waiting) and not held
        return ModelSituation(
            self.key,
            self.state,
            self.planned.memory,
            pin=self.planned.entry.pin,
            busy=self.busy or (soon_used and not (self.leaves or self.moves)),
            wanted_since=self._wanted_since,
            last_used=self.last_used,
            leaves=self.leaves,
            expires=self._expires,
            replaces=None if self.replaces is None else self.replaces.key,
            cpus=frozenset(self.planned.cpus),
            lent=self.lent,
            endpoints=self.planned.entry.endpoints,
            next_cpus=self.next_cpus,
            moves=self.moves and not self.leaves,
            settles=lent is not None and lent != self.lent and time.monotonic() >= self.settles_from,
        )

    @property
    def settles_from(self) -> float:
        """Return the time from which it is loaded again where other cores are lent to it."""
        return self.last_used + _SETTLE_AFTER_S

    @property
    def _wanted_since(self) -> float | None:
        since = [*self._waiting.values(), *([] if self.wanted_by_itself is None else [self.wanted_by_itself])]
        if self.state is ModelState.FAILED and time.monotonic() < self.retry_at:
            return None
        return min(since, default=None)

    @property
    def expires_in(self) -> float:
        """Seconds that it stays when nobody asks for it any more; `FOR_EVER`, where it is not unloaded for that."""
        if self.keep_alive is not None:
            return self.keep_alive
        limit = self.planned.entry.idle_timeout_s
        return FOR_EVER if limit is None else limit

    @property
    def _expires(self) -> float | None:
        return None if self.expires_in == FOR_EVER else self.last_used + self.expires_in

    @property
    def life(self) -> LifeSnapshot:
        """Return what /metrics shows of it."""
        size = self.planned.memory if self.state.holds_memory else dict.fromkeys(self.planned.memory, 0)
        return LifeSnapshot(
            {state.value: state is self.state for state in ModelState},
            {str(node): float(bytes_) for node, bytes_ in size.items()},
            self.waiting,
            self.loads,
            self.unloads,
            self.failures,
        )

    # Waiting

    async def wait(self, timeout_s: float, changed: Callable[[], None]) -> ModelLease | None:
        """Wait until something has become of it: a lease where it is loaded, None where one is to look again. `changed`
        is called when this begins, and when nobody has woken it. TimeoutError after `timeout_s` seconds.
        """
        told: asyncio.Future[ModelLease | None] = asyncio.get_running_loop().create_future()
        self._waiting[told] = time.monotonic()
        try:
            changed()
            async with asyncio.timeout(timeout_s):
                return await told
        except BaseException:
            given = told.done() and not told.cancelled() and told.exception() is None
            if given and (lease := told.result()) is not None:
                lease.release()
            raise
        finally:
            if self._waiting.pop(told, None) is not None:
                changed()

    def admit(self) -> None:
        """Let in those who have waited, before anything else is decided about it: it is loaded."""
        waiting, self._waiting = self._waiting, {}
        for told in waiting:
            if not told.done():
                told.set_result(self.lease())

    def wake(self, error: ApiError | None = None) -> None:
        """Have those who wait look again, or tell them that it is in vain."""
        waiting, self._waiting = self._waiting, {}
        for told in waiting:
            if error is None and not told.done():
                told.set_result(None)
            elif error is not None and not told.done():
                told.set_exception(error)

    # Success and failure

    def loaded(self, served: ServedModel, seconds: float) -> None:
        """It can be used."""
        self.to(ModelState.LOADED)
        self.served, self.load_seconds, self.reason = served, seconds, None
        self.wanted_by_itself = None
        self.loads += not self.loads_again
        self.loads_again = False
        self._loaded_at = time.monotonic()
        self.touch()

    def failed(self, reason: str) -> float:
        """It could not be loaded, or its engine is lost. Return the seconds until the next try."""
        if self.state is ModelState.LOADED and time.monotonic() - self._loaded_at >= _STEADY_S:
            self._failed_in_row = 0
        self.to(ModelState.FAILED)
        self.served, self.reason, self.looked_at = None, reason, False
        self.wanted_by_itself = None
        self.lent = frozenset()
        self.failures += 1
        self._failed_in_row += 1
        delay = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** min(10, self._failed_in_row - 1))
        self.retry_at = time.monotonic() + delay
        return delay

    def measured(self, planned: PlannedModel) -> None:
        """Its files were looked at."""
        self.planned, self.looked_at = planned, planned.problem is None
        self.next_place, self.next_cpus, self.moves = None, frozenset(planned.cpus), False


class ModelLease:
    """The use of a model by a request. `waited_s`: how long the request had to wait for it."""

    def __init__(self, kept: KeptModel) -> None:
        self.kept = kept
        self.waited_s = 0.0
        kept.leases += 1
        kept.touch()
        self._released = False

    def release(self) -> bool:
        """The request has its answer. Return whether nobody uses the model any more; calling it again does nothing."""
        if self._released:
            return False
        self._released = True
        self.kept.leases -= 1
        self.kept.touch()
        return not self.kept.busy
