"""Rotary frequencies against transformers' own, and GGUF's divisors against the scaling they spell out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from homenode.model.architectures.rope import rope_of
from homenode.model.spec import RopeSpec
from tests.model.toys import toy_spec

LLAMA3 = RopeSpec(theta=500000.0, kind="llama3", factor=8.0, original_max_position=8192)
YARN = RopeSpec(theta=1e6, kind="yarn", factor=4.0, original_max_position=32768)
LONGROPE = RopeSpec(
    theta=10000.0,
    kind="longrope",
    rotary_dim=32,
    factor=4.0,
    original_max_position=4096,
    short_factors=(1.5,) * 16,
    long_factors=(3.0, 40.0) * 8,
)
KINDS = {
    "default": RopeSpec(theta=10000.0),
    "partial": RopeSpec(theta=10000.0, rotary_dim=32),
    "linear": RopeSpec(theta=10000.0, kind="linear", factor=4.0),
    "dynamic": RopeSpec(theta=10000.0, kind="dynamic", factor=2.0),
    "llama3": LLAMA3,
    "llama3-small": replace(LLAMA3, factor=32.0, low_freq_factor=2.0, high_freq_factor=6.0, original_max_position=512),
    "yarn": YARN,
    "yarn-factor": replace(YARN, attention_factor=0.75, beta_fast=16.0, beta_slow=2.0),
    "yarn-shrinking": replace(YARN, factor=0.5, original_max_position=128),
}


def transformers_rope(spec: Any) -> tuple[Any, float]:
    """inverse frequencies and scale as transformers computes them."""
    pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
    rope_utils = pytest.importorskip(
        "transformers.modeling_rope_utils", reason="needs transformers, which the `torch` group installs"
    )
    from transformers import LlamaConfig

    rope = spec.rope
    given = {
        "rope_type": rope.kind, "rope_theta": rope.theta, "factor": rope.factor,
        "original_max_position_embeddings": rope.original_max_position or spec.max_position,
        "low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor,
        "attention_factor": rope.attention_factor,
        "beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow,
    }  # fmt: skip
    if rope.rotary_dim:
        given["partial_rotary_factor"] = rope.rotary_dim / spec.head_dim
    config = LlamaConfig(
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_position, rope_parameters=given,
    )  # fmt: skip
    # Linear by a factor of one, as that one knows partial rotation.
    kind = "linear" if rope.kind == "default" else rope.kind
    frequencies, scale = rope_utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    return frequencies.numpy(), scale


@pytest.mark.torch
@pytest.mark.parametrize("kind", list(KINDS))
def test_frequencies_are_those_of_transformers(kind: str) -> None:
    spec = toy_spec(head_dim=128, max_position=131072, rope=KINDS[kind])
    ours = rope_of(spec)
    frequencies, scale = transformers_rope(spec)
    assert ours.inverse_frequencies.dtype == np.float32
    np.testing.assert_allclose(ours.inverse_frequencies, frequencies, rtol=2e-6)
    assert ours.scale == pytest.approx(scale, rel=1e-12)


def test_partial_rotation_has_fewer_frequencies() -> None:
    assert rope_of(toy_spec(head_dim=128, rope=KINDS["partial"])).inverse_frequencies.shape == (16,)


def test_llama3_blends_between_kept_and_slowed() -> None:
    spec = toy_spec(head_dim=128, max_position=131072, rope=LLAMA3)
    slowing = (
        rope_of(replace(spec, rope=RopeSpec(theta=500000.0))).inverse_frequencies / rope_of(spec).inverse_frequencies
    )
    assert slowing[0] == 1 and slowing[-1] == pytest.approx(8.0) and (np.diff(slowing) >= -1e-6).all()


def test_gguf_divisors_stand_for_the_llama3_scaling() -> None:
    """Converters write the divisors and leave the kind at its default; a file that names both must not be
    scaled twice.
    """
    spec = toy_spec(head_dim=128, max_position=131072, rope=LLAMA3)
    scaled = rope_of(spec).inverse_frequencies
    factors = tuple((rope_of(replace(spec, rope=RopeSpec(theta=500000.0))).inverse_frequencies / scaled).tolist())
    for kind in ("default", "llama3"):
        divided = rope_of(replace(spec, rope=replace(LLAMA3, kind=kind, factors=factors))).inverse_frequencies
        np.testing.assert_allclose(divided, scaled, rtol=3e-7)


@pytest.mark.parametrize(
    ("length", "factors"),
    [(4096, LONGROPE.short_factors), (4097, LONGROPE.long_factors), (None, LONGROPE.long_factors)],
)
def test_longrope_takes_the_factors_of_the_longest_context(length: int | None, factors: tuple[float, ...]) -> None:
    spec = toy_spec(head_dim=128, max_position=16384, rope=LONGROPE)
    plain = rope_of(replace(spec, rope=RopeSpec(theta=10000.0, rotary_dim=32))).inverse_frequencies
    ours = rope_of(spec, length)
    np.testing.assert_allclose(ours.inverse_frequencies, plain / np.array(factors, np.float32), rtol=1e-6)
    assert ours.scale == pytest.approx(math.sqrt(1 + math.log(4) / math.log(4096)))
    assert rope_of(replace(spec, rope=replace(LONGROPE, attention_factor=1.25)), length).scale == 1.25


def test_longrope_is_that_of_transformers() -> None:
    pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
    rope_utils = pytest.importorskip(
        "transformers.modeling_rope_utils", reason="needs transformers, which the `torch` group installs"
    )
    from transformers import Phi3Config

    given = {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        "original_max_position_embeddings": 4096, "factor": 4.0,
        "short_factor": list(LONGROPE.short_factors), "long_factor": list(LONGROPE.long_factors),
    }  # fmt: skip
    config = Phi3Config(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=16384,
        original_max_position_embeddings=4096,
        rope_parameters=given,
    )
    spec = toy_spec(head_dim=128, max_position=16384, rope=LONGROPE)
    for length in (4000, 5000):
        frequencies, scale = rope_utils.ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
        ours = rope_of(spec, length)
        np.testing.assert_allclose(ours.inverse_frequencies, frequencies.numpy(), rtol=1e-6)
        assert ours.scale == pytest.approx(scale)
