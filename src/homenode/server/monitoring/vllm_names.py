"""The names that vLLM gives to figures of ours, for dashboards, routers and scalers that read these: the same figures,
shown twice where a server is told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric

from homenode.server.monitoring.metric import PREFIX

VLLM_PREFIX: Final = "vllm:"
_ENGINE: Final = "engine"  # a label that all of theirs have: the number of one of several
_ONE: Final = "0"
# From the name in the table of metrics to vLLM's, both without their prefix.
VLLM_NAMES: Final = {
    **{
        name: name
        for name in (
            "num_requests_running",
            "num_requests_waiting",
            "kv_cache_usage_perc",
            "prefix_cache_queries",
            "prefix_cache_hits",
            "num_preemptions",
            "prompt_tokens",
            "generation_tokens",
            "spec_decode_num_draft_tokens",
            "spec_decode_num_accepted_tokens",
            "spec_decode_num_accepted_tokens_per_pos",
            "cache_config_info",
            "request_success",
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_inference_time_seconds",
            "request_time_per_output_token_seconds",
            "request_prompt_tokens",
            "request_generation_tokens",
            "request_params_max_tokens",
            "request_params_n",
        )
    },
    "step_tokens": "iteration_tokens_total",  # a histogram, in spite of its name
}


def with_vllm_names(families: Iterable[Metric]) -> Iterator[Metric]:
    """The families, and those again by vLLM's names that it has."""
    for family in families:
        yield family
        name = VLLM_NAMES.get(family.name.removeprefix(PREFIX)) if family.name.startswith(PREFIX) else None
        if name is not None:
            yield _renamed(family, VLLM_PREFIX + name)


def _renamed(family: Metric, name: str) -> Metric:
    made = Metric(name, family.documentation, family.type)
    made.samples = [
        sample._replace(name=name + sample.name.removeprefix(family.name), labels={_ENGINE: _ONE, **sample.labels})
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return made
