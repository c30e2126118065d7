"""EXAONE MoE (K-EXAONE): EXAONE 4's attention behind a norm, first layers with an MLP, then experts scored by a sigmoid
and chosen with a bias, beside one that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common, exaone4
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.deepseek_v3 import dense_layers
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

NAME = "exaone_moe"
DEFAULTS = Defaults(max_position=2048, heads=32, kv_heads=32, vocab=102400, bos_id=1, eos_id=53, norm_eps=1e-5)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=8, size=1024, keys=("num_experts", "num_local_experts"))
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.HEAD_NORMS,
    *common.GATED_MLP,
    *common.EXPERTS,
    replace(common.CHOICE_BIAS, name="model.layers.{layer}.mlp.e_score_correction_bias"),
    *common.SHARED_EXPERTS,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    spec = exaone4.with_windows(config, config.decoder(NAME, DEFAULTS))
    config.refuse_other_scores()
    first = fields.integer("first_k_dense_replace", 1, minimum=0, maximum=limits.MOST_LAYERS)
    dense = range(dense_layers(fields, spec.num_layers, min(first, spec.num_layers)))
    moe = config.moe(EXPERTS, normalise=fields.boolean("norm_topk_prob", True), dense=tuple(dense))
    shared = fields.integer("num_shared_experts", 1, minimum=0, maximum=limits.MOST_EXPERTS)
    moe = replace(
        moe,
        score="sigmoid",
        epsilon=1e-20,
        scale=fields.number("routed_scaling_factor", 2.5),
        groups=fields.integer("n_group", 1, maximum=limits.MOST_EXPERTS),
        groups_chosen=fields.integer("topk_group", 1, maximum=limits.MOST_EXPERTS),
        shared_intermediate_size=shared * moe.intermediate_size,
    )
    return replace(spec, moe=moe)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME)
    spec = exaone4.with_gguf_windows(config, spec, config.window(default=128))
    moe = config.moe(spec, "model.layers.{layer}.mlp.gate.weight", scores=(2,))
    return replace(spec, moe=replace(moe, epsilon=1e-20))


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        qkv = exaone4.project(ops, model, index, common.normed(ops, model, x, layer["input_norm"]))
        x = common.attend(ops, model, index, x, qkv, common.rotation_in(model, index, rotation))
        x = common.feed_forward(ops, model, index, x)
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "ExaoneMoeForCausalLM",
        read_folder,
        fields=exaone4.FIELDS
        | set(
            "num_experts num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob n_group topk_group "
            "routed_scaling_factor num_shared_experts first_k_dense_replace mlp_layer_types scoring_func topk_method".split()
        ),
        harmless=dict.fromkeys(
            ("is_moe_layer", "first_last_k_dense_replace"), "other fields say which layers these are"
        ),
    ),
    GgufFormat("exaone-moe", read_gguf),
    PARAMETERS,
    forward,
)
