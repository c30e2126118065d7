"""A card against the NumPy backend, and what is only there on a card: narrow types, captured steps, its memory."""

from __future__ import annotations

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import StepLimits
from homenode.compute.reference import ReferenceBackend
from homenode.compute.reference import sampling as reference_sampling
from homenode.compute.torch import TorchBackend, open_backend
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.parts import PartitionSpec
from homenode.model.weights.load import load_model
from tests.checkpoints import make_folder
from tests.model.driver import Driver
from tests.model.split import split_driver
from tests.model.test_split import ARCHITECTURES, PROMPTS, check_golden, toy
from tests.paths import STORIES, needs_data
from tests.torch_backend import steps
from tests.torch_backend.test_sampling import random_how

EXACT, ROUNDED = 1e-5, 4e-2  # of the spread: other orders of float32 sums; 8 significant bits
LARGE_SCORES = 4e-5  # attention whose scores are not scaled down
STATED = 1e-4  # sums that go through every state of a sequence


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float32_models_answer_as_the_reference_does(card: TorchBackend, tmp_path: Path, architecture: str) -> None:
    checkpoint, oracle = toy(tmp_path / "weights", architecture), ReferenceBackend()
    wanted = Driver(load_model(checkpoint, oracle), oracle).generate(PROMPTS, 24, chunk=4, stagger=2)
    found = Driver(load_model(checkpoint, card), card).generate(PROMPTS, 24, chunk=4, stagger=2)
    for one, other in zip(found, wanted, strict=True):
        expected = np.stack(other.logprobs)
        assert one.tokens == other.tokens
        bound = LARGE_SCORES if architecture == "gemma4" else EXACT
        assert np.abs(np.stack(one.logprobs) - expected).max() < bound * np.ptp(expected)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
def test_models_that_keep_states_answer_as_the_reference_does(card: TorchBackend, tmp_path: Path, name: str) -> None:
    pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")
    from tests.model.test_delta_net import CASES
    from tests.model.transformers_models import make_model

    make_model(CASES[name].kind, CASES[name].changes, tmp_path, seed=CASES[name].seed)
    checkpoint, oracle = open_checkpoint(tmp_path), ReferenceBackend()
    wanted = Driver(load_model(checkpoint, oracle), oracle).generate(PROMPTS, 24, chunk=4, stagger=2)
    found = Driver(load_model(checkpoint, card), card).generate(PROMPTS, 24, chunk=4, stagger=2)
    for one, other in zip(found, wanted, strict=True):
        assert one.tokens == other.tokens
        assert np.abs(np.stack(one.logprobs) - np.stack(other.logprobs)).max() < STATED * np.ptp(other.logprobs)


def test_bfloat16_models_come_near(card: TorchBackend, tmp_path: Path) -> None:
    checkpoint, oracle = open_checkpoint(make_folder(tmp_path, "qwen3", dtype="BF16")), ReferenceBackend()
    model = load_model(checkpoint, card)
    assert {m.target for m in model.layout.matrices} == {"BF16"} and model.kv_geometry(32).dtype == "bf16"
    prompt = np.random.default_rng(1).integers(0, model.spec.vocab_size, 90).tolist()
    _, wanted = Driver(load_model(checkpoint, oracle), oracle).prefill(prompt)
    _, found = Driver(model, card).prefill(prompt, chunk=31)
    assert np.abs(found - wanted).max() < ROUNDED * np.ptp(wanted)


@needs_data
def test_golden_text_of_a_real_model(card: TorchBackend) -> None:
    entries: list[dict[str, Any]] = json.loads((STORIES / "golden.json").read_text())
    count = min(len(e["greedy_ids"]) for e in entries)
    found = Driver(load_model(open_checkpoint(STORIES), card), card).generate(
        [e["prompt_ids"] for e in entries], count, chunk=5, stagger=3
    )
    assert [s.tokens for s in found] == [e["prompt_ids"] + e["greedy_ids"][:count] for e in entries]


@needs_data
@pytest.mark.parametrize("first", ["card", "cpu"])
def test_golden_text_of_a_card_and_a_cpu_stage(card: TorchBackend, first: str) -> None:
    turn = iter((card, ReferenceBackend()) if first == "card" else (ReferenceBackend(), card))
    check_golden(open_checkpoint(STORIES), PartitionSpec(stages=2, layers=(2, 3)), lambda: next(turn))


@needs_data
def test_golden_text_of_a_card_and_a_cpu_rank(card: TorchBackend) -> None:
    """Sums cross by pinned memory."""
    turn = iter((card, ReferenceBackend()))
    check_golden(open_checkpoint(STORIES), PartitionSpec(ranks=2), lambda: next(turn))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (50, None), (33, 2.0)])
