"""DeepSeek V4 beside transformers: a window and pooled rows, hyper-connections, experts that go by the token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from safetensors.numpy import load_file

from homenode.compute.ops import Backend, LayerKv, LayerState
from homenode.compute.reference import ReferenceBackend
from homenode.errors import UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec, plan_parts
from homenode.model.weights.load import layers_kv, load_model
from tests.checkpoints import safetensors_bytes
from tests.model.config_fields import check_fields
from tests.model.driver import Driver
from tests.model.parity import Case, check_file, write_stacked_gguf
from tests.model.transformers_models import load, make_model, prompts, quiet_and_on_one_thread
from tests.quantised_folders import FLOAT4, float8_values

pytestmark = pytest.mark.torch

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
FIGURES: dict[str, Any] = {
    "head_dim": 32, "num_key_value_heads": 1, "q_lora_rank": 24, "intermediate_size": 40, "moe_intermediate_size": 40,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2, "num_hidden_layers": 4, "layer_types": [SPARSE, SLIDING, HEAVY, SPARSE],
    "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
    "compress_rates": {SPARSE: 4, HEAVY: 8}, "o_groups": 2, "o_lora_rank": 16, "index_n_heads": 16,
    "index_head_dim": 16, "index_topk": 5,
    "sliding_window": 7, "partial_rotary_factor": 0.25, "hc_mult": 3, "hc_sinkhorn_iters": 4,
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32,
    "beta_slow": 1},
}  # fmt: skip
CASE = Case("deepseek_v4", FIGURES, seed=1)
GGUF = Case(
    "deepseek_v4",
    FIGURES | {"compress_rates": {SPARSE: 4, HEAVY: 128}},
    {
        "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 40, "expert_gating_func": 4,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.5, "expert_weights_norm": True, "rope.dimension_count": 8, "rope.freq_base": 10000.0,
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
        "attention.sliding_window": 7, "attention.q_lora_rank": 24, "attention.output_group_count": 2,
        "attention.output_lora_rank": 16,
        "attention.compress_ratios": [4, 0, 128, 4], "attention.compress_rope_freq_base": 160000.0,
        "attention.indexer.head_count": 16, "attention.indexer.key_length": 16, "attention.indexer.top_k": 5,
        "hyper_connection.count": 3, "hyper_connection.sinkhorn_iterations": 4, "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 1, "swiglu_clamp_exp": [10.0] * 4, "embedding_length_out": 192,
    },
    gguf_name="deepseek4",
    seed=1,
)  # fmt: skip
BOUND = 2e-5  # of the spread of log-probabilities: sums of four layers of three streams in another order


def made(folder: Path, changes: dict[str, Any] = FIGURES, dtype: str = "float32", seed: int = 1) -> Any:
    """The model that transformers has, with experts of every token, which it leaves all the first ones."""
    import torch

    make_model(CASE.kind, changes, folder, dtype, seed=seed)
    model = load(folder, dtype)
    random = torch.Generator().manual_seed(seed)
    for name, table in model.named_buffers():
        if name.endswith("tid2eid"):
            drawn = torch.rand(len(table), changes["n_routed_experts"], generator=random).argsort(1)
            table.copy_(drawn[:, : table.shape[1]])
        elif name.endswith("e_score_correction_bias"):
            table.copy_(torch.randn(len(table), generator=random) * 0.3)
    model.save_pretrained(folder)
    return load(folder, "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("v4") / "model"
    with quiet_and_on_one_thread():
        made(folder)
    return folder


def test_a_folder_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    with quiet_and_on_one_thread():
        check_file(tmp_path, made(tmp_path), backend, BOUND)


def test_a_gguf_file_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    with quiet_and_on_one_thread():
        theirs = made(tmp_path, dict(GGUF.changes))
        check_file(write_stacked_gguf(GGUF, tmp_path, tmp_path / "model.gguf"), theirs, backend, BOUND)


def test_the_bits_do_not_depend_on_the_cut(folder: Path, exact_backend: Backend) -> None:
    if exact_backend.name == "torch":
        pytest.skip("torch sums over what it has at once")
    model = load_model(open_checkpoint(folder), exact_backend)
    whole = Driver(model, exact_backend).prefill(prompts()[0])[1]
    for chunk in (1, 7):
        assert np.array_equal(Driver(model, exact_backend).prefill(prompts()[0], chunk)[1], whole)


def test_published_folders_have_other_names_and_figures(tmp_path: Path) -> None:
    """As its makers wrote its config.json; the figures are the same."""
    with quiet_and_on_one_thread():
        made(tmp_path, {**GGUF.changes, "mlp_layer_types": ["hash_moe"] * 2 + ["moe"] * 2})
    wanted, told = open_checkpoint(tmp_path), json.loads((tmp_path / "config.json").read_text())
    gone = {"layer_types", "mlp_layer_types", "compress_rates", "rope_parameters", "partial_rotary_factor"}
    published = {key: value for key, value in told.items() if key not in gone} | {
        "compress_ratios": [4, 0, 128, 4, 0], "num_hash_layers": 2, "qk_rope_head_dim": 8, "topk_method": "noaux_tc",
        "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 32,
        "beta_slow": 1},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(published))
    assert open_checkpoint(tmp_path).spec == wanted.spec
    row, spec = LayerKv(1, 32, 0, 32), wanted.spec
    # Of 16 tokens four keys of 16 elements, and four rows of 32 or one
    windows = [LayerKv(1, width, 0) for width in (4, 4, 8, 2, 8)]
    assert layers_kv(spec, ModelPart.whole(spec)) == (*(row,) * 4, *windows)
    assert spec.layer_states == (LayerState(192, 8), None, LayerState(64, 128), LayerState(192, 8))
    assert spec.rope.theta == 160000.0 and spec.local_rope is not None and spec.local_rope.theta == 10000.0


def test_published_weights_are_8_and_4_bit_floats(folder: Path, tmp_path: Path) -> None:
    """Scales that are called so alone: powers of two of each block of 128 x 128, or of 32 columns of a row."""
    random = np.random.default_rng(3)
    config = json.loads((folder / "config.json").read_text())
    coded = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": coded, "expert_dtype": "fp4"}))
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {
        name: ({"f": "F32", "i": "I64"}[values.dtype.kind], values.shape, values.tobytes())
        for name, values in load_file(folder / "model.safetensors").items()
    }
    codes = random.integers(0, 256, (40, 32), np.uint8)
    powers = random.integers(120, 130, (40, 2), np.uint8)
    expert, query = "model.layers.1.ffn.experts.2.w1.", "model.layers.0.attn.wq_b."
    tensors[f"{expert}weight"] = ("I8", (40, 32), codes.tobytes())
    tensors[f"{expert}scale"] = ("F8_E8M0", (40, 2), powers.tobytes())
    eights = random.integers(0, 120, (128, 24), np.uint8)
    tensors[f"{query}weight"] = ("F8_E4M3", (128, 24), eights.tobytes())
    tensors[f"{query}scale"] = ("F8_E8M0", (1, 1), bytes([125]))
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    model = load_model(open_checkpoint(tmp_path), ReferenceBackend())
    pairs = np.stack([codes & 15, codes >> 4], axis=2).reshape(40, 64)
    wanted = FLOAT4[pairs] * np.repeat(np.exp2(powers.astype(np.float32) - 127), 32, axis=1)
    np.testing.assert_array_equal(model.parameters.layers[1]["expert_gate"][2], wanted)
    np.testing.assert_array_equal(model.parameters.layers[0]["q_b"], float8_values()[eights] / 4)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another limit": ({"swiglu_limit": 7.0}, "swiglu_limit 7"),
    "other scores": ({"scoring_func": "softmax"}, "scoring_func 'softmax'"),
    "weights as they are": ({"norm_topk_prob": False}, "norm_topk_prob"),
    "two shared experts": ({"n_shared_experts": 2}, "n_shared_experts 2"),
    "KV heads": ({"num_key_value_heads": 2}, "num_key_value_heads 2"),
    "groups": ({"o_groups": 3}, "4 heads in 3 groups"),
    "windows alone": ({"layer_types": [SLIDING] * 4}, "all see a window alone"),
    "other layers": ({"layer_types": ["full_attention"] * 4}, "layer_types"),
    "other ratios": ({"layer_types": None, "compress_ratios": [4, 8, 128, 4]}, "compress_ratios"),
    "hashes behind": ({"mlp_layer_types": ["moe", "hash_moe", "moe", "moe"]}, "mlp_layer_types"),
    "a bias": ({"mlp_bias": True}, "mlp_bias"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_by_name(case: str, folder: Path, tmp_path: Path) -> None:
    changes, says = REFUSED[case]
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    (tmp_path / "model.safetensors").hardlink_to(folder / "model.safetensors")
    with pytest.raises(UserError, match=says):
        open_checkpoint(tmp_path)


def test_ranks_have_whole_groups_of_heads(folder: Path) -> None:
    spec = open_checkpoint(folder).spec
    parts = plan_parts(spec, {}, PartitionSpec(ranks=2))
    assert [(part.heads.first, part.heads.count, part.kv_heads.count) for part in parts] == [(0, 2, 1), (2, 2, 1)]
    with pytest.raises(UserError, match="--tensor-parallel-size 3"):
        plan_parts(spec, {}, PartitionSpec(ranks=3))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_field_is_read_as_transformers_reads_it_or_refused(tmp_path: Path) -> None:
    one_value = ("n_shared_experts", "norm_topk_prob", "num_key_value_heads")
    above_0 = ("compress_rope_theta", "rope_theta", "hc_eps")
    check_fields(CASE.kind, CASE.changes, tmp_path / "model", refused=frozenset((*one_value, *above_0)))
