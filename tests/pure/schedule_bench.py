"""A scheduler and a strict worker driven by events, with every invariant looked at after each move."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as List

import msgspec

from homenode.engine.errors import StepError, StepsLostError
from homenode.engine.inputs import PlacedRows
from homenode.engine.kv.block_source import BlockSource
from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.messages import Output
from homenode.engine.request import AdapterChoice, Request, Urgency
from homenode.engine.scheduler.drafts.draft_choice import DraftChoice
from homenode.engine.scheduler.events import (
    Aborted,
    CacheReset,
    DrainStarted,
    Emit,
    Event,
    Instruction,
    KvHeadroom,
    RequestArrived,
    StepDone,
    StepFailed,
    Ticked,
    WorkersBack,
    WorkersLost,
)
from homenode.engine.scheduler.order.fair_share import AGED_S
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import StepLoad
from homenode.engine.scheduler.steps.time_bound import ALIGNMENT, LEAST_PIECE
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.speculation.config import Speculation
from homenode.engine.step import Step, WorkerLimits
from homenode.sampling import SamplingParams
from homenode.testing.scripted_executor import ScriptedExecutor, checksum, scripted_logprob
from homenode.transfer.scheduler_events import KvTicket

EOS = 0
BLOCK_BYTES = 1000  # of KV memory that grows


def limits_of(
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 64,
    vocab_size: int = 40,
    max_sampled_rows: int = 16,
    chunk_blocks: int = 0,
    state_slots: int = 0,
    state_interval: int = 8,
    state_pages: int = 0,
    group_blocks: int = 1,
    row_columns: int = 0,
) -> WorkerLimits:
    return WorkerLimits(
        adapters=2,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        max_sampled_rows=max_sampled_rows,
        chunk_blocks=chunk_blocks,
        chunk_bytes=chunk_blocks * BLOCK_BYTES,
        state_slots=state_slots,
        state_interval=state_interval if state_slots else 0,
        state_pages=state_pages,
        group_blocks=group_blocks,
        row_columns=row_columns,
    )


def expected(request: Request, limits: WorkerLimits) -> tuple[list[int], str, int | None]:
    """What the request yields alone in the world: tokens, finish reason, stop token."""
    params = request.params
    length, total = len(request.prompt_ids), checksum(request.prompt_ids)
    longest = min(limits.max_model_len, (limits.num_blocks - limits.state_pages) * limits.block_size)
    outputs: list[int] = []
    while len(outputs) < params.max_tokens and length + len(outputs) < longest:
        token = total % limits.vocab_size
        total = checksum([token], total)
        outputs.append(token)
        stops = token in params.stop_token_ids or (token == EOS and not params.ignore_eos)
        if stops and len(outputs) > params.min_tokens:
            return outputs, "stop", token
    return outputs, "length", None


class Bench:
    """Drives a scheduler step by step. Any broken invariant raises AssertionError or InternalError at the move that
    broke it.
    """

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        *,
        limits: WorkerLimits | None = None,
        lookahead: int = 0,
        caching: bool = True,
        fault: Callable[[Step], Exception | None] | None = None,
        stages: int = 1,
        micro_batches: int = 0,
        headroom: Callable[[], int] = lambda: 1 << 40,
        release_s: float = 0.0,
        token_s: float | None = None,
        drafter: Callable[[List[int]], List[int]] | None = None,
        stores: Iterable[BlockSource] = (),
        speculation: Speculation | None = None,
    ) -> None:
        """`headroom`: bytes that the machine can give to KV memory that grows, whenever it is looked at. `token_s`:
        seconds that each token of a step takes by the scheduler's clock; None: a step takes none. `drafter`: as for
        `ScriptedExecutor`, with `max_drafted` in the limits. `speculation`: the scheduler drafts itself, as engines do.
        """
        self._token_s, self.fault = token_s, fault
        self._headroom = headroom
        self.config = config or SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=8)
        self.limits = limits or limits_of()
        self.lookahead = lookahead
        self.stages, self.micro_batches = stages, (micro_batches or stages) if stages > 1 else 1
        kv = KvConfig(block_size=self.limits.block_size, enable_prefix_caching=caching, kv_cache_release=release_s)
        costs = StepCosts()
        self.scheduler = Scheduler(
            self.config,
            kv,
            self.limits,
            [EOS],
            hash_seed=b"seed",
            lookahead=lookahead,
            stages=stages,
            micro_batches=micro_batches,
            stores=stores,
            costs=costs,
            drafter=None if speculation is None else DraftChoice(speculation, costs, self.limits.max_drafted),
        )
        self.executor = ScriptedExecutor(
            self.limits,
            max_tokens=self.config.max_num_batched_tokens,
            max_sequences=self.config.max_num_seqs,
            fault=fault,
            stages=stages,
            drafter=drafter,
        )
        self.now = 0.0
        self.requests: dict[int, Request] = {}
        self.outputs: dict[int, list[Output]] = {}
        self.instructions: list[Instruction] = []
        self.steps: list[Step] = []
        self._salt_of_seq: dict[int, str] = {}
        self._salt_of_block: dict[int, str] = {}
        self._blocks_in_flight: deque[set[int]] = deque()
        self._finished_preemptions = 0
        self.told_counts: dict[int, int] = {}  # tokens of a request so far
        self.answers: dict[int, tuple[list[int], str, int | None]] = {}
        self._passed = (-1, 0)  # the first in order, and tokens of others' prompts since it got on

    # Moves

    def submit(
        self,
        prompt: list[int],
        *,
        priority: int = 0,
        salt: str = "",
        key: str = "",
        deadline: float | None = None,
        kv: KvTicket | None = None,
        awaited: bool = True,
        urgency: Urgency = Urgency.USUAL,
        rows: List[PlacedRows] = (),
        adapter: AdapterChoice | None = None,
        **params: object,
    ) -> int:
        """A request arrives; returns its id."""
        number = len(self.requests)
        self.requests[number] = Request(
            id=number,
            prompt_ids=prompt,
            params=SamplingParams(**params),  # type: ignore[arg-type]
            priority=priority,
            cache_salt=salt,
            key=key,
            arrival=self.now,
            deadline=deadline,
            kv=kv,
            awaited=awaited,
            urgency=urgency,
            rows=tuple(rows),
            adapter=adapter,
        )
        self.apply(RequestArrived(self.now, self.requests[number]))
        return number

    def abort(self, number: int, reason: str = "abort") -> None:
        self.apply(Aborted(self.now, number, reason))

    def reset(self) -> None:
        self.apply(CacheReset(self.now))

    def drain(self) -> None:
        self.apply(DrainStarted(self.now))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.apply(Ticked(self.now))

    def step(self) -> Step | None:
        """Ask for a step and send it."""
        decoding = [s for s in self.running() if s.allocation and s.allocation.decoding and not s.exhausted]
        before = [s for s in decoding if self.stages == 1 or not s.pending]
        handles = {s.id: s.allocation.seq for s in before if s.allocation}
        if self.scheduler.wants_headroom():
            self.apply(KvHeadroom(self.now, self._headroom(), "this is a test"))
        begun = {
            s.allocation.seq: (s, s.allocation.prefill_target - s.allocation.scheduled)
            for s in self.running()
            if s.allocation and not s.allocation.decoding
        }
        step = self.scheduler.next_step()
        self._change_pages()
        self._obey(self.scheduler.instructions())
        self.scheduler.audit()
        if step is None:
            return None
        self._check_fairness(step, before, handles, len(decoding), begun)
        self._check_blocks(step)
        self.steps.append(step)
        self.executor.submit(step)
        self._blocks_in_flight.append(
            {block for item in step.items if item.seq in self.executor.live for block in self.executor.table(item.seq)}
        )
        return step

    def finish_step(self) -> bool:
        """Hand over the oldest result, if a step is in flight."""
        if not self.executor.serving:
            return False
        if not self.executor.pending:
            return False
        self._blocks_in_flight.popleft()
        try:
            result = self.executor.result()
        except StepError as error:
            self._blocks_in_flight.clear()
            self.apply(StepFailed(self.now, str(error)))
        else:
            assert result is not None
            if self._token_s is not None:
                step = next(step for step in self.steps if step.number == result.number)
                result = msgspec.structs.replace(result, seconds=step.num_tokens * self._token_s)
                self.now += result.seconds
            self.apply(StepDone(self.now, result))
        return True

    def lose(self, reason: str = "worker 0 ended") -> None:
        """A worker is lost, with all steps in flight."""
        self.executor.lose(reason)
        self._blocks_in_flight.clear()
        self._salt_of_block.clear()
        try:
            self.executor.result()
        except StepsLostError as error:
            self.apply(WorkersLost(self.now, str(error)))
        assert self.step() is None, "a step without workers"

    def restore(self) -> None:
        """It is there again."""
        self.executor.restore()
        self.apply(WorkersBack(self.now))

    def fill(self) -> bool:
        """Send as many steps as there may be, two at most with one stage. False: there were none."""
        sent = self.step() is not None
        while sent and (self.lookahead or self.stages > 1) and self.step() is not None:
            assert self.executor.pending <= max(2, self.micro_batches + 1), "too many steps in flight"
        return sent

    def run(self, most: int = 100_000) -> None:
        """Until everything is answered."""
        if not self.executor.serving:
            self.restore()
        for _ in range(most):
            sent = self.fill()
            if self.finish_step() or sent:
                continue
            if self.scheduler.idle():
                break
            assert self.limits.chunk_blocks, "nothing goes on"
            self.tick(0.3)  # the machine may have memory again
        assert self.scheduler.idle()
        self.check_rest()

    def apply(self, event: Event) -> None:
        self._obey(self.scheduler.apply(event))
        self._change_pages()
        self.scheduler.audit()

    def _change_pages(self) -> None:
        if self.executor.serving:
            self.executor.change_pages(self.scheduler.page_changes())

    def _obey(self, told: list[Instruction]) -> None:
        self.instructions += told
        for instruction in told:
            if isinstance(instruction, Emit):
                for output in instruction.outputs:
                    self._take(output)

    # What came out

    def tokens(self, number: int) -> list[int]:
        return [token for output in self.outputs.get(number, []) for token in output.tokens]

    def final(self, number: int) -> Output:
        last = self.outputs[number][-1]
        assert last.finish_reason is not None
        return last

    def check_rest(self) -> None:
        """Nothing is left of anything, and every request had its answer."""
        pool = self.scheduler.allocator.pool
        assert pool.num_owned == 0
        states = self.scheduler.allocator.states
        assert states is None or (states.num_owned, len(states.coming)) == (0, 0)
        assert self.executor.live == set(self.scheduler.allocator.ends) or self.executor.failed
        statistics = self.scheduler.statistics()
        assert (statistics.num_running, statistics.num_waiting, statistics.kv_usage) == (0, 0, 0.0)
        assert statistics.preemptions == self._finished_preemptions
        for number in self.requests:
            self._check_answer(number)

    # Invariants

    def running(self) -> list[Sequence]:
        return self.scheduler.lists.running

    def _expected(self, number: int) -> tuple[list[int], str, int | None]:
        if number not in self.answers:
            self.answers[number] = expected(self.requests[number], self.limits)
        return self.answers[number]

    def _take(self, output: Output) -> None:
        earlier = self.outputs.setdefault(output.id, [])
        assert not earlier or earlier[-1].finish_reason is None, "an output after the last"
        assert not earlier or (output.cached_tokens == 0 and output.prompt_logprobs is None), "told twice"
        if output.finish_reason:
            self._finished_preemptions += output.num_preemptions
        earlier.append(output)
        told = self.told_counts.get(output.id, 0)
        self.told_counts[output.id] = told + len(output.tokens)
        if output.tokens:
            assert output.tokens == self._expected(output.id)[0][told : told + len(output.tokens)]

    def _check_answer(self, number: int) -> None:
        request, last = self.requests[number], self.final(number)
        tokens, reason, stop_token = self._expected(number)
        if last.finish_reason == "error" or (last.finish_reason == "abort"):
            return
        if last.finish_reason == "stop" and last.stop_token is None:  # the client found a stop string
            return
        assert (self.tokens(number), last.finish_reason, last.stop_token) == (tokens, reason, stop_token)
        if request.params.logprobs is not None:
            logprobs = [logprob for output in self.outputs[number] for logprob in output.logprobs]
            start = len(request.prompt_ids)
            assert logprobs == [scripted_logprob(token, start + i) for i, token in enumerate(tokens)]
        if request.params.prompt_logprobs is not None:
            scores = [scripted_logprob(token, i) for i, token in enumerate(request.prompt_ids)]
            assert self.outputs[number][0].prompt_logprobs == [None, *scores[1:]]

    def _check_fairness(
        self,
        step: Step,
        before: list[Sequence],
        handles: dict[int, int],
        decoding: int,
        begun: dict[int, tuple[Sequence, int]],
    ) -> None:
        """Decodes are never left out for prefills or beyond the even share of a micro-batch, the first always advances,
        prompts have their turns, and the step its time.
        """
        assert len(self.running()) <= self.config.max_num_seqs
        inside = {item.seq for item in step.items}
        decodes = sum(handle in inside for handle in handles.values())
        share = -(-decoding // self.micro_batches)
        assert decodes <= share, "a micro-batch has more than its share"
        for sequence in before if decodes < share else ():
            allocation = sequence.allocation
            if allocation is None or allocation.seq != handles[sequence.id] or allocation.seq in inside:
                continue
            assert allocation.scheduled == len(allocation.blocks) * self.limits.block_size, (
                "a decode was left out that had its block"
            )
        self._check_order(step, inside)
        self._check_turns(step, begun)
        self._check_time(step)
        assert sum(item.draws for item in step.items) <= self.limits.max_sampled_rows

    def _check_order(self, step: Step, inside: set[int]) -> None:
        running = self.running()
        first = running[0]
        if (
            first.allocation
            and not self.scheduler.lists.shares.several  # a key that had less goes before it
            and not (self.lookahead and self.stages == 1)
            and not (self.stages > 1 and self._is_held_up(first.allocation))
            and not self._has_aged()
        ):
            number, tokens = self._passed
            now = sum(item.count for item in step.items if item.count > max(1, item.draws) or not item.draws)
            passed = (tokens if number == first.id else 0) + now
            self._passed = (first.id, 0 if first.allocation.seq in inside else passed)
            # Before one has its fourth, others have so many tokens and one step, where a step may be short of time.
            most = now + 3 * ALIGNMENT if self.config.step_time else 0
            assert self._passed[1] <= most, "the first in order did not advance"

    def _has_aged(self) -> bool:
        """Whether somebody has waited for so long that the part of whoever is passed over is its."""
        prompts = [s for s in self.running() if s.allocation and not s.allocation.decoding]
        oldest = self.scheduler.lists.waiting.oldest()
        return any(s.arrived + AGED_S <= self.now for s in (*prompts, *([oldest] if oldest else [])))

    def _check_turns(self, step: Step, begun: dict[int, tuple[Sequence, int]]) -> None:
        """Of prompts of one key and priority that were begun the one with the least left is computed before others,
        but for the one that came first, which has a fourth of what they have or all that it lacks. Pictures wait
        until a step holds one whole, and others go on meanwhile.
        """
        counts = {item.seq: item.count for item in step.items}
        scored = any(s.scoring or s.request.rows for s, _ in begun.values())  # rows of logits are scarce, too
        still = {seq: each for seq, each in begun.items() if each[0].allocation and each[0].allocation.seq == seq}
        kinds = {(s.request.key, s.request.priority) for s, _ in still.values()}
        for kind in kinds if not (scored or self._has_aged()) else ():
            alike = {seq: e for seq, e in still.items() if (e[0].request.key, e[0].request.priority) == kind}
            oldest = min(alike, key=lambda seq: alike[seq][0].order)
            by_left = sorted((0 if s.num_outputs else left, s.order, seq) for seq, (s, left) in alike.items())
            turns = [seq for _, _, seq in by_left if seq != oldest]
            for shorter, longer in itertools.pairwise(turns):
                assert longer not in counts or counts.get(shorter) == alike[shorter][1], "a longer prompt went before"
            others = sum(counts.get(seq, 0) for seq in turns)
            if others and not (self.scheduler.lists.shares.several or self.stages > 1):
                left = alike[oldest][1]
                assert counts.get(oldest, 0) >= min(left, others // 3 - ALIGNMENT), "a prompt was passed over"

    def _check_time(self, step: Step) -> None:
        """The step is expected to take no longer than it may, but for the few tokens that always get on, and for
        pictures, which are not cut.
        """
        pending, config = self.scheduler.pending_steps.newest, self.config
        answers, prompts = pending.answers.tokens, pending.prompts.tokens
        costs = self.scheduler.costs
        bounded = config.step_time and config.enable_chunked_prefill and self.scheduler.lists.num_awaited
        if not bounded or not costs.known or prompts <= LEAST_PIECE or any(item.rows for item in step.items):
            return
        answering = answers > 0 or self.stages > 1
        drafted = [StepLoad.of_drafts(item.start + 1, len(item.drafted)) for item in step.items if item.drafted]
        rows, read = (sum(getattr(load, field) for load in drafted) for field in ("tokens", "read"))
        plain = msgspec.structs.replace(pending.answers, tokens=answers - rows, read=pending.answers.read - read)
        alone, bound = costs.seconds(plain), config.step_time / 1000  # guesses make no step longer
        limit = max(bound, 2 * alone) if answering else 2 * max(bound, alone)
        own = pending.seconds - costs.seconds(pending.answers)
        token = own / prompts if prompts < 2 * ALIGNMENT else 0.0  # of which half may be too much
        allowed = 1.0001 * limit + 0.6 * token
        assert pending.seconds <= allowed, f"step {step.number} is to take {pending.seconds} of {limit} s"

    def _is_held_up(self, allocation: BlockAllocation) -> bool:
        """A step in flight draws its token, or brings back the block that it needs."""
        return (
            allocation.last_step > self.scheduler.allocator.completed_through
            or allocation.scheduled == len(allocation.blocks) * self.limits.block_size
        )

    def _check_blocks(self, step: Step) -> None:
        """Cached blocks come from sequences with the same salt; fresh ones are not in use by a step in flight."""
        for sequence in self.running():
            if sequence.allocation:
                self._salt_of_seq[sequence.allocation.seq] = sequence.request.kv_scope
        started = {start.seq for start in step.starts}
        for item in step.items:
            salt = self._salt_of_seq[item.seq]
            cached = item.start // self.limits.block_size if item.seq in started else 0
            assert all(self._salt_of_block.get(block, salt) == salt for block in item.new_blocks[:cached])
            fresh = item.new_blocks[cached:]
            assert not any(used & set(fresh) for used in self._blocks_in_flight), (
                "a block was given away under a step in flight"
            )
            self._salt_of_block.update(dict.fromkeys(fresh, salt))
