"""Nemotron-H and Nemotron 3: each layer has one thing behind its norm: the recurrence of Mamba 2, attention without a
rope, an MLP without a gate, or experts of such MLPs with one that every token uses, perhaps in a narrower space.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, PlainActivation, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import common, mamba_mixer
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.layer_norm_decoder import EPS_KEY
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import ROPE, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, MoeSpec
from homenode.model.state_mixers import ScanSpec, with_mixer

NAME = "nemotron_h"
DEFAULTS = Defaults(
    max_position=4096,
    heads=32,
    kv_heads=8,
    vocab=131072,
    head_dim=128,
    bos_id=1,
    eos_id=2,
    norm_eps=1e-5,
    intermediate=21504,
)
EXPERTS = ExpertDefaults(experts=8, experts_per_token=2, size=7688, keys=("n_routed_experts", "num_local_experts"))
SPELLED = {
    "layer_norm_epsilon": "rms_norm_eps",
    "attention_head_dim": "head_dim",
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
}
# What layers have, by the letters of a pattern; and older names.
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OLDER = {"mamba": "linear_attention", "attention": "full_attention"}


@dataclass(frozen=True)
class NemotronExtras:
    """`mlp_layers`: that have an MLP. `activation`: of all MLPs. `latent`: whether experts work in a narrower space."""

    mlp_layers: tuple[int, ...]
    activation: PlainActivation
    latent: bool


def _extras(spec: ModelSpec) -> NemotronExtras:
    assert isinstance(spec.own, NemotronExtras)
    return spec.own


def _has_mlp(spec: ModelSpec, _part: ModelPart, layer: int | None) -> bool:
    return layer in _extras(spec).mlp_layers


def _has_latent(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    return common.has_experts(spec, part, layer) and _extras(spec).latent


PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    layer_weight("input_norm", "norm", "attn_norm", "hidden"),
    *(replace(each, name=each.name.replace("self_attn", "mixer")) for each in mamba_mixer.ATTENTION[:4]),
    *mamba_mixer.parameters("mixer"),
    layer_weight("up", "mixer.up_proj", "ffn_up", "intermediate", "hidden", when=_has_mlp),
    layer_weight("down", "mixer.down_proj", "ffn_down", "hidden", "intermediate", when=_has_mlp),
    layer_weight("router", "mixer.gate", "ffn_gate_inp", "experts", "hidden", when=common.has_experts),
    replace(common.CHOICE_BIAS, name="model.layers.{layer}.mixer.gate.e_score_correction_bias"),
    layer_weight(
        "latent_down", "mixer.fc1_latent_proj", "ffn_latent_down", "expert_hidden", "hidden", when=_has_latent
    ),
    layer_weight("latent_up", "mixer.fc2_latent_proj", "ffn_latent_up", "hidden", "expert_hidden", when=_has_latent),
    layer_weight(
        "expert_up",
        "mixer.experts.{expert}.up_proj",
        "ffn_up_exps",
        "expert_intermediate",
        "expert_hidden",
        when=common.has_experts,
    ),
    layer_weight(
        "expert_down",
        "mixer.experts.{expert}.down_proj",
        "ffn_down_exps",
        "expert_hidden",
        "expert_intermediate",
        when=common.has_experts,
    ),
    layer_weight(
        "shared_up",
        "mixer.shared_experts.up_proj",
        "ffn_up_shexp",
        "shared_intermediate",
        "hidden",
        when=common.has_shared_expert,
    ),
    layer_weight(
        "shared_down",
        "mixer.shared_experts.down_proj",
        "ffn_down_shexp",
        "hidden",
        "shared_intermediate",
        when=common.has_shared_expert,
    ),
)


def _kinds(fields: Fields) -> tuple[str, ...]:
    """What each layer has: a list under one of its names, or a pattern of letters."""
    key = next((key for key in ("layers_block_type", "layer_types") if fields.has(key)), "hybrid_override_pattern")
    if key != "hybrid_override_pattern":
        kinds = tuple(_OLDER.get(kind, kind) for kind in fields.texts(key))
    else:
        kinds = tuple(_LETTERS.get(letter, letter) for letter in fields.text(key, "ME*-"))
    if not 1 <= len(kinds) <= limits.MOST_LAYERS or not set(kinds) <= set(_LETTERS.values()):
        raise fields.wrong(key, list(kinds), f"for each layer one of {', '.join(_LETTERS.values())}")
    return kinds


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config = config.respelled(SPELLED).without(*ROPE)
    kinds = _kinds(config.fields)
    config = replace(config, fields=config.fields.with_value("num_hidden_layers", len(kinds)))
    fields, spec = config.fields, config.decoder(NAME, DEFAULTS)
    config.refuse_activation("mamba_hidden_act", "silu")
    if fields.boolean("mlp_bias", False):
        raise UnsupportedError(f"{config.path}: mlp_bias true is not supported in {NAME}; homenode wants false")
    of = {kind: tuple(layer for layer, each in enumerate(kinds) if each == kind) for kind in _LETTERS.values()}
    bias = fields.boolean("use_bias", False)
    scan = ScanSpec(
        layers=of["linear_attention"],
        heads=fields.integer("mamba_num_heads", 128, maximum=limits.MOST_HEADS),
        head_dim=fields.integer("mamba_head_dim", 64, maximum=limits.MOST_HEAD_DIM),
        groups=fields.integer("n_groups", 8, maximum=limits.MOST_HEADS),
        state_width=fields.integer("ssm_state_size", 128, maximum=limits.MOST_HEAD_DIM),
        taps=fields.integer("conv_kernel", 4, minimum=2, maximum=64) - 1,
        convolution_bias=fields.boolean("use_conv_bias", True),
        input_bias=bias,
        output_bias=bias,
    )
    activation = config.plain_activation("mlp_hidden_act", "relu2")
    latent = fields.optional_integer("moe_latent_size", maximum=limits.MOST_HIDDEN)
    spec = replace(
        spec,
        own=NemotronExtras(of["mlp"], activation, latent is not None),
        dimensions={"expert_hidden": latent or spec.hidden_size},
    )
    if of["moe"]:
        spec = replace(spec, moe=_read_experts(config, of["moe"], len(kinds), activation))
    return with_mixer(spec, mamba_mixer.check_heads(fields, "mamba_num_heads", scan), of["full_attention"])


def _read_experts(config: FolderConfig, layers: tuple[int, ...], count: int, activation: PlainActivation) -> MoeSpec:
    """The experts, which the layers have, of `count` layers."""
    fields = config.fields
    shared = fields.integer("moe_shared_expert_intermediate_size", 7688, maximum=limits.MOST_INTERMEDIATE)
    dense = tuple(layer for layer in range(count) if layer not in layers)
    moe = config.moe(EXPERTS, normalise=fields.boolean("norm_topk_prob", True), dense=dense, shared=shared)
    return replace(
        moe,
        score="sigmoid",
        epsilon=1e-20,
        scale=fields.number("routed_scaling_factor", 1.0),
        groups=fields.integer("n_group", 1, maximum=limits.MOST_EXPERTS),
        groups_chosen=fields.integer("topk_group", 1, maximum=limits.MOST_EXPERTS),
        activation=activation,
    )


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file: layers with KV heads have attention, those with a length of the MLP one or experts,
    and all others a recurrence.
    """
    if not config.fields.has("attention.layer_norm_rms_epsilon"):  # of newer files
        config = replace(config, fields=config.fields.respelled(EPS_KEY))
    fields, spec = config.fields, config.decoder(NAME, layers_differ=True)
    heads = config.per_layer("attention.head_count_kv", spec.num_kv_heads, minimum=0)
    inner = config.per_layer("feed_forward_length", minimum=0, maximum=limits.MOST_INTERMEDIATE)
    layers = range(spec.num_layers)
    attending = [layer for layer in layers if heads[layer]]
    recurrent = [layer for layer in layers if not heads[layer] and not inner[layer]]
    router = "model.layers.{layer}.mixer.gate.weight"
    mlp = tuple(layer for layer in layers if inner[layer] and router.format(layer=layer) not in config.tensors)
    latent = fields.optional_integer("moe_latent_size", minimum=0, maximum=limits.MOST_HIDDEN) or None
    spec = replace(
        spec,
        own=NemotronExtras(mlp, "relu2", latent is not None),
        dimensions={"expert_hidden": latent or spec.hidden_size},
    )
    if len(mlp) < sum(map(bool, inner)):
        moe = config.moe(spec, router, scores=(2,))
        shared = fields.integer("expert_shared_feed_forward_length", maximum=limits.MOST_INTERMEDIATE)
        spec = replace(spec, moe=replace(moe, epsilon=1e-20, shared_intermediate_size=shared, activation="relu2"))
    return with_mixer(spec, mamba_mixer.read_gguf(config, recurrent, "mixer"), attending)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    of_scan = common.precision_of_scores(model.spec)  # its rounding, too, would have rows choose other experts
    for index, layer in enumerate(model.parameters.layers):
        h = common.normed(ops, model, x, layer["input_norm"])
        if "q" in layer:
            attended = common.attended(ops, model, index, common.project_qkv(ops, model, layer, h), None)
            inner, out, bias = common.select_last(ops, model, index, attended), layer["o"], None
        elif "scan_o" in layer:
            inner = mamba_mixer.mixed(ops, model, index, h, precision=of_scan)
            out, bias = layer["scan_o"], layer.get("scan_o_bias")
        else:
            h, x = (common.select_last(ops, model, index, each) for each in (h, x))
            if "router" in layer:
                x = _add_experts(ops, model, index, h, x)
                continue
            inner, out, bias = _activated(ops, model, layer["up"], h), layer["down"], None
            x = common.project_out(ops, model, inner, out, bias, x)
            continue
        if model.part.adds_residual:
            x = common.select_last(ops, model, index, x)
        x = common.project_out(ops, model, inner, out, bias, x, of_scan if "scan_o" in layer else "usual")
    return common.leave(ops, model, x)


