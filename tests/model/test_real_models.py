"""Real models as they are published: their texts, and how well they predict one, beside transformers in float32 (see
`real_models.py`). They are as large as a hundred tests, so `make real-models` fetches them where they are wanted.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.perplexity import TEXT, logprobs, models, perplexity, windows
from homenode.compute.ops import Backend
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.tokenizer import load_tokenizer
from homenode.model.weights.load import LoadedModel, load_model
from tests.model.driver import Driver
from tests.model.real_models import GOLDEN

EXPECTED: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
CLOSE = 0.015  # of the perplexity: 0.3 to 1.2 % are measured
LEAD = 0.3  # of a token over the next best, below which activations of 8 bits may choose the other


@pytest.fixture(params=EXPECTED)
def name(request: pytest.FixtureRequest) -> str:
    """Of a model that is here."""
    if request.param not in models():
        pytest.skip("needs real models, which `make real-models` fetches")
    return str(request.param)


def load(name: str) -> tuple[LoadedModel, Backend]:
    native = pytest.importorskip("homenode.compute.native", reason="needs the compiled core")
    backend: Backend = native.NativeBackend([-1, -1], spin_us=0)
    return load_model(open_checkpoint(models()[name]), backend), backend


def test_greedy_texts(name: str) -> None:
    model, backend = load(name)
    for wanted in EXPECTED[name]["texts"]:
        steady = next((i for i, lead in enumerate(wanted["leads"]) if lead < LEAD), len(wanted["new"]))
        (found,) = Driver(model, backend, max_tokens=64).generate([wanted["prompt"]], steady)
        assert found.tokens == wanted["prompt"] + wanted["new"][:steady]


def test_prompts_are_the_tokens_they_were(name: str) -> None:
    tokenizer = load_tokenizer(models()[name])
    for wanted in EXPECTED[name]["texts"]:
        text = tokenizer.decode(wanted["prompt"])
        assert tokenizer.encode(text) == wanted["prompt"]


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8"])
def test_perplexity_is_that_of_exact_weights(name: str, kv_dtype: str) -> None:
    model, backend = load(name)
    cut = windows(models()[name], TEXT.read_text(encoding="utf-8"))
    found = perplexity([logprobs(model, backend, tokens, kv_dtype) for tokens in cut])
    assert found == pytest.approx(EXPECTED[name]["perplexity"], rel=CLOSE)
