"""The scheduler: a state machine from events to steps and outputs. It does no I/O and reads no clock.

    apply(event)   -> instructions     something happened; what to tell the clients, the operator, and the agent that hands KV over
    next_step()    -> Step or None     what the worker should compute next
    instructions() -> instructions     what to tell because of it

With one stage and `lookahead` 1 a step may be asked for while one is in flight: a sequence whose next token is still being drawn is scheduled
for the position after it. If that token turns out to end the sequence, the token drawn too much is dropped. With several stages as many steps
are in flight, each with a part of the sequences, and a sequence goes on when its token is known (`pace`).

When a worker is lost all KV is, and every step in flight: who was running waits and is computed again from the tokens there are, in the same
order, once the workers are back. What was given out is not given out again.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from homenode.engine.messages import Output, Statistics
from homenode.engine.request import Request, SamplingParams, TokenLogprob
from homenode.engine.schedule.admission import Throughput, longest_sequence, overload, refusal
from homenode.engine.schedule.budget import StepPlan
from homenode.engine.schedule.config import KvConfig, SchedulerConfig
from homenode.engine.schedule.deliveries import Deliveries
from homenode.engine.schedule.events import (
    Aborted,
    Arrived,
    DrainStarted,
    Emit,
    Event,
    Instruction,
    StepDone,
    StepFailed,
    Ticked,
    ToTransfer,
    Warn,
    WorkersBack,
    WorkersLost,
)
from homenode.engine.schedule.flights import Flight, Flights
from homenode.engine.schedule.handover import Handover, Refused
from homenode.engine.schedule.pace import Pace
from homenode.engine.schedule.planner import Planner
from homenode.engine.schedule.queue import Deadlines
from homenode.engine.schedule.residents import Residents
from homenode.engine.schedule.sequence import Residency, Sequence
from homenode.engine.schedule.step import PromptScores, Sampled, StartSequence, Step, StepItem, StepResult, WorkerLimits
from homenode.engine.schedule.tally import Tally
from homenode.errors import CapacityError, HomenodeError, InternalError, OverloadedError, UserError
from homenode.transfer.seam import ToAgent, Unused

_NO_TOKENS: frozenset[int] = frozenset()
_MOST_LOSSES = 3  # a request that was running when workers were lost more often than this may be why they are


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
    ) -> None:
        """`stages`: of the pipeline that computes a step, fed with `micro_batches` (0: as many) at once. `lookahead`, for one stage only: steps that
        may be sent ahead of the one being computed, 0 or 1. `seeds` draws the sampling seed of requests without.

        UserError if the settings contradict each other, InternalError if the worker's limits do not allow them.
        """
        if config.max_num_seqs > config.max_num_batched_tokens:
            raise UserError(f"--max-num-seqs {config.max_num_seqs} is more than --max-num-batched-tokens {config.max_num_batched_tokens}")
        if limits.max_sampled_rows < config.max_num_seqs:
            raise InternalError(f"the worker samples {limits.max_sampled_rows} rows a step; {config.max_num_seqs} sequences may want one")
        self._pace = Pace(stages, lookahead, micro_batches)
        self._config = config
        self._limits = limits
        self._eos = frozenset(eos_token_ids)
        self._seeds = seeds or random.Random(secrets.randbits(128))
        self._tally = Tally()
        self._residents = Residents(
            limits.num_blocks, limits.block_size, enable_prefix_caching=kv.enable_prefix_caching, hash_seed=hash_seed
        )
        self._messages: list[ToAgent] = []
        deliveries = Deliveries(self._residents, self._messages)
        self._planner = Planner(config, limits.max_sampled_rows, self._pace, self._residents, deliveries, self._tally)
        self._handover = Handover(limits, self._residents, self._planner, deliveries, self._messages)
        self._live: dict[int, Sequence] = {}
        self._deadlines = Deadlines()
        self._throughput = Throughput()
        self._flights = Flights()
        self._lost = False  # no worker knows of anything, until they are back
        self._draining = False
        self._arrivals = 0
        self._next_number = 0
        self._instructions: list[Instruction] = []
        self._outputs: list[Output] = []

    def apply(self, event: Event) -> list[Instruction]:
        """Take in what happened. Returns everything to be told since the last call.

        InternalError if the event cannot have happened, such as the result of a step that was never sent.
        """
        match event:
            case Arrived(now, request):
                self._arrive(request, now)
            case Aborted(_, request_id, reason):
                if request_id in self._live:
                    self._finish(self._live[request_id], finish_reason=reason)
            case StepDone(_, result):
                self._step_done(result)
            case StepFailed(_, error):
                self._step_failed(error)
            case WorkersLost(_, error):
                self._workers_lost(error)
            case WorkersBack():
                self._workers_back()
            case DrainStarted():
                self._draining = True
                self._handover.start_drain()
            case Ticked():
                pass
            case _:
                self._end_refused(self._handover.take(event))
        while late := self._deadlines.first_passed(event.now):
            self._time_out(late)
        return self.instructions()

    def instructions(self) -> list[Instruction]:
        """What is to be told and was not yet, such as because of `next_step`. Empties the list."""
        instructions, self._instructions = self._instructions, []
        if self._outputs:
            instructions.append(Emit(self._outputs))
            self._outputs = []
        self._messages += [Unused(ticket) for ticket in self._residents.unused]
        self._residents.unused.clear()
        if self._planner.warnings or self._messages:
            instructions += [*map(Warn, self._planner.warnings), *map(ToTransfer, self._messages)]
            self._planner.warnings.clear()
            self._messages.clear()
        return instructions

    def next_step(self) -> Step | None:
        """The next step to send, or None: nothing to do, no workers, or the results of steps in flight must come first."""
        if self._lost or not self._pace.may_send(len(self._flights), self._flights.draw):
            return None
        plan = self._planner.plan(self._next_number, self._flights.prefill)
        ended = self._planner.nothing_left and self._end_with_nothing_left()
        if not plan.empty:
            return self._send(plan)
        if self._live and not self._flights and not ended and not self._handover.awaits():
            ended = self._end_stuck()
        return self.next_step() if ended else None

    def _end_stuck(self) -> bool:
        """Nothing runs, nothing is in flight and nothing is waited for: that must not be, unless blocks are out of use for good."""
        reason = self._handover.stuck_for()
        first = self._planner.running[0] if self._planner.running else self._planner.waiting.first()
        if not reason or first is None:
            raise InternalError(f"{len(self._live)} requests are there, but none of them can run", statistics=self.statistics())
        self._finish(first, finish_reason="error", error=reason, error_kind="OverloadedError", retry_after_s=self._retry_after())
        return True

    def has_work(self) -> bool:
        """Requests are unfinished, steps in flight, or KV blocks in another engine's hands."""
        return bool(self._live or self._flights or self._handover.holds_blocks())

    def idle(self) -> bool:
        """Nothing to do until the next request."""
        return not self.has_work()

    def next_deadline(self) -> float | None:
        """When a `Ticked` event is needed at the latest, if ever."""
        return self._deadlines.next()

    def statistics(self) -> Statistics:
        """Counters since the start and gauges of now; `compute` is left to the engine."""
        tally = self._tally
        return Statistics(
            num_running=len(self._planner.running),
            num_waiting=self._planner.num_waiting,
            waiting_for_kv=len(self._planner.aside),
            handed_tokens=tally.handed_tokens,
            recomputed_tokens=tally.recomputed_tokens,
            kv_usage=self._residents.usage,
            prefix_queries=tally.prefix_queries,
            prefix_hits=tally.prefix_hits,
            preemptions=tally.preemptions,
            prompt_tokens=tally.prompt_tokens,
            generation_tokens=tally.generation_tokens,
            steps=tally.steps,
            step_tokens=tally.step_tokens,
            rejected=dict(tally.rejected),
        )

    def audit(self) -> None:
        """Check that every KV block is free, cached or owned, and by whom. InternalError if the books are wrong. O(blocks); for tests."""
        running = [s.residency.blocks for s in self._planner.running if s.residency]
        pool = self._residents.pool
        pool.audit(map(pool.own, [*running, *(r.blocks for r in self._residents.leaving()), *self._handover.tables()]))
        if any(
            len(pool.own(s.residency.blocks)) < len(s.residency.blocks) and not s.residency.placed
            for s in self._planner.running
            if s.residency
        ):
            raise InternalError("a request reads another engine's KV blocks under no ticket", statistics=self.statistics())
        if len(self._live) != len(self._planner.running) + self._planner.num_waiting:
            raise InternalError(f"{len(self._live)} live requests, but not as many running and waiting", statistics=self.statistics())

    # Arrival and end

    def _arrive(self, request: Request, now: float) -> None:
        if request.id in self._live:
            raise InternalError(f"request id {request.id} is in use", id=request.id)
        error = refusal(request, self._config, self._limits)
        if not error and request.kv is not None:
            error = self._handover.refusal(request.kv, request.params.max_tokens)
        if error:
            self._refuse(request, error, "capacity" if isinstance(error, CapacityError) else "invalid")
            return
        planner = self._planner
        reason = overload(
            request,
            self._config,
            draining=self._draining,
            waiting=planner.num_waiting,
            waiting_tokens=planner.num_waiting_tokens,
            free_slots=self._config.max_num_seqs - len(planner.running),
            retry_after_s=self._retry_after(),
        )
        if reason:
            self._refuse(request, reason[1], reason[0])
            return
        self._enqueue(self._new_sequence(request, now))

    def _new_sequence(self, request: Request, now: float) -> Sequence:
        params = request.params
        if params.seed is None:
            params = msgspec.structs.replace(params, seed=self._seeds.getrandbits(63))
        times = [request.deadline] if request.deadline is not None else []
        if self._config.request_timeout:
            times.append(now + self._config.request_timeout)
        self._arrivals += 1
        return Sequence(
            request=request,
            params=params,
            order=(request.priority, request.arrival, self._arrivals),
            max_len=longest_sequence(self._limits),
            chain=self._residents.cache.chain(request.cache_salt),
            tokens=[*request.prompt_ids, *request.begun],
            deadline=min(times, default=None),
            stops=self._stops(params),
        )

    def _stops(self, params: SamplingParams) -> frozenset[int]:
        """Tokens that may end a request: one set for all who add nothing to it."""
        stops = _NO_TOKENS if params.ignore_eos else self._eos
        return stops.union(params.stop_token_ids) if params.stop_token_ids else stops

    def _enqueue(self, sequence: Sequence) -> None:
        self._live[sequence.id] = sequence
        self._deadlines.add(sequence)
        kv = sequence.request.kv
        sends = kv is not None and kv.sends and sequence.goal > 0
        if not sequence.samples and not sequence.scoring and not sends:  # nothing to draw, to score, or to hand over
            self._finish(sequence, finish_reason="length")
        elif kv is not None and (sends or not kv.sends):
            self._handover.arrive(sequence)
        else:
            self._planner.waiting.push(sequence)

    def _refuse(self, request: Request, error: HomenodeError, reason: str) -> None:
        self._tally.rejected[reason] += 1
        self._emit(
            Output(
                id=request.id,
                finish_reason="error",
                error=error.message,
                error_kind=type(error).__name__,
                retry_after_s=error.retry_after_s if isinstance(error, OverloadedError) else None,
            )
        )

    def _retry_after(self) -> float:
        """Seconds until the queue of now should have drained."""
        return self._throughput.retry_after(self._planner.num_waiting_tokens)

    def _time_out(self, sequence: Sequence) -> None:
        """A request that never ran was refused by overload and may be tried again; one that ran simply took too long."""
        text = f"the request's deadline passed after {sequence.num_outputs} output tokens; allow more time (--request-timeout) or ask for fewer"
        kind, retry_after = "UserError", None
        if not sequence.admitted:
            text = "the request's deadline passed while it waited for its turn; try again later"
            kind, retry_after = "OverloadedError", self._retry_after()
        self._finish(sequence, finish_reason="error", error=text, error_kind=kind, retry_after_s=retry_after)

    def _finish(self, sequence: Sequence, **output: Any) -> None:
        """End a request in whatever state it is, give back all it holds, and send its last output."""
        self._planner.stop(sequence)
        if sequence.request.kv is not None:
            self._handover.end(sequence, output.get("error") or output["finish_reason"])
        self._deadlines.remove(sequence)
        sequence.finished = True
        del self._live[sequence.id]
        self._answer(sequence, num_preemptions=sequence.preemptions, **output)

    def _answer(self, sequence: Sequence, **output: Any) -> None:
        """Send an output; the first one also tells what the cache held and, if they were asked for, the prompt's log-probabilities."""
        if not sequence.answered:
            sequence.answered = True
            output["cached_tokens"] = sequence.cached_tokens
            if sequence.params.prompt_logprobs is not None and not sequence.scoring:
                output["prompt_logprobs"] = sequence.scores
        self._emit(Output(id=sequence.id, **output))

    def _emit(self, output: Output) -> None:
        self._outputs.append(output)

    # Steps

    def _send(self, plan: StepPlan) -> Step:
        """Turn a plan into the step and note it as in flight."""
        starts: list[StartSequence] = []
        parts = []
        for sequence, residency, count in plan.parts:
            if not residency.started:
                residency.started = True
                starts.append(StartSequence(residency.seq, sequence.tokens.copy(), sequence.num_prompt, sequence.params))
            parts.append((sequence, residency, self._part(sequence, residency, count)))
        items = [*plan.decodes, *[item for _, _, item in parts]] if parts else plan.decodes
        step = Step(plan.number, self._residents.ends, starts, items)
        self._residents.ends = []
        self._next_number += 1
        self._flights.add(Flight(step, plan.decoding, plan.residencies, parts, plan.prefill))
        return step

    def _part(self, sequence: Sequence, residency: Residency, count: int) -> StepItem:
        start, end = residency.scheduled, residency.scheduled + count
        first_scored = max(start, residency.score_base)
        known = residency.sent_blocks
        residency.sent_blocks = self._residents.blocks_for(end)
        residency.scheduled = end
        residency.last_step = self._next_number
        return StepItem(
            seq=residency.seq,
            start=start,
            count=count,
            new_blocks=residency.blocks[known : residency.sent_blocks],
            sample=sequence.samples and end >= residency.goal,
            score_from=first_scored if first_scored < min(end, sequence.num_prompt - 1) else -1,
        )

    def _step_done(self, result: StepResult) -> None:
        if self._flights.oldest != result.number:
            raise InternalError(f"result of step {result.number} came back, which is not the oldest in flight", number=result.number)
        flight = self._flights.take()
        self._residents.landed = result.number
        self._tally.steps += 1
        self._tally.step_tokens += flight.num_tokens
        self._throughput.add(flight.num_tokens, result.seconds)
        if [s.seq for s in result.sampled] != flight.drawing():
            raise InternalError(f"step {result.number} drew tokens for other sequences than it was asked to", number=result.number)
        tokens = [s.token for s in result.sampled]
        if tokens and (min(tokens) < 0 or max(tokens) >= self._limits.vocab_size):
            raise InternalError(f"step {result.number}: the worker drew a token that is not in the vocabulary", number=result.number)
        self._take_decodes(flight, result.sampled, tokens)
        if flight.parts:
            self._take_parts(flight, result)

    def _take_decodes(self, flight: Flight, sampled: list[Sampled], tokens: list[int]) -> None:
        """Pass on the tokens of those that decode. Only few of them end, or have filled a block: this is what a token costs."""
        outputs = self._outputs
        for sequence, residency, token, drawn in zip(flight.decoding, flight.residencies, tokens, sampled):  # noqa: B905
            if residency.ended:
                self._take_late(sequence, residency, drawn)
                continue
            known = sequence.tokens
            known.append(token)
            if token in sequence.stops or len(known) >= sequence.look:
                self._take_token(sequence, residency, drawn)
            else:
                outputs.append(Output(sequence.id, [token]))
        self._tally.generation_tokens += len(flight.decoding)

    def _take_late(self, sequence: Sequence, residency: Residency, sampled: Sampled) -> None:
        """A token came after its sequence's stay had ended. If it was preempted the token counts all the same."""
        if sequence.finished:
            self._tally.generation_tokens -= 1
        else:
            sequence.tokens.append(sampled.token)
            self._take_token(sequence, residency, sampled)
        self._residents.settle(residency)

    def _take_parts(self, flight: Flight, result: StepResult) -> None:
        """What came of the parts of prompts."""
        sampled = {s.seq: s for s in result.sampled[len(flight.decoding) :]}
        scored = {s.seq: s for s in result.scored}
        for sequence, residency, item in flight.parts:
            residency.computed = item.start + item.count
            if not sequence.finished:
                self._take_results(sequence, residency, item, sampled.get(item.seq), scored.get(item.seq))
            self._residents.settle(residency)

    def _take_results(
        self, sequence: Sequence, residency: Residency, item: StepItem, sampled: Sampled | None, scored: PromptScores | None
    ) -> None:
        """Add what a step found out about an unfinished sequence. It may have been preempted meanwhile: its token counts all the same."""
        if item.score_from >= 0:
            wanted = min(item.start + item.count, sequence.num_prompt - 1) - item.score_from
            self._take_scores(sequence, item.score_from + 1, wanted, scored)
        if sampled is None:
            self._residents.publish(sequence, residency)
            self._handover.computed(sequence, residency)
            if not sequence.samples and residency.computed >= residency.goal:
                self._end_prefill(sequence)
            return
        sequence.tokens.append(sampled.token)
        self._tally.generation_tokens += 1
        self._take_token(sequence, residency, sampled)

    def _take_token(self, sequence: Sequence, residency: Residency, sampled: Sampled) -> None:
        """See to all that may follow from a token that was just added."""
        reason, stop_token = sequence.end()
        residency.computed = len(sequence.tokens) - 1
        self._residents.publish(sequence, residency)
        sequence.look_again(self._residents.block_size)
        if sequence.num_outputs == 1:
            self._tally.prompt_tokens += sequence.num_prompt
        logprobs = [] if sampled.logprob is None else [sampled.logprob]
        if reason:
            self._warn_if_cut_short(sequence, reason)
            self._finish(sequence, tokens=[sampled.token], logprobs=logprobs, finish_reason=reason, stop_token=stop_token)
        elif sequence.answered:
            self._emit(Output(sequence.id, [sampled.token], logprobs))
        else:
            self._answer(sequence, tokens=[sampled.token], logprobs=logprobs)

    def _end_prefill(self, sequence: Sequence) -> None:
        """All that a request was to compute, to score it or for another engine, is there."""
        self._tally.prompt_tokens += sequence.num_prompt
        self._finish(sequence, finish_reason="length")

    def _end_with_nothing_left(self) -> bool:
        """End the requests that were only to compute what the cache holds already."""
        sequences, self._planner.nothing_left = self._planner.nothing_left, []
        for sequence in sequences:
            if sequence.residency is not None:
                self._handover.computed(sequence, sequence.residency)
            self._end_prefill(sequence)
        return True

    def _end_refused(self, refused: Refused | None) -> None:
        if refused is not None:
            self._finish(
                refused.sequence,
                finish_reason="error",
                error=refused.reason,
                error_kind="KvRefusedError",
                retry_after_s=self._retry_after() if refused.retry_after_s is None else refused.retry_after_s,
            )

    def _take_scores(self, sequence: Sequence, first: int, wanted: int, scored: PromptScores | None) -> None:
        known: list[TokenLogprob | None] = sequence.scores
        if scored is None or scored.first != first or len(scored.scores) != wanted or first != len(known):
            raise InternalError(f"request {sequence.id}: {wanted} log-probabilities from prompt token {first} on wanted, others came back")
        known.extend(scored.scores)

    def _warn_if_cut_short(self, sequence: Sequence, reason: str) -> None:
        cut_short = reason == "length" and sequence.num_outputs < sequence.params.max_tokens
        if cut_short and sequence.max_len < self._limits.max_model_len:
            self._instructions.append(
                Warn(
                    f"request {sequence.id} ended at {sequence.max_len} tokens because the {self._limits.num_blocks} KV blocks hold no more, "
                    f"below --max-model-len {self._limits.max_model_len}; raise --kv-cache-memory"
                )
            )

    def _step_failed(self, error: str) -> None:
        """End the requests of the lost step. All others are computed again, since what their blocks hold can no longer be trusted.

        With one stage those of the step after it end as well: they are mostly the same.
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
            self._finish(
                sequence, finish_reason="error", error=f"the step that computed this request failed: {error}", error_kind="InternalError"
            )
        self._forget_kv()

    def _land(self, flight: Flight) -> dict[int, Sequence]:
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

    def _workers_lost(self, error: str) -> None:
        """Let everybody wait, but for those under whom workers were lost too often, and those whose KV another engine was to have."""
        lost = {sequence.id: sequence for sequence in self._planner.running}
        for flight in self._flights.take_all():
            lost |= self._land(flight)
        self._lost = True
        for sequence in lost.values():
            self._count_loss(sequence, error)
        self._forget_kv()
        self._residents.ends = []

    def _count_loss(self, sequence: Sequence, error: str) -> None:
        sequence.losses += 1
        if sequence.losses > _MOST_LOSSES:
            text = f"worker_lost: workers were lost {sequence.losses} times while this request was computed, the last time because {error}"
            self._finish(sequence, finish_reason="error", error=text, error_kind="WorkerLostError", retry_after_s=self._retry_after())
        elif self._handover.has_told(sequence):
            self._end_refused(Refused(sequence, f"worker_lost: the KV of this request is lost: {error}"))

    def _workers_back(self) -> None:
        if not self._lost:
            raise InternalError("the workers are back, but they were not lost")
        self._lost = False