def _activated(ops: Ops, model: ForwardContext, weight: Tensor, h: Tensor) -> Tensor:
    return ops.activate(ops.linear(h, (weight,)), _extras(model.spec).activation)


def _add_experts(ops: Ops, model: ForwardContext, index: int, h: Tensor, x: Tensor) -> Tensor:
    """x plus the expert that every row uses and those that each chooses. Where these work in a narrower space, what all
    of a rank's make of a row comes back from there at once.
    """
    layer, residual = model.parameters.layers[index], x if model.part.adds_residual else None
    inner = _activated(ops, model, layer["shared_up"], h)
    shared = ops.linear(inner, (layer["shared_down"],), residual=residual)
    logits = ops.linear(h, (layer["router"],))
    if "latent_down" not in layer:
        return common.over_ranks(ops, model, common.add_experts(ops, model, index, h, logits, shared))
    found = common.add_experts(ops, model, index, ops.linear(h, (layer["latent_down"],)), logits, None)
    return common.over_ranks(ops, model, ops.linear(found, (layer["latent_up"],), residual=shared))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "NemotronHForCausalLM",
        read_folder,
        fields=frozenset(
            "layers_block_type hybrid_override_pattern mamba_hidden_act mlp_hidden_act mlp_bias use_bias "
            "mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel use_conv_bias "
            "n_routed_experts num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob n_group "
            "topk_group "
            "routed_scaling_factor moe_latent_size moe_shared_expert_intermediate_size".split()
        )
        | SPELLED.keys(),
        harmless=mamba_mixer.HARMLESS
        | dict.fromkeys(
            "attention_bias expand sliding_window n_shared_experts moe_shared_expert_overlap mamba_proj_bias "
            "num_logits_to_keep mamba_expand mamba_dt_min mamba_dt_max mamba_dt_init_floor mamba_dt_limit time_step_limit "
            "mtp_layers_block_type mtp_hybrid_override_pattern residual_in_fp32 rescale_prenorm_residual".split(),
            "its class does not compute with it, or not otherwise in float32",
        ),
        modules={
            **dict.fromkeys(("backbone.embeddings", "model.embeddings"), "model.embed_tokens"),
            **dict.fromkeys(("backbone.norm_f", "model.norm_f"), "model.norm"),
            "backbone.": "model.",
        },
        convert=mamba_mixer.convert_folder,
    ),
    GgufFormat(
        "nemotron_h",
        read_gguf,
        keys=mamba_mixer.KEYS | {"moe_latent_size"},
        names=mamba_mixer.gguf_names("mixer"),
        convert=mamba_mixer.split_tensors,
        with_or_without_experts=True,
        further_names=("nemotron_h_moe",),
    ),
    PARAMETERS,
    forward,
)
