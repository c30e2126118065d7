"""The sequences of one request, from the engine's outputs to events; whatever happens, no sequence is left running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.server.core.choices.choice import ChoiceText, GenerationEvent, single_token_outputs
from homenode.server.core.failures import from_output
from homenode.server.core.kv_transfer import KvTransferResult
from homenode.server.http.failures import ApiError
from homenode.server.keys.caller import caller
from homenode.server.keys.service_tiers import ServiceTier
from homenode.server.models.request_log import AnswerEnd
from homenode.server.models.served_model import AskedModel
from homenode.server.monitoring.recorder import Recorder
from homenode.server.tracing.generation_spans import note_generation
from homenode.server.tracing.span import current_span

_AT_ONCE = 64  # of many sequences, those that are begun or heard before others get a turn
_EVENTS_AT_ONCE = 256  # events of a token each that are given before others get a turn


@dataclass(slots=True)
class GeneratedSequence:
    """One engine request and the choice it becomes. `first_of_prompt`: of the n sequences of a prompt, the one whose
    prompt counts.
    """

    request: Request
    choice: ChoiceText
    recorder: Recorder
    first_of_prompt: bool
    cached_tokens: int = 0
    disk_tokens: int = 0  # of those, the ones whose KV came from disk
    queued_s: float = 0.0
    forced_tokens: int = 0  # of the answer, those that its grammar left no choice about
    drafted_tokens: int = 0  # that were drafted for it...
    accepted_tokens: int = 0  # ...and those of them that were right
    drafted_at: tuple[float, float] | None = None  # when the first and the last of these were told
    kv_came: tuple[float, float] | None = None  # when KV from elsewhere began to come, and when it was there

    def end(self, reason: str) -> None:
        """Count it as ended with the tokens of its choice: an output may have brought more, behind its end."""
        self.recorder.generated = self.choice.num_tokens
        self.recorder.end(reason)

    def answer_end(self) -> AnswerEnd:
        """Return how its answer ended, for the log."""
        return AnswerEnd(self.request, self.choice.num_tokens, self.choice.finish_reason or "cut off")


class TokenUsage(NamedTuple):
    """Tokens of a request so far: each prompt counted once, and every choice's tokens.

    `cached_tokens`: prompt tokens whose keys and values were found in the prefix cache.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class GenerationTimings(NamedTuple):
    """The time that a request has taken so far: of the sequence that took longest the seconds that it waited for its
    turn, that its prompt took, and that the tokens behind the first took.
    """

    queue_s: float
    prefill_s: float
    decode_s: float


