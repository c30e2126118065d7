"""GLM-4.7-Flash: latent attention and experts as DeepSeek V3 has them, in GLM's shapes."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import deepseek_v3, latent_attention
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.deepseek_v2 import is_glm
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "glm4_moe_lite"
DEFAULTS = Defaults(max_position=202752, heads=20, vocab=154880, bos_id=0, eos_id=1, norm_eps=1e-5)
HEADS = LatentHeads(query_rank=768, latent=512, plain=192, rotary=64, value=256)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=4, size=1536, keys=("n_routed_experts", "num_local_experts"))


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    spec = latent_attention.read_folder(config, NAME, DEFAULTS, HEADS)
    deepseek_v3.refuse_other_frequency(config)
    dense = deepseek_v3.dense_layers(config.fields, spec.num_layers, 1)
    return replace(spec, moe=config.sigmoid_moe(EXPERTS, spec.num_layers, dense=dense, scale=1.8))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return deepseek_v3.read_gguf_as(config, NAME)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Glm4MoeLiteForCausalLM",
        read_folder,
        fields=deepseek_v3.FIELDS | {"mlp_layer_types"},
        convert=latent_attention.split_folder_heads,
    ),
    deepseek_v3.gguf_format("deepseek2", read_gguf, is_glm),
    deepseek_v3.PARAMETERS,
    latent_attention.forward,
)
