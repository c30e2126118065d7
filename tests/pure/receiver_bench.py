"""The bench of a receiver's scheduler, and the prompts that are handed over to it."""

from __future__ import annotations

import msgspec

from homenode.engine.scheduler_config import SchedulerConfig
from homenode.transfer import scheduler_events
from tests.pure.kv_transfer_bench import HandoverBench
from tests.pure.schedule_bench import limits_of

PROMPT = list(range(1, 15))  # 13 positions come: three full blocks of four, and one position
OTHER = [39 - token for token in PROMPT]


def bench_of(
    num_blocks: int = 64,
    tokens: int = 32,
    seqs: int = 8,
    state_slots: int = 0,
    state_pages: int = 0,
    whole_pages: bool = False,
    **more: object,
) -> HandoverBench:
    config = SchedulerConfig(max_num_batched_tokens=tokens, max_num_seqs=seqs)
    limits = limits_of(num_blocks=num_blocks, state_slots=state_slots, state_pages=state_pages)
    limits = msgspec.structs.replace(limits, whole_pages=whole_pages)
    return HandoverBench(config, limits=limits, **more)  # type: ignore[arg-type]


def items_of(bench: HandoverBench) -> list[tuple[int, int]]:
    step = bench.step()
    assert step is not None
    return [(item.start, item.count) for item in step.items]


def only(bench: HandoverBench, kind: type[scheduler_events.ToAgent]) -> scheduler_events.ToAgent:
    (message,) = bench.told(kind)
    return message
