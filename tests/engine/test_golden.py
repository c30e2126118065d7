"""The whole engine on real weights: the same tokens alone, batched, in chunks, after a prefix hit and after preemption.

The golden text was made with another implementation in float32 (see the data folder's notes).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from homenode.engine.api.local import LocalEngine
from homenode.engine.messages import Output
from homenode.engine.token_rules import TokenRules
from homenode.errors import CapacityError, UserError
from homenode.sampling import SamplingParams
from tests.checkpoints import make_folder
from tests.engine.answer_drafts import draft_answers
from tests.engine.engines import BACKENDS, config_for, greedy, run_all, tokens_of
from tests.paths import STORIES, STORIES_MIXTURE, needs_data

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunked": {"max_num_batched_tokens": 7, "max_num_seqs": 7},
    "whole_prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 512},
    "small_blocks": {"block_size": 32, "max_num_seqs": 2},
    "no_prefix_cache": {"enable_prefix_caching": False},
}


def golden() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((STORIES / "golden.json").read_text())
    return entries


def check_golden(outputs: Sequence[list[Output]], entries: Sequence[dict[str, Any]], count: int) -> None:
    for found, entry in zip(outputs, entries, strict=True):
        assert tokens_of(found) == entry["greedy_ids"][:count]


@needs_data
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_golden_stories_batched(backend: str, mode: str) -> None:
    entries = golden()
    count = 160 if backend == "native" else 24
    engine = LocalEngine(config_for(STORIES, backend=backend, kv_cache_memory="2MiB", **MODES[mode]))
    try:
        wanted = [min(count, len(entry["greedy_ids"])) for entry in entries]
        params = [greedy(n, logprobs=0) for n in wanted]
        for first_id in (1, 101):  # the second time the prompts may come from the prefix cache
            outputs = run_all(engine, [entry["prompt_ids"] for entry in entries], params, first_id)
            check_golden(outputs, entries, count)
        values = [score.logprob for o in outputs[0] for score in o.logprobs]
        assert values == pytest.approx(entries[0]["logprobs"][: len(values)], abs=2e-3)
    finally:
        engine.close()


@needs_data
@pytest.mark.parametrize("mode", MODES)
def test_golden_stories_of_a_mixture(mode: str) -> None:
    """Four equal experts in every layer, each the dense model's MLP: the same text in every mode."""
    entries = golden()
    engine = LocalEngine(config_for(STORIES_MIXTURE, kv_cache_memory="2MiB", **MODES[mode]))
    try:
        wanted = [min(160, len(entry["greedy_ids"])) for entry in entries]
        outputs = run_all(engine, [entry["prompt_ids"] for entry in entries], [greedy(n) for n in wanted])
        check_golden(outputs, entries, 160)
    finally:
        engine.close()


