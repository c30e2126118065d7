"""OLMoE: Llama's block with a norm over all of q and of k, whose values and those of v may be limited, and experts in
every layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common, olmo2
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import Heads, forward_with
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "olmoe"
DEFAULTS = Defaults(max_position=4096, norm_eps=1e-5, eos_id=50279)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=8, size=0)  # config.json never says a size
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    layer_weight("input_norm", "input_layernorm", "attn_norm", "hidden"),
    *common.PROJECTIONS_NORMED_WHOLE,
    *olmo2.BIASES,
    *common.POST_NORM,
    *common.EXPERTS,
)


@dataclass(frozen=True)
class ProjectionLimit:
    """Values of q, k and v beyond -limit and limit become these."""

    limit: float


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    bias, limit = fields.boolean("attention_bias", False), fields.optional_number("clip_qkv")
    spec = config.decoder(NAME, DEFAULTS)
    moe = config.moe(EXPERTS, normalise=fields.boolean("norm_topk_prob", False), size=spec.intermediate_size)
    own = None if limit is None else ProjectionLimit(limit)
    return replace(spec, attention_bias=bias, output_bias=bias, moe=moe, own=own)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which keeps no limit of q, k and v."""
    spec = config.refuse_window(config.decoder(NAME))
    moe = config.moe(spec, size=spec.intermediate_size, normalise=False)
    return replace(spec, moe=moe)


def project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` with a norm over all of q and all of k, and values that may be limited."""
    qkv = common.project_qkv_normed_whole(ops, model, model.parameters.layers[index], h)
    return common.rotated(ops, model, index, limited(ops, model, qkv), rotation)


def limited(ops: Ops, model: ForwardContext, qkv: Heads) -> Heads:
    """q, k and v within the `ProjectionLimit` of the model, where it has one."""
    q, k, v = qkv
    if isinstance(own := model.spec.own, ProjectionLimit):
        q, k, v = (ops.clamp(each, own.limit) for each in qkv)
    return q, k, v


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "OlmoeForCausalLM",
        read_folder,
        fields=frozenset(
            "hidden_act attention_bias clip_qkv num_experts num_local_experts num_experts_per_tok "
            "norm_topk_prob".split()
        ),
    ),
    GgufFormat("olmoe", read_gguf),
    PARAMETERS,
    forward_with(project),
)
