"""Tokens that a model drafts beside the one that is served, or a block of it: the answers are those without, and what
should be right is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.bench.engine.speculate import KnownAnswers, measure_rates
from homenode.compute.ops import LayerState
from homenode.engine.api.local import LocalEngine
from homenode.engine.plan import drafting
from homenode.errors import CapacityError, UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.pooling import PoolingSpec
from homenode.sampling import SamplingParams
from tests.checkpoints import make_folder, toy_config, toy_tensors, write_safetensors
from tests.engine.engines import config_for, run_all, tokens_of
from tests.model.prediction_toys import HIDDEN, VOCAB, block_tensors, make_predicting_folder

PROMPTS = [[(7 * i + k * k) % 100 + 3 for k in range(length)] for i, length in enumerate((2, 31, 33, 64, 90))]
PARAMS = [
    SamplingParams(max_tokens=40, temperature=t, seed=i, ignore_eos=True, logprobs=1)
    for i, t in enumerate((0, 0, 0.8, 1.2, 0))
]
SMALL = {"block_size": 32, "kv_cache_memory": "2MiB", "max_num_batched_tokens": 48, "max_num_seqs": 8}


def answers(folder: Path, rounds: int = 1, **settings: Any) -> tuple[list[list[tuple[Any, ...]]], int, int]:
    """Tokens and log-probabilities of all prompts, the last time, and how many were drafted and accepted in all."""
    engine = LocalEngine(config_for(folder, **SMALL, **settings))
    try:
        found = [run_all(engine, PROMPTS, PARAMS, 1 + 100 * n) for n in range(rounds)]
    finally:
        engine.close()
    outputs = [output for each in found for request in each for output in request]
    plain = [[(o.tokens, o.logprobs) for o in request] for request in found[-1]]
    joined = [[(tokens_of(request), [value for o in request for value in o.logprobs])] for request in found[-1]]
    assert plain
    return joined, sum(o.drafted_tokens for o in outputs), sum(o.accepted_tokens for o in outputs)


def circle(seed: int = 3) -> np.ndarray[Any, Any]:
    """What follows each token."""
    order = np.random.default_rng(seed).permutation(VOCAB)
    follows = np.zeros(VOCAB, np.int64)
    follows[order] = np.roll(order, -1)
    return follows


def make_right(folder: Path) -> Path:
    """A model whose layers add nothing, so that a token follows from the one before it, and whose block is right: it
    reads the token alone.
    """
    plain, (layer, _) = toy_tensors(toy_config("qwen3")), block_tensors()
    rows = np.random.default_rng(5).standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    rows /= np.sqrt((rows**2).mean(axis=1, keepdims=True))
    head = np.zeros_like(rows)
    head[circle()] = rows
    change = {
        name: np.zeros_like(values)
        for name, values in plain.items()
        if name.endswith(("o_proj.weight", "down_proj.weight"))
    }
    change |= {
        f"model.layers.2.{name}": np.zeros_like(v)
        for name, v in layer.items()
        if name.endswith(("o_proj.weight", "down_proj.weight"))
    }
    ones = ("model.norm", "model.layers.2.enorm", "model.layers.2.hnorm", "model.layers.2.shared_head.norm")
    change |= {f"{name}.weight": np.ones(HIDDEN, np.float32) for name in ones}
    join = np.concatenate((np.eye(HIDDEN), np.zeros((HIDDEN, HIDDEN))), axis=1).astype(np.float32)
    change |= {"model.layers.2.eh_proj.weight": join, "model.embed_tokens.weight": rows, "lm_head.weight": head}
    return make_predicting_folder(folder, "deepseek", change)


@pytest.mark.parametrize("rounds", [1, 2], ids=["anew", "from the prefix cache"])
def test_a_model_that_drafts_for_itself_is_right(rounds: int, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    expected, _, _ = answers(folder, speculative="off")
    found, drafted, accepted = answers(
        folder, rounds, speculative="draft", speculative_model=str(folder), num_speculative_tokens=3
    )
    assert found == expected
    assert drafted >= 60 * rounds and accepted >= 0.9 * drafted - 3 * len(PROMPTS) * rounds


def test_a_model_that_drafts_wrongly_changes_nothing(tmp_path: Path) -> None:
    folder, other = make_folder(tmp_path / "m"), make_folder(tmp_path / "other", seed=9)
    expected, _, _ = answers(folder, speculative="off")
    found, drafted, accepted = answers(folder, speculative="draft", speculative_model=str(other))
    assert found == expected and accepted < drafted


def test_a_block_that_is_right_is_right_every_time(tmp_path: Path) -> None:
    folder = make_right(tmp_path / "m")
    expected, _, _ = answers(folder, speculative="off")
    found, drafted, accepted = answers(folder, 2, speculative="mtp", num_speculative_tokens=3)
    assert found == expected
    assert drafted >= 60 and accepted >= 0.6 * drafted  # two of the prompts are drawn at temperatures


@pytest.mark.parametrize("style", ["deepseek", "qwen", "mimo", "ernie"])
def test_a_block_that_is_wrong_changes_nothing(style: str, tmp_path: Path) -> None:
    folder = make_predicting_folder(tmp_path / "m", style)
    expected, _, _ = answers(folder, speculative="off")
    found, drafted, accepted = answers(folder, speculative="mtp", num_speculative_tokens=2)
    assert found == expected and accepted < drafted


def test_what_cannot_draft_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    asked: Sequence[tuple[dict[str, Any], str]] = [
        ({"speculative": "mtp"}, "has no block that predicts"),
        ({"speculative": "draft", "speculative_model": str(tmp_path / "nowhere.gguf")}, "nowhere.gguf"),
    ]
    for settings, message in asked:
        with pytest.raises(UserError, match=message):
            LocalEngine(config_for(folder, **SMALL, **settings))


@pytest.mark.parametrize("kept", ["states", "a vector"])
def test_models_that_cannot_draft_are_refused_with_the_reason(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(make_folder(tmp_path / "m"))
    changes: dict[str, Any] = (
        {"layer_states": (LayerState(4, 3), None)} if kept == "states" else {"pooling": PoolingSpec("last", HIDDEN)}
    )
    other = replace(checkpoint, spec=replace(checkpoint.spec, **changes))
    monkeypatch.setattr(drafting, "open_checkpoint", lambda _path: other)
    config = config_for(tmp_path / "m", speculative="draft", speculative_model=str(tmp_path / "m"))
    why = "keeps states of recurrent layers" if kept == "states" else "does not generate text"
    with pytest.raises(UserError, match=why) as refused:
        drafting.with_drafter(checkpoint, config)
    assert refused.value.param == "speculative_model" and "attention layers alone" in refused.value.message


@pytest.mark.parametrize("rate", [1.0, 0.0])
def test_known_answers_are_drafted_when_heads_would_draft(rate: float, tmp_path: Path) -> None:
    """The heads are asked, and awaited; the tokens that they tell are others."""
    folder, made = make_predicting_folder(tmp_path / "m", "deepseek"), list[KnownAnswers]()

    def make(*given: Any) -> KnownAnswers:
        made.append(KnownAnswers(*given))
        return made[0]

    settings: dict[str, Any] = {**SMALL, "speculative": "mtp", "num_speculative_tokens": 2}
    engine = LocalEngine(config_for(folder, **settings), make_drafter=make)
    try:
        assert made[0].asks_models
        (speed,) = measure_rates(engine, made[0], [rate], tokens=24, turns=1, at_once=[1])
    finally:
        engine.close()
    assert speed.drafted >= 6 and speed.accepted == round(rate) * speed.drafted
    assert speed.tokens_per_step <= 3.0 and (speed.tokens_per_step > 1.4) == (rate > 0.5)


def test_heads_of_a_kind_that_cannot_be_run_are_named(tmp_path: Path) -> None:
    """As those of DeepSeek V4, whose rows are several; the model is the same without."""
    folder = make_folder(tmp_path / "m")
    heads = {"mtp.0.e_proj.weight": np.ones((4, 4), np.float32)}
    write_safetensors(folder / "model.safetensors", toy_tensors(toy_config()) | heads)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.prediction is None and checkpoint.left_heads == "mtp.0.e_proj.weight"
    with pytest.raises(
        UserError, match=r"mtp\.0\.e_proj\.weight.* of a kind that homenode cannot run in a llama model"
    ):
        drafting.with_drafter(checkpoint, config_for(folder, speculative="mtp"))
    assert drafting.with_drafter(checkpoint, config_for(folder)).drafting is None


def test_heads_that_nobody_named_are_left_out_where_memory_lacks(tmp_path: Path) -> None:
    folder = make_predicting_folder(tmp_path / "m", "deepseek")
    scarce: dict[str, Any] = {"block_size": 32, "max_num_batched_tokens": 48, "max_num_seqs": 8}
    scarce["kv_cache_memory"] = "160KiB"  # 8 blocks of 16 KiB are one sequence of full length; with heads 24 KiB
    engine = LocalEngine(config_for(folder, **scarce))
    try:
        assert engine.ready.num_blocks == 10
        assert "that predicts further tokens is left out" in str(engine.ready.details["notes"])
    finally:
        engine.close()
    with pytest.raises(CapacityError, match="kv-cache-memory"):
        LocalEngine(config_for(folder, **scarce, speculative="mtp"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mtp", "draft"])
@pytest.mark.parametrize("parallel", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_several_workers_draft_what_one_does(parallel: str, method: str, tmp_path: Path) -> None:
    folder = make_right(tmp_path / "m") if method == "mtp" else make_folder(tmp_path / "m")
    model = {} if method == "mtp" else {"speculative_model": str(folder)}
    expected, _, _ = answers(folder, speculative="off", **{parallel: 2})
    found, drafted, accepted = answers(folder, 2, speculative=method, **model, **{parallel: 2})
    assert found == expected
    assert drafted >= 60 and accepted >= 0.6 * drafted
