"""Takes in what steps brought back: tokens, log-probabilities of prompts, and blocks that are full."""

from __future__ import annotations

import math
from typing import Any

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.messages import Output
from homenode.engine.request import TokenLogprob
from homenode.engine.scheduler.counters import SchedulerCounters
from homenode.engine.scheduler.fair_share import KeyShares
from homenode.engine.scheduler.kv_coordinator import KvCoordinator
from homenode.engine.scheduler.pending_steps import PendingStep, PendingSteps
from homenode.engine.scheduler.request_table import RequestTable
from homenode.engine.scheduler.step_costs import StepCosts, step_kind
from homenode.engine.step import NO_TOKEN, PromptScores, Sampled, StepItem, StepResult, WorkerLimits
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
    ) -> None:
        self._limits = limits
        self._pending_steps = pending
        self._allocator = allocator
        self._coordinator = coordinator
        self._requests = requests
        self._counters = counters
        self._shares = shares
        self._costs = costs

    def take(self, result: StepResult) -> None:
        """The result of the oldest step in flight. InternalError if it is another's, or holds what that step cannot
        have brought.
        """
        if self._pending_steps.oldest != result.number:
            raise InternalError(
                f"result of step {result.number} came back, which is not the oldest in flight", number=result.number
            )
        pending_step = self._pending_steps.take()
        self._allocator.completed_through = result.number
        self._counters.steps += 1
        self._counters.step_tokens += pending_step.num_tokens
        self._requests.throughput.add(pending_step.num_tokens, result.seconds)
        self._shares.charge(pending_step, result.seconds)
        self._costs.learn(pending_step.answers, pending_step.prompts, result.seconds)
        kind = step_kind(pending_step.answers.tokens, pending_step.prompts.tokens)
        self._counters.step_times.add(kind, result.seconds)
        if [s.seq for s in result.sampled] + [p.seq for p in result.pooled] != pending_step.drawing():
            raise InternalError(
                f"step {result.number} drew tokens for other sequences than it was asked to", number=result.number
            )
        tokens = [s.token for s in result.sampled]
        if tokens and (min(tokens) < NO_TOKEN or max(tokens) >= self._limits.vocab_size):
            raise InternalError(
                f"step {result.number}: the worker drew a token that is not in the vocabulary", number=result.number
            )
        if NO_TOKEN in tokens or any(math.isnan(score.logprob) for scored in result.scored for score in scored.scores):
            self._end_without_numbers(pending_step, result)
        self._take_decodes(pending_step, result.sampled, tokens)
        if pending_step.parts:
            self._take_parts(pending_step, result)

    def _end_without_numbers(self, pending_step: PendingStep, result: StepResult) -> None:
        """End those for whom the model computed a NaN or whose grammar cannot go on, and nobody else."""
        without = {s.seq for s in result.sampled if s.token == NO_TOKEN}
        unbound = dict(result.failed)
        without |= {scored.seq for scored in result.scored if any(math.isnan(score.logprob) for score in scored.scores)}
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
                    f"request {sequence.id}: {text}; `homenode generate` with this model says whether its "
                    "file is at fault"
                )

    def _take_decodes(self, pending_step: PendingStep, sampled: list[Sampled], tokens: list[int]) -> None:
        """Pass on the tokens of those that decode. Only few of them end, or have filled a block: this is what a token
        costs.
        """
        outputs = self._requests.outputs
        for sequence, allocation, token, drawn in zip(pending_step.decoding, pending_step.allocations, tokens, sampled):  # noqa: B905
            if allocation.ended:
                self._take_late(sequence, allocation, drawn)
                continue
            if drawn.surprise_limit is not None:
                sequence.surprise_limit = drawn.surprise_limit
            known = sequence.tokens
            known.append(token)
            if token in sequence.stops or len(known) >= sequence.next_check_len:
                self._take_token(sequence, allocation, drawn)
            else:
                outputs.append(
                    Output(sequence.id, [token], forced_tokens=1) if drawn.forced else Output(sequence.id, [token])
                )
        self._counters.generation_tokens += len(pending_step.decoding)

    def _take_late(self, sequence: Sequence, allocation: BlockAllocation, sampled: Sampled) -> None:
        """A token came after its sequence's stay had ended. If it was preempted the token counts all the same."""
        if sequence.finished:
            self._counters.generation_tokens -= 1
        else:
            sequence.surprise_limit = sampled.surprise_limit
            sequence.tokens.append(sampled.token)
            self._take_token(sequence, allocation, sampled)
        self._allocator.finish_step(allocation)

    def _take_parts(self, pending_step: PendingStep, result: StepResult) -> None:
        """What came of the parts of prompts."""
        sampled = {s.seq: s for s in result.sampled[len(pending_step.decoding) :]}
        scored = {s.seq: s for s in result.scored}
        pooled = {p.seq: p.values for p in result.pooled}
        for sequence, allocation, item in pending_step.parts:
            allocation.computed = item.start + item.count
            if not sequence.finished and item.seq in pooled:
                self._take_pooled(sequence, allocation, pooled[item.seq])
            elif not sequence.finished:
                self._take_part(sequence, allocation, item, sampled.get(item.seq), scored.get(item.seq))
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
        sampled: Sampled | None,
        scored: PromptScores | None,
    ) -> None:
        """Add what a step found out about an unfinished sequence. It may have been preempted meanwhile: its token
        counts all the same.
        """
        if item.score_from >= 0:
            expected = min(item.start + item.count, sequence.num_prompt - 1) - item.score_from
            _take_scores(sequence, item.score_from + 1, expected, scored)
        if sampled is None:
            self._allocator.publish(sequence, allocation)
            self._coordinator.computed(sequence, allocation)
            if not sequence.samples and allocation.computed >= allocation.prefill_target:
                self._requests.end_prefill(sequence)
            return
        sequence.surprise_limit = sampled.surprise_limit
        sequence.tokens.append(sampled.token)
        self._counters.generation_tokens += 1
        self._take_token(sequence, allocation, sampled)

    def _take_token(self, sequence: Sequence, allocation: BlockAllocation, sampled: Sampled) -> None:
        """See to all that may follow from a token that was just added."""
        reason, stop_token = sequence.end()
        allocation.computed = len(sequence.tokens) - 1
        self._allocator.publish(sequence, allocation)
        sequence.set_next_check(self._allocator.block_size)
        if sequence.num_outputs == 1:
            self._counters.prompt_tokens += sequence.num_prompt
        output: dict[str, Any] = {"tokens": [sampled.token], "forced_tokens": int(sampled.forced)}
        if sampled.logprob is not None:
            output["logprobs"] = [sampled.logprob]
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
                f"request {sequence.id} ended at {format_count(sequence.max_len, 'token')} because the "
                f"{format_count(self._limits.num_blocks, 'KV block')} hold no more, "
                f"below --max-model-len {self._limits.max_model_len}; raise --kv-cache-memory"
            )


def _take_scores(sequence: Sequence, first: int, expected: int, scored: PromptScores | None) -> None:
    known: list[TokenLogprob | None] = sequence.scores
    if scored is None or scored.first != first or len(scored.scores) != expected or first != len(known):
        raise InternalError(
            f"request {sequence.id}: {expected} log-probabilities from prompt token {first} on wanted, others came back"
        )
    known.extend(scored.scores)
