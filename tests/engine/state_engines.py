"""Engines of models that keep state memory, for tests that compare bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.native.backend import NativeBackend
from homenode.compute.ops import StateGeometry
from homenode.engine.api.local import LocalEngine
from homenode.engine.messages import Output
from homenode.sampling import SamplingParams
from tests.engine.engines import config_for, run_all, tokens_of

Bits = tuple[list[int], list[float]]  # tokens and their logprobs


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    return [[3 + (11 * n + 7 * k) % 60 for k in range(length)] for n, length in enumerate(lengths)]


def engine_of(folder: Path, **settings: Any) -> LocalEngine:
    chosen = {"threads": 1, "block_size": 32, "kv_cache_memory": "8MiB", "dtype": "float32"}
    return LocalEngine(config_for(folder, **(chosen | settings)))


def bits_of(outputs: Sequence[Output]) -> Bits:
    return tokens_of(outputs), [logprob.logprob for output in outputs for logprob in output.logprobs]


def bits_alone(engine: LocalEngine, prompts: Sequence[list[int]], params: SamplingParams) -> list[Bits]:
    """Of each prompt, the only one in the engine."""
    return [bits_of(run_all(engine, [prompt], [params], first_id=n)[0]) for n, prompt in enumerate(prompts, 1)]


def put_nan_in_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads of a slot what nothing was written to has no numbers from then on."""
    honest = NativeBackend.state_memory

    def state_memory(self: NativeBackend, geometry: StateGeometry, slots: int) -> Any:
        memory = honest(self, geometry, slots)
        for slot in range(slots):
            memory.write_slot(slot, np.full_like(memory.read_slot(slot), np.nan))
        return memory

    monkeypatch.setattr(NativeBackend, "state_memory", state_memory)
