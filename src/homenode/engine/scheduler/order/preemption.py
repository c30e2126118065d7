"""The choice of who gives way when KV blocks run out.

Preemption is by recompute: the victim's blocks are freed and all its tokens are computed again later. The cheapest
victim of the least important class is taken, whatever its age, except the first in order: it always advances, so that
the engine as a whole does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from homenode.engine.kv.sequence import Sequence
from homenode.units import format_count


def choose_victim(
    needy: Sequence, running: Iterable[Sequence], first: Sequence, max_preemptions: int, cost: Callable[[Sequence], int]
) -> Sequence | None:
    """The sequence to preempt so that `needy` gets a block: perhaps itself, or None, then it keeps its blocks and
    waits.

    No victim is more important than the needy. One that was preempted `max_preemptions` times is taken only for the
    sake of `first`, and only if there is no other. `cost` gives the tokens a victim would have to compute again. Among
    equals the last to arrive gives way.
    """
    candidates = [s for s in running if s is not first and s.order[0] >= needy.order[0] and not s.exhausted]
    fresh = [s for s in candidates if s.preemptions < max_preemptions]
    if not fresh and needy is not first:
        return None
    return max(fresh or candidates, key=lambda s: (s.order[0], -cost(s), s.order), default=None)


def preemption_warning(victim: Sequence, needy: Sequence, num_blocks: int, cost: int, total: int) -> str:
    """Return what the operator should know: who, why, what to raise, how often so far."""
    cause = "its own next token" if needy is victim else f"the next token of request {needy.id}"
    return (
        f"request {victim.id} was preempted: none of the {format_count(num_blocks, 'KV block')} was free for "
        f"{cause}. Up to {format_count(cost, 'token')} of it will be "
        f"computed again (preemptions of this request: {victim.preemptions}). If this happens often raise "
        "--kv-cache-memory (--gpu-memory-utilization on accelerators), lower --max-num-seqs or "
        "--max-num-batched-tokens, or give the model more workers (--tensor-parallel-size, --pipeline-parallel-size). "
        f"Preemptions since the start: {total}"
    )


def growth_preemption_warning(victim: Sequence, total: int) -> str:
    """Return a warning that the machine had no memory for the prompt of `victim`."""
    return (
        f"request {victim.id} was preempted: KV memory cannot grow for its prompt, and it waits for memory that "
        "others give back "
        f"(preemptions of this request: {victim.preemptions}). Preemptions since the start: {total}"
    )
