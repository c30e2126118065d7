"""Requests that are not finished, what their clients are to be told, and how they end.

A request ends in whatever state it is, and gives back all it holds; its last output says why. What is to be told is
kept until it is asked for.
"""

from __future__ import annotations

from typing import Any

from homenode.engine.kv.sequence import Sequence
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.engine.scheduler.admission import Throughput
from homenode.engine.scheduler.counters import SchedulerCounters
from homenode.engine.scheduler.drafts.drafter import Drafter
from homenode.engine.scheduler.events import Emit, Instruction, Warn
from homenode.engine.scheduler.kv_coordinator import KvCoordinator, KvRefusal
from homenode.engine.scheduler.order.queue import Deadlines
from homenode.engine.scheduler.sequence_lists import SequenceLists
from homenode.errors import HomenodeError, OverloadedError
from homenode.units import format_count


class RequestTable:
    """Sequences by request id. `outputs`: for the clients, not told yet. `throughput`: of the steps so far."""

    def __init__(
        self,
        lists: SequenceLists,
        coordinator: KvCoordinator,
        counters: SchedulerCounters,
        drafter: Drafter | None = None,
    ) -> None:
        self._drafter = drafter
        self.throughput = Throughput()
        self.outputs: list[Output] = []
        self._lists = lists
        self._coordinator = coordinator
        self._counters = counters
        self._sequences: dict[int, Sequence] = {}
        self._deadlines = Deadlines()
        self._warnings: list[Warn] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._sequences

    def __getitem__(self, request_id: int) -> Sequence:
        return self._sequences[request_id]

    def add(self, sequence: Sequence) -> None:
        """A request that was let in, under an id that is not in use."""
        self._sequences[sequence.id] = sequence
        self._deadlines.add(sequence)
        self._lists.num_awaited += sequence.request.awaited

    # What is told

    def tell(self) -> list[Instruction]:
        """Warnings and outputs since the last call."""
        instructions: list[Instruction] = [*self._warnings]
        self._warnings.clear()
        if self.outputs:
            instructions.append(Emit(self.outputs))
            self.outputs = []
        return instructions

    def warn(self, sequence: Sequence, text: str) -> None:
        """Warn the operator of what became of a request: `text` follows its name at once."""
        name = sequence.request.name
        self._warnings.append(Warn(f"request {name or sequence.id}{text}", name))

    def answer(self, sequence: Sequence, **output: Any) -> None:
        """Send an output; the first one also tells how long it waited, what the cache held and, if they were asked for,
        the prompt's log-probabilities.
        """
        if not sequence.answered:
            sequence.answered = True
            output["cached_tokens"], output["queued_s"] = sequence.cached_tokens, sequence.queued_s
            if sequence.kv_came is not None:
                output["kv_came"] = sequence.kv_came
            output["disk_tokens"] = min(sequence.disk_tokens, sequence.cached_tokens)
            if sequence.params.prompt_logprobs is not None and not sequence.scoring:
                output["prompt_logprobs"] = sequence.scores
        self.outputs.append(Output(id=sequence.id, **output))

    def refuse(self, request: Request, error: HomenodeError, reason: str) -> None:
        """Tell a client that its request is not let in. `reason`: its short name for the metrics."""
        self._counters.rejected[reason] += 1
        self.outputs.append(
            Output(
                id=request.id,
                finish_reason="error",
                error=error.message,
                error_kind=type(error).__name__,
                retry_after_s=error.retry_after_s if isinstance(error, OverloadedError) else None,
            )
        )

    def retry_after(self) -> float:
        """Seconds until the queue of now should have drained."""
        return self.throughput.retry_after(self._lists.num_waiting_tokens)

    # Ends

    def finish(self, sequence: Sequence, **output: Any) -> None:
        """End a request in whatever state it is, give back all it holds, and send its last output."""
        self._coordinator.keep(sequence)
        self._lists.stop(sequence)
        self._coordinator.end(sequence, output.get("error") or output["finish_reason"])
        self._deadlines.remove(sequence)
        sequence.finished = True
        del self._sequences[sequence.id]
        self._lists.num_awaited -= sequence.request.awaited
        if self._drafter is not None:
            self._drafter.ended(sequence)
        self.answer(sequence, num_preemptions=sequence.preemptions, **output)

    def fail(self, sequence: Sequence, error: str, kind: str, retry_after_s: float | None = None) -> None:
        """End one with an error."""
        self.finish(sequence, finish_reason="error", error=error, error_kind=kind, retry_after_s=retry_after_s)

    def fail_refused(self, refused: KvRefusal) -> None:
        """End one whose KV cannot be handed over."""
        retry_after = self.retry_after() if refused.retry_after_s is None else refused.retry_after_s
        self.fail(refused.sequence, refused.reason, "KvRefusedError", retry_after)

    def end_prefill(self, sequence: Sequence, finish_reason: str = "length", pooled: bytes = b"") -> None:
        """All that a request was to compute, to score it, for another engine, or for its text's vector, is there."""
        self._counters.prompt_tokens += sequence.num_prompt
        self.finish(sequence, finish_reason=finish_reason, pooled=pooled)

    # Deadlines

    def next_deadline(self) -> float | None:
        """The earliest, if any."""
        return self._deadlines.next()

    def end_late(self, now: float) -> None:
        """End those whose deadline has passed."""
        while late := self._deadlines.first_passed(now):
            self._time_out(late)

    def _time_out(self, sequence: Sequence) -> None:
        """A request that never ran was refused by overload and may be tried again; one that ran simply took
        too long.
        """
        if not sequence.admitted:
            text = "the request's deadline passed while it waited for its turn; try again later"
            self.fail(sequence, text, "OverloadedError", self.retry_after())
            return
        text = (
            f"the request's deadline passed after {format_count(sequence.num_outputs, 'output token')}; allow more "
            "time (--request-timeout) or ask for fewer"
        )
        self.fail(sequence, text, "UserError")
