"""gpt-oss beside transformers: sinks, alternating windows, experts with biases and a clamped gate, in every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.compute.reference import ReferenceBackend
from homenode.errors import UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model
from tests.model.config_fields import check_fields
from tests.model.parity import Case, check_folder, check_stacked_gguf
from tests.model.transformers_models import make_model

pytestmark = pytest.mark.torch

YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0, "truncate": False,
}  # fmt: skip
SHAPE: dict[str, Any] = {
    "head_dim": 32, "num_hidden_layers": 4, "intermediate_size": 64, "sliding_window": 8, "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip
KEYS = {
    "attention.sliding_window": 8,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 64,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
CASE = Case("gpt_oss", SHAPE | {"rope_parameters": YARN}, KEYS, gguf_name="gpt-oss")
TRUNCATED = Case("gpt_oss", SHAPE | {"rope_parameters": YARN | {"truncate": True}})
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@pytest.mark.parametrize("case", [CASE, TRUNCATED], ids=["as published", "truncated"])
def test_a_folder_has_the_tokens_of_transformers(case: Case, tmp_path: Path, backend: Backend) -> None:
    check_folder(case, tmp_path, backend)


def test_a_gguf_file_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    check_stacked_gguf(CASE, tmp_path, backend)


def test_mxfp4_blocks_are_the_values_that_floats_would_be(tmp_path: Path) -> None:
    """The published layout, rows of gate and up alternating, beside the turned one of floats."""
    from safetensors.numpy import load_file, save_file

    make_model("gpt_oss", CASE.changes, tmp_path / "floats")
    random, shapes = np.random.default_rng(1), {"gate_up_proj": (128, 64), "down_proj": (64, 64)}
    tensors = load_file(tmp_path / "floats" / "model.safetensors")
    coded = dict(tensors)
    for layer in range(4):
        for part, (rows, columns) in shapes.items():
            name = f"model.layers.{layer}.mlp.experts.{part}"
            blocks = random.integers(0, 256, (4, rows, columns // 32, 16), dtype=np.uint8)
            scales = random.integers(120, 130, (4, rows, columns // 32), dtype=np.uint8)
            nibbles = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(4, rows, columns // 32, 32)
            values = _E2M1[nibbles] * np.ldexp(np.float32(1), scales.astype(np.int32) - 127)[..., None]
            tensors[name] = np.ascontiguousarray(values.reshape(4, rows, columns).transpose(0, 2, 1))
            del coded[name]
            coded |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    (tmp_path / "coded").mkdir()
    config = json.loads((tmp_path / "floats" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (tmp_path / "coded" / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "floats" / "model.safetensors")
    save_file(coded, tmp_path / "coded" / "model.safetensors")
    floats, blocks_read = (load_model(open_checkpoint(tmp_path / n), ReferenceBackend()) for n in ("floats", "coded"))
    for plain, other in zip(floats.parameters.layers, blocks_read.parameters.layers, strict=True):
        for key in plain:
            assert all(np.array_equal(a, b) for a, b in zip(plain[key], other[key], strict=True)), key


def test_another_gate_is_refused(tmp_path: Path) -> None:
    make_model("gpt_oss", CASE.changes, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"swiglu_limit": 5.0}))
    with pytest.raises(UnsupportedError, match="swiglu_limit 5 is not supported"):
        open_checkpoint(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_field_is_read_as_transformers_reads_it_or_refused(tmp_path: Path) -> None:
    check_fields("gpt_oss", CASE.changes, tmp_path / "model")
