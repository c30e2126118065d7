"""OLMoE: Llama's block with a norm over all of q and of k, whose values and those of v may be limited, and experts in
every layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import attention, olmo2, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import Heads, forward_with
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=4096, norm_eps=1e-5, eos_id=50279, attention_bias=False)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=8, size=0)  # config.json never says a size
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    tables.INPUT_NORM,
    *tables.PROJECTIONS_NORMED_WHOLE,
    *olmo2.BIASES,
    *tables.POST_NORM,
    *tables.EXPERTS,
)


@dataclass(frozen=True)
class ProjectionLimit:
    """Values of q, k and v beyond -limit and limit become these."""

    limit: float


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec, limit = config.uniform_decoder(DEFAULTS), fields.optional_number("clip_qkv")
    moe = config.moe(EXPERTS, normalise=fields.boolean("norm_topk_prob", False), size=spec.intermediate_size)
    return replace(spec, moe=moe, own=None if limit is None else ProjectionLimit(limit))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which keeps no limit of q, k and v."""
    spec = config.uniform_decoder()
    return config.with_moe(spec, size=spec.intermediate_size, normalise=False)


def project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` with a norm over all of q and all of k, and values that may be limited."""
    qkv = attention.project_qkv_normed_whole(ops, model, index, h)
    return attention.rotated(ops, model, index, limited(ops, model, qkv), rotation)


def limited(ops: Ops, model: ForwardContext, qkv: Heads) -> Heads:
    """q, k and v within the `ProjectionLimit` of the model, where it has one."""
    q, k, v = qkv
    if isinstance(own := model.spec.own, ProjectionLimit):
        q, k, v = (ops.clamp(each, own.limit) for each in qkv)
    return q, k, v


ARCHITECTURE = Architecture(
    "olmoe",
    FolderFormat(
        "OlmoeForCausalLM", _read_folder, fields=DEFAULTS.fields | EXPERTS.fields | {"clip_qkv", "norm_topk_prob"}
    ),
    GgufFormat("olmoe", read_gguf),
    PARAMETERS,
    forward_with(project),
)
