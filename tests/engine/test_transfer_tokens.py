"""One engine computes prompts, another one the answers: the tokens are those of a single engine, however the KV came
over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.engine.api.local import LocalEngine
from homenode.engine.messages import EngineStats
from homenode.engine.request import Request
from homenode.sampling import SamplingParams
from homenode.transfer.scheduler_events import KvTicket
from tests.checkpoints import make_folder
from tests.engine.courier import Courier
from tests.engine.engines import config_for, greedy, run_all, tokens_of

# Layers, sides, heads, head_dim, float32, tokens: of the toy model's block of 32.
_BLOCK_BYTES = 2 * 2 * 2 * 16 * 4 * 32
ROOMY: dict[str, Any] = {
    "kv_cache_memory": str(100 * _BLOCK_BYTES),
    "block_size": 32,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 8,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Some share beginnings, one is a single token, some end where a block ends."""
    rng = random.Random(3)
    stem = [rng.randrange(3, 128) for _ in range(100)]
    fresh = [[rng.randrange(3, 128) for _ in range(n)] for n in (1, 2, 32, 33, 64, 65, 150, 90)]
    return [*fresh, *(stem[:n] + [rng.randrange(3, 128) for _ in range(5)] for n in (70, 90, 64, 31)), stem, stem]


@pytest.fixture(scope="module")
def params(prompts: list[list[int]]) -> list[SamplingParams]:
    sampled = SamplingParams(max_tokens=30, temperature=0.9, seed=11, ignore_eos=True)
    return [greedy(40) if n % 2 else sampled for n in range(len(prompts))]


@pytest.fixture(scope="module")
def alone(model: Path, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    engine = LocalEngine(config_for(model, backend="reference", kv_cache_dtype="f32", **ROOMY))
    try:
        return [tokens_of(outputs) for outputs in run_all(engine, prompts, params)]
    finally:
        engine.close()


@contextmanager
def pair(
    model: Path,
    *,
    sender: dict[str, Any] | None = None,
    receiver: dict[str, Any] | None = None,
    delay: bool = False,
    loses: Callable[[str], int | None] = lambda ticket: None,
) -> Iterator[Courier]:
    courier = Courier(model, {**ROOMY, **(sender or {})}, {**ROOMY, **(receiver or {})}, delay=delay, loses=loses)
    try:
        yield courier
    finally:
        courier.close()


def _rest(courier: Courier) -> EngineStats:
    assert courier.sender.rest().kv_usage == 0.0
    return courier.receiver.rest()


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("changes", [
    {},
    {"sender": {"max_num_batched_tokens": 24}},  # chunks that end inside a block
    {"sender": {"block_size": 64}},
    {"receiver": {"block_size": 64}},
    {"sender": {"block_size": 96}, "receiver": {"block_size": 64}},
    {"sender": {"enable_prefix_caching": False}},
    {"receiver": {"enable_prefix_caching": False}},
])  # fmt: skip
def test_the_pair_answers_as_one(
    changes: dict[str, Any],
    delay: bool,
    model: Path,
    prompts: list[list[int]],
    params: list[SamplingParams],
    alone: list[list[int]],
) -> None:
    with pair(model, delay=delay, **changes) as courier:
        assert courier.run(prompts, params) == alone
        assert courier.run(prompts, params) == alone  # now much is held already
        figures = _rest(courier)
        assert figures.handed_tokens > 0
        if delay:
            assert figures.recomputed_tokens == 0


@pytest.mark.parametrize("delay", [False, True])
def test_with_little_memory_on_both_sides(
    delay: bool, model: Path, prompts: list[list[int]], params: list[SamplingParams], alone: list[list[int]]
) -> None:
    """Nine blocks of 32 for prompts of up to five: offers are refused, running requests preempted, and what was handed
    over computed again.
    """
    little = {"kv_cache_memory": str(9 * _BLOCK_BYTES), "max_num_seqs": 8}
    with pair(model, sender=little, receiver=little, delay=delay) as courier:
        for _ in range(2):
            assert courier.run(prompts, params) == alone
        figures = _rest(courier)
        assert figures.preemptions > 0 and figures.handed_tokens > 0


@pytest.mark.parametrize("delay", [False, True])
def test_what_is_lost_on_the_way_is_computed(
    delay: bool, model: Path, prompts: list[list[int]], params: list[SamplingParams], alone: list[list[int]]
) -> None:
    rng = random.Random(4)
    with pair(
        model, delay=delay, loses=lambda ticket: rng.choice([0, 1, 2, None]), receiver={"enable_prefix_caching": False}
    ) as courier:
        assert courier.run(prompts, params) == alone
        figures = _rest(courier)
        assert figures.recomputed_tokens > 0 and figures.handed_tokens > 0


def test_another_salt_finds_nothing(
    model: Path, prompts: list[list[int]], params: list[SamplingParams], alone: list[list[int]]
) -> None:
    with pair(model) as courier:
        assert courier.run(prompts, params, salt="one") == alone
        before = _rest(courier).handed_tokens
        assert courier.run(prompts, params, salt="two") == alone
        assert _rest(courier).handed_tokens > before


def test_an_engine_without_an_agent_refuses_a_ticket(model: Path) -> None:
    engine = LocalEngine(config_for(model, backend="reference", **ROOMY))
    try:
        sink: SimpleQueue[Any] = SimpleQueue()
        engine.submit([Request(id=1, prompt_ids=[5, 6], params=greedy(2), kv=KvTicket("abc", sends=False))], sink)
        output = sink.get(timeout=30)
    finally:
        engine.close()
    assert (output.finish_reason, output.error_kind) == ("error", "UserError")
    assert "ticket abc" in output.error and "--pd-role" in output.error
