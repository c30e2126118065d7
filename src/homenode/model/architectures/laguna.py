"""Laguna (Poolside): layers with a window beside layers without, which have unlike numbers of query heads and ropes;
what is attended to is gated by a softplus for each head or element; first layers with an MLP, then experts scored by a
sigmoid beside one that every token uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from homenode.compute.ops import LayerKv, Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat, renamed
from homenode.model.architectures.layer_kinds import all_but_first_of_each, layers_with_mlp
from homenode.model.architectures.parameters import ForwardContext, of_model
from homenode.model.architectures.pre_norm import forward_with
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import quoted
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, RopeSpec
from homenode.units import format_count

DEFAULTS = Defaults(
    max_position=131072, heads=48, kv_heads=8, head_dim=128, vocab=100352, norm_eps=1e-6, theta=5e5, local_theta=1e4,
    intermediate=8192, attention_bias=False,
)  # fmt: skip
EXPERTS = ExpertDefaults(experts=256, experts_per_token=8, size=512, keys=("num_experts",))
WINDOW, SHARED = 512, 512


@dataclass(frozen=True)
class AttentionGates:
    """`rows`: of the matrix of gates, one for each query head, or for each element of it."""

    rows: Literal["heads", "query"]


_by_head = of_model(lambda spec: spec.own == AttentionGates("heads"))
_by_element = of_model(lambda spec: spec.own == AttentionGates("query"))
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_ALL,
    *(
        layer_weight("attention_gate", "self_attn.g_proj", "attn_gate", rows, "hidden", when=when)
        for rows, when in (("heads", _by_head), ("query", _by_element))
    ),
    *tables.GATED_MLP,
    *tables.CHOSEN_WITH_BIAS,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    for key in ("moe_router_logit_softcapping", "moe_apply_router_weight_on_input"):
        if fields.value(key):
            raise UnsupportedError(
                f"{config.path}: {key} {quoted(fields.value(key))} is not supported in {config.architecture}"
            )
    gating = fields.value("gating")
    if gating not in (None, True, "per-head", "per-element"):
        raise UnsupportedError(
            f"{config.path}: gating {quoted(gating)} is not supported in {config.architecture}; homenode wants "
            f"per-head or per-element"
        )
    named = fields.table("rope_parameters") or fields.table("rope_scaling")
    spec = config.decoder(replace(DEFAULTS, rotary_share=1.0 if named else 0.5), rotates_part=True)
    spec = config.with_window_in(spec, config.window(default=WINDOW), lambda layers: (False,) * layers)
    dense = layers_with_mlp(fields, spec.num_layers, first=1)
    shared = fields.integer("shared_expert_intermediate_size", SHARED, maximum=limits.MOST_INTERMEDIATE)
    scale = fields.number("moe_routed_scaling_factor", 1.0)
    moe = config.moe(EXPERTS, normalise=True, dense=dense, shared=shared, score="sigmoid", scale=scale)
    heads = fields.per_layer(
        "num_attention_heads_per_layer", spec.num_layers, spec.num_heads, maximum=limits.MOST_HEADS
    )
    return replace(
        with_query_heads(fields, spec, heads),
        own=AttentionGates("query" if gating == "per-element" else "heads"),
        moe=moe if len(dense) < spec.num_layers else None,
    )


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields = config.fields
    spec = config.with_moe(config.decoder(theta=DEFAULTS.theta, layers_differ=True), scores=(2,))
    if window := config.window():
        sliding = config.marked_layers("attention.sliding_window_pattern") or all_but_first_of_each(spec.num_layers)
        theta = fields.number("rope.freq_base_swa", spec.rope.theta, above=1.0, most=limits.MOST_THETA)
        rotary = spec.rope.rotary_dim or spec.head_dim
        rotary = fields.integer("rope.dimension_count_swa", rotary, maximum=limits.MOST_HEAD_DIM)
        near = RopeSpec(theta=theta, rotary_dim=rotary)
        spec = replace(spec, sliding_window=window, sliding_layers=sliding, local_rope=near)
    heads = config.per_layer("attention.head_count")
    gate = config.tensors.get("model.layers.0.self_attn.g_proj.weight")
    by_head = gate is not None and bool(gate.shape) and gate.shape[0] == heads[0]
    return replace(with_query_heads(fields, spec, heads), own=AttentionGates("heads" if by_head else "query"))


def with_query_heads(fields: Fields, spec: ModelSpec, heads: tuple[int, ...]) -> ModelSpec:
    """`spec` with so many query heads in each layer. CheckpointError where they do not share the KV heads evenly."""
    if any(count % spec.num_kv_heads for count in heads):
        raise fields.wrong("attention heads", list(heads), f"multiples of {format_count(spec.num_kv_heads, 'KV head')}")
    return replace(
        spec,
        num_heads=max(heads),
        layer_query_heads=heads if len(set(heads)) > 1 else (),
        layer_kv=(LayerKv(spec.num_kv_heads, spec.head_dim, spec.head_dim),) * spec.num_layers,
    )


def _gated(ops: Ops, model: ForwardContext, index: int, h: Tensor, found: Tensor) -> Tensor:
    gate = ops.linear(h, (model.parameters.layers[index]["attention_gate"],))
    return ops.gate_runs(found, gate, softplus=True)


ARCHITECTURE = Architecture(
    "laguna",
    FolderFormat(
        "LagunaForCausalLM",
        _read_folder,
        fields=(DEFAULTS.fields | EXPERTS.fields).union(
            "gating num_attention_heads_per_layer sliding_window shared_expert_intermediate_size "
            "mlp_layer_types moe_routed_scaling_factor moe_router_logit_softcapping moe_apply_router_weight_on_input "
            "rope_local_base_freq".split()
        ),
        modules=renamed(
            "model.layers.{layer}.",
            "mlp.experts=mlp.gate mlp.shared_expert.gate_proj=mlp.shared_experts.gate_proj "
            "mlp.shared_expert.up_proj=mlp.shared_experts.up_proj "
            "mlp.shared_expert.down_proj=mlp.shared_experts.down_proj",
        ),
    ),
    GgufFormat("laguna", _read_gguf, keys=frozenset(("rope.freq_base_swa", "rope.dimension_count_swa"))),
    PARAMETERS,
    forward_with(gate=_gated),
)
