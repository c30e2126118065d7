"""Lengths and phases of requests are counted as they are known to be, by our names and, where asked for, by vLLM's."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from homenode.server.monitoring.metric_table import CACHED_SHARES
from homenode.server.monitoring.recorder import cached_share
from homenode.server.monitoring.vllm_names import VLLM_NAMES
from tests.server.conftest import Running, Start
from tests.server.test_metrics import ALL, SCENES

KNOWN = ((3, 5), (10, 2), (40, 17), (129, 1))  # prompts of so many tokens, answers of so many
PHASES = ("queue", "prefill", "decode", "inference")


@pytest.fixture(scope="module")
def both(start: Start) -> Running:
    return start(metrics_names="vllm", served_model_name=("m",))


def figures(running: Running) -> dict[str, float]:
    """The sum of all series of each name, and of each name with the value of its own label."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(running.http.get("/metrics").text):
        for sample in family.samples:
            own = sample.labels.get("cached_share") or sample.labels.get("le", "")
            for name in {sample.name, f"{sample.name} {own}".strip()}:
                found[name] = found.get(name, 0.0) + sample.value
    return found


def test_known_requests_are_counted_with_their_lengths_and_phases(both: Running) -> None:
    before, shares = figures(both), dict.fromkeys(CACHED_SHARES, 0)
    for prompt, answer in KNOWN:
        body = {"prompt": [7] * prompt, "max_tokens": answer, "ignore_eos": True}
        usage = both.post("/v1/completions", body).json()["usage"]
        assert usage["completion_tokens"] == answer
        shares[cached_share(usage["prompt_tokens_details"]["cached_tokens"], prompt)] += 1
    after = figures(both)

    def grew(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    for prefix in ("homenode:", "vllm:"):
        assert grew(f"{prefix}request_prompt_tokens_sum") == sum(prompt for prompt, _ in KNOWN)
        assert grew(f"{prefix}request_generation_tokens_sum") == sum(answer for _, answer in KNOWN)
        assert grew(f"{prefix}request_params_max_tokens_sum") == sum(answer for _, answer in KNOWN)
        assert grew(f"{prefix}request_params_n_count") == len(KNOWN)
        for phase in PHASES:
            assert grew(f"{prefix}request_{phase}_time_seconds_count") == len(KNOWN), phase
        assert grew(f"{prefix}request_time_per_output_token_seconds_count") == len(KNOWN)
    sums = {phase: grew(f"homenode:request_{phase}_time_seconds_sum") for phase in PHASES}
    assert sums["prefill"] + sums["decode"] == pytest.approx(sums["inference"], abs=1e-6)
    assert sums["queue"] + sums["inference"] <= grew("homenode:e2e_request_latency_seconds_sum") + 1e-6
    name = "homenode:time_to_first_token_by_cached_seconds_count"
    assert {share: grew(f"{name} {share}") for share in CACHED_SHARES} == shares


@pytest.mark.parametrize(
    ("cached", "prompt", "share"),
    [
        (0, 10, "0"),
        (1, 10, "0-0.5"),
        (5, 10, "0-0.5"),
        (6, 10, "0.5-0.9"),
        (9, 10, "0.5-0.9"),
        (10, 10, "0.9-1"),
        (0, 0, "0"),
    ],
)
def test_every_part_of_a_prompt_has_its_share(cached: int, prompt: int, share: str) -> None:
    assert cached_share(cached, prompt) == share and share in CACHED_SHARES


def test_vllms_names_are_there_where_they_are_asked_for_with_the_same_figures(both: Running, server: Running) -> None:
    assert "vllm:" not in server.http.get("/metrics").text
    both.complete(max_tokens=3)
    text = both.http.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for ours, theirs in VLLM_NAMES.items():
        mine = families.get(f"homenode:{ours}")
        if mine is None or not mine.samples:
            continue
        other = families.get(f"vllm:{theirs}") or families[f"vllm:{theirs}".removesuffix("_total")]
        wanted = [sample.value for sample in mine.samples if not sample.name.endswith("_created")]
        assert [sample.value for sample in other.samples] == wanted, ours
        assert all({"engine", "model_name"} <= sample.labels.keys() for sample in other.samples), ours
    assert {row.name for row in ALL} | {"cache_config_info"} >= VLLM_NAMES.keys()


def exposures() -> dict[str, Any]:
    return {title: scene().decode() for title, scene in SCENES.items()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)")
def test_promtool_has_nothing_to_say_but_of_the_colons_which_are_the_fields() -> None:
    for title, text in exposures().items():
        ran = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
        )
        said = [line for line in (ran.stdout + ran.stderr).splitlines() if "should not contain ':'" not in line]
        assert ran.returncode in (0, 3) and not [line for line in said if line.strip()], (title, said[:3])


def test_names_and_labels_are_those_that_prometheus_takes() -> None:
    """The lint's rules that a table of metrics can break, for where promtool is not there."""
    for row in ALL:
        assert row.help.endswith(".") and re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", row.name), row.name
        assert not re.search(r"_(total|bucket|count|sum|milliseconds|ms|gauge|counter|histogram)$", row.name), row.name
        assert all(re.fullmatch(r"[a-z][a-z_]*", label) and label != "le" for label in row.labels), row.name
