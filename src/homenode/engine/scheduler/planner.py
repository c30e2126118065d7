"""Fills one step: decodes before prompts, prompts in the order of their turns within a bound of time, and room made by
preemption when blocks run out.
"""

from __future__ import annotations

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.imports import KvImports
from homenode.engine.kv.sequence import BlockAllocation, Sequence, allocations_of
from homenode.engine.scheduler.block_claims import BlockClaims
from homenode.engine.scheduler.counters import SchedulerCounters
from homenode.engine.scheduler.drafts.drafter import Drafter, drafts_room, plan_drafts, plan_expected
from homenode.engine.scheduler.micro_batching import MicroBatching
from homenode.engine.scheduler.order.fair_share import RECENT_S
from homenode.engine.scheduler.order.prompt_turns import PASSED_SHARE, PromptTurns
from homenode.engine.scheduler.sequence_lists import SequenceLists
from homenode.engine.scheduler.steps.budget import StepPlan, prefill_count
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.time_bound import TimeBound, time_limit, yielding_limit
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import WorkerLimits


class Planner:
    """Chooses what the next step computes, and moves sequences between the lists of `SequenceLists` on the way."""

    def __init__(
        self,
        config: SchedulerConfig,
        limits: WorkerLimits,
        batching: MicroBatching,
        lists: SequenceLists,
        allocator: KvAllocator,
        kv_imports: KvImports,
        counters: SchedulerCounters,
        costs: StepCosts,
        drafter: Drafter | None = None,
    ) -> None:
        """`drafter`: guesses tokens; None: nobody does."""
        self._config, self._limits, self._batching = config, limits, batching
        self._step_s = config.step_time / 1000.0
        self._lists, self._allocator, self._kv_imports = lists, allocator, kv_imports
        self._counters, self._costs, self._drafter = counters, costs, drafter
        self._claims = BlockClaims(lists, allocator, kv_imports, counters, config.max_preemptions)
        self._turns = PromptTurns(lists.shares, lists.waiting, whole=not config.enable_chunked_prefill)

    def plan(self, number: int, prefill_in_flight: int = 0, in_flight_s: float = 0.0) -> StepPlan:
        """Choose what the next step computes. Sequences that are admitted or preempted on the way change places at
        once.

        `number`: of that step. `prefill_in_flight`: prompt tokens of the steps in flight, `in_flight_s`: what these are
        expected to take.
        """
        plan = StepPlan(number, self._config.max_num_batched_tokens, self._limits.max_sampled_rows)
        stopped = [s for s in self._lists.running if s.allocation.scheduled >= s.allocation.unchecked_until]  # type: ignore[union-attr]
        decoding = self._planned_decodes(plan, stopped)
        plan.decode(decoding, allocations_of(decoding), self._allocator.block_size, self._allocator.states)
        prompts = [s for s in stopped if (r := s.allocation) and not r.decoding]
        may_begin = bool(prompts) or (self._lists.slots_left > 0 and self._lists.num_waiting > 0)
        begun, left_out = self._turns.most_urgent(prompts) if may_begin else (prompts, prompts)
        if may_begin:  # before guesses, which add to what decodes take and do not make prompts wait longer
            may_begin = self._bound_time(plan, begun, in_flight_s)
        whole = not self._config.enable_chunked_prefill
        if self._drafter is not None and decoding and not plan.short:
            room = drafts_room(plan, self._costs, self._drafter.max_drafted, beside_prompts=may_begin, whole=whole)
            plan_drafts(plan, self._drafter, self._allocator, room)
        if self._drafter is not None and self._drafter.asks_workers:
            plan_expected(plan, self._drafter)
        if not whole and self._batching.stages > 1:
            waiting = self._lists.waiting.num_prompt_tokens + sum(
                r.prefill_target - r.scheduled for r in allocations_of(prompts)
            )
            plan.keep_prefill_to(self._batching.prefill(waiting, prefill_in_flight, plan.tokens_left))
        self._lists.lacks = "turn"
        if may_begin:
            self._plan_by_turns(plan, begun)
            if left_out and not plan.parts:  # the more urgent ones do not get on, perhaps for what these hold
                self._plan_turns(plan, self._turns.sorted(left_out), None, closed=True)
        if plan.short:
            self._lists.lacks = "blocks"
        if self._drafter is not None:
            for sequence, _, count in plan.parts:
                self._drafter.prepare(sequence, count)
        if not plan.empty:
            self._allocator.take_ahead(len(self._lists.running))
        return plan

    def _bound_time(self, plan: StepPlan, begun: list[Sequence], in_flight_s: float) -> bool:
        """Bound the time that a step takes which has its decodes, where somebody waits for tokens. Returns whether
        prompts, of which these were begun, may be in it.
        """
        if not self._step_s or not self._lists.num_awaited:
            return True
        alone_s = self._costs.seconds(plan.answers)
        step_s = self._step_s / self._costs.pace
        limit = time_limit(
            alone_s,
            step_s,
            urgency=self._turns.urgency,
            answering=len(self._lists.running) > len(begun),
            in_flight_s=in_flight_s,
            stages=self._batching.stages,
        )
        if limit:
            plan.bound = TimeBound(
                self._costs,
                limit,
                whole=not self._config.enable_chunked_prefill,
                yielding=yielding_limit(alone_s, step_s),
                tile_tokens=self._limits.tile_tokens,
            )
        return limit > 0.0

    def _planned_decodes(self, plan: StepPlan, stopped: list[Sequence]) -> list[Sequence]:
        """A micro-batch's share of the decoding sequences, the first of those whose last token is known; with one
        stage, all of them.

        `stopped`: those that have to be looked at; all others decode, and have a block for it. Who is left out goes
        first with those that come back next, unless they are before it in order; as long as nobody joins or leaves,
        none is left out any more once each micro-batch was filled anew.
        """
        able = self._lists.running
        lacking = [s for s in stopped if (r := s.allocation) and r.decoding and not s.exhausted]
        left = len(able) - len(stopped) + len(lacking)
        if len(stopped) > len(lacking):
            out = {s.id for s in stopped} - {s.id for s in lacking}
            able = [s for s in able if s.id not in out]
        if self._batching.waits_for_tokens:
            left = self._batching.share(left)
            able = [s for s in able if s.allocation.scheduled < len(s.tokens)]  # type: ignore[union-attr]
            lacking = [s for s in able[:left] if s.allocation.scheduled >= s.allocation.unchecked_until]  # type: ignore[union-attr]
        size = self._allocator.block_size
        wanted = sum(r.scheduled >= len(r.blocks) * size for r in allocations_of(lacking))
        if wanted > self._allocator.pool.num_free or not self._allocator.pool.affords(wanted):
            return self._squeezed_decodes(able.copy(), left, plan)
        for allocation in allocations_of(lacking):
            self._allocator.grow(allocation)
        return able[:left]

    def _squeezed_decodes(self, able: list[Sequence], left: int, plan: StepPlan) -> list[Sequence]:
        """Return the decodes as above, when blocks are short: somebody may have to give way, perhaps one that was
        chosen already.
        """
        chosen: list[Sequence] = []
        for sequence in able:
            if len(chosen) == left:
                break
            # Preemption takes some out while we go.
            allocation, preemptions = (sequence.allocation, self._counters.preemptions)
            if allocation and self._claims.secure_block(sequence, allocation, plan):
                chosen.append(sequence)
            if self._counters.preemptions > preemptions:
                chosen = [s for s in chosen if s.allocation]
        return chosen

    # Prompts

    def _plan_by_turns(self, plan: StepPlan, begun: list[Sequence]) -> None:
        """Go on with prompts that were begun, and begin others, by their turns."""
        begun = self._turns.sorted(begun)
        passed_over = self._turns.passed_over(begun, self._lists.now, begins=self._lists.slots_left > 0)
        closed = self._turns.closed_for(passed_over)
        if passed_over is None:
            self._plan_turns(plan, begun, None, closed)
            self._turns.count(None, plan.prefill)
            return
        begins = False  # the one that was passed over, now; where its KV is fetched first it computes nothing yet
        if owed := self._turns.owed(passed_over):
            plan.keep_all_but(owed)
            begins = self._plan_passed_over(plan, passed_over, begun)
            plan.release()
        own = plan.prefill
        plan.keep(0.0 if own else PASSED_SHARE)
        self._plan_turns(plan, begun, passed_over, closed and not begins)
        plan.release()
        others = plan.prefill - own
        if not own and not begins:
            begins = self._plan_passed_over(plan, passed_over, begun)
            own = plan.prefill - others
        self._turns.count(passed_over, others, own)
        self._plan_turns(plan, begun, None, closed and not begins)

    def _plan_passed_over(self, plan: StepPlan, sequence: Sequence, begun: list[Sequence]) -> bool:
        """Go on with the one that was passed over, or begin it. Returns whether it begins. Where it cannot, the oldest
        of those that were begun goes on, which hold what it waits for.
        """
        if sequence.allocation is None:
            if not plan.short and self._lists.has_slot(sequence.request.key) and self._start(sequence, plan):
                return True
            if not begun:
                return False
            sequence = min(begun, key=lambda each: each.order)
        if not plan.holds(sequence):
            self._plan_prompt(plan, sequence)
        return False

    def _plan_turns(self, plan: StepPlan, begun: list[Sequence], passed_over: Sequence | None, closed: bool) -> None:
        """Plan as far as the step has room, but for the one that is `passed_over` and those that have a part already.
        `closed`: nobody of the queue begins.
        """
        for sequence in begun:
            if sequence is not passed_over and not plan.holds(sequence):
                if not closed:
                    self._admit(plan, passed_over, ahead_of=sequence)
                self._plan_prompt(plan, sequence)
        self._admit(plan, passed_over, closed=closed)

    def _plan_prompt(self, plan: StepPlan, sequence: Sequence) -> None:
        """Go on with a prompt that was begun."""
        allocation = sequence.allocation
        if allocation is None:  # it had to give way meanwhile
            return
        count = self._prefill_count(sequence, allocation, plan)
        if count > 0 and self._claims.secure_memory(sequence, allocation, count, plan):
            plan.add(sequence, allocation, count)

    def _next_waiting(self, passed_over: Sequence | None, ahead_of: Sequence | None) -> Sequence | None:
        """The first of the queue, if it may begin now: not the one that was passed over, whose part is kept, and only
        one that goes before `ahead_of` where that is given.
        """
        first = self._turns.first_waiting()
        if first is None or first is passed_over:
            return None
        if ahead_of is not None and not self._turns.before(first, ahead_of):
            return None
        if self._lists.has_slot(first.request.key):
            return first
        self._lists.lacks = "slots"
        return None

    def _prefill_count(self, sequence: Sequence, allocation: BlockAllocation, plan: StepPlan) -> int:
        config = self._config
        return prefill_count(
            sequence,
            allocation,
            plan,
            max_tokens=config.max_num_batched_tokens,
            chunked=config.enable_chunked_prefill,
            yields=plan.bound is not None and self._lists.shares.yields(sequence.request.key, RECENT_S),
        )

    def _admit(
        self,
        plan: StepPlan,
        passed_over: Sequence | None = None,
        ahead_of: Sequence | None = None,
        closed: bool = False,
    ) -> None:
        """Start waiting sequences, by their turns: where one does not fit yet, none of those behind it begins. For the
        arguments see `_next_waiting`; `closed`: only those whose KV has come.
        """
        while not plan.short and plan.tokens_left > 0 and self._lists.slots_left > 0:
            waiting = None if closed else self._next_waiting(passed_over, ahead_of)
            ready = self._kv_imports.ready
            if waiting is not None and not (ready and ready[0].order < waiting.order) and self._start(waiting, plan):
                continue
            # Those who have their blocks already do not take them from one who has to wait for some.
            if ahead_of is not None or not ready or not self._start_ready(ready[0], plan):
                return

    def _start(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Admit one of the queue. False: not now."""
        # One that was preempted from a step in flight is to start again with the token that step draws, or it would be
        # drawn twice.
        if self._allocator.in_flight(sequence):
            return False
        if sequence.kv_import is not None:
            return self._start_fetching(sequence)
        proposal = self._allocator.propose(sequence)
        if self._allocator.leads_soon(sequence, proposal):
            self._lists.lacks = "prefix"
            return False
        count = self._prefill_count(sequence, proposal, plan)
        nothing_left = proposal.scheduled >= proposal.prefill_target  # it is computed for another engine only
        if count <= 0 and not nothing_left:
            return False
        if not self._allocator.admit(sequence, proposal, self._lists.spare_for(sequence.request.key)):
            self._lists.lacks = "blocks"
            return False
        self._lists.waiting.admit(sequence)
        self._enter(sequence, proposal)
        if nothing_left:
            self._lists.nothing_left.append(sequence)
        elif not self._claims.secure_memory(sequence, proposal, count, plan):
            return False
        else:
            plan.add(sequence, proposal, count)
        return True

    def _start_fetching(self, sequence: Sequence) -> bool:
        """Admit one whose KV is to be fetched now. It has its place, and goes on when the KV is there, or no more of it
        comes.
        """
        if not self._kv_imports.fetch(sequence, self._lists.spare_for(sequence.request.key)):
            return False
        self._lists.waiting.admit(sequence)
        if sequence.id in self._kv_imports.fetching:
            self._lists.waiting_for_kv[sequence.id] = sequence
        return True

    def _start_ready(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Admit one whose KV has come. It has its blocks."""
        states = self._allocator.states
        if states is not None and not states.num_available:
            return False
        proposal = self._kv_imports.proposal(sequence)
        count = self._prefill_count(sequence, proposal, plan)
        if count <= 0:
            return False
        if sequence.request.kv is not None:
            self._counters.handed_tokens += proposal.scheduled
        if (kv_import := sequence.kv_import) is not None:
            sequence.kv_came = (kv_import.begun_at, kv_import.done_at or self._lists.now)
        self._kv_imports.adopt(sequence, proposal)
        self._lists.let_followers_go()
        self._enter(sequence, proposal, handed_over=True)
        plan.add(sequence, proposal, count)
        return True

    def _enter(self, sequence: Sequence, allocation: BlockAllocation, handed_over: bool = False) -> None:
        if self._lists.run(sequence):
            self._count_admission(sequence, allocation, handed_over)

    def _count_admission(self, sequence: Sequence, allocation: BlockAllocation, handed_over: bool) -> None:
        kv = sequence.request.kv
        if kv is not None and not kv.sends:
            self._counters.recomputed_tokens += max(0, sequence.num_prompt - 1 - allocation.scheduled)
        if handed_over:
            sequence.cached_tokens = allocation.scheduled
        elif not sequence.scoring and self._allocator.cache.enabled:
            sequence.cached_tokens = allocation.scheduled
            self._counters.prefix_queries += sequence.num_prompt
            self._counters.prefix_hits += allocation.scheduled
