"""GLM-4.7-Flash: latent attention and experts as DeepSeek V3 has them, in GLM's shapes."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import deepseek_v3, latent_attention
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.deepseek_v2 import is_glm
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=202752, heads=20, vocab=154880, bos_id=0, eos_id=1, norm_eps=1e-5)
HEADS = LatentHeads(query_rank=768, latent=512, plain=192, rotary=64, value=256)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=4, size=1536, keys=("n_routed_experts", "num_local_experts"))


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = latent_attention.read_folder(config, DEFAULTS, HEADS)
    config.fields.refuse_others(deepseek_v3.EVERY_LAYER)
    dense = deepseek_v3.dense_layers(config.fields, spec.num_layers, 1)
    return replace(spec, moe=config.sigmoid_moe(EXPERTS, spec.num_layers, dense=dense, scale=1.8))


ARCHITECTURE = Architecture(
    "glm4_moe_lite",
    FolderFormat(
        "Glm4MoeLiteForCausalLM",
        _read_folder,
        fields=deepseek_v3.FIELDS | {"mlp_layer_types"},
        convert=latent_attention.split_folder_heads,
    ),
    latent_attention.gguf_format("deepseek2", deepseek_v3.read_gguf, is_glm),
    deepseek_v3.PARAMETERS,
    latent_attention.forward,
)
