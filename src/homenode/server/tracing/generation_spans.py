"""The spans below that of a request that generates: what each of its sequences waited for, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from homenode.engine.request import Request
from homenode.server.monitoring.recorder import Recorder
from homenode.server.tracing.span import Attribute, Attributes, RequestSpan

_MOST = 16  # sequences of a request that have spans of their own


class TracedChoice(Protocol):
    """What is told of the text of a sequence."""

    finish_reason: str | None

    @property
    def num_tokens(self) -> int: ...


class TracedSequence(Protocol):
    """What is told of a sequence; see `core.generation.GeneratedSequence`."""

    @property
    def request(self) -> Request: ...
    @property
    def choice(self) -> TracedChoice: ...
    @property
    def recorder(self) -> Recorder: ...

    first_of_prompt: bool
    cached_tokens: int
    disk_tokens: int
    queued_s: float
    drafted_tokens: int
    accepted_tokens: int
    drafted_at: tuple[float, float] | None
    kv_came: tuple[float, float] | None


def note_generation(
    span: RequestSpan, model: tuple[str, str], sequences: Sequence[TracedSequence], handed_tokens: int | None
) -> None:
    """Add what became of the sequences of a request, which are over. `model`: the name that was asked for, and the one
    that it is known by. `handed_tokens`: those whose KV goes to another engine; None: it was not to go anywhere.
    """
    if not span.sampled:
        return
    params, prompts = sequences[0].request.params, [each for each in sequences if each.first_of_prompt]
    reasons = sorted({each.choice.finish_reason for each in sequences if each.choice.finish_reason is not None})
    span.note(
        {
            "gen_ai.provider.name": "homenode",
            "gen_ai.request.model": model[0],
            "gen_ai.response.model": model[1],
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.choice.count": len(sequences),
            "gen_ai.usage.input_tokens": sum(len(each.request.prompt_ids) for each in prompts),
            "gen_ai.usage.output_tokens": sum(each.choice.num_tokens for each in sequences),
            "gen_ai.usage.cache_read.input_tokens": sum(each.cached_tokens for each in prompts),
            "gen_ai.response.finish_reasons": reasons,
        }
    )
    for index, sequence in enumerate(sequences[:_MOST]):
        _add_phases(span, sequence, index, handed_tokens)


def _add_phases(span: RequestSpan, sequence: TracedSequence, index: int, handed_tokens: int | None) -> None:
    """Queue, transfer, prefill, decode and drafts of one sequence, as far as it came."""
    recorder, own = sequence.recorder, {"homenode.sequence": index}
    begun = recorder.arrival + sequence.queued_s
    if recorder.first_token_at is None or recorder.last is None:
        return
    span.add_phase("queue", recorder.arrival, begun, own)
    if handed_tokens is not None:  # its pages are told as they are computed, and taken meanwhile and afterwards
        to: Attributes = {"homenode.kv.direction": "sent", "homenode.kv.tokens": handed_tokens}
        span.add_phase("transfer", begun, recorder.first_token_at if handed_tokens else begun, to)
    elif sequence.kv_came is not None or sequence.request.kv is not None:
        _add_transfer(span, sequence, sequence.kv_came or (begun, begun))
    prompt = {"gen_ai.usage.input_tokens": len(sequence.request.prompt_ids)}
    cached = {"gen_ai.usage.cache_read.input_tokens": sequence.cached_tokens}
    span.add_phase("prefill", min(begun, recorder.first_token_at), recorder.first_token_at, {**own, **prompt, **cached})
    if not recorder.generated:
        return
    answer = {"gen_ai.usage.output_tokens": sequence.choice.num_tokens}
    decode = span.add_phase("decode", recorder.first_token_at, recorder.last, {**own, **answer})
    if sequence.drafted_at is not None:
        drafts = {
            "homenode.drafted_tokens": sequence.drafted_tokens,
            "homenode.accepted_tokens": sequence.accepted_tokens,
        }
        decode.add_phase("drafts", *sequence.drafted_at, {**own, **drafts})


def _add_transfer(span: RequestSpan, sequence: TracedSequence, came: tuple[float, float]) -> None:
    """KV that came from another engine or from disk, or was to. It may have begun before the request came here; the
    span has what the request could notice of it.
    """
    begin, end = came
    arrival = sequence.recorder.arrival
    ticket = sequence.request.kv
    facts: dict[str, Attribute] = {
        "homenode.kv.direction": "received",
        "homenode.kv.source": "disk" if ticket is None else "engine",
        "homenode.kv.tokens": 0
        if sequence.kv_came is None
        else sequence.disk_tokens
        if ticket is None
        else sequence.cached_tokens,
        "homenode.kv.seconds": round(max(0.0, end - begin), 6),
    }
    if ticket is not None:
        facts["homenode.kv.ticket"] = ticket.ticket
    span.add_phase("transfer", max(begin, arrival), max(end, arrival), facts)
