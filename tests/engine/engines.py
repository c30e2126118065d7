"""Engines for tests: where the models are, and requests run to their ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.engine.api.local import LocalEngine
from homenode.engine.config import EngineConfig
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.sampling import SamplingParams
from tests.waiting import PATIENCE_S

BACKENDS = ("reference", "native", "torch")


def config_for(path: Path, **settings: Any) -> EngineConfig:
    """A config for the model at `path`, of threads that sleep at once where they wait: others may want their CPUs.
    Skips the test where it is torch's and that is not installed.
    """
    if settings.get("backend") == "torch":
        pytest.importorskip("torch", reason="needs torch, which the extra `torch` installs")
    config = EngineConfig.of(None, {"disable_log_stats": True, "spin_us": 0, **settings})
    return dataclasses.replace(config, model=dataclasses.replace(config.model, path=str(path)))


def greedy(max_tokens: int, **changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, **changes)


def run_all(
    engine: LocalEngine, prompts: Sequence[list[int]], params: Sequence[SamplingParams], first_id: int = 1
) -> list[list[Output]]:
    """All outputs of every request, the requests handed in together."""
    requests = [
        Request(id=first_id + i, prompt_ids=p, params=s) for i, (p, s) in enumerate(zip(prompts, params, strict=True))
    ]
    return outputs_of(engine, requests)


def outputs_of(engine: LocalEngine, requests: Sequence[Request]) -> list[list[Output]]:
    """All outputs of each of these requests, handed in together."""
    sink: SimpleQueue[Output] = SimpleQueue()
    engine.submit(requests, sink)
    found: dict[int, list[Output]] = {request.id: [] for request in requests}
    left = len(requests)
    while left:
        output = sink.get(timeout=PATIENCE_S)
        found[output.id].append(output)
        left -= output.finish_reason is not None
    return list(found.values())


def tokens_of(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]
