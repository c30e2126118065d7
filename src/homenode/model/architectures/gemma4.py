"""Gemma 4, its text: Gemma 3's sandwich of norms with layers of two kinds, those with a window and those without, which
have unlike heads; values are normed and scores are not scaled; a number multiplies each layer's result.

Small sizes: the last layers read keys and values of the last layer of their kind that has its own, and each layer
takes in a row of a large table by token, which stays in its file. Large ones: keys are the values as well in layers
without a window, and experts are beside the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import LayerKv, Ops, ScoreRule, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import attention, gemma2, gemma3, mlp, per_layer_inputs, shared_keys, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import all_but_each
from homenode.model.architectures.parameters import ForwardContext, Parameter, always, of_model
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import GELU, FolderConfig
from homenode.model.config.folder_rope import NEVER_TURNS
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged, quoted
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, MoeSpec, RopeSpec, TensorEntry, Tensors

DEFAULTS = replace(gemma3.DEFAULTS, vocab=262144, attention_bias=None)
PATTERN = 6  # each layer of that number sees its whole context, the others a window
HEAD_DIM, TURNING = 512, 0.25  # of layers without a window, and how much of it turns
FIELDS = frozenset(
    "hidden_activation sliding_window use_bidirectional_attention attention_bias final_logit_softcapping "
    "vocab_size_per_layer_input hidden_size_per_layer_input attention_k_eq_v num_kv_shared_layers enable_moe_block "
    "use_double_wide_mlp num_experts top_k_experts moe_intermediate_size global_head_dim num_global_key_value_heads "
    "per_layer_config rope_local_base_freq".split()
)
KEYS = frozenset(
    "attention.key_length_swa attention.value_length_swa attention.shared_kv_layers rope.freq_base_swa "
    "rope.dimension_count_swa embedding_length_per_layer_input final_logit_softcapping".split()
)
STACKED = StackedExperts("experts.gate_up_proj", "experts.down_proj", "experts.{expert}")


@dataclass(frozen=True)
class Gemma4Extras:
    """`keys_as_values`: in layers without a window; `scaled`: layers have a number that multiplies their result."""

    keys_as_values: bool
    scaled: bool = True


def _of(spec: ModelSpec) -> Gemma4Extras:
    return spec.own if isinstance(spec.own, Gemma4Extras) else Gemma4Extras(False)


def _has_embedding(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    return tables.has_embedding(spec, part, layer) or per_layer_inputs.taken(spec, part, layer)


def _has_values(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    keys_alone = _of(spec).keys_as_values and layer is not None and spec.window_of(layer) is None
    return shared_keys.has_own(spec, part, layer) and not keys_alone


_is_scaled = of_model(lambda spec: _of(spec).scaled)


_EMBED, *_HEAD = tables.EMBEDDING_AND_HEAD
_Q, _K, _V, _O = tables.PROJECTIONS
_Q_NORM, _K_NORM = tables.HEAD_NORMS
EMBEDDING_AND_HEAD = (replace(_EMBED, when=_has_embedding), *_HEAD)
ATTENTION = (
    tables.INPUT_NORM,
    _Q,
    replace(_K, when=shared_keys.has_own),
    replace(_V, when=_has_values),
    _O,
    _Q_NORM,
    replace(_K_NORM, when=shared_keys.has_own),
    tables.NORMS_BEHIND[0],
)
PARAMETERS = (
    *EMBEDDING_AND_HEAD,
    *per_layer_inputs.ON_TOP,
    *ATTENTION,
    tables.NORM_BETWEEN,
    *(replace(matrix, when=always) for matrix in tables.GATE_UP_DOWN),
    tables.NORMS_BEHIND[1],
    layer_weight("router", "router.proj", "ffn_gate_inp", "experts", "hidden", when=tables.has_experts),
    Parameter(
        "router_scale",
        "model.layers.{layer}.router.scale",
        ("hidden",),
        "blk.{layer}.ffn_gate_inp.scale",
        tables.has_experts,
    ),
    Parameter(
        "expert_scales",
        "model.layers.{layer}.router.per_expert_scale",
        ("experts",),
        "blk.{layer}.ffn_down_exps.scale",
        tables.has_experts,
    ),
    *tables.gated_matrices("expert_", "experts.{expert}", "_exps", "expert_intermediate", tables.has_experts),
    *(
        layer_weight(key, name, gguf, "hidden", when=tables.has_experts)
        for key, name, gguf in (
            ("dense_norm", "post_feedforward_layernorm_1", "post_ffw_norm_1"),
            ("expert_input_norm", "pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
            ("expert_norm", "post_feedforward_layernorm_2", "post_ffw_norm_2"),
        )
    ),
    *per_layer_inputs.OF_LAYERS,
    Parameter(
        "layer_scale",
        "model.layers.{layer}.layer_scalar",
        ("one",),
        "blk.{layer}.layer_output_scale.weight",
        _is_scaled,
    ),
)


def _far_heads(config: FolderConfig, layer: int, default: tuple[int | None, int]) -> tuple[int | None, int]:
    """KV heads (None: as in other layers) and length of a head of a layer, by `per_layer_config` where that is
    there.
    """
    table = config.fields.table("per_layer_config")
    if table is None:
        return default
    own = table.optional_table(str(layer))
    if own is None:
        return None, config.fields.integer("head_dim", DEFAULTS.head_dim, maximum=limits.MOST_HEAD_DIM)
    if other := set(own.names()) - {"head_dim", "num_key_value_heads"}:
        raise UnsupportedError(
            f"{config.path}: per_layer_config with {quoted(min(other))} is not supported; homenode reads head_dim and "
            f"num_key_value_heads there"
        )
    heads = own.optional_integer("num_key_value_heads", maximum=limits.MOST_HEADS)
    return heads, own.optional_integer("head_dim", maximum=limits.MOST_HEAD_DIM) or default[1]


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    config.refuse_activation("hidden_activation", GELU)
    if (later := fields.text("use_bidirectional_attention")) not in ("", "vision"):
        raise UnsupportedError(
            f"{config.path}: use_bidirectional_attention {quoted(later)} is not supported; homenode runs causal models"
        )
    fields.refuse_others({"attention_bias": False})
    same = fields.boolean("attention_k_eq_v", False)
    heads = fields.optional_integer("num_global_key_value_heads", maximum=limits.MOST_HEADS) if same else None
    far = heads, fields.integer("global_head_dim", HEAD_DIM, maximum=limits.MOST_HEAD_DIM)
    layers = fields.integer("num_hidden_layers", maximum=limits.MOST_LAYERS)
    kinds = fields.texts("layer_types") or tuple(
        "sliding_attention" if slides else "full_attention" for slides in all_but_each(layers, PATTERN)
    )
    full = [layer for layer, kind in enumerate((*kinds[: layers - 1], "full_attention")) if kind == "full_attention"]
    by_layer = {layer: _far_heads(config, layer, far) for layer in full}
    if len({head_dim for _, head_dim in by_layer.values()}) > 1:
        raise UnsupportedError(f"{config.path}: full_attention layers with unlike head_dim are not supported")
    spec = config.decoder(DEFAULTS, rotates_part=True, far_head_dim=by_layer[full[0]][1])
    spec = config.with_window_in(spec, config.window(default=512), lambda n: all_but_each(n, PATTERN))
    spec = replace(spec, rope=_far_rope(config, spec, by_layer[full[0]][1]))
    if spec.sliding_layers:
        spec = replace(spec, sliding_layers=(*spec.sliding_layers[:-1], False))  # the class has the last layer so
    near = fields.integer("head_dim", DEFAULTS.head_dim, maximum=limits.MOST_HEAD_DIM)
    own = []
    for layer in range(spec.num_layers):
        kv_heads, head_dim = by_layer.get(layer, (None, near))
        own.append(LayerKv(kv_heads or spec.num_kv_heads, head_dim, head_dim))
    shared = fields.integer("num_kv_shared_layers", 0, minimum=0, maximum=spec.num_layers - 1)
    spec = shared_keys.with_layers(config, spec, own, shared)
    if fields.boolean("use_double_wide_mlp", False) and shared:
        inner = spec.intermediate_size
        spec = replace(spec, layer_intermediate=(inner,) * (spec.num_layers - shared) + (2 * inner,) * shared)
    taken = fields.integer("hidden_size_per_layer_input", per_layer_inputs.WIDTH, minimum=0, maximum=limits.MOST_HIDDEN)
    vocabulary = fields.integer("vocab_size_per_layer_input", DEFAULTS.vocab, maximum=limits.MOST_VOCAB)
    if taken and vocabulary < spec.vocab_size:
        raise fields.wrong("vocab_size_per_layer_input", vocabulary, f"the {spec.vocab_size} of vocab_size or more")
    return replace(
        per_layer_inputs.with_inputs(spec, taken, vocabulary),
        own=Gemma4Extras(same),
        logits_softcap=gemma2.softcap(config, "final_logit_softcapping", None),
        moe=_moe(config) if fields.boolean("enable_moe_block", False) else None,
    )


def _far_rope(config: FolderConfig, spec: ModelSpec, head_dim: int) -> RopeSpec:
    """The rope of layers without a window: of all their pairs, the first of which turn."""
    part = None if head_dim == spec.head_dim else head_dim
    if config.fields.table("rope_parameters") is None:
        for older in ("rope_theta", "rope_scaling", "rope_local_base_freq"):
            if config.fields.has(older):
                raise UnsupportedError(
                    f"{config.path}: {older} without rope_parameters is not supported in {config.architecture}, whose "
                    f"class leaves it alone; give rope_parameters, or neither"
                )
        turning = int(head_dim * TURNING) // 2
        factors = (1.0,) * turning + (NEVER_TURNS,) * (head_dim // 2 - turning)
        return replace(spec.rope, rotary_dim=part, factors=factors)
    if spec.rope.rotary_dim is not None:
        raise UnsupportedError(
            f"{config.path}: partial_rotary_factor with a rope that is not proportional is not supported in "
            f"{config.architecture}"
        )
    return replace(spec.rope, rotary_dim=part)


def _moe(config: FolderConfig) -> MoeSpec:
    fields = config.fields
    return MoeSpec(
        num_experts=fields.integer("num_experts", maximum=limits.MOST_EXPERTS),
        experts_per_token=fields.integer("top_k_experts", maximum=limits.MOST_EXPERTS),
        intermediate_size=fields.integer("moe_intermediate_size", maximum=limits.MOST_INTERMEDIATE),
        normalise=True,
        activation="gelu",
    )


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields = config.fields
    far, near = (fields.integer(f"attention.key_length{kind}", maximum=limits.MOST_HEAD_DIM) for kind in ("", "_swa"))
    for kind, length in (("", far), ("_swa", near)):
        for key in (f"attention.value_length{kind}", f"rope.dimension_count{kind}"):
            if (seen := fields.integer(key, length)) != length:
                raise UnsupportedError(
                    f"{config.path}: {key} {seen} is not supported in {config.architecture}; homenode wants the "
                    f"{length} of its heads"
                )
    spec = config.decoder(theta=DEFAULTS.theta, own_scale=True, layers_differ=True, head_dim=far)
    sliding = config.marked_layers("attention.sliding_window_pattern")
    if sliding is None:
        raise fields.wrong("attention.sliding_window_pattern", None, "a truth value for each layer")
    if not all(sliding) and not spec.rope.factors:
        raise damaged(config.path, "rope_freqs.weight", seen="none", wanted="the divisors of layers without a window")
    heads = config.per_layer("attention.head_count_kv")
    own = [LayerKv(n, *(2 * (near if slides else far,))) for n, slides in zip(heads, sliding, strict=True)]
    shared = fields.integer("attention.shared_kv_layers", 0, minimum=0, maximum=spec.num_layers - 1)
    inner = config.per_layer("feed_forward_length", maximum=limits.MOST_INTERMEDIATE)
    spec = replace(
        spec,
        local_rope=replace(config.local_rope(gemma3.LOCAL_THETA), rotary_dim=near),
        sliding_window=config.window() if any(sliding) else None,
        sliding_layers=sliding if any(sliding) else (),
        layer_intermediate=inner if len(set(inner)) > 1 else (),
        logits_softcap=fields.optional_number("final_logit_softcapping", least=0.0) or None,
    )
    spec = shared_keys.with_layers(config, spec, own, shared)
    taken = fields.integer("embedding_length_per_layer_input", 0, minimum=0, maximum=limits.MOST_HIDDEN)
    values = [f"model.layers.{layer}.self_attn.v_proj.weight" in config.tensors for layer in range(spec.num_layers)]
    same = any(
        not has and not slides and isinstance(kept, LayerKv)
        for has, slides, kept in zip(values, sliding, spec.layer_kv, strict=True)
    )
    scaled = "model.layers.0.layer_scalar" in config.tensors
    if fields.integer("expert_count", 0, minimum=0):
        moe = config.moe(spec, "model.layers.{layer}.router.proj.weight")
        spec = replace(spec, moe=replace(moe, activation="gelu", dense_layers=()))
    return replace(per_layer_inputs.with_inputs(spec, taken, spec.vocab_size), own=Gemma4Extras(same, scaled))


def from_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder, experts one by one."""
    return STACKED.split(shared_keys.without_unread(tensors, spec), spec)


