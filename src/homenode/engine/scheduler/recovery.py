"""The fate of requests when a step fails, and when workers are lost and come back.

After either nothing that was computed is trusted: who was running waits and is computed again from the tokens there
are, in the same order.
"""

from __future__ import annotations

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import Sequence
from homenode.engine.scheduler.kv_coordinator import KvCoordinator, KvRefusal
from homenode.engine.scheduler.micro_batching import MicroBatching
from homenode.engine.scheduler.request_table import RequestTable
from homenode.engine.scheduler.sequence_lists import SequenceLists
from homenode.engine.scheduler.steps.pending_steps import PendingStep, PendingSteps
from homenode.errors import InternalError
from homenode.units import format_count

_MOST_LOSSES = 3  # a request that was running when workers were lost more often than this may be why they are


class WorkerRecovery:
    """`workers_are_lost`: no worker knows of anything, until they are back."""

    def __init__(
        self,
        batching: MicroBatching,
        *,
        pending: PendingSteps,
        allocator: KvAllocator,
        lists: SequenceLists,
        coordinator: KvCoordinator,
        requests: RequestTable,
    ) -> None:
        self.workers_are_lost = False
        self._batching = batching
        self._pending_steps = pending
        self._allocator = allocator
        self._lists = lists
        self._coordinator = coordinator
        self._requests = requests

    def step_failed(self, error: str, kind: str) -> None:
        """End the requests of the lost step with an error of this kind. All others are computed again, since what their
        blocks hold can no longer be trusted.

        With one stage those of the step after it end as well: they are mostly the same. InternalError when none is in
        flight.
        """
        if not self._pending_steps:
            raise InternalError(f"a step failed, but none is in flight: {error}")
        failed = self._pending_steps.oldest
        lost: dict[int, Sequence] = {}
        ends = []
        for pending_step in self._pending_steps.take_all():
            ends += pending_step.step.ends  # the worker may not have got to them; it ignores those it did
            members = self._land(pending_step)
            if self._batching.stages == 1 or pending_step.step.number == failed:
                lost |= members
        self._allocator.ends = ends + self._allocator.ends
        for sequence in lost.values():
            self._requests.fail(sequence, f"the step that computed this request failed: {error}", kind)
        self._forget_kv()

    def workers_lost(self, error: str) -> None:
        """Let everybody wait, but for those under whom workers were lost too often, and those whose KV another engine
        was to have.
        """
        lost = {sequence.id: sequence for sequence in self._lists.running}
        for pending_step in self._pending_steps.take_all():
            lost |= self._land(pending_step)
        self.workers_are_lost = self._coordinator.workers_are_lost = True
        for sequence in lost.values():
            self._count_loss(sequence, error)
        self._forget_kv()
        self._allocator.ends = []

    def workers_back(self) -> None:
        """Steps are sent again. InternalError when no workers were lost."""
        if not self.workers_are_lost:
            raise InternalError("the workers are back, but they were not lost")
        self.workers_are_lost = self._coordinator.workers_are_lost = False

    def _land(self, pending_step: PendingStep) -> dict[int, Sequence]:
        """Take back what a step that will not come back holds. Its unfinished sequences, by request."""
        self._allocator.completed_through = pending_step.step.number
        for _, allocation in pending_step.members():
            self._allocator.finish_step(allocation)
        return {sequence.id: sequence for sequence, _ in pending_step.members() if not sequence.finished}

    def _forget_kv(self) -> None:
        """Nothing that was computed is of use any more: everybody who runs goes back into the queue."""
        for sequence in self._lists.running.copy():
            self._lists.requeue(sequence)
        self._coordinator.step_failed()
        self._allocator.pool.forget_all()

    def _count_loss(self, sequence: Sequence, error: str) -> None:
        sequence.losses += 1
        if sequence.losses > _MOST_LOSSES:
            text = (
                f"worker_lost: workers were lost {format_count(sequence.losses, 'time')} while this request was "
                f"computed, the last time because {error}"
            )
            self._requests.fail(sequence, text, "WorkerLostError", self._requests.retry_after())
        elif self._coordinator.has_told(sequence):
            self._requests.fail_refused(KvRefusal(sequence, f"worker_lost: the KV of this request is lost: {error}"))
