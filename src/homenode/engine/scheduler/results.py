"""Takes in what steps brought back: tokens, log-probabilities of prompts, and blocks that are full."""

from __future__ import annotations

import math

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.messages import Output
from homenode.engine.request import TokenLogprob
from homenode.engine.scheduler.counters import SchedulerCounters
from homenode.engine.scheduler.kv_coordinator import KvCoordinator
from homenode.engine.scheduler.pending_steps import PendingStep, PendingSteps
from homenode.engine.scheduler.request_table import RequestTable
from homenode.engine.step import NO_TOKEN, PromptScores, Sampled, StepItem, StepResult, WorkerLimits
from homenode.errors import InternalError, NotANumberError
from homenode.units import format_count


class Results:
    """Passes tokens on to the clients, publishes full blocks, and ends the requests that are done."""

    def __init__(
        self,
        limits: WorkerLimits,
        *,
        flights: PendingSteps,
        residents: KvAllocator,
        handover: KvCoordinator,
        live: RequestTable,
        tally: SchedulerCounters,
    ) -> None:
        self._limits = limits
        self._flights = flights
        self._residents = residents
        self._handover = handover
        self._live = live
        self._tally = tally

    def take(self, result: StepResult) -> None:
        """The result of the oldest step in flight. InternalError if it is another's, or holds what that step cannot have brought."""
        if self._flights.oldest != result.number:
            raise InternalError(
                f"result of step {result.number} came back, which is not the oldest in flight", number=result.number
            )
        flight = self._flights.take()
        self._residents.landed = result.number
        self._tally.steps += 1
        self._tally.step_tokens += flight.num_tokens
        self._live.throughput.add(flight.num_tokens, result.seconds)
        if [s.seq for s in result.sampled] != flight.drawing():
            raise InternalError(
                f"step {result.number} drew tokens for other sequences than it was asked to", number=result.number
            )
        tokens = [s.token for s in result.sampled]
        if tokens and (min(tokens) < NO_TOKEN or max(tokens) >= self._limits.vocab_size):
            raise InternalError(
                f"step {result.number}: the worker drew a token that is not in the vocabulary", number=result.number
            )
        if NO_TOKEN in tokens or any(math.isnan(score.logprob) for scored in result.scored for score in scored.scores):
            self._end_without_numbers(flight, result)
        self._take_decodes(flight, result.sampled, tokens)
        if flight.parts:
            self._take_parts(flight, result)

    def _end_without_numbers(self, flight: PendingStep, result: StepResult) -> None:
        """End those for whom the model computed a NaN, and nobody else."""
        without = {s.seq for s in result.sampled if s.token == NO_TOKEN}
        without |= {scored.seq for scored in result.scored if any(math.isnan(score.logprob) for score in scored.scores)}
        for sequence, residency in flight.members():
            if residency.seq in without and not sequence.finished:
                text = "the model's logits for this request hold a NaN, or nothing that can be drawn"
                self._live.fail(sequence, text, NotANumberError.__name__)
                self._live.warn(
                    f"request {sequence.id}: {text}; `homenode generate` with this model says whether its "
                    "file is at fault"
                )

    def _take_decodes(self, flight: PendingStep, sampled: list[Sampled], tokens: list[int]) -> None:
        """Pass on the tokens of those that decode. Only few of them end, or have filled a block: this is what a token costs."""
        outputs = self._live.outputs
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

    def _take_late(self, sequence: Sequence, residency: BlockAllocation, sampled: Sampled) -> None:
        """A token came after its sequence's stay had ended. If it was preempted the token counts all the same."""
        if sequence.finished:
            self._tally.generation_tokens -= 1
        else:
            sequence.tokens.append(sampled.token)
            self._take_token(sequence, residency, sampled)
        self._residents.settle(residency)

    def _take_parts(self, flight: PendingStep, result: StepResult) -> None:
        """What came of the parts of prompts."""
        sampled = {s.seq: s for s in result.sampled[len(flight.decoding) :]}
        scored = {s.seq: s for s in result.scored}
        for sequence, residency, item in flight.parts:
            residency.computed = item.start + item.count
            if not sequence.finished:
                self._take_part(sequence, residency, item, sampled.get(item.seq), scored.get(item.seq))
            self._residents.settle(residency)

    def _take_part(
        self,
        sequence: Sequence,
        residency: BlockAllocation,
        item: StepItem,
        sampled: Sampled | None,
        scored: PromptScores | None,
    ) -> None:
        """Add what a step found out about an unfinished sequence. It may have been preempted meanwhile: its token counts all the same."""
        if item.score_from >= 0:
            wanted = min(item.start + item.count, sequence.num_prompt - 1) - item.score_from
            _take_scores(sequence, item.score_from + 1, wanted, scored)
        if sampled is None:
            self._residents.publish(sequence, residency)
            self._handover.computed(sequence, residency)
            if not sequence.samples and residency.computed >= residency.goal:
                self._live.end_prefill(sequence)
            return
        sequence.tokens.append(sampled.token)
        self._tally.generation_tokens += 1
        self._take_token(sequence, residency, sampled)

    def _take_token(self, sequence: Sequence, residency: BlockAllocation, sampled: Sampled) -> None:
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
            self._live.finish(
                sequence, tokens=[sampled.token], logprobs=logprobs, finish_reason=reason, stop_token=stop_token
            )
        elif sequence.answered:
            self._live.outputs.append(Output(sequence.id, [sampled.token], logprobs))
        else:
            self._live.answer(sequence, tokens=[sampled.token], logprobs=logprobs)

    def _warn_if_cut_short(self, sequence: Sequence, reason: str) -> None:
        cut_short = reason == "length" and sequence.num_outputs < sequence.params.max_tokens
        if cut_short and sequence.max_len < self._limits.max_model_len:
            self._live.warn(
                f"request {sequence.id} ended at {format_count(sequence.max_len, 'token')} because the {format_count(self._limits.num_blocks, 'KV block')} hold no more, "
                f"below --max-model-len {self._limits.max_model_len}; raise --kv-cache-memory"
            )


def _take_scores(sequence: Sequence, first: int, wanted: int, scored: PromptScores | None) -> None:
    known: list[TokenLogprob | None] = sequence.scores
    if scored is None or scored.first != first or len(scored.scores) != wanted or first != len(known):
        raise InternalError(
            f"request {sequence.id}: {wanted} log-probabilities from prompt token {first} on wanted, others came back"
        )
    known.extend(scored.scores)
