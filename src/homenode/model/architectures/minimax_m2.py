"""MiniMax M2: Llama's block with a norm over all of q and all of k, a rope over a part of each head, and sigmoid-scored
experts in every layer.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import mixtral, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward_with, project_normed_whole
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=196608, heads=48, kv_heads=8, head_dim=128, vocab=200064, bos_id=200034, eos_id=200020, theta=5e6
)
EXPERTS = ExpertDefaults(experts=256, experts_per_token=8, size=0)  # config.json never says a size
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    tables.INPUT_NORM,
    *tables.PROJECTIONS_NORMED_WHOLE,
    *tables.POST_NORM,
    *mixtral.EXPERT_PARAMETERS,
    replace(tables.CHOICE_BIAS, name="model.layers.{layer}.block_sparse_moe.e_score_correction_bias"),
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields, defaults = config.fields, DEFAULTS
    config.refuse_other_scores()
    if (rotary := fields.optional_integer("rotary_dim")) is not None:
        defaults = replace(DEFAULTS, rotary_share=rotary / fields.integer("head_dim", DEFAULTS.head_dim))
    spec = config.uniform_decoder(defaults, rotates_part=True)
    return replace(spec, moe=config.moe(EXPERTS, normalise=True, size=spec.intermediate_size, score="sigmoid"))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.uniform_decoder()
    router = "model.layers.{layer}.block_sparse_moe.gate.weight"
    return config.with_moe(spec, router=router, size=spec.intermediate_size, scores=(2,))


ARCHITECTURE = Architecture(
    "minimax_m2",
    FolderFormat(
        "MiniMaxM2ForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | EXPERTS.fields | {"rotary_dim", "scoring_func", "topk_method"},
    ),
    GgufFormat("minimax-m2", _read_gguf),
    PARAMETERS,
    forward_with(project_normed_whole),
)
