"""Gemma 1 and Gemma 4 beside transformers. Every number of a toy is random, so that each of these would show: a norm of
values, a layer's factor or a rope over all pairs left out, values taken behind the norm of keys, scores scaled, a
reader of another layer's keys, windows in other layers, a router normed twice, experts without their factors.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.compute.reference import ReferenceBackend
from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import load_model
from tests.model.conftest import make_backend
from tests.model.parity import Case, check_folder, check_stacked_gguf, write_stacked_gguf
from tests.model.transformers_models import make_model, quiet_and_on_one_thread
from tests.model.variants import changed_folder

pytestmark = pytest.mark.torch

FIRST = Case("gemma", {"head_dim": 24, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"})


def kinds(letters: str) -> list[str]:
    return [{"s": "sliding_attention", "f": "full_attention"}[letter] for letter in letters]


def arrays(letters: str) -> dict[str, Any]:
    return {
        "attention.sliding_window_pattern": [letter == "s" for letter in letters],
        "attention.sliding_window": 6,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "rope.dimension_count": 32,
        "rope.dimension_count_swa": 16,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "final_logit_softcapping": 6.0,
    }


SHAPE: dict[str, Any] = {
    "head_dim": 16, "global_head_dim": 32, "sliding_window": 6, "tie_word_embeddings": True,
    "final_logit_softcapping": 6.0, "rms_norm_eps": 1e-6,
}  # fmt: skip
ROPE = {"rope_freqs.weight": [1.0] * 4 + [1e30] * 12}
SMALL = Case(
    "gemma4_text",
    SHAPE
    | {"num_hidden_layers": 8, "layer_types": kinds("ssfssfsf"), "num_kv_shared_layers": 3, "use_double_wide_mlp": True}
    | {"vocab_size_per_layer_input": 160, "hidden_size_per_layer_input": 8},
    arrays("ssfssfsf")
    | {"feed_forward_length": [96] * 5 + [192] * 3, "attention.shared_kv_layers": 3}
    | {"embedding_length_per_layer_input": 8},
    gguf_name="gemma4",
    gguf_tensors=ROPE,
)
LARGE = Case(
    "gemma4_text",
    SHAPE
    | {"num_hidden_layers": 3, "layer_types": kinds("ssf"), "attention_k_eq_v": True, "hidden_size_per_layer_input": 0}
    | {"num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2}
    | {"moe_intermediate_size": 32},
    arrays("ssf")
    | {"attention.head_count_kv": [2, 2, 1], "expert_count": 6, "expert_used_count": 2}
    | {"expert_feed_forward_length": 32, "embedding_length_per_layer_input": 0},
    gguf_name="gemma4",
    gguf_tensors=ROPE,
)


@pytest.fixture(scope="module", params=[SMALL, LARGE], ids=["small", "large"])
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path]:
    folder = tmp_path_factory.mktemp("gemma4")
    with quiet_and_on_one_thread():
        make_model(request.param.kind, request.param.changes, folder)
    return request.param, folder


def test_gemma_1_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    check_folder(FIRST, tmp_path, backend)


def test_a_gguf_file_of_gemma_1_has_the_tokens_of_transformers(tmp_path: Path) -> None:
    check_stacked_gguf(FIRST, tmp_path, ReferenceBackend())


@pytest.mark.parametrize("name", ["reference", "native", "torch"])
@pytest.mark.parametrize("case", [SMALL, LARGE], ids=["small", "large"])
def test_gemma_4_has_the_tokens_of_transformers(case: Case, name: str, tmp_path: Path) -> None:
    check_folder(case, tmp_path, make_backend(name, rounding=True))


@pytest.mark.parametrize("case", [SMALL, LARGE], ids=["small", "large"])
def test_a_gguf_file_of_gemma_4_has_the_tokens_of_transformers(case: Case, tmp_path: Path) -> None:
    check_stacked_gguf(case, tmp_path, make_backend("native", rounding=True))


def test_layers_keep_what_is_theirs(toy: tuple[Case, Path]) -> None:
    case, folder = toy
    model = load_model(open_checkpoint(folder), ReferenceBackend())
    kept = [(kv.kv_heads, kv.key_width) for kv in model.kv_geometry(32).layers]
    if case is SMALL:
        assert kept == [(2, 16), (2, 16), (2, 32), (2, 16), (2, 16)]
        assert [model.spec.donor_of(layer) for layer in (5, 6, 7)] == [2, 4, 2]  # by kind, not by distance
        assert "model.embed_tokens_per_layer.weight" not in {m.name for m in model.layout.matrices}
    else:
        assert kept == [(2, 16), (2, 16), (1, 32)]


def test_keys_that_nobody_reads_are_left_alone_and_others_refused(toy: tuple[Case, Path], tmp_path: Path) -> None:
    case, folder = toy
    if case is LARGE:
        pytest.skip("of models whose layers share keys and values")
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors["model.layers.7.self_attn.k_proj.weight"] = np.ones((64, 64), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    assert load_model(open_checkpoint(tmp_path), ReferenceBackend()).spec.num_layers == 8
    tensors["model.layers.7.self_attn.k_tail.weight"] = np.ones((64, 64), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="k_tail"):
        load_model(open_checkpoint(tmp_path), ReferenceBackend())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all'"),
        ({"attention_bias": True}, "attention_bias true is not supported; homenode wants false"),
        ({"per_layer_config": {"2": {"sliding_window": 3}}}, "per_layer_config with 'sliding_window'"),
        ({"num_kv_shared_layers": 7}, "layers that share keys and values"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers"),
        ({"vocab_size_per_layer_input": 9}, "vocab_size_per_layer_input"),
    ],
)
def test_what_it_cannot_do_is_refused(
    toy: tuple[Case, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    case, folder = toy
    if case is LARGE:
        pytest.skip("one toy is enough")
    with pytest.raises((UnsupportedError, CheckpointError), match=message):
        open_checkpoint(changed_folder(folder, changes, tmp_path))


def test_older_configurations_mean_the_same(toy: tuple[Case, Path], tmp_path: Path) -> None:
    """Published files say `global_head_dim` where newer ones have `per_layer_config`."""
    case, folder = toy
    config = json.loads((folder / "config.json").read_text())
    del config["per_layer_config"]
    config |= {
        name: case.changes[name] for name in ("global_head_dim", "num_global_key_value_heads") if name in case.changes
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    assert open_checkpoint(tmp_path).spec == open_checkpoint(folder).spec


def test_a_gguf_file_without_its_figures_is_refused(toy: tuple[Case, Path], tmp_path: Path) -> None:
    case, folder = toy
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        open_checkpoint(write_stacked_gguf(replace(case, gguf_tensors={}), folder, tmp_path / "a.gguf"))
    for key, value in {"attention.sliding_window_pattern": [True], "attention.value_length_swa": 8}.items():
        changed = replace(case, gguf_keys={**case.gguf_keys, key: value})
        with pytest.raises((CheckpointError, UnsupportedError), match=key):
            open_checkpoint(write_stacked_gguf(changed, folder, tmp_path / f"{key}.gguf"))
    with pytest.raises(UnsupportedError, match="gemma4-assistant"):
        open_checkpoint(write_stacked_gguf(replace(case, gguf_name="gemma4-assistant"), folder, tmp_path / "b.gguf"))