class Generation:
    """Runs the sequences of one request together. Its answer is the stream of their events; `usage` goes with it."""

    def __init__(
        self,
        asked_model: AskedModel,
        sequences: list[GeneratedSequence],
        top_logprobs: int,
        token_ids: bool,
        kv_result: KvTransferResult | None,
        tier: ServiceTier,
    ) -> None:
        """`top_logprobs`: log-probabilities of other tokens that the answer shows for each token. `token_ids`: it shows
        ids. `kv_result`: what it tells of the prompt's KV. `tier`: the one that the request has.
        """
        model = asked_model.model
        self._client, self._active, self._tickets = model.client, model.active, model.tickets
        self._text_work, self._caller = model.text_work, caller()
        self._span, self._asked_model = current_span(), asked_model
        self._log = model.request_log
        self._answers = self._log.answers([sequence.request for sequence in sequences])
        self.top_logprobs, self._token_ids = top_logprobs, token_ids
        self.sequences = sequences
        self.kv_result, self.tier = kv_result, tier

    async def events(self, *, by_token: bool = True) -> AsyncGenerator[GenerationEvent, None]:
        """The events of all choices as they come, each token in one of its own: also where a step brought several,
        answers end at the same token as if it had brought one, and clients that count events count tokens. Outputs of
        more tokens than a step brings stay whole (`single_token_outputs`), and all do without `by_token`, for whoever
        looks at nothing before the end: hundreds of thousands of events are much to keep. Raises ApiError when the
        engine ends a sequence without a result.

        Closing the generator early, or a failure of one sequence, aborts all that are still running.
        """
        left, given = len(self.sequences), 0
        ids = {sequence.request.id for sequence in self.sequences}
        tickets = self._take_tickets()
        self._active |= ids
        try:
            await self._log.write_prompts([each.request for each in self.sequences if each.first_of_prompt])
            async with aclosing(self._outputs()) as outputs:
                async for index, output in outputs:
                    sequence = self.sequences[index]
                    if sequence.choice.finish_reason is not None:
                        continue  # a stop string matched before the engine heard of it
                    self._count(sequence, output)
                    for part in single_token_outputs(output) if by_token else (output,):
                        yield await self._event(sequence, part)
                        given += 1
                        if given % _EVENTS_AT_ONCE == 0:
                            await asyncio.sleep(0)
                        if sequence.choice.finish_reason is not None:
                            break
                    if sequence.choice.finish_reason is not None:
                        if output.finish_reason is None:
                            self._client.abort(sequence.request.id, "stop")
                        left -= 1
                        if not left:
                            return
            raise from_output(Output(id=0, finish_reason="abort", error="the engine stopped answering"))
        except ApiError as error:
            if self._span is not None:
                self._span.fail(error.body.error.code or str(error.status))
            raise
        finally:
            self._active -= ids
            for ticket in tickets:
                del self._tickets[ticket]
            for sequence in self.sequences:
                sequence.recorder.end("abort")
            if self._answers is not None:
                self._answers.write([sequence.answer_end() for sequence in self.sequences])
            if self._span is not None:
                handed = None if self.kv_result is None else self.kv_result.tokens
                names = (self._asked_model.name, self._asked_model.model.name)
                note_generation(self._span, names, self.sequences, handed)

    def end(self, index: int) -> None:
        """End a choice with the event that `events` gave last: its reader wants no more."""
        sequence = self.sequences[index]
        sequence.choice.finish_reason = "stop"
        sequence.end("stop")

    def _take_tickets(self) -> dict[str, int]:
        """Raises ApiError 400 when another request has one of them now."""
        mine = {
            sequence.request.kv.ticket: sequence.request.id
            for sequence in self.sequences
            if sequence.request.kv is not None
        }
        for ticket in mine:
            if ticket in self._tickets:
                text = (
                    f"`kv_transfer_params`: the ticket {ticket} is that of a request that runs; each has one of its own"
                )
                raise ApiError(400, text, param="kv_transfer_params.ticket", code="ticket_in_use")
        self._tickets |= mine
        return mine

    def usage(self) -> TokenUsage:
        """Tokens so far, at any moment of the stream."""
        counted = [sequence for sequence in self.sequences if sequence.first_of_prompt]
        return TokenUsage(
            sum(len(sequence.request.prompt_ids) for sequence in counted),
            sum(sequence.choice.num_tokens for sequence in self.sequences),
            sum(sequence.cached_tokens for sequence in counted),
        )

    def timings(self) -> GenerationTimings:
        """Times so far, at any moment of the stream."""
        sequences = self.sequences
        return GenerationTimings(
            max(sequence.queued_s for sequence in sequences),
            max(max(0.0, sequence.recorder.prefill_s - sequence.queued_s) for sequence in sequences),
            max(sequence.recorder.decode_s for sequence in sequences),
        )

    def prompt_ids(self, index: int) -> list[int]:
        """The token ids of the prompt that choice `index` continues."""
        return self.sequences[index].request.prompt_ids

    def prompt_items(self) -> int:
        """Prompt tokens that the answer shows as ids."""
        return sum(len(sequence.request.prompt_ids) for sequence in self.sequences) if self._token_ids else 0

    def _count(self, sequence: GeneratedSequence, output: Output) -> None:
        """Take in what an output tells besides its tokens."""
        if output.error_kind is not None or output.finish_reason in ("error", "abort"):
            sequence.recorder.end("error")
            raise from_output(output)
        sequence.recorder.tokens(len(output.tokens), output.queued_s, output.cached_tokens)
        sequence.forced_tokens += output.forced_tokens
        if output.drafted_tokens and self._span is not None:
            began = time.monotonic() if sequence.drafted_at is None else sequence.drafted_at[0]
            sequence.drafted_at = (began, time.monotonic())
        sequence.kv_came = sequence.kv_came or output.kv_came
        sequence.drafted_tokens += output.drafted_tokens
        sequence.accepted_tokens += output.accepted_tokens
        sequence.cached_tokens = max(sequence.cached_tokens, output.cached_tokens)
        sequence.disk_tokens = max(sequence.disk_tokens, output.disk_tokens)
        sequence.queued_s = max(sequence.queued_s, output.queued_s)

    async def _event(self, sequence: GeneratedSequence, output: Output) -> GenerationEvent:
        tokens = len(output.tokens) + len(output.prompt_logprobs or ())
        before = sequence.choice.num_tokens
        echoed = sequence.choice.echo_left
        event = await self._text_work.run(lambda: sequence.choice.feed(output), tokens)
        if self._answers is not None:
            self._answers.add(sequence.request, event.text[echoed:])
        self._caller.take_generated(sequence.choice.num_tokens - before)  # without those behind a stop string
        if event.finish_reason is not None:
            sequence.recorder.computed(sequence.queued_s)
            sequence.end(event.finish_reason)
        return event

    async def _outputs(self) -> AsyncGenerator[tuple[int, Output], None]:
        if len(self.sequences) == 1:  # no queue and no task between the engine and the only listener
            async with aclosing(self._client.submit(self.sequences[0].request)) as outputs:
                async for output in outputs:
                    yield 0, output
            return
        queue: asyncio.Queue[tuple[int, Output] | Exception | None] = asyncio.Queue()
        tasks: list[asyncio.Task[None]] = []
        try:
            for index in range(len(self.sequences)):
                tasks.append(asyncio.create_task(self._forward(index, queue)))
                if index % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # others get a turn
            ended = taken = 0
            while ended < len(tasks):
                item = await queue.get()  # which goes on at once where there is an item
                taken += 1
                if taken % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    ended += 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, index: int, queue: asyncio.Queue[tuple[int, Output] | Exception | None]) -> None:
        """Puts the outputs of one sequence into the queue of all; None says that there are no more."""
        try:
            async with aclosing(self._client.submit(self.sequences[index].request)) as outputs:
                async for output in outputs:
                    queue.put_nowait((index, output))
            queue.put_nowait(None)
        except Exception as error:  # raised again by the reader of the queue
            queue.put_nowait(error)
