"""Nemotron-H and Nemotron 3: each layer has one thing behind its norm: the recurrence of Mamba 2, attention without a
rope, an MLP without a gate, or experts of such MLPs with one that every token uses, perhaps in a narrower space.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, PlainActivation, Tensor
from homenode.model.architectures import attention, mamba_mixer, mlp, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import EPS_KEY
from homenode.model.architectures.parameters import Condition, ForwardContext, Parameter, of_layer
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import ROPE, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, MoeSpec
from homenode.model.state_mixers import with_mixer

DEFAULTS = Defaults(
    max_position=4096, heads=32, kv_heads=8, vocab=131072, head_dim=128, bos_id=1, eos_id=2, norm_eps=1e-5,
    intermediate=21504, activation=None,
)  # fmt: skip
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


_has_mlp = of_layer(lambda spec, layer: layer in spec.own_as(NemotronExtras).mlp_layers)


def _has_latent(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    return tables.has_experts(spec, part, layer) and spec.own_as(NemotronExtras).latent


def _up_and_down(
    key: str, name: str, gguf: str, shape: tuple[str, str], when: Condition
) -> tuple[Parameter, Parameter]:
    """Both matrices of an MLP without a gate: see `tables.gated_matrices`."""
    return (
        layer_weight(f"{key}up", f"mixer{name}.up_proj", f"ffn_up{gguf}", *shape, when=when),
        layer_weight(f"{key}down", f"mixer{name}.down_proj", f"ffn_down{gguf}", *reversed(shape), when=when),
    )


PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    layer_weight("input_norm", "norm", "attn_norm", "hidden"),
    *(replace(each, name=each.name.replace("self_attn", "mixer")) for each in mamba_mixer.ATTENTION[:4]),
    *mamba_mixer.parameters("mixer"),
    *_up_and_down("", "", "", ("intermediate", "hidden"), _has_mlp),
    layer_weight("router", "mixer.gate", "ffn_gate_inp", "experts", "hidden", when=tables.has_experts),
    replace(tables.CHOICE_BIAS, name="model.layers.{layer}.mixer.gate.e_score_correction_bias"),
    layer_weight(
        "latent_down", "mixer.fc1_latent_proj", "ffn_latent_down", "expert_hidden", "hidden", when=_has_latent
    ),
    layer_weight("latent_up", "mixer.fc2_latent_proj", "ffn_latent_up", "hidden", "expert_hidden", when=_has_latent),
    *_up_and_down(
        "expert_", ".experts.{expert}", "_exps", ("expert_intermediate", "expert_hidden"), tables.has_experts
    ),
    *_up_and_down("shared_", ".shared_experts", "_shexp", ("shared_intermediate", "hidden"), tables.has_shared_expert),
)


def _kinds(fields: Fields) -> tuple[str, ...]:
    """Return what each layer has: a list under one of its names, or a pattern of letters."""
    key = next((key for key in ("layers_block_type", "layer_types") if fields.has(key)), "hybrid_override_pattern")
    if key != "hybrid_override_pattern":
        kinds = tuple(_OLDER.get(kind, kind) for kind in fields.texts(key))
    else:
        kinds = tuple(_LETTERS.get(letter, letter) for letter in fields.text(key, "ME*-"))
    if not 1 <= len(kinds) <= limits.MOST_LAYERS or not set(kinds) <= set(_LETTERS.values()):
        raise fields.wrong(key, list(kinds), f"for each layer one of {', '.join(_LETTERS.values())}")
    return kinds


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(SPELLED).without(*ROPE)
    kinds = _kinds(config.fields)
    config = replace(config, fields=config.fields.with_value("num_hidden_layers", len(kinds)))
    fields, spec = config.fields, config.decoder(DEFAULTS)
    config.refuse_activation("mamba_hidden_act", "silu")
    fields.refuse_others({"mlp_bias": False})
    of = {kind: tuple(layer for layer, each in enumerate(kinds) if each == kind) for kind in _LETTERS.values()}
    scan = mamba_mixer.read_plain_names(
        fields,
        of["linear_attention"],
        heads=fields.integer("mamba_num_heads", 128, maximum=limits.MOST_HEADS),
        head_dim=fields.integer("mamba_head_dim", 64, maximum=limits.MOST_HEAD_DIM),
        state_width=fields.integer("ssm_state_size", 128, maximum=limits.MOST_HEAD_DIM),
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
    return config.moe(
        EXPERTS,
        normalise=fields.boolean("norm_topk_prob", True),
        dense=dense,
        shared=shared,
        score="sigmoid",
        epsilon=1e-20,
        scale=fields.number("routed_scaling_factor", 1.0),
        activation=activation,
        **config.expert_groups(),
    )


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file: layers with KV heads have attention, those with a length of the MLP one or experts,
    and all others a recurrence.
    """
    if not config.fields.has("attention.layer_norm_rms_epsilon"):  # of newer files
        config = replace(config, fields=config.fields.respelled(EPS_KEY))
    fields, spec = config.fields, config.decoder(layers_differ=True)
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


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    x = stage.enter(ops, model)
    of_scan = attention.precision_of_scores(model.spec)  # its rounding, too, would have rows choose other experts
    for index, layer in enumerate(model.parameters.layers):
        h = stage.normed(ops, model, x, layer["input_norm"])
        if "q" in layer:
            x = attention.attend(ops, model, index, x, attention.project_qkv(ops, model, index, h), None)
        elif "scan_o" in layer:
            inner = mamba_mixer.mixed(ops, model, index, h, precision=of_scan)
            x = stage.select_last(ops, model, index, x) if model.part.adds_residual else x
            x = stage.project_out(ops, model, inner, layer["scan_o"], layer.get("scan_o_bias"), x, of_scan)
        else:
            h, x = (stage.select_last(ops, model, index, each) for each in (h, x))
            if "router" in layer:
                x = _add_experts(ops, model, index, h, x)
            else:
                x = stage.project_out(ops, model, _activated(ops, model, layer["up"], h), layer["down"], None, x)
    return stage.leave(ops, model, x)


