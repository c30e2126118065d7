"""Jina embeddings 2: BERT's layer with slopes to both sides (ALiBi) in place of a table of positions, and gated MLPs.
The model for code has a LayerNorm over all of q and of k as well, and one more norm after attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import common, encoder
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import Layer, layer_bias, layer_weight
from homenode.model.architectures.layer_norm_decoder import normed, slopes_of
from homenode.model.architectures.parameters import ForwardContext, Parameter
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.formats.reading import quoted
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, TensorEntry

NAME = "jina_bert"
DEFAULTS = Defaults(max_position=8192, heads=12, vocab=30522, norm_eps=1e-12, intermediate=3072)
_ALIBI_BITS = 8.0
_LAYER = "model.layers.{layer}."
_Q_NORM = "model.layers.0.self_attn.q_norm.weight"
_NORMS = "normed_heads"  # of `ModelSpec.dimensions`: 1 where q and k are normed


def _is_normed(spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
    return spec.dimensions.get(_NORMS, 0) > 0


def _norm(key: str, name: str, gguf: str, length: str) -> tuple[Parameter, Parameter]:
    weight = layer_weight(key, name, gguf, length, when=_is_normed)
    return weight, layer_bias(f"{key}_bias", name, gguf, length, when=_is_normed)


# Every rank has all keys, whose norm is over all heads in the model for code.
PARAMETERS = (
    encoder.EMBEDDING,
    encoder.TYPES,
    *encoder.EMBEDDING_NORM,
    *common.PROJECTIONS_NORMED_WHOLE[:4],
    common.QKV_BIASES[0],
    layer_bias("k_bias", "self_attn.k_proj", "attn_k", "all_kv", when=common.has_qkv_biases),
    common.QKV_BIASES[2],
    *common.OUTPUT_BIAS,
    *_norm("q_norm", "self_attn.q_norm", "attn_q_norm", "all_query"),
    *_norm("k_norm", "self_attn.k_norm", "attn_k_norm", "all_kv"),
    *_norm("residual_norm", "residual_norm", "attn_norm_2", "hidden"),
    *common.GATE_UP_DOWN,
    common.MLP_BIASES[2],
    *encoder.POST_NORMS,
)
_MODULES = {
    "embeddings.word_embeddings": "model.embed_tokens",
    "embeddings.token_type_embeddings": "model.token_types",
    "embeddings.LayerNorm": "model.embed_norm",
    "embeddings": "embeddings",  # buffers
    "pooler.dense": "pooler.dense",
    **{
        f"encoder.layer.{{layer}}.{theirs}": _LAYER + ours
        for theirs, ours in {
            "attention.self.query": "self_attn.q_proj",
            "attention.self.key": "self_attn.k_proj",
            "attention.self.value": "self_attn.v_proj",
            "attention.self.layer_norm_q": "self_attn.q_norm",
            "attention.self.layer_norm_k": "self_attn.k_norm",
            "attention.output.dense": "self_attn.o_proj",
            "attention.output.LayerNorm": "attended_norm",
            "mlp.gated_layers": "mlp.gate_up_proj",
            "mlp.wo": "mlp.down_proj",
            "mlp.layernorm": "mlp_norm",
            "mlp.up_gated_layer": "mlp.up_gate_proj",
            "mlp.down_layer": "mlp.down_proj",
            "layer_norm_1": "residual_norm",
            "layer_norm_2": "mlp_norm",
        }.items()
    },
}


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    for key, wanted in (("position_embedding_type", "alibi"), ("feed_forward_type", "geglu"), ("emb_pooler", "mean")):
        if (seen := fields.text(key, wanted)) != wanted:
            raise UnsupportedError(f"{config.path}: {key} {quoted(seen)} is not supported; homenode runs {wanted!r}")
    if fields.boolean("is_decoder", False):
        raise UnsupportedError(f"{config.path}: is_decoder true is not supported; homenode runs {NAME} as an encoder")
    types = fields.integer("type_vocab_size", 2, minimum=0, maximum=limits.MOST_HIDDEN)
    spec = encoder.folder_figures(config, NAME, DEFAULTS)
    return _styled(spec, types, int("qk-post-norm" in str(fields.value("auto_map"))))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = encoder.gguf_figures(config, NAME)
    normed = int(_Q_NORM in config.tensors)
    up = config.tensors.get("model.layers.0.mlp.up_proj.weight")
    if normed and up is not None and up.shape[:1] == (2 * spec.intermediate_size,):
        raise UnsupportedError(
            f"{config.path}: the model for code with gate and up in one ffn_up is not supported, as converters "
            "have left their order open; give its folder"
        )
    return _styled(spec, int("model.token_types.weight" in config.tensors), normed)


def _styled(spec: ModelSpec, types: int, normed: int) -> ModelSpec:
    return replace(
        spec,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        own=encoder.EncoderStyle(gate="gelu_erf"),
        dimensions={"types": types, _NORMS: normed},
    )


def split_tensors(tensors: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
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


def _project_qkv(ops: Ops, model: ForwardContext, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    def norm(key: str, rows: Tensor) -> Tensor:
        return normed(ops, model, layer, key, rows) if key in layer else rows

    return common.project_qkv_normed_whole(ops, model, layer, x, norm)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """The step's selected rows, or the rows for the next stage."""
    x, here = encoder.enter(ops, model), model.part.heads
    slopes = slopes_of(model.spec.num_heads, _ALIBI_BITS)[here.first : here.end]
    for index in range(len(model.parameters.layers)):
        x = encoder.post_norm_layer(ops, model, index, x, None, slopes, _project_qkv)
    return x


_FIELDS = "type_vocab_size is_decoder position_embedding_type feed_forward_type emb_pooler auto_map".split()
ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "JinaBertModel",
        read_folder,
        fields=frozenset((*encoder.EPS, *_FIELDS)),
        harmless={key: why for key, why in encoder.HARMLESS.items() if key not in _FIELDS}
        | {"model_max_length": "the tokenizer's", "hidden_act": "of MLPs without a gate"},
        older_classes=("JinaBertForMaskedLM",),
        modules=_MODULES | {f"bert.{theirs}": ours for theirs, ours in _MODULES.items()},
        convert=split_tensors,
    ),
    GgufFormat(
        "jina-bert-v2",
        read_gguf,
        keys=encoder.GGUF_KEYS | {"token_type_count"},
        names=encoder.GGUF_NAMES,
        convert=split_tensors,
    ),
    PARAMETERS,
    forward,
)
