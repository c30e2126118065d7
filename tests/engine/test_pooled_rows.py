"""A model that pools rows of runs of tokens, in whole engines: the same bits whatever happens around a request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.native.backend import NativeBackend
from homenode.compute.ops import KvGeometry
from homenode.engine.api.local import LocalEngine
from homenode.engine.config import EngineConfig, TransferConfig
from homenode.engine.memory.state_sizing import state_handover_problem, state_pages
from homenode.engine.worker.state_pages import StatePages
from homenode.errors import HomenodeError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.state import state_geometry_of
from homenode.model.weights.load import kv_geometry_of, layers_kv, plan_model
from tests.engine.engines import greedy, run_all, tokens_of
from tests.engine.state_engines import Bits, bits_alone, bits_of, engine_of, prompts_of, put_nan_in_every_slot
from tests.model.test_deepseek_v4 import made
from tests.model.transformers_models import quiet_and_on_one_thread

pytestmark = pytest.mark.torch

LENGTHS = (3, 25, 30, 50)
PROMPTS = prompts_of(LENGTHS)
PARAMS = greedy(12, logprobs=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pooled") / "model"
    with quiet_and_on_one_thread():
        made(folder)
    return folder


@pytest.fixture(autouse=True)
def not_a_number_in_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    put_nan_in_every_slot(monkeypatch)


def _engine(folder: Path, **settings: Any) -> LocalEngine:
    return engine_of(folder, **({"max_model_len": 80} | settings))


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[list[Bits]]:
    """Each prompt by itself, without a prefix cache."""
    engine = _engine(folder, enable_prefix_caching=False)
    yield bits_alone(engine, PROMPTS, PARAMS)
    engine.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 23, "max_num_seqs": 8},
        {"state_snapshot_interval": 1},
        {"kv_cache_memory": "FEW", "max_num_seqs": 4, "enable_prefix_caching": False},
        {"threads": 2},
        {"pipeline_parallel_size": 2, "stage_devices": "cpu,cpu", "max_num_batched_tokens": 23},
    ],
    ids=str,
)
def test_together_and_again_every_request_has_the_bits_it_has_alone(
    folder: Path, alone: list[Bits], settings: dict[str, Any]
) -> None:
    """Beside others, in chunks, from the prefix cache, begun again, on two threads, and in two stages."""
    few = settings.get("kv_cache_memory") == "FEW"
    if few:
        checkpoint = open_checkpoint(folder)
        kept = kv_geometry_of(checkpoint.spec, plan_model(checkpoint, NativeBackend([-1])), 32)
        assert kept.state is not None
        settings = settings | {"kv_cache_memory": str(4 * kept.block_bytes + 4 * kept.state.slot_bytes)}
    engine, preemptions = _engine(folder, **settings), 0
    for turn in range(2):
        found = run_all(engine, PROMPTS, [PARAMS] * len(PROMPTS), first_id=1 + turn * len(PROMPTS))
        assert [bits_of(outputs) for outputs in found] == alone
        preemptions += sum(output.num_preemptions for outputs in found for output in outputs)
    engine.close()
    if few:
        assert preemptions > 0
    else:
        assert sum(outputs[0].cached_tokens for outputs in found) > 0


def test_what_cannot_be_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(HomenodeError, match="--tensor-parallel-size 3"):
        _engine(folder, tensor_parallel_size=3).close()


def test_ranks_say_what_one_worker_says(folder: Path, alone: list[Bits]) -> None:
    engine = _engine(folder, tensor_parallel_size=2, max_num_batched_tokens=23)
    found = run_all(engine, PROMPTS, [PARAMS] * len(PROMPTS))
    engine.close()
    assert [tokens_of(outputs) for outputs in found] == [tokens for tokens, _ in alone]


def test_what_is_still_to_be_pooled_lies_in_kv_blocks(folder: Path) -> None:
    spec = open_checkpoint(folder).spec
    part, backend = ModelPart.whole(spec), NativeBackend([-1])
    state = state_geometry_of(spec, part)
    assert state is not None
    geometry = KvGeometry(layers_kv(spec, part), 32, "bf16", state)
    cache, memory = backend.kv_cache(geometry, 40, shared=True), backend.state_memory(state, 2)
    values = np.arange(memory.read_slot(0).size, dtype=np.float32)
    memory.write_slot(0, values)
    blocks = range(3, 3 + state_pages(spec, [part], [geometry]))
    memories = [backend.kv_memory(each) for each in backend.caches_of(cache)]
    assert len(memories) > 1
    pages = StatePages(memories, memory, geometry, spec, part)
    pages.store(0, blocks)
    pages.load(blocks, 1)
    assert np.array_equal(memory.read_slot(1), values)
    config = EngineConfig(transfer=TransferConfig(pd_role="prefill"))
    assert state_handover_problem(config, spec, [part], [geometry], ["cpu"]) is None
