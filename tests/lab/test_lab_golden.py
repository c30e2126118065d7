"""The golden text on machines of several nodes: the same tokens wherever threads and pages are, and every page where
the policy puts it.

The built-in model's tokens were computed by the NumPy backend, those of the stories model by another implementation.
Under every policy each page is counted in numa_maps; a model whose matrices take ten MiB tells how much memory there is
of it in all.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from homenode import LLM, SamplingParams
from tests.host.children import masks
from tests.lab.golden import golden, said, small_pages
from tests.lab.heavy import MATRIX_BYTES, PROMPTS, SAID, make_heavy
from tests.lab.machine import NODES, WHOLE, several_nodes
from tests.lab.residency import PAGE, placed_memory
from tests.paths import STORIES, needs_data

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [several_nodes, pytest.mark.usefixtures("as_before")]
KV, SLACK = 2 << 20, 0.02
POLICIES = ("local", "shard", "mirror", "interleave")  # replicate is several engines: test_lab_serve.py


@pytest.mark.parametrize("asked", [*POLICIES, None])
def test_every_policy_computes_the_golden_text_with_every_page_at_home(asked: str | None) -> None:
    """And what is taken where none is named."""
    mine = set(masks(os.getpid()))
    with LLM(kv_cache_memory=KV, numa=asked, quantize="q8_0") as llm:
        pinned = Counter(
            cpus[0] for thread, cpus in masks(os.getpid()).items() if thread not in mine and len(cpus) == 1
        )
        assert said(llm, 8) == golden(8)
        found = placed_memory(os.getpid())
    policy = llm.ready.details["numa"]
    assert found.remote == 0 and policy in POLICIES and asked in (policy, None)
    assert len({node for (_, node), size in found.found.items() if size}) == (1 if policy == "local" else len(WHOLE))
    with_threads = {node.id for node in NODES.values() if set(node.cpus) & set(pinned)}
    assert max(pinned.values(), default=1) == 1, pinned
    assert policy == "local" or with_threads >= {node.id for node in WHOLE}, pinned


@needs_data
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_tells_the_golden_story(policy: str) -> None:
    told = json.loads((STORIES / "golden.json").read_text())[:2]
    with LLM(str(STORIES), kv_cache_memory=KV, numa=policy) as llm:
        answers = llm.generate(
            [story["prompt_ids"] for story in told], SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
        )
    assert [list(answer.token_ids) for answer in answers] == [story["greedy_ids"][:12] for story in told]


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_heavy(tmp_path_factory.mktemp("heavy") / "heavy.gguf")


@pytest.mark.parametrize("pages", ["huge", "small"])
@pytest.mark.parametrize(("policy", "copies"), [("shard", 1), ("mirror", len(WHOLE))])
def test_weights_take_as_many_copies_as_the_policy_says_and_two_per_cent(
    heavy: Path, policy: str, copies: int, pages: str
) -> None:
    """With huge pages wherever the kernel has some, and with none. Beyond the two per cent: a page for each run of rows
    and node.
    """
    if pages == "small" and os.environ.get("HOMENODE_LAB_MACHINE", "2x2") != "2x2":
        pytest.skip("small pages on one machine of each processor")
    with (
        small_pages() if pages == "small" else contextlib.nullcontext(),
        LLM(str(heavy), kv_cache_memory=KV, kv_cache_prealloc=True, numa=policy) as llm,
    ):
        (answer,) = llm.generate([list(PROMPTS[0])], SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
        found = placed_memory(os.getpid())
        compute = llm.ready.details["compute"]
        others, threads = llm.ready.details["kv_bytes"] + compute["scratch_bytes"], compute["threads"]
    wanted = copies * MATRIX_BYTES
    assert (list(answer.token_ids), found.remote) == (SAID[0][:3], 0)
    assert wanted <= found.total - others <= (1 + SLACK) * wanted + PAGE * (threads + len(WHOLE)) * copies
    assert compute["scratch_bytes"] > 0
    assert all(found.on(node.id) >= MATRIX_BYTES * copies / len(WHOLE) * 0.6 for node in WHOLE)
