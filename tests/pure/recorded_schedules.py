"""Histories of a scheduler with one stage, boiled down to checksums: what it sent and told, every few moves.

The moves of a history follow from its seed alone, so that whatever differs is the scheduler's doing. `python -m
tests.pure.recorded_schedules` records them anew: only after a change that is meant to change the steps of an engine
with one stage.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from homenode.engine.messages import Output
from homenode.engine.scheduler.events import Emit, Instruction, ToTransfer, Warn
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import Step
from homenode.transfer.scheduler_events import ToAgent
from tests.pure import test_kv_transfer_properties, test_schedule_properties
from tests.pure.kv_transfer_bench import HandoverBench
from tests.pure.schedule_bench import Bench, limits_of

RECORDED = Path(__file__).with_name("recorded_schedules.json")
SEEDS = range(12)
_EVERY = 25  # moves between two checksums
_MOVES = 400


def _of_step(step: Step) -> object:
    starts = [(start.seq, start.token_ids, start.num_prompt) for start in step.starts]  # their sampling seeds are drawn
    items = [(i.seq, i.start, i.count, list(i.new_blocks), bool(i.draws), i.score_from) for i in step.items]
    return "step", step.number, list(step.ends), starts, items


def _of_output(o: Output) -> object:
    ends = (o.finish_reason, o.stop_token, o.error, o.error_kind, o.retry_after_s, o.num_preemptions)
    return "output", o.id, list(o.tokens), len(o.logprobs), o.prompt_logprobs is not None, o.cached_tokens, ends


def _of_message(message: ToAgent) -> str:
    """Its kind by number, so that a new name for a message changes no checksum, and its fields but for seconds: what
    steps are expected to take is no part of a schedule.
    """
    fields = [field for field in msgspec.structs.astuple(message) if not isinstance(field, float)]
    return repr((get_args(ToAgent).index(type(message)), tuple(fields)))


def _of_told(told: list[Instruction]) -> list[object]:
    """Outputs, warnings and messages, each kind in its order."""
    outputs = [output for instruction in told if isinstance(instruction, Emit) for output in instruction.outputs]
    warnings = [instruction.message for instruction in told if isinstance(instruction, Warn)]
    messages = [_of_message(instruction.message) for instruction in told if isinstance(instruction, ToTransfer)]
    return [*map(_of_output, outputs), *warnings, *messages]


class _Record:
    """A running checksum over the steps and instructions of a bench that were not looked at yet."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._sum = bench, 0
        self._steps = self._instructions = 0

    def checksum(self) -> int:
        bench = self._bench
        steps, told = bench.steps[self._steps :], bench.instructions[self._instructions :]
        self._steps, self._instructions = len(bench.steps), len(bench.instructions)
        for what in (*map(_of_step, steps), *_of_told(told)):
            self._sum = zlib.crc32(repr(what).encode(), self._sum)
        return self._sum


def _storm(lookahead: int, seed: int) -> Iterator[int]:
    """Far too many for the memory."""
    rng = random.Random(seed)
    config = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=16, max_preemptions=seed % 3)
    bench = Bench(config, limits=limits_of(num_blocks=20, max_model_len=72), lookahead=lookahead)
    for _ in range(40):
        prompt = [rng.randrange(40) for _ in range(rng.randrange(1, 9))]
        bench.submit(prompt, max_tokens=48, ignore_eos=True, priority=rng.choice([0, 0, 1]))
    bench.run()
    yield _Record(bench).checksum()


def _plain(lookahead: int, seed: int) -> Iterator[int]:
    rng = random.Random(seed)
    bench = test_schedule_properties.make_bench(rng, lookahead, faults=seed % 2 == 1, groups=False)
    record = _Record(bench)
    for move in range(_MOVES):
        test_schedule_properties.move(bench, rng, arrivals=0.12)
        if move % _EVERY == 0:
            yield record.checksum()
    bench.run()
    yield record.checksum()


def _coordinator(lookahead: int, seed: int) -> Iterator[int]:
    rng = random.Random(seed)
    bench: HandoverBench = test_kv_transfer_properties.make_bench(rng, lookahead, faults=seed % 2 == 1, groups=False)
    record = _Record(bench)
    for move in range(_MOVES):
        test_kv_transfer_properties.move(bench, rng)
        if move % _EVERY == 0:
            yield record.checksum()
    bench.settle()
    yield record.checksum()


KINDS = {"plain": _plain, "handover": _coordinator, "storm": _storm}


def history(kind: str, lookahead: int, seed: int) -> Iterator[int]:
    """Checksums of a history, one for every few moves, the last when all is over."""
    return KINDS[kind](lookahead, seed)


def recorded() -> dict[str, Any]:
    """What was recorded: checksums by name."""
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def name_of(kind: str, lookahead: int, seed: int) -> str:
    return f"{kind} {lookahead} {seed}"


if __name__ == "__main__":
    histories = {name_of(k, a, s): list(history(k, a, s)) for k in KINDS for a in (0, 1) for s in SEEDS}
    lines = (f"  {json.dumps(name)}: {json.dumps(sums)}" for name, sums in histories.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
