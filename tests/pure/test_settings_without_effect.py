"""Settings of an engine that nothing looks at are told, each by its name and reason; where something looks at them
nothing is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from homenode.engine.config import EngineConfig
from homenode.engine.plan.rules.settings_without_effect import SETTINGS_OF_OTHERS, settings_without_effect
from tests.dict_store import add_kinds

CPU, GPU, TORCH = ("cpu",), ("torch:cuda:0",), ("torch:cpu",)
SENDER, RECEIVER = {"pd_role": "sender"}, {"pd_role": "receiver"}
TCP, PULL = {"transfer_channel": "tcp"}, {"pd_pull_mode": True}
DELAY = {**PULL, "pd_delay_pull": True}
OFF = {"enable_pd": False}

# Setting: a value, settings beside which nothing looks at it, and those beside which something does; each with the
# devices of the workers.
Side = tuple[dict[str, Any], tuple[str, ...]]
CASES: dict[str, tuple[Any, list[Side], list[Side]]] = {
    "revision": ("main", [({}, CPU)], [({"model": "someone/some-model"}, CPU)]),
    "pooling": ("mean", [({"runner": "generate"}, CPU)], [({}, CPU), ({"runner": "pooling"}, CPU)]),
    "num_speculative_tokens": (3, [({"speculative": "off"}, CPU)], [({}, CPU)]),
    "speculative_model": ("builtin", [({"speculative": "off"}, CPU)], [({}, CPU), ({"speculative": "draft"}, CPU)]),
    "isa": ("scalar", [({"backend": "torch"}, CPU), ({}, GPU)], [({}, CPU), ({}, (*CPU, *GPU))]),
    "spin_us": (7, [({"backend": "reference"}, CPU), ({}, GPU)], [({}, CPU), ({}, TORCH)]),
    "attention_backend": ("sdpa", [({}, CPU)], [({}, GPU), ({"backend": "torch"}, CPU)]),
    "threads": (2, [({}, GPU), ({"backend": "reference"}, CPU)], [({}, CPU), ({}, TORCH), ({"backend": "torch"}, CPU)]),
    "backend": ("reference", [({}, GPU), ({}, TORCH)], [({}, CPU), ({}, (*CPU, *GPU))]),
    "enforce_eager": (True, [({}, CPU), ({}, TORCH), ({"backend": "torch"}, CPU)], [({}, GPU), ({}, (*CPU, *GPU))]),
    "gpu_memory_utilization": (
        0.5,
        [({}, CPU), ({}, TORCH), ({"backend": "torch"}, CPU), ({"kv_cache_memory": "1GiB"}, GPU)],
        [
            ({}, GPU),
            ({}, (*CPU, *GPU)),
            ({"kv_cache_memory": "1GiB", "pipeline_parallel_size": 2}, (*CPU, *GPU)),
        ],
    ),
    "kv_cache_fraction": (0.1, [({"kv_cache_memory": "1GiB"}, CPU), ({}, GPU)], [({}, CPU), ({}, (*CPU, *GPU))]),
    "kv_cache_prealloc": (
        True,
        [({}, GPU), ({"executor": "ray"}, CPU), (SENDER, CPU), ({"kv_disk": "kv"}, CPU)],
        [({}, CPU)],
    ),
    "kv_disk": ("kv", [({"enable_prefix_caching": False}, CPU)], [({}, CPU)]),
    "kv_park_size": (1 << 20, [({"enable_prefix_caching": False}, CPU)], [({}, CPU)]),
    "kv_events_config": (
        '{"enable_kv_cache_events": true}',
        [({"enable_prefix_caching": False}, CPU)],
        [({}, CPU)],
    ),
    "kv_session_ttl": (60.0, [({}, CPU)], [({"kv_disk": "kv"}, CPU)]),
    "kv_disk_size": (1 << 30, [({}, CPU)], [({"kv_disk": "kv"}, CPU)]),
    "kv_disk_key": ("file", [({}, CPU)], [({"kv_disk": "kv"}, CPU)]),
    "cpu_threads_bind": ("0", [({}, GPU)], [({}, CPU), ({}, TORCH), ({}, (*CPU, *GPU))]),
    "numa": (
        "mirror",
        [({}, GPU), ({}, TORCH), ({"backend": "torch"}, CPU), ({"backend": "reference"}, CPU)],
        [({}, CPU), ({}, (*CPU, *TORCH))],
    ),
    "numa_nodes": ("0", [({"numa": "local"}, GPU)], [({"numa": "local"}, CPU), ({"numa": "local"}, TORCH)]),
    "threads_per_core": (2, [({}, GPU)], [({}, CPU), ({}, TORCH)]),
    "numa_mirror_tensors": (("x",), [({"numa": "shard"}, TORCH)], [({"numa": "shard"}, CPU)]),
    "numa_strict": (True, [({"numa": "auto"}, GPU)], [({"numa": "auto"}, CPU)]),
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
        [({"numa_bind": True}, CPU), ({"cpu_threads_bind": "nobind"}, CPU), ({}, GPU)],
        [({}, CPU), ({"cpu_threads_bind": "auto"}, CPU), ({"cpu_threads_bind": "0-3"}, CPU)],
    ),
    "reserve_cpus": (
        1,
        [({"cpu_threads_bind": "0-3"}, CPU), ({"cpu_threads_bind": "nobind"}, CPU), ({}, GPU)],
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
    "peer_keys": ("folder", [({}, CPU), (SENDER, CPU)], [({"executor": "ray"}, CPU), (SENDER | TCP, CPU)]),
    "peer_plain_text": (True, [({}, CPU), (OFF | TCP, CPU)], [({"executor": "ray"}, CPU), (RECEIVER | TCP, CPU)]),
    "worker_timeout": (5.0, [({}, CPU)], [({"executor": "processes"}, CPU), ({}, GPU)]),
    "expert_counts": ("file", [], [({}, CPU)]),
    "pd_peer_host": ("10.0.0.1", [(SENDER, CPU), (RECEIVER | OFF, CPU)], [(SENDER | TCP, CPU), (RECEIVER | TCP, CPU)]),
    "pd_allowed_peers": (("10.0.0.0/8",), [(SENDER, CPU), (OFF, CPU)], [(RECEIVER | TCP, CPU)]),
    "pd_peer_init_port": ((5000,), [(SENDER | TCP, CPU), (RECEIVER, CPU)], [(RECEIVER | TCP, CPU)]),
    "pd_peer_alloc_port": (
        (5000,),
        [
            (RECEIVER, CPU),
            (SENDER, CPU),
            (SENDER | TCP, CPU),
            (SENDER | TCP | PULL | {"pd_pull_done_port": (6000,)}, CPU),
        ],
        [(RECEIVER | TCP, CPU), (SENDER | TCP | PULL, CPU)],
    ),
    "pd_pull_done_port": (
        (5000,),
        [(RECEIVER | TCP | PULL, CPU), (SENDER | PULL, CPU), (SENDER | TCP, CPU)],
        [(SENDER | TCP | PULL, CPU)],
    ),
    "pd_proxy_host": ("host", [(SENDER | TCP, CPU), (RECEIVER | TCP, CPU)], []),
    "pd_proxy_port": (5000, [(SENDER | TCP, CPU), (RECEIVER | TCP, CPU)], []),
    "pd_buffer_size": (
        1 << 20,
        [
            (RECEIVER | DELAY, CPU),
            (SENDER | PULL | {"pd_use_cpu_offload": True, "pd_cpu_buffer_size": 1 << 20}, CPU),
            (OFF, CPU),
        ],
        [(RECEIVER, CPU), (RECEIVER | PULL, CPU), (SENDER | DELAY, CPU), (SENDER, CPU)],
    ),
    "pd_pull_pending_ttl": (5.0, [(SENDER, CPU)], [(RECEIVER, CPU), (SENDER | PULL, CPU), (RECEIVER | DELAY, CPU)]),
    "pd_alloc_fail_backoff_ttl": (
        5.0,
        [(RECEIVER | DELAY, CPU)],
        [(RECEIVER, CPU), (SENDER, CPU), (SENDER | PULL, CPU)],
    ),
    "pd_pull_backpressure_reserve_pct": (1.0, [(RECEIVER, CPU)], [(SENDER, CPU)]),
    "pd_room_wait": (1.0, [(RECEIVER, CPU), (RECEIVER | DELAY, CPU)], [(SENDER, CPU), (SENDER | DELAY, CPU)]),
    "local_cpu": (True, [(SENDER, CPU), (RECEIVER, CPU)], []),
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
    flag = f"--{setting.replace('_', '-')} "
    assert not [m for beside, devices in without_effect for m in told(beside, devices) if m.startswith(flag)]


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


@pytest.mark.parametrize("has_experts", [True, False, None])
def test_expert_settings_are_of_models_with_experts(has_experts: bool | None) -> None:
    config = EngineConfig.of(None, {"enable_expert_parallel": True, "expert_counts": "file", "tensor_parallel_size": 2})
    found = settings_without_effect(config, CPU * 2, {}, has_experts=has_experts)
    told = [finding.message.split()[0] for finding in found]
    assert told == ([] if has_experts is not False else ["--enable-expert-parallel", "--expert-counts"])


def test_every_setting_of_a_hand_over_is_told_where_it_is_switched_off_and_no_secret_is_shown() -> None:
    given = {"pd_secret": "a-secret-of-16-chars", "pd_pull_mode": True, "pd_buffer_size": 1 << 20, "enable_pd": False}
    messages = told(given, CPU)
    assert len(messages) == 3 and all("--no-enable-pd" in message for message in messages)
    assert not any("a-secret" in message for message in messages)


@pytest.mark.parametrize(
    ("setting", "value", "beside", "told_of"),
    [
        ("kv_disk_size", 1 << 30, "memory:///blocks", True),
        ("kv_disk_size", 1 << 30, "folder", False),
        ("kv_session_ttl", 60.0, "memory:///blocks", False),
        ("peer_plain_text", True, "memory:///blocks", True),
        ("peer_plain_text", True, "folder", True),
        ("peer_plain_text", True, "memory://10.0.0.1/blocks", False),
        ("peer_keys", "folder", "memory+tls://10.0.0.1/blocks", True),
    ],
)
def test_a_store_of_another_kind_says_what_it_looks_at(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: Any, beside: str, told_of: bool
) -> None:
    servers = add_kinds(monkeypatch)
    messages = told({setting: value, "kv_disk": beside}, CPU)
    assert [each.startswith(f"--{setting.replace('_', '-')} ") for each in messages] == [True] * told_of
    assert not servers, "nothing was opened"
