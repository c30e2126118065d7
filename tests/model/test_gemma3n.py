"""Gemma 3n beside transformers. Every number of a toy is random, so that each of these would show: streams in another
order, a stream that is not made as large as the first, a product of low rank left out, deviations divided by one value
less, or a gate whose mean is that of a part.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from tests.model.conftest import make_backend
from tests.model.parity import Case, check_folder, check_stacked_gguf, write_stacked_gguf
from tests.model.test_gemma4 import kinds
from tests.model.transformers_models import make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

LAYERS = "ssfssf"
SHARES = [0.95, 0.6, 0.0, 0.3, 0.0, 0.0]
SHAPE: dict[str, Any] = {
    "num_hidden_layers": 6, "layer_types": kinds(LAYERS), "head_dim": 16, "sliding_window": 6,
    "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
    "num_kv_shared_layers": 2, "activation_sparsity_pattern": SHARES, "laurel_rank": 8,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 160, "final_logit_softcapping": 6.0, "pad_token_id": 0,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "attention.sliding_window_pattern": [letter == "s" for letter in LAYERS],
    "attention.sliding_window": 6,
    "attention.shared_kv_layers": 2,
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4,
    "final_logit_softcapping": 6.0,
    "embedding_length_per_layer_input": 8,
    "altup.num_inputs": 4,
    "altup.active_idx": 0,
    "activation_sparsity_scale": [NormalDist().inv_cdf(share) if share else -math.inf for share in SHARES],
}
CASE = Case("gemma3n_text", SHAPE, KEYS, gguf_name="gemma3n")
# Two streams, layers of unlike lengths, tokens past the table of what layers take in, and corrections that are not
# scaled.
OTHER = Case(
    "gemma3n_text",
    SHAPE
    | {"altup_num_inputs": 2, "altup_correct_scale": False, "vocab_size_per_layer_input": 100}
    | {"intermediate_size": [96, 64, 96, 64, 64, 64], "num_kv_shared_layers": 0},
)


@pytest.mark.parametrize("name", ["reference", "native", "torch"])
@pytest.mark.parametrize("case", [CASE, OTHER], ids=["usual", "other"])
def test_it_has_the_tokens_of_transformers(case: Case, name: str, tmp_path: Path) -> None:
    check_folder(case, tmp_path, make_backend(name, rounding=True))


def test_a_gguf_file_has_the_tokens_of_transformers(tmp_path: Path) -> None:
    check_stacked_gguf(CASE, tmp_path, make_backend("native", rounding=True))


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma3n")
    with quiet_and_on_one_thread():
        make_model(CASE.kind, CASE.changes, folder)
    return folder


def test_layers_read_the_last_of_their_kind_and_stages_hand_on_all_streams(toy: Path) -> None:
    spec = open_checkpoint(toy).spec
    assert [spec.donor_of(layer) for layer in range(6)] == [0, 1, 2, 3, 3, 2]
    assert spec.handed_columns == 4 * spec.hidden_size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"altup_active_idx": 1}, "altup_active_idx 1 is not supported"),
        ({"altup_num_inputs": 9}, "altup_num_inputs"),
        ({"attention_bias": True}, "attention_bias true is not supported; homenode wants false"),
        ({"hidden_activation": "silu"}, "hidden_activation 'silu' is not supported"),
        ({"activation_sparsity_pattern": [0.5]}, "a list of 6 numbers from 0 to below 1"),
        ({"activation_sparsity_pattern": [1.0] * 6}, "a list of 6 numbers from 0 to below 1"),
        ({"num_kv_shared_layers": 5}, "layers that share keys and values"),
    ],
)
def test_what_it_cannot_do_is_refused(toy: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config = json.loads((toy / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    (tmp_path / "model.safetensors").symlink_to(toy / "model.safetensors")
    with pytest.raises((UnsupportedError, CheckpointError), match=message):
        open_checkpoint(tmp_path)


def test_a_gguf_file_without_its_figures_is_refused(toy: Path, tmp_path: Path) -> None:
    for key, value in {
        "activation_sparsity_scale": [0.5],
        "altup.active_idx": 2,
        "attention.shared_kv_layers": 9,
    }.items():
        changed = replace(CASE, gguf_keys={**KEYS, key: value})
        with pytest.raises((CheckpointError, UnsupportedError), match=key):
            open_checkpoint(write_stacked_gguf(changed, toy, tmp_path / f"{key}.gguf"))
