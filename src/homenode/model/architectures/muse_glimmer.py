"""Muse Glimmer, its text: embeddings and heads of q and k are normed without weights, layers with a window alone have
a rope, what they attend to is gated, each half of a layer is normed again before it is added, and logits are capped.

Folders hold the weights of a layer's norms less one. GGUF files have weights for the norms of q and k, which hold the
factor that folders name, and the rows of q and k in another order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, ScoreRule, Tensor
from homenode.model.architectures import attention, conversions, gemma2, llama, mlp, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.layer_kinds import all_but_each
from homenode.model.architectures.parameters import ForwardContext, of_model
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec
from homenode.units import format_count

DEFAULTS = Defaults(
    max_position=131072, heads=32, kv_heads=2, vocab=202048, head_dim=128, bos_id=200000, eos_id=200001, norm_eps=1e-5,
    activation=None,
)  # fmt: skip
PATTERN = 4  # each layer of that number, counted from the last back, sees its whole context, and has no rope
WINDOW, SOFTCAP, POST_EPSILON = 2048, 20.0, 1e-8
QUERY_FACTOR, MULTIPLIER = 3.87, 0.19611613513818404


@dataclass(frozen=True)
class GatedCappedBlock:
    """`post_epsilon`: of the norms of what is added; `norms_weighted`: whether the norms of q and k have weights;
    `rotated`: the layers that have a rope.
    """

    post_epsilon: float
    norms_weighted: bool
    rotated: tuple[bool, ...]


_has_head_norms = of_model(lambda spec: spec.own_as(GatedCappedBlock).norms_weighted)
PARAMETERS = (
    *gemma2.PARAMETERS,
    *(replace(norm, when=_has_head_norms) for norm in tables.HEAD_NORMS),
    layer_weight("attention_gate", "self_attn.gate_proj", "attn_gate", "query", "hidden"),
)


def _sliding(layers: int) -> tuple[bool, ...]:
    return tuple((layers - 1 - layer) % PATTERN != 0 for layer in range(layers))


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    config.refuse_activation("hidden_activation", "silu")
    fields.refuse_others({"attention_bias": False})
    spec = config.decoder(DEFAULTS)
    spec = config.with_window_in(spec, config.window(default=WINDOW), _sliding)
    turns = fields.numbers("layer_rope_theta", above=-1.0)
    rotated = tuple(theta != 0 for theta in turns) or _sliding(spec.num_layers)
    if len(rotated) != spec.num_layers or any(theta not in (0.0, spec.rope.theta) for theta in turns):
        wanted = f"for each of {format_count(spec.num_layers, 'layer')} 0 or the rope's own {spec.rope.theta:g}"
        raise fields.wrong("layer_rope_theta", turns, wanted)
    factor = fields.number("qk_scale_factor", QUERY_FACTOR)
    spec = replace(
        spec,
        attention_scale=factor * spec.head_dim**-0.5,
        own=GatedCappedBlock(fields.number("post_norm_eps", POST_EPSILON), False, rotated),
    )
    return _capped(
        spec, fields.number("output_multiplier", MULTIPLIER), fields.number("final_logit_softcapping", SOFTCAP)
    )


def _capped(spec: ModelSpec, multiplier: float, cap: float | None) -> ModelSpec:
    """`spec` with logits that are multiplied before they are capped."""
    return replace(spec, logits_scale=multiplier, logits_softcap=cap and cap / multiplier)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields, spec = config.fields, config.decoder(whole_heads=True)
    sliding = config.marked_layers("attention.sliding_window_pattern") or all_but_each(spec.num_layers, PATTERN)
    multiplier = fields.number("logit_scale")
    cap = fields.optional_number("final_logit_softcapping", least=0.0) or None
    spec = config.with_window_in(spec, config.window(default=WINDOW), lambda layers: all_but_each(layers, PATTERN))
    return _capped(replace(spec, own=GatedCappedBlock(POST_EPSILON, True, sliding)), multiplier, cap)


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    own, spec = model.spec.own_as(GatedCappedBlock), model.spec
    x = stage.enter(ops, model)
    if model.part.first_stage:
        x = ops.rms_norm(x, spec.hidden_size, spec.norm_eps)
    rotation = attention.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        inner = stage.select_last(ops, model, index, _attended(ops, model, index, x, rotation))
        out = stage.project_out(ops, model, inner, layer["o"], None, None)
        out = ops.rms_norm(out, layer["attended_norm"], own.post_epsilon)
        x = ops.add(stage.select_last(ops, model, index, x), out)
        h = stage.normed(ops, model, x, layer["post_norm"])
        out = stage.project_out(ops, model, mlp.gated(ops, layer, h), layer["down"], None, None)
        x = ops.add(x, ops.rms_norm(out, layer["mlp_norm"], own.post_epsilon))
    return stage.leave(ops, model, x)


def _attended(ops: Ops, model: ForwardContext, index: int, x: Tensor, rotation: Tensor) -> Tensor:
    """Return what layer `index` of this stage attends to, times sigmoid of a gate for each element."""
    spec, part, layer = model.spec, model.part, model.parameters.layers[index]
    width, place = spec.head_dim, part.layers.first + index
    h = stage.normed(ops, model, x, layer["input_norm"])
    query, kv = part.heads.count * width, part.kv_heads.count * width
    rows = ops.linear(h, (layer["q"], layer["k"], layer["v"], layer["attention_gate"]))
    q, k, v, gate = ops.split(rows, (query, kv, kv, query))
    q = ops.rms_norm(q, layer.get("q_norm", width), spec.norm_eps)
    k = ops.rms_norm(k, layer.get("k_norm", width), spec.norm_eps)
    if spec.own_as(GatedCappedBlock).rotated[place]:
        q, k = ops.rope(q, rotation, width), ops.rope(k, rotation, width)
    scale = width**-0.5 if spec.attention_scale is None else spec.attention_scale
    rule = ScoreRule(scale, attention.window(model, index))
    found = ops.attention(q, k, v, model.cache, model.cache_layers[place], rule)
    return ops.sigmoid_mul(found, gate)


ARCHITECTURE = Architecture(
    "muse_glimmer",
    FolderFormat(
        "MuseGlimmerForCausalLM",
        _read_folder,
        fields=frozenset(
            "hidden_activation attention_bias sliding_window layer_rope_theta qk_scale_factor output_multiplier "
            "post_norm_eps final_logit_softcapping".split()
        ),
        model_types=("muse_glimmer_text",),
        picture_classes=("MuseGlimmerForConditionalGeneration",),
        # of the norms in layers; that behind all of them is whole
        convert=lambda tensors, spec: conversions.norms_plus_one(tensors, spec, "layernorm.weight"),
    ),
    llama.gguf_format("muse-glimmer", _read_gguf, keys=frozenset(("logit_scale", "final_logit_softcapping"))),
    PARAMETERS,
    _forward,
)
