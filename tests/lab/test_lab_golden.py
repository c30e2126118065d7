"""The built-in model's text on machines of several nodes: the same tokens wherever its threads and its pages are, at every level of instructions.

The tokens were computed by the NumPy backend.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homenode import LLM, SamplingParams
from homenode.host.binding.syscalls import Syscalls
from tests.host.children import masks
from tests.lab.machine import NODES, WHOLE, several_nodes

pytest.importorskip("homenode._native", reason="needs the compiled core")
from homenode.compute.native import available_levels

pytestmark = several_nodes
GOLDEN: list[dict[str, Any]] = json.loads(Path(__file__).with_name("golden_builtin.json").read_text(encoding="utf-8"))
LEVELS = tuple(level for level in available_levels() if level != "scalar")  # emulated, the scalar one takes half a minute


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """An engine in this process binds it to CPUs and nodes, and what later tests start would inherit that."""
    cpus, (mode, nodes) = os.sched_getaffinity(0), Syscalls().get_mempolicy()
    yield
    os.sched_setaffinity(0, cpus)
    Syscalls().set_mempolicy(mode, nodes)


def tokens(llm: LLM) -> list[list[int]]:
    """What the model says to every prompt, all in one batch."""
    answers = llm.generate([case["prompt_ids"] for case in GOLDEN], SamplingParams(max_tokens=24, temperature=0))
    return [list(answer.token_ids) for answer in answers]


def test_threads_on_all_nodes_compute_the_golden_text() -> None:
    mine = set(masks(os.getpid()))
    with LLM(kv_cache_memory="2MiB") as llm:
        pinned = Counter(cpus[0] for thread, cpus in masks(os.getpid()).items() if thread not in mine and len(cpus) == 1)
        assert tokens(llm) == [case["token_ids"] for case in GOLDEN]
    with_threads = {node.id for node in NODES.values() if set(node.cpus) & set(pinned)}
    assert with_threads >= {node.id for node in WHOLE}, pinned
    assert max(pinned.values()) == 1, pinned


@pytest.mark.parametrize("level", LEVELS)
def test_one_thread_computes_the_golden_text_at_every_level(level: str) -> None:
    with LLM(kv_cache_memory="2MiB", threads=1, isa=level) as llm:
        assert tokens(llm) == [case["token_ids"] for case in GOLDEN]


def test_threads_of_the_first_and_the_last_node_compute_it_together() -> None:
    with LLM(kv_cache_memory="2MiB", cpu_threads_bind=f"{WHOLE[0].cpus[0]},{WHOLE[-1].cpus[-1]}") as llm:
        assert tokens(llm) == [case["token_ids"] for case in GOLDEN]
