"""The golden text at every level of instructions that this processor has, which does not depend on its nodes: for one
machine of each processor.
"""

from __future__ import annotations

import pytest

from homenode import LLM
from tests.lab.golden import golden, said
from tests.lab.machine import WHOLE, several_nodes

pytest.importorskip("homenode._native", reason="needs the compiled core")
from homenode.compute.native import available_levels

pytestmark = [several_nodes, pytest.mark.usefixtures("as_before")]
# Emulated, the scalar one takes half a minute.
LEVELS = tuple(level for level in available_levels() if level != "scalar")
KV = 2 << 20


@pytest.mark.parametrize("level", LEVELS)
def test_one_thread_computes_the_golden_text_at_every_level(level: str) -> None:
    with LLM(kv_cache_memory=KV, threads=1, isa=level) as llm:
        assert said(llm, 3, 1) == golden(3, "token_ids", 1)
    with LLM(kv_cache_memory=KV, threads=1, isa=level, quantize="q8_0") as llm:
        assert said(llm, 12, 4) == golden(12, prompts=4)


def test_threads_of_the_first_and_the_last_node_compute_it_together() -> None:
    with LLM(kv_cache_memory=KV, cpu_threads_bind=f"{WHOLE[0].cpus[0]},{WHOLE[-1].cpus[-1]}", quantize="q8_0") as llm:
        assert said(llm, 12) == golden(12)
