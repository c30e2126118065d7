"""Muse Glimmer, its text: embeddings and heads of q and k are normed without weights, layers with a window alone have
a rope, what they attend to is gated, each half of a layer is normed again before it is added, and logits are capped.

Folders hold the weights of a layer's norms less one. GGUF files have weights for the norms of q and k, which hold the
factor that folders name, and the rows of q and k in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import common, gemma2
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.layer_kinds import all_but_each
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.units import format_count

NAME = "muse_glimmer"
DEFAULTS = Defaults(
    max_position=131072, heads=32, kv_heads=2, vocab=202048, head_dim=128, bos_id=200000, eos_id=200001, norm_eps=1e-5
)
PATTERN = 4  # each layer of that number, counted from the last back, sees its whole context, and has no rope
WINDOW, SOFTCAP, POST_EPSILON = 2048, 20.0, 1e-8
QUERY_FACTOR, MULTIPLIER = 3.87, 0.19611613513818404


@dataclass(frozen=True)
class GatedCappedBlock:
    """`multiplier`: of logits before they are capped; `post_epsilon`: of the norms of what is added; `norms_weighted`:
    whether the norms of q and k have weights; `rotated`: the layers that have a rope.
    """

    multiplier: float
    post_epsilon: float
    norms_weighted: bool
    rotated: tuple[bool, ...]


def _of(spec: ModelSpec) -> GatedCappedBlock:
    assert isinstance(spec.own, GatedCappedBlock)
    return spec.own


def _has_head_norms(spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
    return _of(spec).norms_weighted


PARAMETERS = (
    *gemma2.PARAMETERS,
    *(replace(norm, when=_has_head_norms) for norm in common.HEAD_NORMS),
    layer_weight("attention_gate", "self_attn.gate_proj", "attn_gate", "query", "hidden"),
)


def _sliding(layers: int) -> tuple[bool, ...]:
    return tuple((layers - 1 - layer) % PATTERN != 0 for layer in range(layers))


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_activation", "silu")
    if fields.boolean("attention_bias", False):
        raise UnsupportedError(f"{config.path}: attention_bias true is not supported in {NAME}; homenode wants false")
    spec = config.decoder(NAME, DEFAULTS)
    spec = config.with_window_in(spec, config.window(default=WINDOW), _sliding)
    turns = fields.numbers("layer_rope_theta", above=-1.0)
    rotated = tuple(theta != 0 for theta in turns) or _sliding(spec.num_layers)
    if len(rotated) != spec.num_layers or any(theta not in (0.0, spec.rope.theta) for theta in turns):
        wanted = f"for each of {format_count(spec.num_layers, 'layer')} 0 or the rope's own {spec.rope.theta:g}"
        raise fields.wrong("layer_rope_theta", turns, wanted)
    factor = fields.number("qk_scale_factor", QUERY_FACTOR)
    own = GatedCappedBlock(
        fields.number("output_multiplier", MULTIPLIER), fields.number("post_norm_eps", POST_EPSILON), False, rotated
    )
    cap = fields.number("final_logit_softcapping", SOFTCAP)
    return replace(spec, attention_scale=factor * spec.head_dim**-0.5, logits_softcap=cap / own.multiplier, own=own)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    fields, key = config.fields, "attention.sliding_window_pattern"
    spec = config.decoder(NAME, whole_heads=True)
    sliding = config.marked_layers(key) or all_but_each(spec.num_layers, PATTERN)
    own = GatedCappedBlock(fields.number("logit_scale"), POST_EPSILON, True, sliding)
    cap = fields.optional_number("final_logit_softcapping", least=0.0) or None
    if any(sliding):
        spec = replace(spec, sliding_window=config.window(default=WINDOW), sliding_layers=sliding)
    return replace(spec, logits_softcap=cap and cap / own.multiplier, own=own)


def norms_plus_one(tensors: Mapping[str, TensorEntry], _spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder, one added to the weights of the norms in layers; that behind all of them is whole."""
    return {n: replace(e, plus=1.0) if n.endswith("layernorm.weight") else e for n, e in tensors.items()}


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    own, spec = _of(model.spec), model.spec
    x = common.enter(ops, model)
    if model.part.first_stage:
        x = ops.rms_norm(x, spec.hidden_size, spec.rms_norm_eps)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        inner = common.select_last(ops, model, index, _attended(ops, model, index, x, rotation))
        out = common.project_out(ops, model, inner, layer["o"], None, None)
        out = ops.rms_norm(out, layer["attended_norm"], own.post_epsilon)
        x = ops.add(common.select_last(ops, model, index, x), out)
        h = common.normed(ops, model, x, layer["post_norm"])
        out = common.project_out(ops, model, common.gated(ops, layer, h), layer["down"], None, None)
        x = ops.add(x, ops.rms_norm(out, layer["mlp_norm"], own.post_epsilon))
    return common.leave_scaled(ops, model, x, own.multiplier)


def _attended(ops: Ops, model: ForwardContext, index: int, x: Tensor, rotation: Tensor) -> Tensor:
    """What layer `index` of this stage attends to, times sigmoid of a gate for each element."""
    spec, part, layer = model.spec, model.part, model.parameters.layers[index]
    width, place = spec.head_dim, part.layers.first + index
    h = common.normed(ops, model, x, layer["input_norm"])
    query, kv = part.heads.count * width, part.kv_heads.count * width
    rows = ops.linear(h, (layer["q"], layer["k"], layer["v"], layer["attention_gate"]))
    q, k, v, gate = ops.split(rows, (query, kv, kv, query))
    q = ops.rms_norm(q, layer.get("q_norm", width), spec.rms_norm_eps)
    k = ops.rms_norm(k, layer.get("k_norm", width), spec.rms_norm_eps)
    if _of(spec).rotated[place]:
        q, k = ops.rope(q, rotation, width), ops.rope(k, rotation, width)
    scale = width**-0.5 if spec.attention_scale is None else spec.attention_scale
    found = ops.attention(q, k, v, model.cache, model.cache_layers[place], scale, common.window(model, index))
    return ops.sigmoid_mul(found, gate)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "MuseGlimmerForCausalLM",
        read_folder,
        fields=frozenset(
            "hidden_activation attention_bias sliding_window layer_rope_theta qk_scale_factor output_multiplier "
            "post_norm_eps final_logit_softcapping".split()
        ),
        model_types=("muse_glimmer_text",),
        picture_classes=("MuseGlimmerForConditionalGeneration",),
        convert=norms_plus_one,
    ),
    GgufFormat(
        "muse-glimmer",
        read_gguf,
        keys=frozenset(("logit_scale", "final_logit_softcapping")),
        convert=common.interleaved_heads,
    ),
    PARAMETERS,
    forward,
)
