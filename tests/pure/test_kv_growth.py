"""What becomes of requests when the machine has no memory for their KV: who waits, who is preempted, and what is
said."""

from __future__ import annotations

import pytest

from homenode.engine.memory import headroom
from homenode.engine.memory.headroom import Headroom, headroom_of
from homenode.engine.scheduler.events import Warn
from homenode.engine.scheduler.growth import LONGEST_WAIT_S
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.host.topology.facts import FactReader
from homenode.host.topology.source import RecordedSource
from tests.pure.schedule_bench import BLOCK_BYTES, Bench, limits_of

_PROMPT = list(range(1, 17))  # four blocks


def _bench(room: list[int], *, caching: bool = True, release_s: float = 0.0) -> Bench:
    """`room`: blocks of memory that the machine has, the last of the list."""
    return Bench(
        SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4),
        limits=limits_of(num_blocks=64, max_model_len=64, chunk_blocks=1),
        caching=caching,
        headroom=lambda: room[-1] * BLOCK_BYTES,
        release_s=release_s,
    )


def _warnings(bench: Bench) -> list[str]:
    return [told.message for told in bench.instructions if isinstance(told, Warn)]


def _blocks_there(bench: Bench) -> int:
    return len(bench.executor.present)


def test_memory_comes_with_use_and_not_with_admission() -> None:
    bench = _bench([1000])
    bench.submit(_PROMPT, max_tokens=1, ignore_eos=True)
    assert _blocks_there(bench) == 0
    bench.step()
    assert _blocks_there(bench) == 2 + 1  # eight positions, and what is taken ahead
    bench.run()
    assert _blocks_there(bench) <= 4 + 2


def test_a_prompt_in_the_midst_of_which_memory_ends_is_preempted_and_computed_when_there_is_some() -> None:
    room = [3]
    bench = _bench(room)
    number = bench.submit(_PROMPT, max_tokens=2, ignore_eos=True)
    bench.fill()
    bench.finish_step()
    room.append(0)
    while bench.fill() or bench.finish_step():
        pass
    assert bench.scheduler.statistics().preemptions == 1
    first, second = _warnings(bench)
    assert "KV memory cannot grow beyond" in first
    assert "this is a test" in first
    assert f"request {number} was preempted" in second
    room.append(100)
    bench.tick(0.3)
    bench.run()
    assert bench.final(number).finish_reason == "length"
    assert "KV memory can grow again" in _warnings(bench)[-1]
    assert bench.scheduler.statistics().kv_growths_refused == 1


def test_who_decodes_is_preempted_for_another_when_memory_ends() -> None:
    bench = _bench([0])
    bench._headroom = lambda: (12 - _blocks_there(bench)) * BLOCK_BYTES  # one of them needs nine
    numbers = [bench.submit([1 + n, 2, 3], max_tokens=30, ignore_eos=True) for n in range(3)]
    bench.run()
    assert _blocks_there(bench) == 12
    assert bench.scheduler.statistics().preemptions > 0
    assert [len(bench.tokens(number)) for number in numbers] == [30, 30, 30]


def test_who_needs_more_than_there_is_waits_for_a_while_and_is_told_to_come_again() -> None:
    room = [2]
    bench = _bench(room)
    bench.submit(_PROMPT, max_tokens=1, ignore_eos=True)
    while bench.fill() or bench.finish_step():
        room.append(0)
    bench.tick(LONGEST_WAIT_S / 2)
    assert bench.step() is None
    assert 0 not in bench.outputs
    assert bench.scheduler.next_deadline() is not None
    bench.tick(LONGEST_WAIT_S)
    bench.step()
    last = bench.final(0)
    assert (last.error_kind, last.retry_after_s is not None) == ("OverloadedError", True)
    assert "KV memory cannot grow for this request: this is a test" in str(last.error)
    bench.run()


def test_unused_memory_goes_back_and_is_told() -> None:
    bench = _bench([1000], caching=False, release_s=3.0)
    bench.submit(_PROMPT, max_tokens=1, ignore_eos=True)
    bench.run()
    there = _blocks_there(bench)
    assert there >= 4
    due = bench.scheduler.next_deadline()
    assert due is not None
    bench.tick(due - bench.now - 0.01)
    assert _blocks_there(bench) == there
    bench.tick(0.02)
    assert _blocks_there(bench) == 0
    assert bench.scheduler.statistics().kv_released_bytes == there * BLOCK_BYTES
    assert bench.scheduler.next_deadline() is None


def test_the_prefix_cache_is_used_until_it_goes_back_and_computed_again_afterwards() -> None:
    bench = _bench([1000], release_s=3.0)
    bench.submit(_PROMPT, max_tokens=1, ignore_eos=True)
    bench.run()
    bench.tick(2.9)
    bench.submit(_PROMPT, max_tokens=1, ignore_eos=True)
    bench.run()
    assert bench.scheduler.statistics().prefix_hits == 12
    for _ in range(40):
        bench.tick(1.0)
    bench.submit(_PROMPT, max_tokens=1, ignore_eos=True)
    bench.run()
    assert bench.final(2).finish_reason == "length"


def test_a_machine_that_there_is_no_memory_to_look_at_has_none_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of the engine looks, and must not end by it."""

    def refused(reader: FactReader, parts: object) -> Headroom:
        raise MemoryError

    assert headroom_of((), RecordedSource("m", {}))().nbytes == 0
    monkeypatch.setattr(headroom, "read_headroom", refused)
    there = headroom_of()()
    assert there.nbytes == 0 and "memory" in there.reason
