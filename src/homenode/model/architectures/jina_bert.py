"""Jina embeddings 2: BERT's layer with slopes to both sides (ALiBi) in place of a table of positions, and gated MLPs.
The model for code has a LayerNorm over all of q and of k as well, and one more norm after attention.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import attention, encoder, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, renamed
from homenode.model.architectures.layer_norm_decoder import normed
from homenode.model.architectures.parameters import ForwardContext, Parameter, of_model
from homenode.model.architectures.tables import layer_bias, layer_weight
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(max_position=8192, heads=12, vocab=30522, norm_eps=1e-12, intermediate=3072, activation=None)
_Q_NORM = "model.layers.0.self_attn.q_norm.weight"
_NORMS = "normed_heads"  # of `ModelSpec.dimensions`: 1 where q and k are normed


_is_normed = of_model(lambda spec: spec.dimensions.get(_NORMS, 0) > 0)


def _norm(key: str, name: str, gguf: str, length: str) -> tuple[Parameter, Parameter]:
    weight = layer_weight(key, name, gguf, length, when=_is_normed)
    return weight, layer_bias(f"{key}_bias", name, gguf, length, when=_is_normed)


# Every rank has all keys, whose norm is over all heads in the model for code.
PARAMETERS = (
    encoder.EMBEDDING,
    encoder.TYPES,
    *encoder.EMBEDDING_NORM,
    *tables.PROJECTIONS_NORMED_WHOLE[:4],
    tables.QKV_BIASES[0],
    layer_bias("k_bias", "self_attn.k_proj", "attn_k", "all_kv", when=tables.has_qkv_biases),
    tables.QKV_BIASES[2],
    *tables.OUTPUT_BIAS,
    *_norm("q_norm", "self_attn.q_norm", "attn_q_norm", "all_query"),
    *_norm("k_norm", "self_attn.k_norm", "attn_k_norm", "all_kv"),
    *_norm("residual_norm", "residual_norm", "attn_norm_2", "hidden"),
    *tables.GATE_UP_DOWN,
    tables.MLP_BIASES[2],
    *encoder.POST_NORMS,
)
_WANTED = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "emb_pooler": "mean", "is_decoder": False}
_MODULES = encoder.MODULES | renamed(
    "encoder.layer.{layer}.",
    "attention.self.query=self_attn.q_proj attention.self.key=self_attn.k_proj attention.self.value=self_attn.v_proj "
    "attention.self.layer_norm_[qk]=self_attn.[qk]_norm attention.output.dense=self_attn.o_proj "
    "attention.output.LayerNorm=attended_norm mlp.gated_layers=mlp.gate_up_proj mlp.wo=mlp.down_proj "
    "mlp.layernorm=mlp_norm mlp.up_gated_layer=mlp.up_gate_proj mlp.down_layer=mlp.down_proj "
    "layer_norm_1=residual_norm layer_norm_2=mlp_norm",
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others(_WANTED)
    types = encoder.types_of_folder(fields, 2)
    spec = encoder.folder_figures(config.without(*ROPE, *HEAD_FIELDS), DEFAULTS)
    return _styled(spec, types, int("qk-post-norm" in str(fields.value("auto_map"))))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = encoder.gguf_figures(config)
    normed = int(_Q_NORM in config.tensors)
    up = config.tensors.get("model.layers.0.mlp.up_proj.weight")
    if normed and up is not None and up.shape[:1] == (2 * spec.intermediate_size,):
        raise UnsupportedError(
            f"{config.path}: the model for code with gate and up in one ffn_up is not supported, as converters "
            "have left their order open; give its folder"
        )
    return _styled(spec, encoder.types_of_gguf(config), normed)


def _styled(spec: ModelSpec, types: int, normed: int) -> ModelSpec:
    return encoder.biased(spec, encoder.EncoderStyle(gate="gelu_erf"), **{"types": types, _NORMS: normed})


def split_tensors(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """Gate and up as matrices of their own: up lies first in the model for code, gate first in the others, whose GGUF
    files call both together ffn_up.
    """
    inner, found = spec.intermediate_size, {}
    for name, entry in encoder.without_unread(tensors, spec).items():
        if name.endswith("mlp.up_gate_proj.weight") and entry.shape[:1] == (2 * inner,):
            for first, part in ((0, "up_proj"), (inner, "gate_proj")):
                one = name.replace("up_gate_proj", part)
                found[one] = rows_of(entry, one, first, inner)
        elif name.endswith("mlp.up_proj.weight") and entry.shape[:1] == (2 * inner,):
            both = name.replace("up_proj", "gate_up_proj")
            found[both] = replace(entry, name=both)
        else:
            found[name] = entry
    return split_fused_rows(found, spec)


def _project_qkv(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    layer = model.parameters.layers[index]

    def norm(key: str, rows: Tensor) -> Tensor:
        return normed(ops, model, layer, key, rows) if key in layer else rows

    return attention.project_qkv_normed_whole(ops, model, index, x, norm)


_FIELDS = (*_WANTED, "type_vocab_size", "auto_map")
ARCHITECTURE = Architecture(
    "jina_bert",
    FolderFormat(
        "JinaBertModel",
        _read_folder,
        fields=frozenset((*encoder.EPS, *_FIELDS)),
        harmless=encoder.harmless_but(_FIELDS)
        | {"model_max_length": "the tokenizer's", "hidden_act": "of MLPs without a gate"},
        older_classes=("JinaBertForMaskedLM",),
        modules=encoder.with_fronts(_MODULES, "bert"),
        convert=split_tensors,
    ),
    encoder.gguf_format("jina-bert-v2", _read_gguf, split_tensors),
    PARAMETERS,
    encoder.forward_with("alibi", _project_qkv),
)
