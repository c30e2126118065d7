"""Why a request waits, in words for people, with the setting that would change it."""

from __future__ import annotations

from homenode.engine.messages import EngineReady, WaitReason
from homenode.units import format_count


def waiting_words(reason: WaitReason, ready: EngineReady) -> str:
    """What a request of this engine waits for."""
    match reason:
        case "slots":
            return f"all {format_count(ready.max_num_seqs, 'slot')} of --max-num-seqs are taken: one has to end first"
        case "blocks":
            return f"no KV blocks are free ({ready.num_blocks} in all): one of those that run has to end first"
        case "turn":
            limits = f"--max-num-batched-tokens {ready.max_num_batched_tokens}, --step-time"
            return f"the next step has no room for its prompt yet ({limits})"
        case "prefix":
            return "another request computes the same beginning just now: this one will take it from the cache"
        case "kv":
            return "its keys and values come from another engine, or that engine has no room for them yet"
