"""Each architecture against transformers at toy size: the same log-probabilities within a stated share of their spread,
the same greedy tokens.

Differences are measured on log-probabilities (logits up to a constant) and divided by the spread, the largest minus the
smallest of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, FloatArray
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model
from tests.model.driver import Driver
from tests.model.parity import spread_error
from tests.model.transformers_models import CASES, check_greedy, load, logprobs, make, prompts

pytestmark = pytest.mark.torch

STEPS = 24  # two of the three prompts go on into another block of the cache
FLOAT32_BOUND = 5e-6  # two orders of float32 summation; measured up to 2e-6
BF16_KV_BOUND = 4e-2  # keys and values rounded to 8 significant bits; measured up to 1.9e-2
BF16_ACTIVATION_BOUND = 4e-2  # what matrices are multiplied with rounded to 8 significant bits; measured up to 2.3e-2
BF16_COMPUTE_BOUND = 8e-2  # transformers also rounds every activation to 8 significant bits; measured up to 5.1e-2


@pytest.fixture(scope="module", params=list(CASES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def float32_model(name: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("float32")
    return folder, make(name, folder)


@pytest.fixture(scope="module")
def bfloat16_model(name: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("bfloat16")
    return folder, make(name, folder, "bfloat16")


def usual_error(name: str, ours: FloatArray, theirs: FloatArray) -> float:
    """The same where something is rounded. Of a mixture: of the less wrong half of the rows.

    A rounded logit of a router can choose another expert, and then that row and some after it differ by what two
    experts of random weights do.
    """
    errors = np.abs(ours - theirs).max(axis=1) / (theirs.max() - theirs.min())
    return float(np.median(errors) if "moe" in name or "mixtral" in name else errors.max())


def usual_mean(name: str, differences: FloatArray) -> float:
    """The mean magnitude; of a mixture that of the best row: a prompt's other rows come after one that chose another
    expert.
    """
    rows = np.abs(differences).mean(axis=1)
    return float(rows.min() if "moe" in name or "mixtral" in name else rows.mean())


def test_float32_logits(float32_model: tuple[Path, Any], backend: Backend) -> None:
    folder, theirs = float32_model
    driver = Driver(load_model(open_checkpoint(folder), backend), backend)
    for prompt in prompts():
        _, ours = driver.prefill(prompt)
        assert spread_error(ours, logprobs(theirs, prompt)) < FLOAT32_BOUND


def test_float32_greedy_tokens_alone_chunked_and_together(float32_model: tuple[Path, Any], backend: Backend) -> None:
    folder, theirs = float32_model
    model = load_model(open_checkpoint(folder), backend)
    alone = [Driver(model, backend).generate([prompt], STEPS)[0] for prompt in prompts()]
    for prompt, one in zip(prompts(), alone, strict=True):
        check_greedy(logprobs(theirs, one.tokens[:-1])[len(prompt) - 1 :], one.tokens[len(prompt) :], least_lead=1e-4)
    for chunk, stagger in ((7, 3), (512, 5)):
        together = Driver(model, backend).generate(prompts(), STEPS, chunk=chunk, stagger=stagger)
        for one, other in zip(alone, together, strict=True):
            assert one.tokens == other.tokens
            assert np.array_equal(np.array(one.logprobs), np.array(other.logprobs))


def test_bfloat16_weights(name: str, bfloat16_model: tuple[Path, Any], exact_backend: Backend) -> None:
    folder, theirs = bfloat16_model
    backend = exact_backend
    model = load_model(open_checkpoint(folder), backend)
    # torch's CPU multiplies float32 only; keys and values are then f32 too.
    widened = all(m.target == "F32" for m in model.layout.matrices)
    assert model.spec.storage == "BF16" and model.kv_geometry(32).dtype == ("f32" if widened else "bf16")
    for prompt in prompts():
        expected = logprobs(theirs, prompt)
        _, exact = Driver(model, backend, kv_dtype="f32").prefill(prompt)
        _, usual = Driver(model, backend, kv_dtype="bf16").prefill(prompt)
        assert spread_error(exact, expected) < FLOAT32_BOUND
        assert FLOAT32_BOUND < usual_error(name, usual, expected) < BF16_KV_BOUND


def test_bfloat16_greedy_tokens(bfloat16_model: tuple[Path, Any], exact_backend: Backend) -> None:
    folder, theirs = bfloat16_model
    model = load_model(open_checkpoint(folder), exact_backend)
    ours = Driver(model, exact_backend, kv_dtype="f32").generate(prompts(), STEPS, chunk=16, stagger=2)
    for prompt, one in zip(prompts(), ours, strict=True):
        check_greedy(logprobs(theirs, one.tokens[:-1])[len(prompt) - 1 :], one.tokens[len(prompt) :])


def test_bfloat16_activations(name: str, bfloat16_model: tuple[Path, Any], rounding_backend: Backend) -> None:
    """Where a level rounds what BF16 matrices are multiplied with: near the float32 result, and the same bits in chunks
    and in company.
    """
    folder, theirs = bfloat16_model
    model = load_model(open_checkpoint(folder), rounding_backend)
    for prompt in prompts():
        _, ours = Driver(model, rounding_backend, kv_dtype="f32").prefill(prompt)
        assert FLOAT32_BOUND < usual_error(name, ours, logprobs(theirs, prompt)) < BF16_ACTIVATION_BOUND
    alone = [Driver(model, rounding_backend).generate([prompt], STEPS)[0] for prompt in prompts()]
    together = Driver(model, rounding_backend).generate(prompts(), STEPS, chunk=7, stagger=3)
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens
        assert np.array_equal(np.array(one.logprobs), np.array(other.logprobs))


def test_bfloat16_computation(name: str, bfloat16_model: tuple[Path, Any], backend: Backend) -> None:
    """Against transformers computing in bfloat16: no further off than it is from its own float32 result, and ours is
    the nearer to that.
    """
    folder, exact = bfloat16_model
    model = load_model(open_checkpoint(folder), backend)
    rounding = load(folder, "bfloat16")
    for prompt in prompts():
        _, ours = Driver(model, backend).prefill(prompt)
        theirs, wanted = logprobs(rounding, prompt), logprobs(exact, prompt)
        assert usual_error(name, ours, theirs) < BF16_COMPUTE_BOUND
        assert usual_mean(name, ours - wanted) < usual_mean(name, theirs - wanted)
