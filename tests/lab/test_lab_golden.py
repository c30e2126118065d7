"""The golden text on machines of several nodes: the same tokens wherever threads and pages are, at every level of instructions.

The built-in model's tokens were computed by the NumPy backend, those of the stories model by another implementation. Under every policy each page
is counted in numa_maps; a model whose matrices take some tens of MiB tells how much memory there is of it in all.
"""

from __future__ import annotations

import ctypes
import gc
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
from tests.lab.heavy import MATRIX_BYTES, PROMPTS, SAID, make_heavy
from tests.lab.machine import NODES, WHOLE, several_nodes
from tests.lab.residency import PAGE, placed_memory
from tests.paths import STORIES, needs_data

pytest.importorskip("homenode._native", reason="needs the compiled core")
from homenode.compute.native import available_levels

pytestmark = several_nodes
GOLDEN: list[dict[str, Any]] = json.loads(Path(__file__).with_name("golden_builtin.json").read_text(encoding="utf-8"))
LEVELS = tuple(level for level in available_levels() if level != "scalar")  # emulated, the scalar one takes half a minute


KV = 2 << 20
_THP_DISABLE = 41  # prctl(2): small pages only, of which no unused rest is ever counted


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """An engine in this process binds it to CPUs and nodes, and what later tests start would inherit that."""
    cpus, (mode, nodes) = os.sched_getaffinity(0), Syscalls().get_mempolicy()
    gc.collect()  # engines of earlier tests are gone
    ctypes.CDLL(None).prctl(_THP_DISABLE, 1, 0, 0, 0)
    yield
    ctypes.CDLL(None).prctl(_THP_DISABLE, 0, 0, 0, 0)
    os.sched_setaffinity(0, cpus)
    Syscalls().set_mempolicy(mode, nodes)


def said(llm: LLM, count: int, prompts: int = 3) -> list[list[int]]:
    """The first tokens that the model says to the first prompts, all in one batch."""
    answers = llm.generate([case["prompt_ids"] for case in GOLDEN[:prompts]], SamplingParams(max_tokens=count, temperature=0))
    return [list(answer.token_ids) for answer in answers]


def golden(count: int, kept: str = "q8_0_ids", prompts: int = 3) -> list[list[int]]:
    """What it has to say. Emulated processors take five times as long for it in BF16 (`token_ids`) as in Q8_0."""
    return [case[kept][:count] for case in GOLDEN[:prompts]]


def test_threads_on_all_nodes_compute_the_golden_text() -> None:
    mine = set(masks(os.getpid()))
    with LLM(kv_cache_memory=KV, quantize="q8_0") as llm:
        pinned = Counter(cpus[0] for thread, cpus in masks(os.getpid()).items() if thread not in mine and len(cpus) == 1)
        assert said(llm, 8) == golden(8)
    with_threads = {node.id for node in NODES.values() if set(node.cpus) & set(pinned)}
    assert with_threads >= {node.id for node in WHOLE}, pinned
    assert max(pinned.values()) == 1, pinned


@pytest.mark.parametrize("level", LEVELS)
def test_one_thread_computes_the_golden_text_at_every_level(level: str) -> None:
    with LLM(kv_cache_memory=KV, threads=1, isa=level) as llm:
        assert said(llm, 3, 1) == golden(3, "token_ids", 1)
    with LLM(kv_cache_memory=KV, threads=1, isa=level, quantize="q8_0") as llm:
        assert said(llm, 16, 6) == golden(16, prompts=6)


def test_threads_of_the_first_and_the_last_node_compute_it_together() -> None:
    with LLM(kv_cache_memory=KV, cpu_threads_bind=f"{WHOLE[0].cpus[0]},{WHOLE[-1].cpus[-1]}", quantize="q8_0") as llm:
        assert said(llm, 12) == golden(12)


@pytest.mark.parametrize("policy", ["local", "shard", "mirror", "interleave"])
def test_every_policy_computes_the_golden_text_with_every_page_at_home(policy: str) -> None:
    with LLM(kv_cache_memory=KV, numa=policy, quantize="q8_0") as llm:
        assert said(llm, 8) == golden(8)
        found = placed_memory(os.getpid())
    assert (found.remote, llm.ready.details["numa"]) == (0, policy)
    assert len({node for (_, node), size in found.found.items() if size}) == (1 if policy == "local" else len(WHOLE))


@needs_data
@pytest.mark.parametrize("policy", ["local", "shard", "mirror", "interleave"])
def test_every_policy_tells_the_golden_story(policy: str) -> None:
    told = json.loads((STORIES / "golden.json").read_text())[:2]
    with LLM(str(STORIES), kv_cache_memory=KV, numa=policy) as llm:
        answers = llm.generate([story["prompt_ids"] for story in told], SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))
    assert [list(answer.token_ids) for answer in answers] == [story["greedy_ids"][:12] for story in told]


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_heavy(tmp_path_factory.mktemp("heavy") / "heavy.gguf")


@pytest.mark.parametrize(("policy", "copies"), [("shard", 1), ("mirror", len(WHOLE))])
def test_weights_take_as_many_copies_as_the_policy_says_and_two_per_cent(heavy: Path, policy: str, copies: int) -> None:
    with LLM(str(heavy), kv_cache_memory=KV, numa=policy) as llm:
        (answer,) = llm.generate([list(PROMPTS[0])], SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
        found = placed_memory(os.getpid())
        kv = llm.ready.details["kv_bytes"]
    wanted, ranges = copies * MATRIX_BYTES, 2 * len(found.found)
    assert (list(answer.token_ids), found.remote) == (SAID[0][:3], 0)
    assert wanted <= found.total - kv <= 1.02 * wanted + PAGE * ranges
    assert all(found.on(node.id) >= MATRIX_BYTES * copies / len(WHOLE) * 0.6 for node in WHOLE)
