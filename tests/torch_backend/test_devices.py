"""The words for devices, and what is refused, with and without importing torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from homenode.compute import devices
from homenode.compute.devices import accelerators, device_memory, device_problems, parse_device, torch_missing
from homenode.compute.ops import StepLimits
from homenode.compute.torch import open_backend
from homenode.compute.torch.profile import AloneOf, dearest_sampling, largest_step
from homenode.compute.torch.step import check_step
from homenode.errors import UnsupportedError, UserError
from homenode.installation import extra_command

WORDS = {
    "cpu": "cpu", "torch:cpu": "torch:cpu", "cuda:0": "torch:cuda:0", "cuda": "torch:cuda:0",
    "torch:cuda:12": "torch:cuda:12",
    "npu:3": "torch:npu:3", " xpu:1 ": "torch:xpu:1",
}  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_words(word: str) -> None:
    assert parse_device(word) == WORDS[word]


@pytest.mark.parametrize(
    "word",
    ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "torch", "torch:", "cuda:00001", "tpu:0", "torch:torch:cpu"],
)
def test_words_that_name_no_device(word: str) -> None:
    with pytest.raises(UserError, match="there is no device") as caught:
        parse_device(word)
    assert caught.value.param == "stage_devices"


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a card")
def test_devices_that_are_not_there_are_named() -> None:
    found = device_problems(["cpu", "cuda:99", "torch:cpu", "cuda:99", "abacus", "cuda:1"])
    assert [error.message.split()[0] for error in found if "is not there" in error.message] == ["cuda:99", "cuda:1"]
    assert any("'abacus'" in error.message for error in found) and len(found) == 3
    assert all(error.param == "stage_devices" for error in found)
    with pytest.raises(UserError, match="cuda:99 is not there: torch sees no cuda device"):
        open_backend("cuda:99")


def test_a_plugin_that_is_not_installed_is_named() -> None:
    (problem,) = device_problems(["npu:0"])
    assert isinstance(problem, UnsupportedError) and "torch_npu, which is not installed" in problem.message
    with pytest.raises(UnsupportedError, match="torch_npu"):
        open_backend("npu:0")


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    (problem,) = device_problems(["torch:cpu"])
    assert extra_command("torch", "torch") in problem.message
    missing = torch_missing("--backend torch", "backend")
    assert missing is not None and missing.param == "backend"


def test_judging_devices_imports_no_torch() -> None:
    """Not even to look for accelerators on a machine without any; and importing the backend wakes no card."""
    judged = (
        "import sys; from homenode.compute.devices import *; parse_device('cuda:3'); device_problems(['cpu', "
        "'torch:cpu']);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", judged], check=True, timeout=60)
    imported = (
        "import homenode.compute.torch, torch; assert not torch.cuda.is_initialized(); assert "
        "torch.get_default_dtype() == torch.float32"
    )
    subprocess.run([sys.executable, "-c", imported], check=True, timeout=120)


def test_no_accelerators_without_device_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_NODES", {"cuda": ("/nonexistent",)})
    monkeypatch.setattr(devices.subprocess, "run", lambda *given, **named: pytest.fail("torch was asked"))
    assert accelerators() == ()


def test_memory_of_accelerators_is_what_torch_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    told = subprocess.CompletedProcess([], 0, b'{"cuda": [[5, 10], [7, 20]], "xpu": []}', b"")
    monkeypatch.setattr(devices.subprocess, "run", lambda *given, **named: told)
    assert device_memory(["torch:cuda:1", "torch:cuda:0", "torch:cuda:2", "torch:xpu:0"]) == {
        "torch:cuda:1": (7, 20),
        "torch:cuda:0": (5, 10),
    }


def test_torch_tells_no_memory_of_kinds_that_are_not_there() -> None:
    assert device_memory(["torch:mps:0"]) == {}


def test_threads_are_torchs_own_only_where_asked_for() -> None:
    before = torch.get_num_threads()
    open_backend("torch:cpu")
    assert torch.get_num_threads() == before
    open_backend("torch:cpu", threads=before + 1)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "limits",
    [StepLimits(512, 16, 300, 4), StepLimits(8, 16, 4, 1), StepLimits(2048, 2, 256, 8), StepLimits(1, 1, 1, 1)],
)
def test_the_step_that_memory_is_measured_with_is_a_step(limits: StepLimits) -> None:
    arrays = largest_step(limits, 32, None)
    check_step(arrays, limits, 32, arrays.block_table.shape[1])
    assert len(arrays.ids) == min(limits.max_tokens, limits.max_sequences * limits.max_blocks_per_sequence * 32)
    assert dearest_sampling(5).settings["temperature"].tolist() == [1] * 5


def test_alone_of_several() -> None:
    values = np.ones((2, 3), np.float32)
    assert AloneOf(1, 3).gather(values, (2, 3, 1)).tolist() == [[0, 0, 1, 1, 1, 0]] * 2
