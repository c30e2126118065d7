"""Settings of an engine that nothing looks at are told, each by its name and reason; where something looks at them
nothing is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from homenode.engine.config import EngineConfig
from homenode.engine.plan.settings_without_effect import SETTINGS_OF_OTHERS, settings_without_effect

CPU, GPU = ("cpu",), ("torch:cuda:0",)
SENDER, RECEIVER = {"pd_role": "sender"}, {"pd_role": "receiver"}

# Setting: a value, settings beside which nothing looks at it, and those beside which something does; each with the
# devices of the workers.
Side = tuple[dict[str, Any], tuple[str, ...]]
CASES: dict[str, tuple[Any, list[Side], list[Side]]] = {
    "revision": ("main", [({}, CPU)], [({"model": "someone/some-model"}, CPU)]),
    "pooling": ("mean", [({"runner": "generate"}, CPU)], [({}, CPU), ({"runner": "pooling"}, CPU)]),
    "isa": ("scalar", [({"backend": "torch"}, CPU), ({}, GPU)], [({}, CPU), ({}, (*CPU, *GPU))]),
    "spin_us": (7, [({"backend": "reference"}, CPU), ({}, GPU)], [({}, CPU)]),
    "attention_backend": ("sdpa", [({}, CPU)], [({}, GPU), ({"backend": "torch"}, CPU)]),
    "enforce_eager": (True, [({}, CPU)], [({}, GPU)]),
    "gpu_memory_utilization": (0.5, [({}, CPU)], [({}, GPU)]),
    "kv_cache_fraction": (0.1, [({"kv_cache_memory": "1GiB"}, CPU)], [({}, CPU)]),
    "kv_cache_release": (
        3.0,
        [
            ({"kv_cache_prealloc": True}, CPU),
            (SENDER, CPU),
            ({}, GPU),
            ({"backend": "torch"}, CPU),
            ({"executor": "ray"}, CPU),
        ],
        [({}, CPU), ({"tensor_parallel_size": 2}, CPU * 2), ({}, (*CPU, *GPU))],
    ),
    "state_snapshot_interval": (64, [({"enable_prefix_caching": False}, CPU)], [({}, CPU)]),
    "memory_nodes": (
        "0",
        [({"numa_bind": True}, CPU), ({"cpu_threads_bind": "nobind"}, CPU)],
        [({}, CPU), ({"cpu_threads_bind": "auto"}, CPU), ({"cpu_threads_bind": "0-3"}, CPU)],
    ),
    "reserve_cpus": (
        1,
        [({"cpu_threads_bind": "0-3"}, CPU), ({"cpu_threads_bind": "nobind"}, CPU)],
        [({}, CPU), ({"cpu_threads_bind": "auto"}, CPU), ({"numa_bind": True}, CPU)],
    ),
    "numa_measured": ("file", [({"numa": "shard"}, CPU), ({"numa": "local"}, CPU)], [({"numa": "auto"}, CPU)]),
    "layer_split": ("24", [({}, CPU)], [({"pipeline_parallel_size": 2}, CPU * 2), ({}, GPU)]),
    "enable_expert_parallel": (
        True,
        [({}, CPU), ({"pipeline_parallel_size": 2}, CPU * 2)],
        [({"tensor_parallel_size": 2}, CPU * 2), ({"data_parallel_size": 2}, CPU), ({"numa": "replicate"}, CPU)],
    ),
    "expert_placement": (
        "packed",
        [({}, CPU)],
        [({"enable_expert_parallel": True, "tensor_parallel_size": 2}, CPU * 2)],
    ),
    "ray_address": ("auto", [({}, CPU)], [({"executor": "ray"}, CPU)]),
    "ray_placement": ("SPREAD", [({"executor": "processes"}, CPU)], [({"executor": "ray"}, CPU)]),
    "worker_timeout": (5.0, [({}, CPU)], [({"executor": "processes"}, CPU), ({}, GPU)]),
    "pd_pull_backpressure_reserve_pct": (1.0, [(RECEIVER, CPU)], [(SENDER, CPU)]),
    "pd_peer_init_port": ((5000,), [(SENDER, CPU)], [(RECEIVER, CPU)]),
}


def told(
    settings: Mapping[str, Any], devices: tuple[str, ...], variables: Mapping[str, str] | None = None
) -> list[str]:
    left = dict(settings)
    config = EngineConfig.of(left.pop("model", None), left)
    found = settings_without_effect(config, devices, variables or {})
    assert all(finding.code == "setting_ignored" for finding in found)
    return [finding.message for finding in found]


def test_every_rule_has_its_case() -> None:
    assert set(CASES) == SETTINGS_OF_OTHERS


@pytest.mark.parametrize("setting", CASES)
def test_what_nothing_looks_at_is_told_by_its_name(setting: str) -> None:
    value, without_effect, with_effect = CASES[setting]
    flag = f"--{setting.replace('_', '-')}"
    for beside, devices in without_effect:
        messages = told({**beside, setting: value}, devices)
        assert [message for message in messages if message.startswith(f"{flag} ")], (beside, messages)
    for beside, devices in with_effect:
        messages = told({**beside, setting: value}, devices)
        assert not [message for message in messages if message.startswith(f"{flag} ")], (beside, messages)


@pytest.mark.parametrize("setting", CASES)
def test_a_default_is_nothing_that_was_given(setting: str) -> None:
    _, without_effect, _ = CASES[setting]
    assert all(told(beside, devices) == [] for beside, devices in without_effect)


def test_lists_that_a_variable_gives_count_as_lists() -> None:
    assert told({"reserve_cpus": 1}, CPU, {"VLLM_CPU_OMP_THREADS_BIND": "0-3"}) != []
    assert told({"reserve_cpus": 1}, CPU, {"VLLM_CPU_OMP_THREADS_BIND": "auto"}) == []


@pytest.mark.parametrize("keeps_states", [True, False, None])
def test_snapshots_are_of_models_that_keep_states(keeps_states: bool | None) -> None:
    config = EngineConfig.of(None, {"state_snapshot_interval": 64})
    found = [finding.message for finding in settings_without_effect(config, CPU, {}, keeps_states=keeps_states)]
    why = "--state-snapshot-interval 64 is ignored: no layer of the model keeps a state beside keys and values"
    assert found == ([] if keeps_states is not False else [why])


def test_one_of_several_engines_shares_experts() -> None:
    config = EngineConfig.of(None, {"enable_expert_parallel": True})
    assert settings_without_effect(config, CPU, {}, engines=2) == ()
    assert [found.code for found in settings_without_effect(config, CPU, {}, engines=1)] == ["setting_ignored"]
