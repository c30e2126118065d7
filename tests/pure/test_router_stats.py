"""Figures of several engines as one, over restarts; and how patient the front is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.messages import EngineReady, EngineStats, QueueLimits
from homenode.engine.router.restart_policy import RestartPolicy
from homenode.engine.router.stats import all_ready, at_rest, since_start, total
from homenode.transfer.scheduler_events import TransferStats


def figures(number: int) -> EngineStats:
    return EngineStats(
        num_running=number, num_waiting=1, kv_usage=number / 10, prefix_queries=10 * number, prefix_hits=number,
        preemptions=1,
        prompt_tokens=100, generation_tokens=7, steps=3, step_tokens=9, rejected={"draining": 1, f"r{number}": 2},
        compute={"of": number},
    )  # fmt: skip


def test_counters_add_up_and_memory_in_use_is_an_average() -> None:
    seen = total([figures(1), figures(3)])
    assert (seen.num_running, seen.num_waiting, seen.prefix_queries, seen.generation_tokens) == (4, 2, 40, 14)
    assert seen.kv_usage == pytest.approx(0.2)
    assert seen.rejected == {"draining": 2, "r1": 2, "r3": 2}
    assert total([]) == EngineStats()


def test_counters_go_on_over_a_restart_and_gauges_do_not() -> None:
    after = since_start(at_rest(figures(5)), figures(1))
    assert (after.num_running, after.kv_usage, after.compute) == (1, 0.1, {"of": 1})
    assert (after.prompt_tokens, after.steps, after.prefix_hits, after.rejected["draining"]) == (200, 6, 6, 2)
    gone = since_start(figures(2), at_rest(figures(5)))
    assert (gone.num_running, gone.num_waiting, gone.kv_usage, gone.compute, gone.prefix_hits) == (0, 0, 0.0, {}, 7)


def test_all_counters_of_engines_and_of_lives_add_up() -> None:
    counts: dict[str, Any] = {}
    for number, field in enumerate(msgspec.structs.fields(EngineStats), 1):
        if field.type in (int, float):
            counts[field.name] = number
        elif field.type in (dict[str, int], dict[str, list[float]]):
            counts[field.name] = {"a": number} if field.type == dict[str, int] else {"a": [number, 1.5]}
    twice = {
        name: {"a": [2 * value["a"][0], 3.0]}
        if name == "step_times"
        else {"a": 2 * value["a"]}
        if isinstance(value, dict)
        else 2 * value
        for name, value in counts.items()
    }
    of_now = {"num_running", "num_waiting", "waiting_for", "waiting_for_kv", "kv_usage"}
    one = EngineStats(**counts)
    after, both = msgspec.structs.asdict(since_start(one, one)), msgspec.structs.asdict(total([one, one]))
    assert {name: after[name] for name in counts} == twice | {name: counts[name] for name in of_now}
    assert {name: both[name] for name in counts} == twice | {"kv_usage": counts["kv_usage"]}


def ready(blocks: int, *notes: str, length: int = 512) -> EngineReady:
    pages = {"present": 10, "huge": blocks}
    return EngineReady(
        "m", length, 100, blocks, 32, 512, 128, True,
        details={"weight_bytes": 1000, "kv_bytes": blocks, "load_seconds": blocks / 10, "notes": list(notes),
            "kv_dtype": "f32",
                 "compute": {"threads": 3, "level": "amx", "weight_pages": pages, "kv_pages": None}},
    )  # fmt: skip


def test_what_all_engines_hold_and_what_one_sequence_may_have() -> None:
    bindings = [EngineBinding((0, 1), spare=(2, 6)), EngineBinding((3, 4), others=(3, 4, 6), spare=(2, 6))]
    seen = all_ready([ready(10, "slow disk", "x"), ready(20, "slow disk", length=256)], bindings)
    assert (seen.num_blocks, seen.max_model_len) == (30, 256)
    details = seen.details
    assert (details["engines"], details["weight_bytes"], details["kv_bytes"], details["load_seconds"]) == (
        2,
        2000,
        30,
        2.0,
    )
    assert details["notes"] == ["slow disk", "engine 0: x"], "what all say is said once"
    assert details["compute"] == {
        "threads": 6,
        "level": "amx",
        "weight_pages": {"present": 20, "huge": 30},
        "kv_pages": None,
    }
    assert details["free_cpus"] == [2, 6], "where no engine computes"


def test_a_limit_of_the_queue_that_no_engine_has_is_none_of_all() -> None:
    parts = [msgspec.structs.replace(ready(10), queue=QueueLimits(4, 8, 0))] * 2
    assert all_ready(parts, []).queue == QueueLimits(8, 16, 0)
    assert all_ready(parts, []).queue.most_requests == 24
    assert QueueLimits(8, 0, 5).most_requests is None


def test_each_engine_tells_routers_at_an_endpoint_of_its_own() -> None:
    parts = [ready(10), ready(10)]
    assert all_ready(parts, []).details["kv_events"] == {}
    for number, part in enumerate(parts):
        part.details["kv_events"] = {str(number): {"endpoint": f"tcp://127.0.0.1:{5557 + number}"}}
    told = all_ready(parts, []).details["kv_events"]
    assert told == {"0": {"endpoint": "tcp://127.0.0.1:5557"}, "1": {"endpoint": "tcp://127.0.0.1:5558"}}


def test_delays_double_and_end() -> None:
    patience = RestartPolicy(tries=5, first_delay_s=0.5, longest_delay_s=3.0)
    assert [patience.delay(failures) for failures in range(1, 7)] == [0.5, 1.0, 2.0, 3.0, 3.0, None]


def test_an_engine_has_a_node_when_its_memory_is_on_one() -> None:
    assert [Replica(0, 2, EngineBinding((0,), memory_nodes=nodes)).node for nodes in ((), (3,), (0, 1))] == [
        None,
        3,
        None,
    ]


def test_figures_of_transfer_go_on_as_well() -> None:
    def handed(number: int) -> EngineStats:
        durations = [number] * len(TransferStats().durations)
        return EngineStats(
            transfer=TransferStats(
                bytes=number, pinned_pages=3, peers=1, failed={"gone": 1, f"r{number}": 2}, durations=durations
            )
        )

    after = since_start(at_rest(handed(5)), handed(1)).transfer
    assert after is not None and (after.bytes, after.pinned_pages, after.peers) == (6, 3, 1)
    assert after.failed == {"gone": 2, "r5": 2, "r1": 2} and set(after.durations) == {6}
    loading = since_start(handed(5), EngineStats()).transfer
    assert loading is not None and (loading.bytes, loading.pinned_pages, loading.peers) == (5, 0, 0), (
        "its successor has said nothing yet"
    )
    assert since_start(EngineStats(), EngineStats()).transfer is None