def _activated(ops: Ops, model: ForwardContext, weight: Tensor, h: Tensor) -> Tensor:
    return ops.activate(ops.linear(h, (weight,)), model.spec.own_as(NemotronExtras).activation)


def _add_experts(ops: Ops, model: ForwardContext, index: int, h: Tensor, x: Tensor) -> Tensor:
    """x plus the expert that every row uses and those that each chooses. Where these work in a narrower space, what all
    of a rank's make of a row comes back from there at once.
    """
    layer, residual = model.parameters.layers[index], x if model.part.adds_residual else None
    inner = _activated(ops, model, layer["shared_up"], h)
    shared = ops.linear(inner, (layer["shared_down"],), residual=residual)
    logits = ops.linear(h, (layer["router"],))
    if "latent_down" not in layer:
        return stage.over_ranks(ops, model, mlp.add_experts(ops, model, index, h, logits, shared))
    found = mlp.add_experts(ops, model, index, ops.linear(h, (layer["latent_down"],)), logits, None)
    return stage.over_ranks(ops, model, ops.linear(found, (layer["latent_up"],), residual=shared))


ARCHITECTURE = Architecture(
    "nemotron_h",
    FolderFormat(
        "NemotronHForCausalLM",
        _read_folder,
        fields=frozenset(
            "layers_block_type hybrid_override_pattern mamba_hidden_act mlp_hidden_act mlp_bias use_bias "
            "mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel use_conv_bias "
            "norm_topk_prob n_group topk_group routed_scaling_factor moe_latent_size "
            "moe_shared_expert_intermediate_size".split()
        )
        | EXPERTS.fields
        | SPELLED.keys(),
        harmless=mamba_mixer.HARMLESS
        | dict.fromkeys(
            "attention_bias expand sliding_window n_shared_experts moe_shared_expert_overlap mamba_proj_bias "
            "num_logits_to_keep mamba_expand mamba_dt_min mamba_dt_max mamba_dt_init_floor mamba_dt_limit "
            "time_step_limit "
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
    _forward,
)
