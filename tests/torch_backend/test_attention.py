"""Every way to attend against the NumPy backend: chunks, decoding and both at once, windows, caps, and what keys are
kept as.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch

from homenode.compute.devices import attention_problem
from homenode.compute.ops import StepLimits
from homenode.compute.reference import ReferenceBackend
from homenode.compute.torch import TorchBackend, open_backend
from homenode.compute.torch.backend import choose_attention
from homenode.compute.torch.device import TorchDevice, open_device
from homenode.errors import HostError, UnsupportedError
from tests.torch_backend import stand_ins, steps

EXACT, ROUNDED = 2e-6, 2e-2  # of the largest value; bfloat16 queries and sums have 8 significant bits


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn and flashinfer are installed, and torch's CPU is taken for a device that multiplies bfloat16."""
    for name in ("flash_attn", "flashinfer"):
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update({k: v for k, v in vars(stand_ins).items() if callable(v)})
        monkeypatch.setitem(sys.modules, name, module)


def narrow() -> TorchDevice:
    return TorchDevice("torch:cuda:0", torch.device("cpu"), exact=False, narrow=True)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (50, None), (None, 3.0), (33, 2.0), (300, None)])
@pytest.mark.parametrize("way", ["tiled", "sdpa"])
def test_ways_that_every_device_has(way: str, window: int | None, softcap: float | None, dtype: str) -> None:
    wanted = steps.run(ReferenceBackend(), steps.history(), dtype, window, softcap)
    found = steps.run(open_backend("torch:cpu", attention=way), steps.history(), dtype, window, softcap)
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < EXACT * np.abs(other).max()


@pytest.mark.parametrize("way", ["tiled", "sdpa"])
def test_chunks(way: str) -> None:
    wanted = steps.run(ReferenceBackend(), steps.history(), "f32", 50, None, "chunked")
    found = steps.run(open_backend("torch:cpu", attention=way), steps.history(), "f32", 50, None, "chunked")
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < EXACT * np.abs(other).max()


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (50, None), (33, 2.0)])
@pytest.mark.parametrize("way", ["sdpa", "flash", "flashinfer"])
def test_ways_with_narrow_keys(way: str, window: int | None, softcap: float | None) -> None:
    wanted = steps.run(ReferenceBackend(), steps.history(), "bf16", window, softcap)
    found = steps.run(TorchBackend(narrow(), way), steps.history(), "bf16", window, softcap)
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < ROUNDED * np.abs(other).max()


@pytest.mark.usefixtures("packages")
def test_flash_reads_large_blocks_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "BLOCK", 256)
    monkeypatch.setattr(
        steps, "geometry", lambda dtype: steps.KvGeometry.uniform(1, steps.KV_HEADS, steps.HEAD, 256, dtype)
    )
    tables: list[object] = []
    module = sys.modules["flash_attn"]
    call: Callable[..., torch.Tensor] = module.flash_attn_varlen_func

    def watched(*given: object, **named: object) -> torch.Tensor:
        tables.append(named["block_table"])
        return call(*given, **named)

    monkeypatch.setattr(module, "flash_attn_varlen_func", watched)
    wanted = steps.run(ReferenceBackend(), steps.history(), "bf16")
    found = steps.run(TorchBackend(narrow(), "flash"), steps.history(), "bf16")
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < ROUNDED * np.abs(other).max()
    assert len(tables) == 4 and all(table is not None for table in tables)


def test_auto_is_tiled_on_the_cpu_and_sdpa_elsewhere() -> None:
    from homenode.compute.torch.sdpa import sdpa_attention
    from homenode.compute.torch.tiled import tiled_attention

    assert choose_attention("auto", open_device("torch:cpu")) is tiled_attention
    assert choose_attention("auto", narrow()) is sdpa_attention


def test_what_is_refused() -> None:
    problem = attention_problem("flash", "torch:cpu", "bf16")
    assert (
        isinstance(problem, UnsupportedError)
        and problem.param == "attention_backend"
        and "torch:cpu" in problem.message
    )
    problem = attention_problem("flashinfer", "torch:cuda:0", "int8")
    assert problem is not None and "--kv-cache-dtype bf16" in problem.message
    assert attention_problem("sdpa", "torch:cuda:0", "int8") is None
    with pytest.raises(UnsupportedError, match="flash computes on cuda devices only"):
        open_backend("torch:cpu", attention="flash")


@pytest.mark.usefixtures("packages")
def test_keys_of_another_type_are_refused_when_memory_is_laid_out() -> None:
    with pytest.raises(UnsupportedError, match="as bf16 only, not as f32"):
        TorchBackend(narrow(), "flash").kv_cache(steps.geometry("f32"), 4)


def test_a_package_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(HostError, match="needs the package flash_attn, which cannot be loaded"):
        TorchBackend(narrow(), "flash")


def test_a_long_context_makes_no_other_longer() -> None:
    """Of sequences that decode, those of about one length are computed together."""
    from homenode.compute.torch.sdpa import group_step
    from homenode.compute.torch.step import DeviceStep

    arrays = steps.step((1, 1, 1, 20), (300, 5, 60, 20))
    tensors = (
        torch.from_numpy(a).long()
        for a in (arrays.ids, arrays.positions, arrays.ids, arrays.block_table, arrays.context_len)
    )
    grouped = group_step(DeviceStep(arrays, *tensors, torch.arange(1), None), 32)
    assert [(d.length, d.sequences.tolist(), d.rows.tolist()) for d in grouped.decoding] == [
        (64, [1, 2], [1, 2]),
        (512, [0], [0]),
    ]
    assert [(c.begin, c.end, c.context) for c in grouped.chunks] == [(3, 23, 20)]


def test_nobodys_garbage_reaches_nobody() -> None:
    """Blocks of others may hold NaN: what a sequence does not see changes nothing, not even by 0 * NaN."""
    for way in ("tiled", "sdpa"):
        backend = open_backend("torch:cpu", attention=way)
        cache = backend.kv_cache(steps.geometry("f32"), steps.BLOCKS)
        for side in (*cache.keys, *cache.values):
            side.fill_(torch.nan)
        program = backend.compile(steps.attending(cache, None, None), StepLimits(512, 16, 512, steps.WIDEST))
        assert all(np.isfinite(np.asarray(program.run(each))).all() for each in steps.history())
