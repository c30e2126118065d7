"""Solar Open: GLM-4.5's experts in every layer, whole heads that turn, and no norms of heads. Its GGUF files are those
of GLM-4.5.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import glm4_moe
from homenode.model.architectures.tables import HeadNorms
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=131072, heads=64, kv_heads=8, head_dim=128, vocab=196608, norm_eps=1e-5, theta=1e6, intermediate=1280
)
EXPERTS = ExpertDefaults(experts=128, experts_per_token=8, size=1280, keys=("n_routed_experts", "num_local_experts"))


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = replace(config, fields=config.fields.with_value("first_k_dense_replace", 0))
    spec = config.uniform_decoder(DEFAULTS)
    bias = config.fields.boolean("attention_bias", False)
    return replace(spec, attention_bias=bias, own=HeadNorms(False), moe=config.sigmoid_moe(EXPERTS, spec.num_layers))


_UNREAD = ("first_k_dense_replace", "use_qk_norm")
ARCHITECTURE = glm4_moe.ARCHITECTURE.of_class(
    "solar_open",
    "SolarOpenForCausalLM",
    read=_read_folder,
    fields=glm4_moe.ARCHITECTURE.folder.fields.difference(_UNREAD),
    harmless=dict.fromkeys(_UNREAD, NOT_READ),
)
