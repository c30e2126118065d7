"""The scheduler: a state machine from events to steps and outputs. It does no I/O and reads no clock.

    apply(event)   -> instructions     something happened; what to tell the clients, the operator, and the agent that
                                       hands KV over
    next_step()    -> Step or None     what the worker should compute next
    instructions() -> instructions     what to tell because of it

With one stage and `lookahead` 1 a step may be asked for while one is in flight: a sequence whose next token is still
being drawn is scheduled for the position after it. If that token turns out to end the sequence, the token drawn too
much is dropped. With several stages as many steps are in flight, each with a part of the sequences, and a sequence goes
on when its token is known (`batching`). Where a step holds drafted tokens (`drafts`) nobody knows before its result at
which position its sequences go on: the step after it is planned then.

When a worker is lost all KV is, and every step in flight: who was running waits and is computed again from the tokens
there are, in the same order, once the workers are back. What was given out is not given out again.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.block_source import BlockSource
from homenode.engine.kv.chunks import ChunkTable, PageChange
from homenode.engine.kv.imports import KvImports
from homenode.engine.kv.states import StatePool
from homenode.engine.messages import EngineStats, RequestList
from homenode.engine.scheduler.arrivals import Arrivals
from homenode.engine.scheduler.counters import SchedulerCounters
from homenode.engine.scheduler.drafts.drafter import Drafter, WorkerDrafts
from homenode.engine.scheduler.events import (
    Aborted,
    BlocksArrived,
    BlocksFailed,
    BlocksStored,
    CacheReset,
    DrainStarted,
    Event,
    Instruction,
    KvHeadroom,
    RequestArrived,
    StepDone,
    StepFailed,
    Ticked,
    ToTransfer,
    Warn,
    WorkersBack,
    WorkersLost,
)
from homenode.engine.scheduler.growth import Growth
from homenode.engine.scheduler.kv_coordinator import KvCoordinator
from homenode.engine.scheduler.micro_batching import MicroBatching
from homenode.engine.scheduler.peer_source import PeerSource
from homenode.engine.scheduler.planner import Planner
from homenode.engine.scheduler.recovery import WorkerRecovery
from homenode.engine.scheduler.request_table import RequestTable
from homenode.engine.scheduler.results import Results
from homenode.engine.scheduler.sequence_lists import SequenceLists
from homenode.engine.scheduler.stats import SchedulerStats
from homenode.engine.scheduler.step_builder import StepBuilder
from homenode.engine.scheduler.steps.pending_steps import PendingSteps
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.step import Step, WorkerLimits
from homenode.errors import InternalError, UserError
from homenode.units import format_count


class Scheduler:
    """Decides which request runs when, and where its keys and values live."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KvConfig,
        limits: WorkerLimits,
        eos_token_ids: Iterable[int],
        hash_seed: bytes | None = None,
        lookahead: int = 0,
        seeds: random.Random | None = None,
        stages: int = 1,
        micro_batches: int = 0,
        costs: StepCosts | None = None,
        drafter: Drafter | None = None,
        stores: Iterable[BlockSource] = (),
    ) -> None:
        """`stages`: of the pipeline that computes a step, fed with `micro_batches` (0: as many) at once. `lookahead`,
        for one stage only: steps that may be sent ahead of the one being computed, 0 or 1. `seeds` draws the sampling
        seed of requests without. `costs`: what is known of the steps' times; None: nothing is. `drafter`: guesses
        tokens; None: the workers do, if anybody does. `stores`: where blocks are kept and found again besides the KV
        memory.

        UserError if the settings contradict each other, InternalError if the worker's limits do not allow them.
        """
        _check(config, limits)
        self._batching = batching = MicroBatching(stages, lookahead, micro_batches)
        chunks = ChunkTable(limits.num_blocks, limits.chunk_blocks) if limits.chunk_blocks else None
        states = None
        if limits.state_slots:
            interval = limits.state_interval if kv.enable_prefix_caching else 0
            most = max(limits.max_drafted, drafter.max_drafted if drafter is not None else 0)
            states = StatePool(limits.state_slots, interval, limits.block_size, min(most, limits.state_slots // 4))
        self.allocator = allocator = KvAllocator(
            limits.num_blocks,
            limits.block_size,
            enable_prefix_caching=kv.enable_prefix_caching,
            hash_seed=hash_seed,
            chunks=chunks,
            states=states,
            state_pages=limits.state_pages,
            whole_pages=limits.whole_pages,
            group_blocks=limits.group_blocks,
        )
        self._growth = (
            None if chunks is None else Growth(allocator.pool, chunks, limits.chunk_bytes, kv.kv_cache_release)
        )
        counters = SchedulerCounters()
        self._peers = PeerSource()
        kv_imports = KvImports(allocator)
        self.costs = costs or StepCosts()
        self._drafter = drafter = drafter or (WorkerDrafts(limits.max_drafted) if limits.max_drafted else None)
        self.lists = lists = SequenceLists(config.max_num_seqs, allocator, kv_imports)
        self._planner = Planner(config, limits, batching, lists, allocator, kv_imports, counters, self.costs, drafter)
        self._shares = lists.shares
        self.coordinator = coordinator = KvCoordinator(
            limits, allocator, lists, kv_imports, self.costs, self._peers, stores
        )
        self.pending_steps = pending = PendingSteps()
        self.requests = requests = RequestTable(lists, coordinator, counters, drafter)
        seeds = seeds or random.Random(secrets.randbits(128))
        self._arrivals = Arrivals(
            config,
            limits,
            eos_token_ids,
            seeds,
            allocator=allocator,
            lists=lists,
            coordinator=coordinator,
            requests=requests,
        )
        self._step_builder = StepBuilder(allocator, pending, self.costs, drafter)
        self._results = Results(
            limits,
            pending=pending,
            allocator=allocator,
            coordinator=coordinator,
            requests=requests,
            counters=counters,
            shares=lists.shares,
            costs=self.costs,
            drafter=drafter,
        )
        self._losses = WorkerRecovery(
            batching, pending=pending, allocator=allocator, lists=lists, coordinator=coordinator, requests=requests
        )
        self._stats = SchedulerStats(lists, allocator, coordinator, requests, counters, self.costs, self._growth)

    def apply(self, event: Event) -> list[Instruction]:
        """Take in what happened. Returns everything to be told since the last call.

        InternalError if the event cannot have happened, such as the result of a step that was never sent.
        """
        self.lists.now = event.now
        self._shares.now = event.now
        if self._growth is not None:
            self._growth.advance(event.now)
        match event:
            case RequestArrived(now, request):
                self._arrivals.take(request, now)
            case Aborted(_, request_id, reason):
                if request_id in self.requests:
                    self.requests.finish(self.requests[request_id], finish_reason=reason)
            case StepDone(_, result):
                self._results.take(result, event.now)
            case StepFailed(_, error, kind):
                self._losses.step_failed(error, kind)
            case WorkersLost(_, error):
                self._losses.workers_lost(error)
                if self._growth is not None:
                    self._growth.start_anew()
            case WorkersBack():
                self._losses.workers_back()
            case DrainStarted():
                self._arrivals.start_drain()
                self.coordinator.start_drain()
            case CacheReset():
                self.allocator.pool.forget_all()
            case KvHeadroom():
                if self._growth is not None:
                    self._growth.take(event)
            case Ticked():
                pass
            case BlocksArrived(_, key, tokens):
                self.coordinator.arrived(key, tokens)
            case BlocksFailed(_, key):
                self.coordinator.failed(key)
            case BlocksStored(_, key):
                self.coordinator.stored(key)
            case _:
                if refused := self._peers.take(event, self.coordinator):
                    self.requests.fail_refused(refused)
        self.requests.end_late(event.now)
        return self.instructions()

    def instructions(self) -> list[Instruction]:
        """Return what is to be told and was not yet, such as because of `next_step`. Empties the list."""
        instructions = self.requests.tell()
        for key in self.allocator.unused:
            self._peers.unuse(key)
        self.allocator.unused.clear()
        if self._growth is not None and self._growth.warnings:
            instructions += map(Warn, self._growth.warnings)
            self._growth.warnings.clear()
        if self.lists.warnings or self._peers.messages:
            instructions += [*map(Warn, self.lists.warnings), *map(ToTransfer, self._peers.messages)]
            self.lists.warnings.clear()
            self._peers.messages.clear()
        return instructions

    def next_step(self) -> Step | None:
        """The next step to send, or None: nothing to do, no workers, or the results of steps in flight must
        come first.
        """
        if self._losses.workers_are_lost or not self._batching.may_send(
            len(self.pending_steps), self.pending_steps.draw
        ):
            return None
        if self._drafter is not None and self.pending_steps and self._awaits_tokens(self._drafter):
            return None
        withheld = self._withholds()
        plan = self._planner.plan(self._step_builder.number, self.pending_steps.prefill, self.pending_steps.seconds)
        ended = self.lists.nothing_left and self._end_with_nothing_left()
        if not plan.empty:
            return self._step_builder.send(plan)
        if self._withholds() and not withheld and not self.pending_steps:
            return self.next_step()  # with the memory there is, as far as it goes
        if self.requests and not self.pending_steps and not ended and not self.coordinator.awaits():
            ended = self._end_stuck()
        return self.next_step() if ended else None

    def _awaits_tokens(self, drafter: Drafter) -> bool:
        """Tell whether the next step is to be planned when the results of those in flight are there. With several
        stages all sequences wait for theirs anyway.
        """
        if self._batching.waits_for_tokens:
            return False
        pending = self.pending_steps
        return pending.drafted or (pending.draw and drafter.awaits(self.lists.running))

    def _withholds(self) -> bool:
        return self._growth is not None and self._growth.withholds

    def page_changes(self) -> list[PageChange]:
        """Return what the workers are to do about the pages of KV memory before they compute the next step;
        told once.
        """
        return [] if self._growth is None else self._growth.changes()

    def wants_headroom(self) -> bool:
        """Return whether a `KvHeadroom` event is needed before the next step: KV memory may grow."""
        return self._growth is not None and bool(self.requests) and self._growth.wants_headroom()

    def lends_next(self) -> tuple[str, ...]:
        """Tickets of which the next result brings the last pages; these are told of as soon as it is taken."""
        return self.pending_steps.next_last_page_tickets()

    def _end_with_nothing_left(self) -> bool:
        """End the requests that were only to compute what the cache holds already."""
        sequences, self.lists.nothing_left = self.lists.nothing_left, []
        for sequence in sequences:
            if sequence.allocation is not None:
                self.coordinator.computed(sequence, sequence.allocation)
            self.requests.end_prefill(sequence)
        return True

    def _end_stuck(self) -> bool:
        """Nothing runs, nothing is in flight and nothing is waited for: that must not be, unless blocks are out of use
        for good.
        """
        reason: str | None = self.coordinator.stuck_for()
        if not reason and self._growth is not None and (reason := self._growth.refuses()) == "":
            return False
        first = self.lists.running[0] if self.lists.running else self.lists.waiting.first()
        if not reason or first is None:
            raise InternalError(
                f"{format_count(len(self.requests), 'request is', 'requests are')} there, but none of them can run",
                statistics=self.statistics(),
            )
        self.requests.fail(first, reason, "OverloadedError", self.requests.retry_after())
        return True

    def has_work(self) -> bool:
        """Requests are unfinished, steps in flight, or KV blocks in another engine's hands."""
        return bool(self.requests or self.pending_steps or self.coordinator.holds_blocks())

    def has_requests(self) -> bool:
        """Requests are unfinished."""
        return bool(self.requests)

    def idle(self) -> bool:
        """Nothing to do until the next request."""
        return not self.has_work()

    def next_deadline(self) -> float | None:
        """Return when a `Ticked` event is needed at the latest, if ever."""
        due = self.requests.next_deadline()
        growth = None if self._growth is None else self._growth.due(bool(self.requests))
        return growth if due is None else due if growth is None else min(due, growth)

    def statistics(self) -> EngineStats:
        """Counters since the start and gauges of now; `compute` is left to the engine."""
        return self._stats.statistics()

    def list_requests(self, number: int, most: int, now: float) -> RequestList:
        """The answer to the question `number`: the requests that run and those that wait, at most `most` of each, at
        the time `now`.
        """
        return self._stats.requests(number, most, now)

    def audit(self) -> None:
        """Check that every KV block is free, cached or owned, and by whom. InternalError if the books are wrong.
        O(blocks); for tests.
        """
        self._stats.audit()


def _check(config: SchedulerConfig, limits: WorkerLimits) -> None:
    if config.max_num_seqs > config.max_num_batched_tokens:
        raise UserError(
            f"--max-num-seqs {config.max_num_seqs} is more than --max-num-batched-tokens "
            f"{config.max_num_batched_tokens}"
        )
    if limits.max_sampled_rows < config.max_num_seqs:
        raise InternalError(
            f"the worker samples {format_count(limits.max_sampled_rows, 'row')} a step; "
            f"{format_count(config.max_num_seqs, 'sequence')} may want one"
        )
