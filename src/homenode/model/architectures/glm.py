"""GLM-4 of 2024 (9B chat): Llama's block with biases of q, k and v, and a rope that turns neighbours in a part of each
head. Its files hold gate and up in one matrix.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward_with, project_neighbours
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=131072, heads=32, kv_heads=2, head_dim=128, vocab=151552, eos_id=151329, norm_eps=1.5625e-7,
    intermediate=13696, rotary_share=0.5,
)  # fmt: skip
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, *tables.ATTENTION, *tables.QKV_BIASES, *tables.GATED_MLP)
GGUF_NAMES = {"blk.{layer}.ffn_up.weight": "model.layers.{layer}.mlp.gate_up_proj.weight"}


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    bias = config.fields.boolean("attention_bias", True)
    return replace(config.uniform_decoder(DEFAULTS, rotates_part=True), attention_bias=bias)


forward = forward_with(project_neighbours)
ARCHITECTURE = Architecture(
    "glm",
    FolderFormat(
        "GlmForCausalLM", read_folder, fields=frozenset(("hidden_act", "attention_bias")), convert=split_fused_rows
    ),
    GgufFormat("chatglm", GgufConfig.uniform_decoder, names=GGUF_NAMES, convert=split_fused_rows),
    PARAMETERS,
    forward,
)
