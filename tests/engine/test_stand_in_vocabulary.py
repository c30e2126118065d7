"""A vocabulary that stands in for the model's: answers are bound by its texts wherever they are computed, and it is the
one that the engine began with.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from homenode import LLM, SamplingParams
from homenode.errors import InternalError, UserError
from homenode.grammars.spec import Choice, Regex
from homenode.model.tokenizer import load_tokenizer
from tests.engine.live import BUILTIN, LiveServer

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = pytest.mark.skipif(not BUILTIN.is_file(), reason="there is no built-in model")

SMALL: dict[str, Any] = {"kv_cache_memory": "4MiB", "threads": 1}
HOT = SamplingParams(max_tokens=40, temperature=1.0, seed=1)
NUMBER = Regex("[0-9]{6}")


@pytest.fixture
def swapped(tmp_path: Path) -> Path:
    """The built-in vocabulary, digits and letters in each other's places."""
    folder = tmp_path / "swapped"
    folder.mkdir()
    form = json.loads((BUILTIN.parent / "tokenizer.json").read_text())
    vocabulary = form["model"]["vocab"]
    for digit, letter in zip("0123456789", "abcdefghij", strict=True):
        vocabulary[digit], vocabulary[letter] = vocabulary[letter], vocabulary[digit]
    (folder / "tokenizer.json").write_text(json.dumps(form))
    shutil.copy(BUILTIN.parent / "tokenizer_config.json", folder)
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The built-in model without a vocabulary."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(BUILTIN.parent / name, folder)
    return folder


@pytest.mark.parametrize("workers", [{}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_answers_are_bound_by_its_texts(swapped: Path, workers: dict[str, Any]) -> None:
    with LLM(tokenizer=load_tokenizer(swapped), **SMALL, **workers) as llm:
        (answer,) = llm.generate("Give a number.", HOT, output=NUMBER)
        (word,) = llm.generate("Yes?", HOT, output=Choice(["a7", "b8"]))
    assert re.fullmatch("[0-9]{6}", answer.text) and answer.finish_reason == "stop"
    assert word.text in ("a7", "b8")


def test_a_model_without_one_of_its_own_is_bound_by_it(bare: Path) -> None:
    with LLM(str(bare), tokenizer=load_tokenizer(BUILTIN.parent), **SMALL) as llm:
        (answer,) = llm.generate("Give a number.", HOT, output=NUMBER)
    assert re.fullmatch("[0-9]{6}", answer.text)


def test_one_that_was_not_read_from_files_binds_nothing(bare: Path) -> None:
    made = load_tokenizer(BUILTIN.parent)
    made.source = None
    with LLM(str(bare), tokenizer=made, **SMALL) as llm:
        assert llm.generate("Give a number.", HOT)[0].token_ids
        with pytest.raises(UserError, match="not read from files"):
            llm.generate("Give a number.", HOT, output=NUMBER)


def test_one_that_was_replaced_since_the_engine_began_binds_nothing(swapped: Path) -> None:
    with LLM(tokenizer=load_tokenizer(swapped), **SMALL) as llm:
        shutil.copy(BUILTIN.parent / "tokenizer.json", swapped)
        with pytest.raises((UserError, InternalError), match=r"tokenizer\.json holds another text"):
            llm.generate("Give a number.", HOT, output=NUMBER)


def test_a_server_binds_by_it_too(swapped: Path) -> None:
    server = LiveServer("--tokenizer", str(swapped), "--kv-cache-memory", "4MiB")
    try:
        body = {"prompt": "Give a number.", "max_tokens": 40, "seed": 1, "structured_outputs": {"regex": "[0-9]{6}"}}
        (choice,) = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["choices"]
    finally:
        server.close()
    assert re.fullmatch("[0-9]{6}", choice["text"]) and choice["finish_reason"] == "stop"
