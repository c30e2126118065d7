"""DeepSeek V3.2: V3 with an indexer that chooses which tokens are attended to. Up to as many tokens as it chooses, all are
chosen, and the indexer is left unread; longer contexts are refused.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import deepseek_v3, latent_attention
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import Tensors
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, TensorEntry

NAME = "deepseek_v32"
DEFAULTS = replace(deepseek_v3.DEFAULTS, max_position=163840)
CHOSEN = 2048  # tokens that are attended to, where the file does not say
FIELDS = deepseek_v3.FIELDS | frozenset("index_topk mlp_layer_types mlp_bias".split())
HARMLESS = dict.fromkeys(("index_head_dim", "index_n_heads"), "of the indexer, which is left unread")
KEYS = latent_attention.KEYS | {"attention.indexer.top_k"}


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return read_folder_as(config, NAME, DEFAULTS, deepseek_v3.HEADS, deepseek_v3.EXPERTS, (8, 4))


def read_folder_as(
    config: FolderConfig,
    name: str,
    defaults: Defaults,
    heads: LatentHeads,
    experts: ExpertDefaults,
    groups: tuple[int, int],
) -> ModelSpec:
    """The figures of a class with such an indexer."""
    fields = config.fields
    spec = latent_attention.read_folder(config, name, defaults, heads)
    deepseek_v3.refuse_other_frequency(config)
    if fields.boolean("mlp_bias", False):
        raise UnsupportedError(f"{config.path}: mlp_bias true is not supported in {name}; homenode wants false")
    dense = deepseek_v3.dense_layers(fields, spec.num_layers, 3)
    spec = replace(spec, moe=config.sigmoid_moe(experts, spec.num_layers, dense=dense, scale=2.5, groups=groups))
    return with_all_chosen(spec, fields.integer("index_topk", CHOSEN, maximum=limits.MOST_POSITION))


def with_all_chosen(spec: ModelSpec, chosen: int) -> ModelSpec:
    """`spec` for contexts in which an indexer chooses every token."""
    return replace(spec, max_position=min(spec.max_position, chosen))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return read_gguf_as(config, NAME)


def read_gguf_as(config: GgufConfig, name: str) -> ModelSpec:
    """The figures in a GGUF file of an architecture with such an indexer."""
    spec = deepseek_v3.read_gguf_as(config, name)
    chosen = config.fields.integer("attention.indexer.top_k", CHOSEN, maximum=limits.MOST_POSITION)
    return with_all_chosen(spec, chosen)


def without_indexer(tensors: Tensors) -> dict[str, TensorEntry]:
    """The tensors that are read."""
    return {name: entry for name, entry in tensors.items() if ".indexer." not in name}


def split_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """What a folder's tensors are turned to."""
    return latent_attention.split_folder_heads(without_indexer(tensors), spec)


def split_gguf(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """What a GGUF file's tensors are turned to."""
    return latent_attention.split_gguf_heads(without_indexer(tensors), spec)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("DeepseekV32ForCausalLM", read_folder, fields=FIELDS, harmless=HARMLESS, convert=split_folder),
    GgufFormat("deepseek32", read_gguf, keys=KEYS, names=latent_attention.GGUF_NAMES, convert=split_gguf),
    deepseek_v3.PARAMETERS,
    latent_attention.forward,
)
