"""Models whose indexers choose which tokens are attended to, in whole engines: the same bits whatever happens around a
request, and the same tokens however the model is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import KvGeometry
from homenode.engine.api.local import LocalEngine
from homenode.engine.messages import Output
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.weights.load import layers_kv
from tests.engine.engines import config_for, greedy, run_all, tokens_of
from tests.model.test_latent_attention import GLM_5, V32
from tests.model.test_minimax_m3 import CASE as M3
from tests.model.transformers_models import make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

# 20 tokens are chosen, or 2 blocks of 16: of some prompts all, of others few, and some get there while they are
# answered.
LENGTHS = (1, 10, 20, 21, 31, 33, 64, 100)
PROMPTS = [[3 + (11 * n + 7 * k) % 60 for k in range(length)] for n, length in enumerate(LENGTHS)]
PARAMS = greedy(24, logprobs=0)
# Of GLM-5 the middle layer takes what the first has chosen; the first layer of MiniMax M3 attends to all.
MODELS = {
    "every layer": (V32, {}),
    "shared": (GLM_5, {"indexer_types": ["full", "shared", "full"]}),
    "blocks": (M3, {}),
}
FEW = 9  # blocks of KV memory, with which requests are begun again
Bits = tuple[list[int], list[float]]


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    case, changes = MODELS[request.param]
    folder = tmp_path_factory.mktemp("sparse") / "model"
    with quiet_and_on_one_thread():
        make_model(case.kind, {**case.changes, **changes}, folder, seed=3)
    return folder


def _engine(folder: Path, **settings: Any) -> LocalEngine:
    if settings.get("kv_cache_memory") == FEW:
        spec = open_checkpoint(folder).spec
        kept = KvGeometry(layers_kv(spec, ModelPart.whole(spec)), 32, settings.get("kv_cache_dtype", "f32"))
        settings["kv_cache_memory"] = str(FEW * kept.block_bytes)
    chosen = {"threads": 1, "block_size": 32, "max_model_len": 160, "kv_cache_memory": "8MiB", "dtype": "float32"}
    return LocalEngine(config_for(folder, **(chosen | settings)))


def _bits(outputs: list[Output]) -> Bits:
    return tokens_of(outputs), [logprob.logprob for output in outputs for logprob in output.logprobs]


def _one_by_one(folder: Path, **settings: Any) -> list[Bits]:
    engine = _engine(folder, enable_prefix_caching=False, **settings)
    found = [_bits(run_all(engine, [prompt], [PARAMS], first_id=n)[0]) for n, prompt in enumerate(PROMPTS, 1)]
    engine.close()
    return found


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[list[Bits]]:
    """Each prompt by itself, without a prefix cache."""
    yield _one_by_one(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 23, "max_num_seqs": 8},
        {"enable_prefix_caching": False},
        {"kv_cache_memory": FEW, "max_num_seqs": 8},
        {"threads": 2, "max_num_batched_tokens": 40},
        {"pipeline_parallel_size": 2, "stage_devices": "cpu,cpu", "max_num_batched_tokens": 23},
    ],
    ids=str,
)
def test_together_and_again_every_request_has_the_bits_it_has_alone(
    folder: Path, alone: list[Bits], settings: dict[str, Any]
) -> None:
    """Beside others, in chunks, from the prefix cache, begun again, on two threads, and in two stages."""
    engine, preemptions = _engine(folder, **settings), 0
    for turn in range(2):
        found = run_all(engine, PROMPTS, [PARAMS] * len(PROMPTS), first_id=1 + turn * len(PROMPTS))
        assert [_bits(outputs) for outputs in found] == alone
        preemptions += sum(output.num_preemptions for outputs in found for output in outputs)
    cached = sum(outputs[0].cached_tokens for outputs in found)
    engine.close()
    if "kv_cache_memory" in settings:
        assert preemptions > 0
    else:
        assert (cached > 0) == settings.get("enable_prefix_caching", True)


@pytest.mark.parametrize("kept", ["bf16", "int8"])
def test_rounded_keys_choose_the_same_tokens_whatever_shares_the_batch(folder: Path, kept: str) -> None:
    wanted = _one_by_one(folder, kv_cache_dtype=kept)
    engine = _engine(folder, kv_cache_dtype=kept, max_num_batched_tokens=23, kv_cache_memory=FEW)
    found = run_all(engine, PROMPTS, [PARAMS] * len(PROMPTS))
    engine.close()
    assert [_bits(outputs) for outputs in found] == wanted


def test_two_ranks_choose_alike(folder: Path, alone: list[Bits]) -> None:
    """Their sums are in another order than those of one worker, and do not depend on the batch either."""
    settings = {"tensor_parallel_size": 2}
    wanted = _one_by_one(folder, **settings)
    engine = _engine(folder, max_num_batched_tokens=23, kv_cache_memory=FEW, **settings)
    found = run_all(engine, PROMPTS, [PARAMS] * len(PROMPTS))
    engine.close()
    assert [_bits(outputs) for outputs in found] == wanted
    for (tokens, logprobs), (one, of_one) in zip(wanted, alone, strict=True):
        assert tokens == one
        np.testing.assert_allclose(logprobs, of_one, atol=1e-4)