@pytest.mark.parametrize("way", ["tiled", "sdpa"])
def test_attention(way: str, window: int | None, softcap: float | None, dtype: str) -> None:
    compare(open_backend("cuda:0", attention=way), dtype, window, softcap, ROUNDED if dtype == "bf16" else EXACT)


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (50, None), (33, 2.0)])
@pytest.mark.parametrize(("way", "package"), [("flash", "flash_attn"), ("flashinfer", "flashinfer")])
def test_attention_of_packages(
    way: str, package: str, window: int | None, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    monkeypatch.setattr(steps, "HEAD", 64)
    monkeypatch.setattr(steps, "COLUMNS", (steps.KV_HEADS * steps.GROUP + 2 * steps.KV_HEADS) * 64)
    compare(open_backend("cuda:0", attention=way), "bf16", window, softcap, ROUNDED)


def compare(backend: TorchBackend, dtype: str, window: int | None, softcap: float | None, bound: float) -> None:
    wanted = steps.run(ReferenceBackend(), steps.history(), dtype, window, softcap)
    found = steps.run(backend, steps.history(), dtype, window, softcap)
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < bound * np.abs(other).max()


def test_steps_that_decode_are_captured() -> None:
    backend = open_backend("cuda:0")
    cache = backend.kv_cache(steps.geometry("bf16"), steps.BLOCKS)
    program = backend.compile(steps.attending(cache, None, None), StepLimits(512, 16, 512, steps.WIDEST))
    eager = open_backend("cuda:0", enforce_eager=True)
    wanted = steps.run(eager, steps.history(), "bf16")
    found = [np.array(program.run(each)) for each in steps.history()]
    assert program.graphs == 1
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < ROUNDED * np.abs(other).max()


def test_draws_are_the_references(card: TorchBackend) -> None:
    import torch

    from homenode.compute.torch import TorchRows

    logits = np.random.default_rng(5).normal(0, 3, (64, 5000)).astype(np.float32)
    how = random_how(64, 5000, 5)
    wanted = reference_sampling.sample_rows(logits, how, 2)
    found = card.sample(TorchRows(torch.from_numpy(logits).cuda()), how, 2)
    assert found.tokens.tolist() == wanted.tokens.tolist() and found.top_tokens.tolist() == wanted.top_tokens.tolist()


def test_kv_memory_gets_what_a_largest_step_leaves(tmp_path: Path) -> None:
    import torch

    backend = open_backend("cuda:0")
    model = load_model(toy(tmp_path / "weights", "qwen2_moe"), backend)
    limits = StepLimits(512, 16, 64, 8)
    half, most = (backend.kv_room(model.forward, model.kv_geometry(32), limits, share) for share in (0.5, 0.9))
    total = torch.cuda.mem_get_info()[1]
    assert 0 < half < 0.5 * total and abs((most - half) - 0.4 * total) < 2**28


def test_ranks_by_nccl(tmp_path: Path) -> None:
    import torch

    from homenode.compute.torch.device import open_device
    from homenode.compute.torch.ranks import open_group

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two cards")

    def rank(number: int) -> list[Any]:
        device = open_device(f"cuda:{number}")
        with torch.cuda.device(device.device):
            group = open_group(str(tmp_path / "store"), "0", number, 2, device, 60)
            values = np.full((2, 3), number + 1, np.float32)
            group.sum(values)
            return [values.tolist(), group.gather(np.full((1, number + 1), number, np.float32), (1, 2)).tolist()]

    with ThreadPoolExecutor(2) as threads:
        for running in [threads.submit(rank, number) for number in range(2)]:
            assert running.result(120) == [[[3.0] * 3] * 2, [[0.0, 1.0, 1.0]]]


def test_two_programs_take_turns_on_one_card(card: TorchBackend, tmp_path: Path) -> None:
    """Their graphs have one pool; what one leaves, the other does not see."""
    checkpoint = toy(tmp_path / "weights", "llama")
    model = load_model(checkpoint, card)
    one, other = Driver(model, card), Driver(model, card)
    alone = Driver(model, card).generate(PROMPTS, 12)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(one.generate, PROMPTS, 12).result(60)
    assert [s.tokens for s in first] == [s.tokens for s in other.generate(PROMPTS, 12)] == [s.tokens for s in alone]


def test_parts_on_one_card(card: TorchBackend, tmp_path: Path) -> None:
    checkpoint = toy(tmp_path / "weights", "qwen3")
    whole = Driver(load_model(checkpoint, card), card, kv_dtype="f32").generate(PROMPTS, 8)
    cut = split_driver(
        checkpoint, PartitionSpec(stages=2, ranks=2), lambda: open_backend("cuda:0"), kv_dtype="f32"
    ).generate(PROMPTS, 8)
    assert [s.tokens for s in cut] == [s.tokens for s in whole]


def test_a_wide_window_is_no_window(card: TorchBackend, tmp_path: Path) -> None:
    from tests.model.toys import array_checkpoint, toy_arrays, toy_spec

    spec = toy_spec("mistral")
    checkpoints = [
        array_checkpoint(tmp_path / str(window), replace(spec, sliding_window=window), toy_arrays(spec))
        for window in (None, 250)
    ]
    found = [Driver(load_model(checkpoint, card), card).generate(PROMPTS, 12) for checkpoint in checkpoints]
    assert [s.tokens for s in found[0]] == [s.tokens for s in found[1]]
