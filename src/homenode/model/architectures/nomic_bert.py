"""nomic-embed-text: BERT's layer with a rope in place of a table of positions. 1 and 1.5 have a gated MLP, and no
biases but those of norms. Of 2 each second layer has experts in place of an MLP without a gate, and one bias for all of
them.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import conversions, encoder, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, renamed
from homenode.model.architectures.parameters import Parameter, of_model
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import quoted
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, MoeSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=2048, heads=12, vocab=30528, norm_eps=1e-12, intermediate=3072, theta=1000.0, activation=None
)
EXPERTS = ExpertDefaults(experts=8, experts_per_token=2, size=3072)
EXPERTS_BIAS = "model.layers.{layer}.mlp.experts.bias"


_has_gate = of_model(lambda spec: spec.moe is None)


def _has_experts_bias(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    return spec.dimensions.get("experts_bias", 0) > 0 and tables.has_experts(spec, part, layer)


def _has_mlp_biases(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    return tables.has_mlp_biases(spec, part, layer) and tables.has_mlp(spec, part, layer)


PARAMETERS = (
    *encoder.WITHOUT_POSITIONS,
    replace(tables.GATE_UP_DOWN[0], when=_has_gate),
    *tables.GATE_UP_DOWN[1:],
    *(replace(bias, when=_has_mlp_biases) for bias in tables.MLP_BIASES[1:]),
    tables.EXPERTS[0],
    *tables.EXPERTS[2:],
    Parameter("experts_bias", EXPERTS_BIAS, ("hidden",), "blk.{layer}.ffn_down_exps.bias", _has_experts_bias),
    *encoder.POST_NORMS,
)
_SPELLED = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "rotary_emb_fraction": "partial_rotary_factor",
    "moe_top_k": "num_experts_per_tok",
}
_PLAIN = {  # what the class of the makers can have, and published models have not
    "prenorm": False,
    "causal": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "rotary_emb_interleaved": False,
    "expert_choice_router": False,
}
_BIASES = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
_IN_LAYER = (
    "attn.Wqkv=self_attn.qkv_proj attn.out_proj=self_attn.o_proj mlp.fc11=mlp.up_proj mlp.fc12=mlp.gate_proj "
    "mlp.fc2=mlp.down_proj mlp.fc1=mlp.up_proj mlp.router.layer=mlp.gate mlp.experts mlp.experts.mlp=mlp.experts "
    f"norm1=attended_norm norm2=mlp_norm mlp.gate_proj mlp.up_proj mlp.down_proj {encoder.OURS}"
)
_MODULES = {
    **encoder.MODULES,
    **renamed("layers.{layer}.", _IN_LAYER, "emb_ln=model.embed_norm"),
    **renamed("encoder.layers.{layer}.", _IN_LAYER),
}


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(_SPELLED)
    fields = config.fields
    fields.refuse_others(_PLAIN)
    if fields.optional_number("rotary_emb_scale_base", least=0.0):
        raise UnsupportedError(f"{config.path}: rotary_emb_scale_base is not supported; homenode wants null")
    every = fields.optional_integer("moe_every_n_layers", minimum=0, maximum=limits.MOST_LAYERS) or 0
    activations = ("gelu",) if every else ("swiglu", "silu", "swish")
    activation = fields.text("activation_function", "") or fields.text("hidden_act", activations[0])
    if activation not in activations:
        raise UnsupportedError(
            f"{config.path}: activation_function {quoted(activation)} is not supported; homenode runs "
            f"{activations[0]!r}"
        )
    fields.refuse_others(dict.fromkeys(_BIASES, every > 0))
    if every:
        fields.refuse_others({"num_shared_experts": 0, "ffn_div": 1})
    spec = encoder.folder_figures(config, DEFAULTS)
    types = encoder.types_of_folder(fields, 2)
    spec = replace(spec, dimensions={"types": types, "experts_bias": int(every > 0)})
    if not every:
        return spec
    dense = tuple(layer for layer in range(spec.num_layers) if layer % every != 1)
    normalise = fields.boolean("moe_normalize_expert_weights", False)
    return _with_experts(spec, config.moe(EXPERTS, normalise=normalise, size=spec.intermediate_size, dense=dense))


def _with_experts(spec: ModelSpec, moe: MoeSpec) -> ModelSpec:
    """The figures of a model with experts, whose matrices have biases as well."""
    moe = replace(moe, activation="gelu_erf")
    return replace(spec, moe=moe, attention_bias=True, output_bias=True, mlp_bias=True)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = encoder.gguf_figures(config)
    figures = {"types": encoder.types_of_gguf(config), "experts_bias": 0}
    spec = replace(spec, dimensions=figures)
    if not config.fields.optional_integer("expert_count", minimum=0):
        return spec
    return _with_experts(spec, config.moe(spec, size=spec.intermediate_size, normalise=False))


def _converted(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    parts = {"w1": "up_proj", "w2": "down_proj"}
    return conversions.split_piled_experts(encoder.split_tensors(tensors, spec), spec, ".mlp.experts.", parts)


forward = encoder.forward_with("rope")
ARCHITECTURE = Architecture(
    "nomic_bert",
    FolderFormat(
        "NomicBertModel",
        _read_folder,
        fields=frozenset((*encoder.EPS, *_SPELLED, *_PLAIN, *_BIASES, *EXPERTS.keys)).union(
            "activation_function hidden_act moe_every_n_layers rotary_emb_scale_base type_vocab_size "
            "num_shared_experts "
            "ffn_div moe_normalize_expert_weights num_experts_per_tok".split()
        ),
        harmless=encoder.harmless_but(["type_vocab_size"])
        | dict.fromkeys(
            "fused_bias_fc fused_dropout_add_ln use_xentropy pad_vocab_size_multiple "
            "last_layer_subset dense_seq_output summary_first_dropout scale_attn_weights "
            "scale_attn_by_inverse_layer_idx reorder_and_upcast_attn max_trained_positions moe_impl "
            "moe_resid_pdrop add_pooling_layer".split(),
            "how, not what, its makers' class computes",
        ),
        older_classes=("NomicBertForMaskedLM", "NomicBertForPreTraining"),
        modules=encoder.with_fronts(_MODULES, "bert", "nomic_bert"),
        convert=_converted,
    ),
    encoder.gguf_format(
        "nomic-bert", _read_gguf, _converted, with_or_without_experts=True, further_names=("nomic-bert-moe",)
    ),
    PARAMETERS,
    forward,
)
