"""Every field of every family's configuration, changed: see `config_fields`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.model.architectures.registry import ARCHITECTURES
from homenode.model.config.known_fields import unknown_fields
from tests.model.config_fields import check_fields
from tests.model.transformers_models import CASES, OF_FIELDS

pytestmark = pytest.mark.torch

FAMILIES = (
    "llama", "llama-rope-yarn", "llama-rope-llama3", "llama-rope-linear", "llama-rope-dynamic", "mistral-window",
    "mixtral-window", "qwen2-windows",
    "qwen2-moe-mixed", "qwen3", "qwen3-windows", "qwen3-moe-mixed", "qwen3-moe-window", "gemma2", "gemma3-text", "phi3",
    "phi3-part-of-head",
)  # fmt: skip
QUICK = ("is_causal", "tie_word_embeddings", "rms_norm_eps", "rope_scaling", "layer_types", "attention_bias",
    "rope_theta", "factor", "truncate",
         "final_logit_softcapping", "attn_logit_softcapping", "hidden_act", "num_key_value_heads")  # fmt: skip


@pytest.mark.parametrize(
    "architecture", sorted(ARCHITECTURES.keys() - {"bailing_moe_v2", "internlm2", "jina_bert", "minicpm"})
)  # of which there is no class
def test_the_fields_of_the_classes_are_in_the_tables(architecture: str) -> None:
    from transformers import AutoConfig

    wrapped = ("aria", "gemma3", "gemma3n", "gemma4", "llama4", "muse_glimmer", "qwen3_5", "qwen3_5_moe")
    kinds = {"embedding_gemma": "gemma3_text", "minimax_m3": "minimax_m3_vl_text"}
    kinds |= dict.fromkeys(("deepseek", "deepseek_ocr"), "deepseek_ocr2_text")
    kinds |= {each: f"{each}_text" for each in wrapped}
    kind = kinds.get(architecture, architecture)
    own = ARCHITECTURES[architecture].folder
    assert unknown_fields(AutoConfig.for_model(kind).to_dict(), own.fields | own.harmless.keys()) == ()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_field_is_read_as_transformers_reads_it_or_refused(name: str, tmp_path: Path) -> None:
    check_fields(*(CASES | OF_FIELDS)[name], tmp_path / "model")


@pytest.mark.parametrize("name", ["mixtral-window", "gemma3-text"])
def test_some_fields_are_read_as_transformers_reads_them_or_refused(name: str, tmp_path: Path) -> None:
    check_fields(*(CASES | OF_FIELDS)[name], tmp_path / "model", frozenset(QUICK))
