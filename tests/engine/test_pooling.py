"""Vectors by whole engines: in chunks, with and without the prefix cache, by workers, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode import LLM
from homenode.errors import CapacityError, UnsupportedError, UserError
from tests.checkpoints import make_folder
from tests.vocabularies import write_folder

TEXTS = ["a", "the quick brown fox " * 5, "jumps", "over " * 30]
SMALL: dict[str, Any] = {"kv_cache_memory": "8MiB", "threads": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy decoder that pools its last token, with a vocabulary of bytes."""
    folder = make_folder(tmp_path_factory.mktemp("models") / "qwen3", "qwen3", vocab_size=300)
    write_folder(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    told = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (folder / "modules.json").write_text(json.dumps(told))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    return folder


def vectors(folder: Path, texts: list[Any] = TEXTS, **settings: Any) -> Any:
    with LLM(str(folder), **SMALL | settings) as llm:
        return llm.embed(texts)


def test_however_a_text_is_computed_its_vector_has_the_same_bits(folder: Path) -> None:
    wanted = vectors(folder)
    assert wanted.dtype == np.float32 and np.linalg.norm(wanted, axis=1) == pytest.approx([1] * 4, abs=1e-6)
    for settings in ({"max_num_batched_tokens": 8}, {"max_num_seqs": 1}, {"enable_prefix_caching": False}):
        assert np.array_equal(vectors(folder, **settings), wanted), settings
    with LLM(str(folder), **SMALL) as llm:
        for _ in range(2):  # the second time from the prefix cache
            assert np.array_equal(np.concatenate([llm.embed(text) for text in TEXTS]), wanted)
        assert llm.statistics.prefix_hits > 0


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_other_rows_when_asked(folder: Path, pooling: str) -> None:
    wanted = vectors(folder, pooling=pooling)
    assert np.array_equal(vectors(folder, pooling=pooling, max_num_batched_tokens=8), wanted)
    assert not np.allclose(vectors(folder), wanted)
    if pooling == "cls":  # of a causal model: the first token has seen itself only
        assert np.array_equal(vectors(folder, [TEXTS[1][0]], pooling=pooling)[0], wanted[1])


@pytest.mark.parametrize("how", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_workers_give_the_same_vectors(folder: Path, how: dict[str, int]) -> None:
    found = vectors(folder, **how, threads=1, max_num_batched_tokens=16)
    np.testing.assert_allclose(found, vectors(folder), atol=1e-5)


def test_scores_are_cosines(folder: Path) -> None:
    with LLM(str(folder), **SMALL) as llm:
        one, *others = llm.embed(TEXTS)
        assert llm.score(TEXTS[0], TEXTS[1:]) == pytest.approx([float(one @ other) for other in others], abs=1e-6)
        assert llm.score(TEXTS, TEXTS) == pytest.approx([1] * 4, abs=1e-6)
        with pytest.raises(UserError, match="one against several"):
            llm.score(TEXTS[:2], TEXTS[:3])


def test_forms_of_vectors(folder: Path) -> None:
    with LLM(str(folder), **SMALL) as llm:
        raw, short = llm.embed("abc", normalize=False)[0], llm.embed([97, 98, 99], dimensions=8)[0]
        assert short == pytest.approx(raw[:8] / np.linalg.norm(raw[:8]), abs=1e-6)
        with pytest.raises(UserError, match="dimensions is 999"):
            llm.embed("a", dimensions=999)


def test_a_text_as_long_as_the_model_takes_fits_and_no_longer_one(folder: Path) -> None:
    with LLM(str(folder), threads=1, kv_cache_memory="4MiB", max_model_len=128, block_size=32) as llm:
        assert llm.embed("x" * 128).shape[0] == 1
        with pytest.raises(CapacityError, match="128"):
            llm.embed("x" * 129)
        with pytest.raises(CapacityError, match="truncate_prompt_tokens"):
            llm.embed([5] * 129)


def test_each_does_what_its_runner_says(folder: Path) -> None:
    with LLM(str(folder), **SMALL) as llm, pytest.raises(UserError, match="does not generate"):
        llm.generate("a")
    with LLM(str(folder), runner="generate", **SMALL) as llm:
        assert llm.generate("a")[0].token_ids
        with pytest.raises(UserError, match="runner"):
            llm.embed("a")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy BERT with a vocabulary of bytes."""
    pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
    pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")
    from tests.model.test_encoders import CASES, make_encoder

    folder = tmp_path_factory.mktemp("models") / "bert"
    make_encoder(CASES["bert"], folder, vocab_size=300)
    write_folder(folder)
    return folder


def test_an_encoder_computes_whole_texts(encoder: Path) -> None:
    wanted = vectors(encoder, max_num_batched_tokens=16)
    for text, vector in zip(TEXTS, wanted, strict=True):
        assert np.array_equal(vectors(encoder, [text])[0], vector)
    for how in ({"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}):
        np.testing.assert_allclose(vectors(encoder, **how, threads=1), wanted, atol=1e-5)
    with pytest.raises(UnsupportedError, match="cannot generate"):
        LLM(str(encoder), runner="generate", **SMALL)
