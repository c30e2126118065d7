"""DeepSeek V2: latent attention, first layers with an MLP, then experts scored by a softmax, chosen in groups where
there are some, beside experts that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import latent_attention, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import quoted
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=32, vocab=102400, bos_id=1, eos_id=2)
HEADS = LatentHeads(query_rank=1536, latent=512, plain=128, rotary=64, value=128)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=6, size=1407, keys=("n_routed_experts", "num_experts"))
METHODS = ("greedy", "group_limited_greedy")
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *latent_attention.PARAMETERS,
    *tables.GATED_MLP,
    *tables.EXPERTS,
    *tables.SHARED_EXPERTS,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec = latent_attention.read_folder(config, DEFAULTS, HEADS)
    fields.refuse_others({"norm_topk_prob": False, "mlp_bias": False, "scoring_func": "softmax", "moe_layer_freq": 1})
    if (method := fields.text("topk_method", METHODS[0])) not in METHODS:
        raise UnsupportedError(
            f"{config.path}: topk_method {quoted(method)} is not supported; homenode runs {' and '.join(METHODS)}"
        )
    groups = tuple(fields.optional_integer(key, maximum=limits.MOST_EXPERTS) for key in ("n_group", "topk_group"))
    if method == METHODS[0]:
        groups = (1, 1)
    elif None in groups:
        raise fields.wrong("n_group and topk_group", groups, f"a number of each beside topk_method {method}")
    moe = config.moe(
        EXPERTS,
        normalise=False,
        dense=config.front_layers("first_k_dense_replace", 0, spec.num_layers),
        shared_experts=config.shared_experts("n_shared_experts", 2),
        scale=fields.number("routed_scaling_factor", 1.0),
        groups=groups[0] or 1,
        groups_chosen=groups[1] or 1,
        group_score="max",
    )
    return replace(spec, moe=moe)


def _scores_without_sigmoid(fields: Fields) -> bool:
    """Also of scores that no architecture of this name has, which reading the experts refuses."""
    return fields.integer("expert_gating_func", 1, minimum=0) != 2 and not is_glm(fields)


def is_glm(fields: Fields) -> bool:
    """Return whether a GGUF file of this architecture is a GLM-4.7-Flash, of which the first do not say how experts
    score.
    """
    return fields.integer("block_count", 0, minimum=0) in (47, 48) and fields.integer("vocab_size", 0) == 154880


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = latent_attention.read_gguf(config)
    return config.with_moe(spec, normalise=False, scores=(1, 3), group_score="max")


ARCHITECTURE = Architecture(
    "deepseek_v2",
    FolderFormat(
        "DeepseekV2ForCausalLM",
        _read_folder,
        fields=latent_attention.FIELDS
        | frozenset(
            "mlp_bias norm_topk_prob n_group topk_group routed_scaling_factor n_shared_experts first_k_dense_replace "
            "scoring_func topk_method moe_layer_freq".split()
        )
        | EXPERTS.fields,
        convert=latent_attention.split_folder_heads,
    ),
    latent_attention.gguf_format("deepseek2", _read_gguf, _scores_without_sigmoid),
    PARAMETERS,
    latent_attention.forward,
)
