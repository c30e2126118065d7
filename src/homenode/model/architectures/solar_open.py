"""Solar Open: GLM-4.5's experts in every layer, whole heads that turn, and no norms of heads. Its GGUF files are those of
GLM-4.5.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import glm4_moe
from homenode.model.architectures.glm4_moe import HeadNorms
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.spec import ModelSpec

NAME = "solar_open"
DEFAULTS = Defaults(
    max_position=131072, heads=64, kv_heads=8, head_dim=128, vocab=196608, norm_eps=1e-5, theta=1e6, intermediate=1280
)
EXPERTS = ExpertDefaults(experts=128, experts_per_token=8, size=1280, keys=("n_routed_experts", "num_local_experts"))


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    config = replace(config, fields=config.fields.with_value("first_k_dense_replace", 0))
    spec = config.decoder(NAME, DEFAULTS)
    bias = config.fields.boolean("attention_bias", False)
    return replace(spec, attention_bias=bias, own=HeadNorms(False), moe=config.sigmoid_moe(EXPERTS, spec.num_layers))


_LIKE = glm4_moe.ARCHITECTURE
ARCHITECTURE = replace(
    _LIKE,
    name=NAME,
    folder=_LIKE.folder.of_class(
        "SolarOpenForCausalLM",
        read=read_folder,
        fields=_LIKE.folder.fields - {"first_k_dense_replace", "use_qk_norm"},
        harmless=dict.fromkeys(("first_k_dense_replace", "use_qk_norm"), NOT_READ),
    ),
    gguf=_LIKE.gguf.without_files(NAME),
)
