"""Mistral 4: latent attention with queries that grow with their position, and experts scored by a softmax beside one
that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import deepseek_v2, deepseek_v3, latent_attention
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(max_position=1048576, heads=32, vocab=131072, bos_id=1, eos_id=2)
HEADS = LatentHeads(query_rank=1024, latent=256, plain=64, rotary=64, value=128)
EXPERTS = ExpertDefaults(experts=128, experts_per_token=4, size=2048, keys=("n_routed_experts", "num_local_experts"))
GROWTH = 0.1  # of queries, where the file does not say, as GGUF files do not
FIELDS = deepseek_v3.FIELDS - {"scoring_func", "topk_method", "moe_layer_freq"}


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec = latent_attention.read_folder(config, DEFAULTS, HEADS)
    moe = config.moe(
        EXPERTS,
        normalise=fields.boolean("norm_topk_prob", True),
        dense=config.front_layers("first_k_dense_replace", 0, spec.num_layers),
        shared_experts=config.shared_experts("n_shared_experts", 1),
        epsilon=1e-20,
        scale=fields.number("routed_scaling_factor", 1.0),
        **config.expert_groups(),
    )
    table = config.rope_table
    growth = table.optional_number("llama_4_scaling_beta", least=0.0) if table is not None else None
    return latent_attention.with_growth(replace(spec, moe=moe), growth or 0.0, spec.rope.original_max_position)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    figures = latent_attention.read_gguf(config)
    spec = config.with_moe(figures, normalise=False, scores=(1, 3), epsilon=1e-20)
    if latent_attention.heads_of(spec).growth:
        return spec
    return latent_attention.with_growth(spec, GROWTH, spec.rope.original_max_position)


def split_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """Return what a folder's tensors are turned to."""
    return latent_attention.split_folder_heads(StackedExperts().split(tensors, spec), spec)


ARCHITECTURE = Architecture(
    "mistral4",
    FolderFormat(
        "Mistral4ForCausalLM",
        _read_folder,
        fields=FIELDS | {"rope_parameters.llama_4_scaling_beta"},
        harmless={"rope_parameters.max_position_embeddings": "the field of the model says it"},
        convert=split_folder,
    ),
    latent_attention.gguf_format("mistral4", _read_gguf),
    deepseek_v2.PARAMETERS,
    latent_attention.forward,
)
