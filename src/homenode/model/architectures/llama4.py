"""Llama 4, its text: three of four layers have a rope and see chunks of the context; the others have no rope, see all
of it, and their queries grow with their position. A token has one expert, whose input is scaled, beside one that every
token uses; some layers have an MLP instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import attention, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import ROPE_FIELDS, all_but_each, rotated_layers
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import Heads, forward_with
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.spec import ModelSpec, MoeSpec
from homenode.units import format_count

DEFAULTS = Defaults(
    max_position=131072, heads=40, kv_heads=8, head_dim=128, vocab=202048, bos_id=1, eos_id=2, norm_eps=1e-5, theta=5e5,
    intermediate=8192, attention_bias=False,
)  # fmt: skip
EXPERTS = ExpertDefaults(experts=16, experts_per_token=1, size=0, keys=("num_local_experts",))
CHUNK, GROWTH, DENSE = 8192, 0.1, 16384
PLAIN_EXPERTS = 128  # of the model whose queries and keys have no norm
_MOE = "feed_forward."
_EXPERT = _MOE + "experts.{expert}"
_STACKS = StackedExperts(_MOE + "experts.gate_up_proj", _MOE + "experts.down_proj", _EXPERT, turned=True)
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_BIASES,
    *tables.POST_NORM,
    *(replace(each, name=each.name.replace("mlp.", _MOE)) for each in tables.GATE_UP_DOWN),
    layer_weight("router", _MOE + "router", "ffn_gate_inp", "experts", "hidden", when=tables.has_experts),
    *tables.gated_matrices("expert_", _EXPERT, "_exps", "expert_intermediate", tables.has_experts),
    *tables.gated_matrices("shared_", _MOE + "shared_expert", "_shexp", "shared_intermediate", tables.has_experts),
)


@dataclass(frozen=True)
class Llama4Extras:
    """`normed`: rotated queries and keys have a norm over each head, without a weight. Queries of layers without rope
    are multiplied by 1 + growth * ln(1 + floor((position + 1) / length)); growth 0: by nothing.
    """

    normed: bool
    growth: float
    length: int


def _experts(config: FolderConfig | GgufConfig, moe: MoeSpec) -> MoeSpec:
    """An expert's output counts as it is, with a weight of 1: its input has been scaled."""
    if moe.experts_per_token != 1:
        raise UnsupportedError(
            f"{config.path}: {format_count(moe.experts_per_token, 'expert')} of a token are not supported in "
            f"{config.architecture}; homenode wants 1"
        )
    return replace(moe, score="chosen_softmax", weighted="input", shared_intermediate_size=moe.intermediate_size)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec = config.decoder(DEFAULTS)
    moe = config.moe(EXPERTS, normalise=True, size=spec.intermediate_size, dense=_dense_layers(config, spec))
    rotated = rotated_layers(fields, spec.num_layers)
    grows = fields.boolean("attn_temperature_tuning", True)
    growth = fields.number("attn_scale", GROWTH, least=0.0) if grows else 0.0
    spec = replace(
        spec,
        intermediate_size=fields.integer("intermediate_size_mlp", DENSE, maximum=limits.MOST_INTERMEDIATE),
        moe=_experts(config, moe),
        rope_layers=rotated,
        own=Llama4Extras(
            fields.boolean("use_qk_norm", True),
            growth,
            fields.integer("floor_scale", CHUNK, maximum=limits.MOST_POSITION),
        ),
    )
    return _with_chunks(config, spec, rotated)


def _dense_layers(config: FolderConfig, spec: ModelSpec) -> tuple[int, ...]:
    every = config.fields.integer("interleave_moe_layer_step", 1, maximum=limits.MOST_LAYERS)
    listed, layers = config.fields.integers("moe_layers"), range(spec.num_layers)
    having = listed or range(every - 1, spec.num_layers, every)
    return tuple(layer for layer in layers if layer not in having)


def _with_chunks(config: FolderConfig, spec: ModelSpec, rotated: tuple[bool, ...]) -> ModelSpec:
    fields, chunk = config.fields, CHUNK
    if fields.is_null("attention_chunk_size"):
        return spec
    chunk = fields.integer("attention_chunk_size", CHUNK, maximum=limits.MOST_POSITION)
    kinds = fields.texts("layer_types")
    if kinds and (len(kinds) != spec.num_layers or not set(kinds) <= {"full_attention", "chunked_attention"}):
        raise fields.wrong("layer_types", kinds, f"{spec.num_layers} values, full_attention or chunked_attention")
    chunked = tuple(kind == "chunked_attention" for kind in kinds) or rotated
    if not any(chunked):
        return spec
    return replace(spec, sliding_window=chunk, sliding_layers=chunked, window_kind="chunked")


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which leaves out what all published models have."""
    fields = config.fields
    spec = config.decoder()
    if fields.has("attention.sliding_window"):
        raise UnsupportedError(
            f"{config.path}: attention.sliding_window is not supported in {config.architecture}; homenode wants none"
        )
    moe = config.moe(spec, "model.layers.{layer}.feed_forward.router.weight", scores=(2, 1))
    rotated = all_but_each(spec.num_layers)
    return replace(
        spec,
        moe=_experts(config, moe),
        rope_layers=rotated,
        sliding_window=fields.integer("attention.chunk_size", CHUNK, maximum=limits.MOST_POSITION),
        sliding_layers=rotated,
        window_kind="chunked",
        own=Llama4Extras(moe.num_experts != PLAIN_EXPERTS, GROWTH, CHUNK),
    )


def project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection`: with rope q and k are rotated, then normed; without it q has grown."""
    own, spec = model.spec.own_as(Llama4Extras), model.spec
    qkv = attention.project_qkv(ops, model, index, h)
    q, k, v = attention.rotated(ops, model, index, qkv, rotation, adjacent=True)
    if not spec.has_rope(model.part.layers.first + index):
        return (ops.scale_by_position(q, own.growth, own.length, 1) if own.growth else q), k, v
    if own.normed:
        q, k = (ops.rms_norm(each, spec.head_dim, spec.norm_eps) for each in (q, k))
    return q, k, v


ARCHITECTURE = Architecture(
    "llama4",
    FolderFormat(
        "Llama4ForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields
        | EXPERTS.fields
        | ROPE_FIELDS
        | set(
            "intermediate_size_mlp moe_layers interleave_moe_layer_step use_qk_norm attention_chunk_size "
            "attn_temperature_tuning floor_scale attn_scale".split()
        ),
        harmless={"for_llm_compressor": "how, not what, transformers computes"},
        model_types=("llama4_text",),
        picture_classes=("Llama4ForConditionalGeneration",),
        convert=_STACKS.split,
    ),
    GgufFormat("llama4", read_gguf, keys=frozenset(("attention.chunk_size",))),
    PARAMETERS,
    forward_with(project),
)
