"""Captured decode steps, with a recorder that computes again where a card would replay: what is fed, filled up and cut
off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from homenode.compute.ops import StepLimits
from homenode.compute.torch import TorchBackend
from homenode.compute.torch.device import open_device
from homenode.compute.torch.graphs import bucket
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.parts import PartitionSpec
from homenode.model.weights.load import load_model
from tests.model.driver import STATE_SLOTS, Driver
from tests.model.split import split_driver
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec
from tests.torch_backend import steps

BOUND = 2e-6


class ComputesAgain:
    """`Capture` without a card: what was recorded is the function itself, whose result is written where the first one
    was.
    """

    def __init__(self) -> None:
        self.replays = 0

    def record(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        result = compute().clone()

        def again() -> None:
            self.replays += 1
            result.copy_(compute())

        return again, result


def capturing(way: str = "sdpa") -> tuple[TorchBackend, ComputesAgain]:
    capture = ComputesAgain()
    return TorchBackend(open_device("torch:cpu"), way, capture), capture


def test_steps_that_decode_are_replayed_and_give_what_others_give(tmp_path: Path) -> None:
    spec = replace(toy_spec("mistral"), sliding_window=40)
    checkpoint = array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))
    prompts = [[5, 70, 33], list(range(70)), [9] * 35, [1], [2, 3]]
    plain = TorchBackend(open_device("torch:cpu"), "sdpa")
    wanted = Driver(load_model(checkpoint, plain), plain).generate(prompts, 40, stagger=2)
    backend, capture = capturing()
    found = Driver(load_model(checkpoint, backend), backend).generate(prompts, 40, stagger=2)
    assert [s.tokens for s in found] == [s.tokens for s in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(np.stack(one.logprobs) - np.stack(other.logprobs)).max() < BOUND * np.ptp(
            np.stack(other.logprobs)
        )
    assert capture.replays > 30


@pytest.mark.torch
def test_states_are_kept_and_copied_by_replayed_steps(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")
    from tests.model.test_delta_net import CASES
    from tests.model.transformers_models import make_model, quiet_and_on_one_thread

    with quiet_and_on_one_thread():
        make_model(CASES["qwen3_5"].kind, CASES["qwen3_5"].changes, tmp_path, seed=CASES["qwen3_5"].seed)
    checkpoint = open_checkpoint(tmp_path)
    prompts = [[5, 70, 33], list(range(50)), [1]]

    def generated(backend: TorchBackend) -> tuple[list[list[int]], list[int]]:
        """Tokens of the prompts, then of one that goes on from a copy of the second's state in a replayed step."""
        driver = Driver(load_model(checkpoint, backend), backend)
        several = driver.generate(prompts, 10, stagger=1)
        first, _ = driver.prefill(list(range(40)))
        first.tokens.append(41)
        first.copies = [(STATE_SLOTS - 1, 40)]
        driver.step([(first, 1)])
        first.slot = STATE_SLOTS - 1
        first.tokens.append(42)
        return [s.tokens for s in several], driver.step([(first, 1)])[0].argsort()[-5:].tolist()

    backend, capture = capturing()
    assert generated(backend) == generated(TorchBackend(open_device("torch:cpu"), "sdpa"))
    assert capture.replays > 10


def test_a_later_stage_is_fed_its_rows(tmp_path: Path) -> None:
    spec = toy_spec("llama")
    checkpoint = array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))
    made: list[ComputesAgain] = []

    def backend() -> TorchBackend:
        one, capture = capturing()
        made.append(capture)
        return one

    prompts = [[5, 70, 33], list(range(50)), [1]]
    whole = TorchBackend(open_device("torch:cpu"), "sdpa")
    wanted = Driver(load_model(checkpoint, whole), whole).generate(prompts, 10)
    found = split_driver(checkpoint, PartitionSpec(stages=2), backend).generate(prompts, 10)
    assert [s.tokens for s in found] == [s.tokens for s in wanted]
    assert all(capture.replays > 5 for capture in made)


@pytest.mark.parametrize("how", ["a mixture", "a group through the host", "tiles"])
def test_what_the_host_decides_is_not_captured(tmp_path: Path, how: str) -> None:
    spec = toy_spec("mixtral" if how == "a mixture" else "llama")
    checkpoint = array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec))
    made: list[ComputesAgain] = []

    def backend() -> TorchBackend:
        one, capture = capturing("tiled" if how == "tiles" else "sdpa")
        made.append(capture)
        return one

    ranks = 2 if how == "a group through the host" else 1
    split_driver(checkpoint, PartitionSpec(ranks=ranks), backend).generate([[1, 2, 3], [4]], 4)
    assert [capture.replays for capture in made] == [0] * ranks


def test_padding_writes_to_nobodys_block() -> None:
    """Three sequences fill up a graph of four, whose fourth writes behind the last block."""
    backend, capture = capturing()
    cache = backend.kv_cache(steps.geometry("f32"), steps.BLOCKS)
    program = backend.compile(steps.attending(cache, None, None), StepLimits(512, 16, 512, steps.WIDEST))
    program.run(steps.step((40, 5, 3), (40, 5, 3)))
    keys = cache.keys[0]  # of the first layer: [blocks, slots, heads, elements]
    keys[steps.BLOCKS] = 1  # where zeros will be written
    before = keys.clone()
    program.run(steps.step((1, 1, 1), (41, 6, 4)))
    assert capture.replays == 1 and program.graphs == 1
    changed = (keys != before).flatten(2).any(dim=2).nonzero().tolist()
    written = steps.step((1, 1, 1), (41, 6, 4)).block_table[[0, 1, 2], [1, 0, 0]].tolist()
    assert {block for block, _ in changed} == {*written, steps.BLOCKS}


def test_a_failed_capture_ends_capturing_not_the_step() -> None:
    class Fails:
        def record(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
            raise RuntimeError("operation not permitted when stream is capturing")

    backend = TorchBackend(open_device("torch:cpu"), "sdpa", Fails())
    rows = steps.run(backend, steps.history(), "f32")
    assert all(
        np.array_equal(a, b)
        for a, b in zip(
            rows, steps.run(TorchBackend(open_device("torch:cpu"), "sdpa"), steps.history(), "f32"), strict=True
        )
    )


def test_sizes_of_graphs() -> None:
    assert [bucket(n, 100) for n in (1, 2, 3, 5, 8, 9, 33, 64, 65, 97)] == [1, 2, 4, 8, 8, 16, 40, 64, 96, 100]
    assert all(bucket(n, 256) >= n for n in range(1, 257))
