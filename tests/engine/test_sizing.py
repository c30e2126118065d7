"""Settings to numbers: what is accepted, what is refused and in which words."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from homenode.compute.ops import KvGeometry
from homenode.engine.config import EngineConfig
from homenode.engine.memory.sizing import (
    choose_cpus,
    chunk_of,
    chunk_of_parts,
    problems,
    resolve,
    step_bytes,
    step_limits,
)
from homenode.errors import CapacityError, UserError
from homenode.host.topology.host import Host
from homenode.model.spec import ModelSpec, RopeSpec
from tests.host_values import Shape, host_of

GIB = 2**30
STORIES = ModelSpec(
    architecture="llama", hidden_size=64, intermediate_size=172, num_layers=5, num_heads=8, num_kv_heads=4, head_dim=8,
    vocab_size=512,
    max_position=512, norm_eps=1e-5, rope=RopeSpec(), tie_word_embeddings=True,
)  # fmt: skip
LARGE = dataclasses.replace(
    STORIES,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    max_position=131072,
)


def geometry(spec: ModelSpec, block_size: int = 64, dtype: str = "f32") -> KvGeometry:
    return KvGeometry.uniform(spec.num_layers, spec.num_kv_heads, spec.head_dim, block_size, dtype)


def config(**settings: Any) -> EngineConfig:
    return EngineConfig.of(None, settings)


def test_two_mebibytes_hold_the_stories() -> None:
    settings = config(kv_cache_memory="2MiB", max_model_len=512)
    sizes = resolve(settings, STORIES, geometry(STORIES), GIB)
    assert sizes.num_blocks == 2 * 2**20 // (1280 * 64) == 25
    limits = step_limits(settings, sizes)
    assert (limits.max_tokens, limits.max_sequences, limits.max_sampled_rows, limits.max_blocks_per_sequence) == (
        512,
        128,
        256,
        8,
    )
    assert sizes.vocab_size == 512


def test_by_default_no_more_than_all_sequences_could_fill() -> None:
    assert resolve(config(), STORIES, geometry(STORIES), 64 * GIB).num_blocks == 128 * 8
    sizes = resolve(
        config(kv_cache_fraction=0.25), LARGE, geometry(LARGE, dtype="bf16"), 128 * GIB + step_bytes(config(), LARGE)
    )
    assert sizes.num_blocks == 32 * GIB // geometry(LARGE, dtype="bf16").block_bytes


def test_scales_of_int8_are_counted() -> None:
    assert geometry(STORIES, dtype="int8").block_bytes == 5 * 4 * 2 * 64 * (8 + 4)
    sizes = resolve(
        config(kv_cache_memory="2MiB", kv_cache_dtype="int8"), STORIES, geometry(STORIES, dtype="int8"), GIB
    )
    assert sizes.num_blocks == 2 * 2**20 // (480 * 64) == 68


def test_one_sequence_of_full_length_must_fit() -> None:
    room = 8 * GIB + step_bytes(config(), LARGE)  # the buffers of a step come first
    (problem,) = problems(config(), LARGE, geometry(LARGE, dtype="bf16"), room)
    assert isinstance(problem, CapacityError)
    assert (
        "--max-model-len 131072 needs 2048 KV blocks of 64 tokens (16GiB), but 4GiB of KV memory hold 512"
        in problem.message
    )
    assert "set --max-model-len to 32768 or less, or give --kv-cache-memory at least 16GiB" in problem.message
    assert problems(config(max_model_len=32768), LARGE, geometry(LARGE, dtype="bf16"), room) == []
    with pytest.raises(CapacityError, match=r"give --kv-cache-memory at least 80KiB"):
        resolve(config(kv_cache_memory=1000, max_model_len=64), STORIES, geometry(STORIES), GIB)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 513}, "--max-model-len 513 is more than the 512 positions"),
        ({"max_num_seqs": 300, "max_num_batched_tokens": 299}, "--max-num-seqs 300"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 300}, "--max-num-batched-tokens 300"),
        ({"block_size": 48}, "--block-size 48"),
        ({"kv_cache_memory": 2 * GIB}, "--kv-cache-memory 2GiB is more than the 1021.7MiB"),
        ({"max_num_batched_tokens": 10**9}, "--max-num-batched-tokens 1000000000 needs about"),
    ],
)
def test_settings_that_cannot_work_are_named(settings: dict[str, Any], words: str) -> None:
    found = problems(config(**settings), STORIES, geometry(STORIES, settings.get("block_size", 64)), GIB)
    assert len(found) == 1
    assert words in found[0].message


def test_all_problems_are_found_at_once() -> None:
    found = problems(
        config(max_model_len=600, max_num_seqs=300, max_num_batched_tokens=299, kv_cache_memory=5),
        STORIES,
        geometry(STORIES),
        GIB,
    )
    assert [p.param for p in found] == ["max_model_len", "max_num_seqs", "kv_cache_memory"]


def test_rows_of_logits_are_bounded_for_large_vocabularies() -> None:
    assert resolve(config(max_num_seqs=4), STORIES, geometry(STORIES), GIB).max_sampled_rows == 256
    huge = dataclasses.replace(STORIES, vocab_size=1_000_000)
    assert resolve(config(max_num_seqs=4), huge, geometry(huge), GIB).max_sampled_rows == 67
    assert resolve(config(max_num_seqs=100), huge, geometry(huge), GIB).max_sampled_rows == 100


def on(cores: int, threads: int = 1, quota: float | None = None) -> Host:
    return host_of([Shape(0, cores, threads)], siblings_apart=True, quota=quota)


@pytest.mark.parametrize(
    ("threads", "host", "chosen"),
    [
        (None, on(1), (0,)),
        (None, on(2), (0, 1)),
        (None, on(4, 2), (0, 1, 2)),
        (None, on(4, 2, quota=2.9), (0, 1)),
        (None, on(4, 2, quota=0.5), (0,)),
        (2, on(4, 2), (0, 1)),
        (4, on(4, 2, quota=1.0), (0, 1, 2, 3)),
        (6, on(4, 2), (0, 1, 2, 3, 4, 5)),
    ],
)
def test_threads_get_cores_first(threads: int | None, host: Host, chosen: tuple[int, ...]) -> None:
    assert choose_cpus(threads, host) == chosen


def test_more_threads_than_cpus_are_refused() -> None:
    with pytest.raises(UserError, match="--threads 9: this process may use 8 CPUs"):
        choose_cpus(9, on(4, 2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_num_sequences": 3}, "no setting max_num_sequences"),
        ({"max_num_seqs": -1}, "max_num_seqs is -1; it must be at least 0"),
        ({"kv_cache_fraction": float("nan")}, "kv_cache_fraction is nan"),
        ({"quantize": "q3"}, "choose one of q8_0, q4_0"),
        ({"kv_cache_memory": "2 gallons"}, "not a size"),
        ({"max_num_seqs": "many"}, "wrong kind"),
        ({"kv_cache_memory": 1.5}, "wrong kind"),
    ],
)
def test_settings_from_python_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        config(**settings)


def test_a_stage_without_keys_and_values_bounds_nothing() -> None:
    none, some = KvGeometry((), 64, "bf16"), KvGeometry.uniform(2, 2, 64, 64, "bf16")
    assert chunk_of_parts((none, some), 64) == chunk_of_parts((some,), 64)
    assert none.block_bytes == 0 and chunk_of(none, 64)["chunk_bytes"] == 0
