"""The requests that an engine has, one by one, for whoever looks at it: what runs, what waits, and why it waits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from homenode.engine.kv.sequence import Sequence
from homenode.engine.messages import RequestList, RequestRow, WaitReason
from homenode.engine.scheduler.sequence_lists import SequenceLists


def list_requests(lists: SequenceLists, number: int, most: int, now: float) -> RequestList:
    """The answer to the question of this number: those that run before those that wait, at most `most` of each."""
    running = [_row(each, now) for each in islice(lists.running, most)]
    waiting = [_row(each, now, why) for each, why in islice(_waiting(lists), most)]
    left_out = len(lists.running) - len(running) + lists.num_waiting - len(waiting)
    return RequestList(number, [*running, *waiting], left_out)


def _waiting(lists: SequenceLists) -> Iterator[tuple[Sequence, WaitReason]]:
    """Those that wait in the order of their arrival, with what each waits for: those of the queue for what its first
    one lacks, as they are counted.
    """
    held_by = lists.held_by
    for sequence in lists.waiting:
        yield sequence, held_by
    for sequence in (*lists.waiting_for_kv.values(), *lists.ready_kv):
        yield sequence, "kv"


def _row(sequence: Sequence, now: float, why: WaitReason | None = None) -> RequestRow:
    allocation = sequence.allocation
    return RequestRow(
        id=sequence.id,
        prompt=sequence.num_prompt,
        computed=min(allocation.computed, sequence.num_prompt) if allocation else 0,
        generated=sequence.num_outputs,
        cached=sequence.cached_tokens,
        age_s=round(max(0.0, now - sequence.arrived), 3),
        waits_for=why,
        preemptions=sequence.preemptions,
    )
