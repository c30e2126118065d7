"""Takes in what steps brought back: tokens, log-probabilities of prompts, and blocks that are full."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import Any

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.messages import Output
from homenode.engine.request import TokenLogprob
from homenode.engine.scheduler.counters import SchedulerCounters
from homenode.engine.scheduler.drafts.drafter import Drafter
from homenode.engine.scheduler.kv_coordinator import KvCoordinator
from homenode.engine.scheduler.order.fair_share import KeyShares
from homenode.engine.scheduler.request_table import RequestTable
from homenode.engine.scheduler.steps.pending_steps import PendingStep, PendingSteps
from homenode.engine.scheduler.steps.step_costs import StepCosts, step_kind
from homenode.engine.scheduler.steps.step_load import MeasuredStep
from homenode.engine.step import Advance, PromptScores, StepItem, StepResult, WorkerLimits
from homenode.errors import InternalError, NotANumberError, UserError
from homenode.units import format_count


class Results:
    """Passes tokens on to the clients, publishes full blocks, and ends the requests that are done."""

    def __init__(
        self,
        limits: WorkerLimits,
        *,
        pending: PendingSteps,
        allocator: KvAllocator,
        coordinator: KvCoordinator,
        requests: RequestTable,
        counters: SchedulerCounters,
        shares: KeyShares,
        costs: StepCosts,
        drafter: Drafter | None = None,
    ) -> None:
        self._limits = limits
        self._pending_steps = pending
        self._allocator = allocator
        self._coordinator = coordinator
        self._requests = requests
        self._counters = counters
        self._shares = shares
        self._costs = costs
        self._drafter = drafter

    def take(self, result: StepResult, now: float = 0.0) -> None:
        """The result of the oldest step in flight, which came `now`.

        InternalError if it is another's, or holds what that step cannot have brought.
        """
        if self._pending_steps.oldest != result.number:
            raise InternalError(
                f"result of step {result.number} came back, which is not the oldest in flight", number=result.number
            )
        pending_step = self._pending_steps.take()
        self._allocator.completed_through = result.number
        self._counters.steps += 1
        self._counters.step_tokens += pending_step.num_tokens
        self._counters.step_sizes.add(pending_step.num_tokens)
        self._requests.throughput.add(pending_step.num_tokens, result.seconds)
        self._shares.charge(pending_step, result.seconds)
        seconds = result.seconds - result.draft_seconds
        self._costs.learn(pending_step.answers, pending_step.prompts, seconds, result.experts)
        if self._drafter is not None:
            depth = pending_step.depth if result.draft_seconds else 0
            self._drafter.measured(
                MeasuredStep(
                    pending_step.answers,
                    pending_step.prompts,
                    seconds,
                    now,
                    pending_step.awaited,
                    result.draft_seconds,
                    depth,
                )
            )
        kind = step_kind(pending_step.answers.tokens, pending_step.prompts.tokens)
        self._counters.step_times.add(kind, result.seconds)
        advances = result.advances
        if [a.seq for a in advances] + [p.seq for p in result.pooled] != pending_step.drawing():
            raise InternalError(
                f"step {result.number} drew tokens for other sequences than it was asked to", number=result.number
            )
        accepted = [a.tokens for a in advances]
        try:
            tokens = [token for (token,) in accepted]
            single = True
        except ValueError:
            tokens = list(chain.from_iterable(accepted))
            single = False
        if tokens and (min(tokens) < 0 or max(tokens) >= self._limits.vocab_size):
            raise InternalError(
                f"step {result.number}: the worker drew a token that is not in the vocabulary", number=result.number
            )
        if not single or pending_step.drafts or any(advance.drafted for advance in advances):
            self._check_accepted(pending_step, advances)
        if (not single and [] in accepted) or (result.scored and _holds_nan(result.scored)):
            self._end_without_numbers(pending_step, result)
        if single and not pending_step.drafts and not any(advance.drafted for advance in advances):
            self._take_decodes(zip(pending_step.decoding, pending_step.allocations, tokens, advances, strict=False))
        else:
            self._take_drafted(pending_step, advances)
        if pending_step.parts:
            self._take_parts(pending_step, result)

    def _check_accepted(self, pending_step: PendingStep, advances: list[Advance]) -> None:
        """Check that what was accepted before the last token was drafted, and that what is expected next are tokens.
        InternalError if not.
        """
        number = pending_step.step.number
        for advance in advances:
            if len(advance.tokens) < 2 and not advance.drafted:
                continue
            before = tuple(advance.tokens[:-1])
            drafted = pending_step.drafts.get(advance.seq, ())
            if before != drafted[: len(before)]:
                raise InternalError(f"step {number}: the worker accepted tokens that were not drafted", number=number)
            if advance.drafted and not 0 <= min(advance.drafted) <= max(advance.drafted) < self._limits.vocab_size:
                raise InternalError(
                    f"step {number}: the worker drafted a token that is not in the vocabulary", number=number
                )

    def _end_without_numbers(self, pending_step: PendingStep, result: StepResult) -> None:
        """End those for whom the model computed a NaN or whose grammar cannot go on, and nobody else."""
        without = {a.seq for a in result.advances if not a.tokens}
        unbound = dict(result.failed)
        without |= {scored.seq for scored in result.scored if _holds_nan([scored])}
        for sequence, allocation in pending_step.members():
            if allocation.seq in unbound and not sequence.finished:
                text = (
                    f"the answer cannot go on within its grammar: {unbound[allocation.seq]}; ask for something simpler"
                )
                self._requests.fail(sequence, text, UserError.__name__)
            elif allocation.seq in without and not sequence.finished:
                text = "the model's logits for this request hold a NaN, or nothing that can be drawn"
                self._requests.fail(sequence, text, NotANumberError.__name__)
                self._requests.warn(
                    sequence,
                    f": {text}; `homenode generate` with this model says whether its file is at fault",
                )

    def _take_decodes(self, decodes: Iterable[tuple[Sequence, BlockAllocation, int, Advance]]) -> None:
        """Pass on the tokens of those that decode, one each. Only few of them end, or have filled a block: this is what
        a token costs.
        """
        output, tell, count = Output, self._requests.outputs.append, 0
        for sequence, allocation, token, advance in decodes:
            known = sequence.tokens
            if allocation.ended:
                self._take_late(sequence, allocation, advance)
            elif token in sequence.stops or len(known) >= sequence.next_check_len:
                self._take_advance(sequence, allocation, advance)
            else:
                known.append(token)
                count += 1
                if advance.surprise_limit is not None:
                    sequence.surprise_limit = advance.surprise_limit
                if advance.forced:
                    tell(output(sequence.id, advance.tokens, forced_tokens=1))
                else:
                    tell(output(sequence.id, advance.tokens))
        self._counters.generation_tokens += count

    def _take_drafted(self, pending_step: PendingStep, advances: list[Advance]) -> None:
        """Pass on what was accepted of those that decode, several tokens of each or none, and cut back what was
        computed of the others.
        """
        others: list[tuple[Sequence, BlockAllocation, int, Advance]] = []  # that go on as if nobody had drafted
        for sequence, allocation, advance in zip(
            pending_step.decoding, pending_step.allocations, advances, strict=False
        ):
            drafted = pending_step.drafts.get(allocation.seq, ())
            accepted = len(advance.tokens)
            if not drafted and accepted == 1 and not advance.drafted and not sequence.drafted:
                others.append((sequence, allocation, advance.tokens[0], advance))
                continue
            if drafted:
                self._count_drafted(sequence, drafted, max(0, accepted - 1))
            if allocation.ended:
                self._take_late(sequence, allocation, advance)
                continue
            if drafted:
                self._allocator.truncate(allocation, allocation.scheduled - len(drafted) - 1 + accepted)
            self._take_advance(sequence, allocation, advance)
        self._take_decodes(others)

    def _count_drafted(self, sequence: Sequence, drafted: tuple[int, ...], accepted: int) -> None:
        counters = self._counters
        counters.drafted_tokens += len(drafted)
        counters.accepted_tokens += accepted
        by_position = counters.accepted_by_position
        by_position += [0] * (accepted - len(by_position))
        for position in range(accepted):
            by_position[position] += 1
        sequence.told_drafts = (sequence.told_drafts[0] + len(drafted), sequence.told_drafts[1] + accepted)
        if self._drafter is not None:
            self._drafter.learn(sequence, drafted, accepted)

    def _take_late(self, sequence: Sequence, allocation: BlockAllocation, advance: Advance) -> None:
        """Tokens came after their sequence's stay had ended. If it was preempted they count all the same."""
        if not sequence.finished:
            self._take_advance(sequence, allocation, advance)
        self._allocator.finish_step(allocation)

    def _take_parts(self, pending_step: PendingStep, result: StepResult) -> None:
        """Take what came of the parts of prompts."""
        advances = {a.seq: a for a in result.advances[len(pending_step.decoding) :]}
        scored = {s.seq: s for s in result.scored}
        pooled = {p.seq: p.values for p in result.pooled}
        for sequence, allocation, item in pending_step.parts:
            allocation.computed = item.start + item.count
            if not sequence.finished and item.seq in pooled:
                self._take_pooled(sequence, allocation, pooled[item.seq])
            elif not sequence.finished:
                self._take_part(sequence, allocation, item, advances.get(item.seq), scored.get(item.seq))
            self._allocator.finish_step(allocation)

    def _take_pooled(self, sequence: Sequence, allocation: BlockAllocation, values: bytes) -> None:
        """End a request whose text's vector has come."""
        self._allocator.publish(sequence, allocation)
        if values:
            self._requests.end_prefill(sequence, finish_reason="stop", pooled=values)
        else:
            text = "what the model computed for this text is not a number"
            self._requests.fail(sequence, text, NotANumberError.__name__)

    def _take_part(
        self,
        sequence: Sequence,
        allocation: BlockAllocation,
        item: StepItem,
        advance: Advance | None,
        scored: PromptScores | None,
    ) -> None:
        """Add what a step found out about an unfinished sequence. It may have been preempted meanwhile: its token
        counts all the same.
        """
        if item.score_from >= 0:
            expected = min(item.start + item.count, sequence.num_prompt - 1) - item.score_from
            _take_scores(sequence, item.score_from + 1, expected, scored)
        if advance is None:
            self._allocator.publish(sequence, allocation)
            self._coordinator.computed(sequence, allocation)
            if not sequence.samples and allocation.computed >= allocation.prefill_target:
                self._requests.end_prefill(sequence)
            return
        self._take_advance(sequence, allocation, advance)

    def _take_advance(self, sequence: Sequence, allocation: BlockAllocation, advance: Advance) -> None:
        """Add accepted tokens to a sequence, and see to all that may follow from them. What is behind its end is
        dropped.
        """
        sequence.surprise_limit = advance.surprise_limit
        sequence.drafted, sequence.forced_drafts = advance.drafted, advance.forced_drafts
        count, reason, stop_token = sequence.extend(advance.tokens)
        self._counters.generation_tokens += count
        allocation.computed = len(sequence.tokens) - 1
        self._allocator.publish(sequence, allocation)
        sequence.set_next_check(self._allocator.block_size)
        if sequence.num_outputs == count:
            self._counters.prompt_tokens += sequence.num_prompt
            self._coordinator.keep(sequence)
        forced = sum(index < count for index in advance.forced) if advance.forced else 0
        output: dict[str, Any] = {"tokens": advance.tokens[:count], "forced_tokens": forced}
        if advance.logprobs:
            output["logprobs"] = list(advance.logprobs[:count])
        if sequence.told_drafts[0]:
            output["drafted_tokens"], output["accepted_tokens"] = sequence.told_drafts
            sequence.told_drafts = (0, 0)
        if reason:
            self._warn_if_cut_short(sequence, reason)
            self._requests.finish(sequence, finish_reason=reason, stop_token=stop_token, **output)
        elif sequence.answered:
            self._requests.outputs.append(Output(sequence.id, **output))
        else:
            self._requests.answer(sequence, **output)

    def _warn_if_cut_short(self, sequence: Sequence, reason: str) -> None:
        cut_short = reason == "length" and sequence.num_outputs < sequence.params.max_tokens
        if cut_short and sequence.max_len < self._limits.max_model_len:
            self._requests.warn(
                sequence,
                f" ended at {format_count(sequence.max_len, 'token')} because the "
                f"{format_count(self._limits.num_blocks, 'KV block')} hold no more, "
                f"below --max-model-len {self._limits.max_model_len}; raise --kv-cache-memory",
            )


def _holds_nan(scored: list[PromptScores]) -> bool:
    """Tell whether any of these log-probabilities is none."""
    return any(math.isnan(score.logprob) for each in scored for score in each.scores)


def _take_scores(sequence: Sequence, first: int, expected: int, scored: PromptScores | None) -> None:
    known: list[TokenLogprob | None] = sequence.scores
    if scored is None or scored.first != first or len(scored.scores) != expected or first != len(known):
        raise InternalError(
            f"request {sequence.id}: {expected} log-probabilities from prompt token {first} on wanted, others came back"
        )
    known.extend(scored.scores)