def prompts_of(count: int, vocab: int, longest: int, seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    shared = [rng.randrange(3, vocab) for _ in range(longest // 2)]
    return [
        shared[: rng.randrange(len(shared))] + [rng.randrange(3, vocab) for _ in range(rng.randint(1, longest // 2))]
        for _ in range(count)
    ]


PARAMS = [
    greedy(40),
    SamplingParams(max_tokens=40, temperature=1.0, seed=5, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=6, ignore_eos=True),
    SamplingParams(
        max_tokens=40,
        temperature=1.0,
        seed=7,
        ignore_eos=True,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        logit_bias={4: 3.0, 5: -2.0},
    ),
    greedy(40, prompt_logprobs=2, logprobs=3),
]


def without_counts(outputs: Sequence[Output]) -> list[Any]:
    """What must not depend on company: tokens and log-probabilities, all bits of them."""
    scores = next((o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None), None)
    return [tokens_of(outputs), [score for o in outputs for score in o.logprobs], scores]


@pytest.fixture(scope="module", params=["qwen3", "qwen3_moe"])
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("toy") / "model", request.param)


BLOCK_BYTES = {"auto": 16384, "int8": 5120}  # of 32 tokens of the toy: 4 heads of 16 in all its layers, keys and values


@pytest.fixture(scope="module", params=[*((b, "auto") for b in BACKENDS), ("native", "int8")], ids="-".join)
def alone(
    request: pytest.FixtureRequest, toy: Path
) -> tuple[dict[str, str], list[list[int]], list[SamplingParams], list[Any]]:
    """A backend and its KV memory, requests of many kinds, and their results when each has the engine for itself."""
    kind = dict(zip(("backend", "kv_cache_dtype"), request.param, strict=True))
    prompts = prompts_of(10, 128, 120)
    params = [PARAMS[i % len(PARAMS)] for i in range(len(prompts))]
    engine = LocalEngine(config_for(toy, **kind, enable_prefix_caching=False, speculative="off"))
    try:
        results = [
            without_counts(run_all(engine, [prompt], [p], first_id=i)[0])
            for i, (prompt, p) in enumerate(zip(prompts, params, strict=True))
        ]
    finally:
        engine.close()
    return kind, prompts, params, results


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 5, "speculative": "ngram"},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 256, "max_num_seqs": 3},
        {"block_size": 64, "threads": 1},
        {"blocks": 12, "speculative": "ngram", "num_speculative_tokens": 3},  # sequences preempt each other
    ],
    ids=["batched", "chunked", "whole", "one_thread", "preempted"],
)
def test_company_changes_nothing(
    alone: tuple[dict[str, str], list[list[int]], list[SamplingParams], list[Any]], toy: Path, settings: dict[str, Any]
) -> None:
    kind, prompts, params, expected = alone
    changes = {name: value for name, value in settings.items() if name != "blocks"}
    memory = settings["blocks"] * BLOCK_BYTES[kind["kv_cache_dtype"]] if "blocks" in settings else 8 * 2**20
    engine = LocalEngine(config_for(toy, **kind, **{"block_size": 32, "kv_cache_memory": memory} | changes))
    try:
        for first_id in (100, 200):
            outputs = run_all(engine, prompts, params, first_id)
            assert [without_counts(o) for o in outputs] == expected
        preemptions = sum(o[-1].num_preemptions for o in outputs)
        assert (preemptions > 0) == (engine.ready.num_blocks == 12)
        assert sum(o[0].cached_tokens for o in outputs) > 0 or preemptions
    finally:
        engine.close()


def test_drafts_change_nothing(
    alone: tuple[dict[str, str], list[list[int]], list[SamplingParams], list[Any]],
    toy: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several tokens from one step, whatever they are drawn by, are those of one token a step, to the last bit; in the
    native engine while sequences preempt each other.
    """
    kind, prompts, params, expected = alone
    drafts = draft_answers(monkeypatch, prompts, [tokens for tokens, _, _ in expected], 128)
    scarce = kind["backend"] == "native"
    memory = 12 * BLOCK_BYTES[kind["kv_cache_dtype"]] if scarce else 8 * 2**20
    engine = LocalEngine(config_for(toy, **kind, block_size=32, kv_cache_memory=memory))
    try:
        found = run_all(engine, prompts, params)
        assert [without_counts(outputs) for outputs in found] == expected
        assert (sum(outputs[-1].num_preemptions for outputs in found) > 0) == scarce
    finally:
        engine.close()
    assert drafts.accepted > 40 and drafts.rejected > 40


def test_drafts_change_no_draw_that_depends_on_earlier_tokens(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samplers that follow the text, bounds that move with each draw, tokens that may not come yet, plain ones beside;
    and ends amid accepted tokens.
    """
    hot: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0}
    rules = TokenRules(ByteVocabulary(), 128)
    params = [
        SamplingParams(**hot, seed=1, dry_multiplier=0.8, dry_allowed_length=1, ignore_eos=True),
        SamplingParams(**hot, seed=2, mirostat=2, mirostat_tau=3.0, logprobs=0, ignore_eos=True),
        SamplingParams(**hot, seed=3, min_tokens=20, stop_token_ids=tuple(range(0, 128, 3))),
        rules.resolved(SamplingParams(**hot, seed=4, bad_words=("a", "ba"), ignore_eos=True)),
        SamplingParams(**hot, seed=5, frequency_penalty=0.7, min_tokens=3),
        greedy(40, repetition_penalty=1.3),
    ]
    prompts = prompts_of(len(params), 128, 60, seed=9)
    expected: list[Any] = []
    for drafting in (False, True):
        if drafting:
            drafts = draft_answers(monkeypatch, prompts, [tokens for tokens, _, _ in expected], 128)
        given = "auto" if drafting else "off"
        engine = LocalEngine(config_for(toy, block_size=32, kv_cache_memory="8MiB", speculative=given))
        try:
            found = run_all(engine, prompts, params)
        finally:
            engine.close()
        expected = expected or [without_counts(outputs) for outputs in found]
        assert [without_counts(outputs) for outputs in found] == expected
        assert [outputs[-1].finish_reason for outputs in found] == [*["length"] * 2, "stop", *["length"] * 3]
    assert drafts.accepted > 10 and drafts.rejected > 10


class ByteVocabulary:
    """Each token is a byte."""

    special_token_ids: frozenset[int] = frozenset()

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_run_is_refused_and_harms_nobody(backend: str, toy: Path) -> None:
    engine = LocalEngine(config_for(toy, backend=backend))
    try:
        wrong = {(1,) * 256: "ContextLengthError", (128,): "UserError", (-1,): "UserError", (): "UserError"}
        prompts = [list(prompt) for prompt in wrong] + [[5, 6]]
        *refused, fine = run_all(engine, prompts, [greedy(4)] * len(prompts))
        assert [outputs[-1].error_kind for outputs in refused] == list(wrong.values())
        assert len(tokens_of(fine)) == 4
    finally:
        engine.close()


def test_settings_are_refused_before_weights_are_read(toy: Path) -> None:
    def progress(done: int, total: int) -> None:
        raise AssertionError("weights were read")

    with pytest.raises(CapacityError, match="--kv-cache-memory"):
        LocalEngine(config_for(toy, kv_cache_memory=1), progress)
    with pytest.raises(UserError, match="--max-model-len"):
        LocalEngine(config_for(toy, max_model_len=257), progress)
    with pytest.raises(UserError, match="avx1024"):
        LocalEngine(config_for(toy, isa="avx1024"), progress)
