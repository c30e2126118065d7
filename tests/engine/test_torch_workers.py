"""Engines some of whose workers compute with torch: the golden text whichever of them does, as a stage or as a rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the extra `torch` installs")

from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.plan.accelerators.device_detection import devices_of
from homenode.errors import UnsupportedError
from homenode.host.bind.base.threads import descendants
from homenode.host.topology.allowance import Allowance
from tests.engine.engines import greedy, run_all
from tests.engine.live import LiveServer
from tests.engine.test_golden import check_golden, golden
from tests.engine.test_workers import engine_of
from tests.paths import STORIES, STORIES_MIXTURE, needs_data

pytestmark = needs_data

SPLITS: dict[str, tuple[Path, dict[str, Any]]] = {
    "CPU then torch": (STORIES, {"pipeline_parallel_size": 2, "stage_devices": "cpu,torch:cpu"}),
    "torch then CPU": (STORIES, {"pipeline_parallel_size": 2, "stage_devices": "torch:cpu,cpu", "layer_split": "2,3"}),
    "one torch worker": (STORIES, {"stage_devices": "torch:cpu"}),
    "ranks of both kinds": (STORIES, {"tensor_parallel_size": 2, "stage_devices": "cpu,torch:cpu"}),
    "experts on both kinds": (
        STORIES_MIXTURE,
        {"tensor_parallel_size": 2, "stage_devices": "torch:cpu,cpu", "enable_expert_parallel": True},
    ),
}


# The others have torch in the first stage, in the only one, and in a rank beside the CPU.
IN_TEST_ALL = "CPU then torch"


@pytest.mark.parametrize(
    "split", [pytest.param(name, marks=pytest.mark.slow if name == IN_TEST_ALL else ()) for name in SPLITS]
)
def test_golden_text_under_memory_pressure(split: str) -> None:
    model, settings = SPLITS[split]
    entries = golden()
    with engine_of(
        model,
        kv_cache_memory="384KiB" if "one" in split else "256KiB",
        max_model_len=256,
        max_num_batched_tokens=48,
        **settings,
    ) as engine:
        outputs = run_all(engine, [e["prompt_ids"] for e in entries], [greedy(60)] * len(entries))
        check_golden(outputs, entries, 60)


def test_a_way_to_attend_that_a_workers_device_has_not_is_refused() -> None:
    config = EngineConfig.of(
        None, {"pipeline_parallel_size": 2, "stage_devices": "cpu,torch:cpu", "attention_backend": "flashinfer"}
    )
    with pytest.raises(UnsupportedError, match="on cuda devices only, not on torch:cpu") as caught:
        devices_of(EngineAssignment(config))
    assert caught.value.param == "attention_backend"


@pytest.mark.skipif(len(Allowance.of_process().physical_cpus) < 2, reason="needs a core for everything but computing")
def test_the_threads_of_a_torch_worker_are_where_it_computes() -> None:
    """The loop has moved to the CPU without compute threads before the worker is started, and the worker has not
    inherited that.
    """
    server = LiveServer("--stage-devices", "torch:cpu", "--threads", "1")
    try:
        (engine,) = server.engines()
        (worker,) = descendants(engine)
        masks = {frozenset(os.sched_getaffinity(int(task.name))) for task in Path(f"/proc/{worker}/task").iterdir()}
    finally:
        server.close()
    (mask,) = masks
    assert len(mask) == 1 and mask < {*Allowance.of_process().physical_cpus}  # which one: what others leave free
