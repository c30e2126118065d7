"""What becomes of requests when a step fails, and when workers are lost and come back.

After either nothing that was computed is trusted: who was running waits and is computed again from the tokens there are, in the same order.
"""

from __future__ import annotations

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import Sequence
from homenode.engine.scheduler.kv_coordinator import KvCoordinator, KvRefusal
from homenode.engine.scheduler.micro_batching import MicroBatching
from homenode.engine.scheduler.pending_steps import PendingStep, PendingSteps
from homenode.engine.scheduler.planner import Planner
from homenode.engine.scheduler.request_table import RequestTable
from homenode.errors import InternalError
from homenode.units import format_count

_MOST_LOSSES = 3  # a request that was running when workers were lost more often than this may be why they are


class WorkerRecovery:
    """`workers_are_lost`: no worker knows of anything, until they are back."""

    def __init__(
        self,
        pace: MicroBatching,
        *,
        flights: PendingSteps,
        residents: KvAllocator,
        planner: Planner,
        handover: KvCoordinator,
        live: RequestTable,
    ) -> None:
        self.workers_are_lost = False
        self._pace = pace
        self._flights = flights
        self._residents = residents
        self._planner = planner
        self._handover = handover
        self._live = live

    def step_failed(self, error: str, kind: str) -> None:
        """End the requests of the lost step with an error of this kind. All others are computed again, since what their blocks hold can no longer be trusted.

        With one stage those of the step after it end as well: they are mostly the same. InternalError when none is in flight.
        """
        if not self._flights:
            raise InternalError(f"a step failed, but none is in flight: {error}")
        failed = self._flights.oldest
        lost: dict[int, Sequence] = {}
        ends = []
        for flight in self._flights.take_all():
            ends += flight.step.ends  # the worker may not have got to them; it ignores those it did
            members = self._land(flight)
            if self._pace.stages == 1 or flight.step.number == failed:
                lost |= members
        self._residents.ends = ends + self._residents.ends
        for sequence in lost.values():
            self._live.fail(sequence, f"the step that computed this request failed: {error}", kind)
        self._forget_kv()

    def workers_lost(self, error: str) -> None:
        """Let everybody wait, but for those under whom workers were lost too often, and those whose KV another engine was to have."""
        lost = {sequence.id: sequence for sequence in self._planner.running}
        for flight in self._flights.take_all():
            lost |= self._land(flight)
        self.workers_are_lost = self._handover.workers_are_lost = True
        for sequence in lost.values():
            self._count_loss(sequence, error)
        self._forget_kv()
        self._residents.ends = []

    def workers_back(self) -> None:
        """Steps are sent again. InternalError when no workers were lost."""
        if not self.workers_are_lost:
            raise InternalError("the workers are back, but they were not lost")
        self.workers_are_lost = self._handover.workers_are_lost = False

    def _land(self, flight: PendingStep) -> dict[int, Sequence]:
        """Take back what a step that will not come back holds. Its unfinished sequences, by request."""
        self._residents.landed = flight.step.number
        for _, residency in flight.members():
            self._residents.settle(residency)
        return {sequence.id: sequence for sequence, _ in flight.members() if not sequence.finished}

    def _forget_kv(self) -> None:
        """Nothing that was computed is of use any more: everybody who runs goes back into the queue."""
        for sequence in self._planner.running.copy():
            self._planner.requeue(sequence)
        self._handover.step_failed()
        self._residents.pool.forget_all()

    def _count_loss(self, sequence: Sequence, error: str) -> None:
        sequence.losses += 1
        if sequence.losses > _MOST_LOSSES:
            text = f"worker_lost: workers were lost {format_count(sequence.losses, 'time')} while this request was computed, the last time because {error}"
            self._live.fail(sequence, text, "WorkerLostError", self._live.retry_after())
        elif self._handover.has_told(sequence):
            self._live.fail_refused(KvRefusal(sequence, f"worker_lost: the KV of this request is lost: {error}"))
