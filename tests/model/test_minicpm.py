"""MiniCPM beside transformers. It has no class of the elder ones there, whose formula is that of Granite."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend
from homenode.errors import UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from tests.model.parity import Case, check_file, check_folder, check_stacked_gguf
from tests.model.transformers_models import SIZES, make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

LAYERS, WIDTH = SIZES["num_hidden_layers"], SIZES["hidden_size"]
SCALES = {"scale_emb": 3.0, "scale_depth": 0.9, "dim_model_base": 40}
AS_GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": (WIDTH / SIZES["num_attention_heads"]) ** -0.5,
    "residual_multiplier": 0.9 / math.sqrt(LAYERS),
    "logits_scaling": WIDTH / 40,
}


MINICPM = Case("minicpm", SCALES)  # what config.json says


def made(folder: Path) -> Any:
    """The model as transformers has it, in a folder that says what MiniCPM says."""
    with quiet_and_on_one_thread():
        theirs = make_model("granite", AS_GRANITE, folder)
    config = {key: v for key, v in json.loads((folder / "config.json").read_text()).items() if key not in AS_GRANITE}
    named = {"architectures": ["MiniCPMForCausalLM"], "model_type": MINICPM.kind}
    (folder / "config.json").write_text(json.dumps(config | named | dict(MINICPM.changes)))
    return theirs


def test_a_folder_of_the_elder_ones_has_the_tokens_of_granite(tmp_path: Path, backend: Backend) -> None:
    theirs = made(tmp_path)
    with quiet_and_on_one_thread():
        check_file(tmp_path, theirs, backend, 5e-6)


def test_chosen_blocks_of_the_context_are_refused(tmp_path: Path) -> None:
    made(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"sparse_config": {"block_size": 64}}))
    with pytest.raises(UnsupportedError, match="sparse_config"):
        open_checkpoint(tmp_path)


GGUF = Case(
    "granite",
    AS_GRANITE,
    {"embedding_scale": 3.0, "residual_scale": 0.9 / math.sqrt(LAYERS), "logit_scale": WIDTH / 40},
    interleaved=True,
    gguf_name="minicpm",
)


def test_a_gguf_file_of_the_elder_ones_has_the_tokens_of_granite(tmp_path: Path, backend: Backend) -> None:
    check_stacked_gguf(GGUF, tmp_path, backend)
    assert open_checkpoint(tmp_path / "model.gguf").spec.architecture == "minicpm"


LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "kv_lora_rank": 32, "q_lora_rank": 24,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
LATENT_KEYS = {
    "attention.head_count_kv": 4, "attention.key_length": 24, "attention.value_length": 16, "attention.q_lora_rank": 24,
    "attention.kv_lora_rank": 32, "rope.dimension_count": 8,
}  # fmt: skip
OF_THE_MODEL = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
MINICPM3 = Case("minicpm3", LATENT | OF_THE_MODEL, LATENT_KEYS)
OTHER_SCALES = Case("minicpm3", LATENT | SCALES | {"v_head_dim": 24, "tie_word_embeddings": True})
NO_SCALES = Case(
    "minicpm3", LATENT | {"scale_depth": None, "dim_model_base": None, "scale_emb": 3, "q_lora_rank": None}
)


@pytest.mark.parametrize("case", [MINICPM3, OTHER_SCALES, NO_SCALES], ids=["as-the-model", "other-scales", "no-scales"])
def test_a_folder_has_the_tokens_of_transformers(case: Case, tmp_path: Path, backend: Backend) -> None:
    check_folder(case, tmp_path, backend)


def test_a_gguf_file_has_the_tokens_of_transformers(tmp_path: Path, backend: Backend) -> None:
    check_stacked_gguf(MINICPM3, tmp_path, backend)
