"""GGUF files of the name `deepseek2`: which of its architectures one is, by its key-value pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homenode.dtypes import BY_NAME
from homenode.errors import UnsupportedError
from homenode.model.checkpoint.gguf_spec import gguf_architecture, spec_from_gguf
from homenode.model.spec import TensorEntry

FILE = Path("model.gguf")
KEYS: dict[str, Any] = {
    "block_count": 2, "vocab_size": 64, "context_length": 128, "embedding_length": 32, "feed_forward_length": 48,
    "attention.head_count": 2,
    "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-6, "attention.kv_lora_rank": 24,
    "attention.key_length": 32,
    "attention.value_length": 24, "attention.key_length_mla": 20, "attention.value_length_mla": 12,
    "rope.dimension_count": 8,
    "expert_count": 8, "expert_used_count": 2,
}  # fmt: skip
FLASH = {"block_count": 47, "vocab_size": 154880}  # GLM-4.7-Flash


def metadata(**changes: Any) -> dict[str, Any]:
    keys = KEYS | {key.replace("__", "."): value for key, value in changes.items()}
    own = {f"deepseek2.{key}": value for key, value in keys.items() if value is not None}
    return {"general.architecture": "deepseek2"} | own


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "deepseek_v2"),
        ({"expert_gating_func": 0}, "deepseek_v2"),
        ({"expert_gating_func": 1}, "deepseek_v2"),
        ({"expert_gating_func": 2}, "deepseek_v3"),
        (FLASH, "glm4_moe_lite"),
        (FLASH | {"block_count": 48}, "glm4_moe_lite"),
        (FLASH | {"expert_gating_func": 2}, "glm4_moe_lite"),
        (FLASH | {"block_count": 46}, "deepseek_v2"),
        (FLASH | {"vocab_size": 154879}, "deepseek_v2"),
    ],
)
def test_the_way_experts_are_scored_says_which_one_it_is(changes: dict[str, Any], name: str) -> None:
    assert gguf_architecture(FILE, metadata(**changes)).name == name


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"expert_gating_func": 4}, "expert_gating_func 4 is not supported for deepseek_v2; homenode wants 1"),
        ({"expert_gating_func": 9}, "expert_gating_func 9 is not supported for deepseek_v2; homenode wants 1"),
        (
            FLASH | {"expert_gating_func": 1},
            "expert_gating_func 1 is not supported for glm4_moe_lite; homenode wants 2",
        ),
    ],
)
def test_what_no_architecture_of_the_name_has_is_refused(changes: dict[str, Any], says: str) -> None:
    keys, name = metadata(**changes), "model.embed_tokens.weight"
    shape = (keys["deepseek2.vocab_size"], KEYS["embedding_length"])
    embedding = TensorEntry(name, BY_NAME["F32"], shape, FILE, 0, 4 * shape[0] * shape[1])
    with pytest.raises(UnsupportedError, match=says):
        spec_from_gguf(FILE, keys, {name: embedding}, {})


@pytest.mark.parametrize("scored", [1, 2])
@pytest.mark.parametrize("key", [None, False, True])
def test_weights_of_experts_add_up_to_1_only_where_the_file_says_so(scored: int, key: bool | None) -> None:
    """Converters leave the key out where they do not."""
    keys = metadata(expert_gating_func=scored, expert_weights_norm=key, expert_feed_forward_length=16)
    shapes = {"model.embed_tokens.weight": (64, 32), "model.layers.1.mlp.gate.weight": (8, 32)}
    tensors = {
        name: TensorEntry(name, BY_NAME["F32"], shape, FILE, 0, 4 * shape[0] * shape[1])
        for name, shape in shapes.items()
    }
    moe = spec_from_gguf(FILE, keys, tensors, {}).moe
    assert moe is not None and moe.normalise is (key is True)