def attended(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Tensor:
    """Return what layer `index` of this stage attends to, h being normed rows, by keys and values of its own, or by
    those of its donor.
    """
    layer, number, eps = model.parameters.layers[index], model.part.layers.first + index, model.spec.norm_eps
    _, head_dim = model.spec.heads_of(number)
    weights = [layer[name] for name in ("q", "k", "v") if name in layer]
    rows = ops.linear(h, weights, precision=attention.precision_of_scores(model.spec))
    k = v = None
    if "k" in layer:
        heads, kv_heads = model.part.heads_in(number)
        counts = (heads.count, *(kv_heads.count,) * (len(weights) - 1))
        rows, k, *values = ops.split(rows, [count * head_dim for count in counts])
        v = ops.rms_norm(values[0] if values else k, head_dim, eps)
        k = ops.rope(stage.normed(ops, model, k, layer["k_norm"]), rotation, head_dim)
    q = ops.rope(stage.normed(ops, model, rows, layer["q_norm"]), rotation, head_dim)
    seen = attention.window(model, index)
    rule = ScoreRule(1.0, seen, mask=attention.mask_of(model, seen))
    return ops.attention(q, k, v, model.cache, model.cache_layers[number], rule)


def fed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """Return what the MLP of layer `index` of this stage makes of x, and its experts beside it, where it has some."""
    layer = model.parameters.layers[index]
    h = stage.normed(ops, model, x, layer["post_norm"])
    inner = ops.gelu_mul(ops.linear(h, (layer["gate"], layer["up"])))
    out = stage.project_out(ops, model, inner, layer["down"], None, None)
    if "router" not in layer:
        return out
    scored = ops.scale(stage.normed(ops, model, x, layer["router_scale"]), model.spec.hidden_size**-0.5)
    logits = ops.linear(scored, (layer["router"],))
    h = stage.normed(ops, model, x, layer["expert_input_norm"])
    chosen = stage.over_ranks(ops, model, mlp.add_experts(ops, model, index, h, logits, None))
    out = stage.normed(ops, model, out, layer["dense_norm"])
    return ops.add(out, stage.normed(ops, model, chosen, layer["expert_norm"]))


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    x = stage.enter(ops, model)
    inputs = per_layer_inputs.of_tokens(ops, model) if "per_layer_table" in model.parameters.top else ()
    far = attention.angles(ops, model.rope)
    near = attention.angles(ops, model.rope.local or model.rope)
    for index, layer in enumerate(model.parameters.layers):
        rotation = far if attention.window(model, index) is None else near
        h = stage.normed(ops, model, x, layer["input_norm"])
        inner = stage.select_last(ops, model, index, attended(ops, model, index, h, rotation))
        x = stage.add_mixed(ops, model, index, x, inner, "o")
        out = fed_forward(ops, model, index, x)
        x = ops.add(x, stage.normed(ops, model, out, layer["mlp_norm"]))
        if inputs:
            taken = stage.select_last(ops, model, index, inputs[model.part.layers.first + index])
            x = ops.add(x, per_layer_inputs.behind(ops, model, layer, x, taken))
        if "layer_scale" in layer:
            x = ops.scale(x, layer["layer_scale"])
    return stage.leave(ops, model, x)


ARCHITECTURE = Architecture(
    "gemma4",
    FolderFormat(
        "Gemma4ForCausalLM",
        _read_folder,
        fields=FIELDS,
        harmless=gemma2.HARMLESS,
        model_types=("gemma4_text", "gemma4_unified_text"),
        picture_classes=("Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"),
        convert=from_folder,
    ),
    GgufFormat("gemma4", _read_gguf, keys=KEYS, convert=shared_keys.without_unread, with_or_without_experts=True),
    PARAMETERS,
    _forward,
)
