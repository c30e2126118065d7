"""DeepSeek V3.2: V3 with an indexer that chooses which tokens are attended to."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import deepseek_v3, latent_attention, token_indexer
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "deepseek_v32"
DEFAULTS = replace(deepseek_v3.DEFAULTS, max_position=163840)
INDEX_HEADS = 64
FIELDS = deepseek_v3.FIELDS | token_indexer.FIELDS | {"mlp_layer_types", "mlp_bias"}
KEYS = latent_attention.KEYS | token_indexer.KEYS
PARAMETERS = (*deepseek_v3.PARAMETERS, *token_indexer.PARAMETERS)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    spec = read_folder_as(config, NAME, DEFAULTS, deepseek_v3.HEADS, deepseek_v3.EXPERTS, (8, 4))
    return token_indexer.read_folder(config, spec, INDEX_HEADS, adjacent=False, shares=False)


def read_folder_as(
    config: FolderConfig,
    name: str,
    defaults: Defaults,
    heads: LatentHeads,
    experts: ExpertDefaults,
    groups: tuple[int, int],
) -> ModelSpec:
    """The figures of a class with such an indexer, but for that."""
    fields = config.fields
    spec = latent_attention.read_folder(config, name, defaults, heads)
    deepseek_v3.refuse_other_frequency(config)
    if fields.boolean("mlp_bias", False):
        raise UnsupportedError(f"{config.path}: mlp_bias true is not supported in {name}; homenode wants false")
    dense = deepseek_v3.dense_layers(fields, spec.num_layers, 3)
    return replace(spec, moe=config.sigmoid_moe(experts, spec.num_layers, dense=dense, scale=2.5, groups=groups))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return token_indexer.read_gguf(config, deepseek_v3.read_gguf_as(config, NAME), adjacent=False)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("DeepseekV32ForCausalLM", read_folder, fields=FIELDS, convert=latent_attention.split_folder_heads),
    GgufFormat(
        "deepseek32",
        read_gguf,
        keys=KEYS,
        names=latent_attention.GGUF_NAMES,
        convert=latent_attention.split_gguf_heads,
    ),
    PARAMETERS,
    latent_attention.forward,
)
