"""DeepSeek V3.2: V3 with an indexer that chooses which tokens are attended to."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import deepseek_v3, latent_attention, token_indexer
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = replace(deepseek_v3.DEFAULTS, max_position=163840)
INDEX_HEADS = 64
FIELDS = deepseek_v3.FIELDS | token_indexer.FIELDS | {"mlp_layer_types", "mlp_bias"}
PARAMETERS = (*deepseek_v3.PARAMETERS, *token_indexer.PARAMETERS)


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = read_folder_as(config, DEFAULTS, deepseek_v3.HEADS, deepseek_v3.EXPERTS, (8, 4))
    return token_indexer.read_folder(config, spec, INDEX_HEADS, adjacent=False, shares=False)


def read_folder_as(
    config: FolderConfig, defaults: Defaults, heads: LatentHeads, experts: ExpertDefaults, groups: tuple[int, int]
) -> ModelSpec:
    """The figures of a class with such an indexer, but for that."""
    fields = config.fields
    spec = latent_attention.read_folder(config, defaults, heads)
    fields.refuse_others({**deepseek_v3.EVERY_LAYER, "mlp_bias": False})
    dense = deepseek_v3.dense_layers(fields, spec.num_layers, 3)
    return replace(spec, moe=config.sigmoid_moe(experts, spec.num_layers, dense=dense, scale=2.5, groups=groups))


ARCHITECTURE = Architecture(
    "deepseek_v32",
    FolderFormat("DeepseekV32ForCausalLM", _read_folder, fields=FIELDS, convert=latent_attention.split_folder_heads),
    latent_attention.gguf_format(
        "deepseek32",
        lambda config: token_indexer.read_gguf(config, deepseek_v3.read_gguf(config), adjacent=False),
        more_keys=token_indexer.KEYS,
    ),
    PARAMETERS,
    latent_attention.forward,
)
