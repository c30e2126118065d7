"""nomic-embed-text 1 and 1.5: BERT's layer with a rope in place of a table of positions, a gated MLP, and no biases but
those of norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import common, encoder
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.formats.reading import quoted
from homenode.model.spec import ModelSpec, TensorEntry

NAME = "nomic_bert"
DEFAULTS = Defaults(max_position=2048, heads=12, vocab=30528, norm_eps=1e-12, intermediate=3072, theta=1000.0)
PARAMETERS = (
    encoder.EMBEDDING,
    encoder.TYPES,
    *encoder.EMBEDDING_NORM,
    *common.PROJECTIONS,
    *common.GATE_UP_DOWN,
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
}
_PLAIN = {  # what the class of the makers can have, and published models have not
    "prenorm": False,
    "causal": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_interleaved": False,
}
_LAYER = "model.layers.{layer}."
_IN_LAYER = {
    "attn.Wqkv": "self_attn.qkv_proj",
    "attn.out_proj": "self_attn.o_proj",
    "mlp.fc11": "mlp.up_proj",
    "mlp.fc12": "mlp.gate_proj",
    "mlp.fc2": "mlp.down_proj",
    "norm1": "attended_norm",
    "norm2": "mlp_norm",
    "self_attn.q_proj": "self_attn.q_proj",
    "self_attn.k_proj": "self_attn.k_proj",
    "self_attn.v_proj": "self_attn.v_proj",
    "self_attn.o_proj": "self_attn.o_proj",
    "mlp.up_proj": "mlp.up_proj",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.down_proj": "mlp.down_proj",
    "post_attention_layernorm": "attended_norm",
    "post_mlp_layernorm": "mlp_norm",
}
_MODULES = {
    "embeddings.word_embeddings": "model.embed_tokens",
    "embeddings.token_type_embeddings": "model.token_types",
    "embeddings.LayerNorm": "model.embed_norm",
    "emb_ln": "model.embed_norm",
    **{
        f"{front}layers.{{layer}}.{theirs}": _LAYER + ours
        for front in ("", "encoder.")
        for theirs, ours in _IN_LAYER.items()
    },
}


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config = config.respelled(_SPELLED)
    fields = config.fields
    for key, wanted in _PLAIN.items():
        if fields.boolean(key, wanted) is not wanted:
            raise UnsupportedError(f"{config.path}: {key} is not supported but as {str(wanted).lower()}")
    if fields.optional_number("rotary_emb_scale_base", least=0.0):
        raise UnsupportedError(f"{config.path}: rotary_emb_scale_base is not supported; homenode wants null")
    activation = fields.text("activation_function", "") or fields.text("hidden_act", "silu")
    if activation not in ("swiglu", "silu", "swish"):
        raise UnsupportedError(
            f"{config.path}: activation_function {quoted(activation)} is not supported; homenode runs 'swiglu'"
        )
    if fields.optional_integer("moe_every_n_layers", minimum=0):
        raise UnsupportedError(
            f"{config.path}: moe_every_n_layers is not supported; homenode runs nomic_bert without experts"
        )
    spec = encoder.folder_figures(config, NAME, DEFAULTS)
    types = fields.integer("type_vocab_size", 2, minimum=0, maximum=limits.MOST_HIDDEN)
    return replace(spec, dimensions={"types": types})


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = encoder.gguf_figures(config, NAME)
    return replace(spec, dimensions={"types": int("model.token_types.weight" in config.tensors)})


def _converted(tensors: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
    return split_fused_rows(encoder.without_unread(tensors, spec), spec)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """The step's selected rows, or the rows for the next stage."""
    x = encoder.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index in range(len(model.parameters.layers)):
        x = encoder.post_norm_layer(ops, model, index, x, rotation)
    return x


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "NomicBertModel",
        read_folder,
        fields=frozenset(
            (
                *encoder.EPS,
                *_SPELLED,
                *_PLAIN,
                *"activation_function hidden_act moe_every_n_layers rotary_emb_scale_base type_vocab_size".split(),
            )
        ),
        harmless={key: why for key, why in encoder.HARMLESS.items() if key != "type_vocab_size"}
        | dict.fromkeys(
            "fused_bias_fc fused_dropout_add_ln use_xentropy pad_vocab_size_multiple "
            "last_layer_subset dense_seq_output summary_first_dropout scale_attn_weights "
            "scale_attn_by_inverse_layer_idx reorder_and_upcast_attn max_trained_positions".split(),
            "how, not what, its makers' class computes",
        ),
        older_classes=("NomicBertForMaskedLM", "NomicBertForPreTraining"),
        modules=_MODULES
        | {f"{front}.{theirs}": ours for front in ("bert", "nomic_bert") for theirs, ours in _MODULES.items()},
        convert=_converted,
    ),
    GgufFormat(
        "nomic-bert",
        read_gguf,
        keys=encoder.GGUF_KEYS | {"token_type_count"},
        names=encoder.GGUF_NAMES,
        convert=_converted,
    ),
    PARAMETERS,
    forward,
)
