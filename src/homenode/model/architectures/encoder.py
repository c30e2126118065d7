"""Pieces that encoders share: their tables of parameters, figures, and a layer whose norms come after each sum."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from homenode.compute.ops import Ops, PlainActivation, RelativeBias, Tensor
from homenode.model.architectures import attention, mlp, stage, tables
from homenode.model.architectures.architecture import Conversion, GgufFormat, renamed
from homenode.model.architectures.layer_norm_decoder import EPS_KEY, normed, slopes_of
from homenode.model.architectures.parameters import ForwardContext, Parameter, always
from homenode.model.architectures.stage import Layer
from homenode.model.architectures.tables import layer_bias, layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.formats.tensor_parts import slice_of
from homenode.model.part import ModelPart
from homenode.model.pooling import PoolingSpec
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

_TYPES, _TYPE = "model.token_types.weight", "model.token_type.weight"  # a table, and its first row
SECOND = "second_types"  # of `ModelSpec.dimensions`: rows of the table, where texts are read in pairs by type
EPS = {"layer_norm_eps": "rms_norm_eps"}  # what config.json has
GGUF_KEYS = frozenset(("attention.causal",))
HARMLESS = {
    **dict.fromkeys(("type_vocab_size", "vocab_type"), "a text by itself has the first type, whose row is there"),
    "cls_token_id": "the tokenizer tells it",
    "position_embedding_type": "the tensors tell it",
    "attention_probs_dropout_prob": "of training only",
    "hidden_dropout_prob": "of training only",
}
# Of heads that encoders are trained with, and buffers; what a vector or score needs of them is named by `PoolingSpec`.
_UNREAD = (
    "pooler.",
    "cls.",
    "lm_head.",
    "head.",
    "decoder.",
    "classifier.",
    "pre_classifier.",
    "vocab_",
    "embeddings.position_ids",
)
MODULES = renamed(  # outside the layers, in most classes; "embeddings" is the front of buffers
    "",
    "",
    "embeddings.word_embeddings=model.embed_tokens embeddings.position_embeddings=model.positions "
    "embeddings.token_type_embeddings=model.token_types embeddings.LayerNorm=model.embed_norm embeddings pooler.dense",
)
OURS = (
    "self_attn.[qkvo]_proj post_attention_layernorm=attended_norm post_mlp_layernorm=mlp_norm"  # as transformers saves
)


def with_fronts(modules: Mapping[str, str], *fronts: str) -> dict[str, str]:
    """Return these names of modules, and each with one of `fronts` before it, as folders of classes with a head have
    them.
    """
    return {**modules, **{f"{front}.{theirs}": ours for front in fronts for theirs, ours in modules.items()}}


# What XLM-RoBERTa's parts are called in a class that has q, k and v in one matrix
_FLASH = (
    "mixer.Wqkv=self_attn.qkv_proj mixer.out_proj=self_attn.o_proj mlp.fc1=mlp.up_proj mlp.fc2=mlp.down_proj "
    f"norm1=attended_norm norm2=mlp_norm {OURS}"
)
FLASH_MODULES = with_fronts(
    {
        **MODULES,
        **renamed("encoder.layers.{layer}.", _FLASH, "emb_ln=model.embed_norm"),
        **renamed("layers.{layer}.", _FLASH),
    },
    "roberta",
)
_ALIBI_BITS = 8.0
Project = Callable[[Ops, ForwardContext, int, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class EncoderStyle:
    """`ModelSpec.own` of encoders. `activation`: of an MLP without a gate; `gate`: of the gate of one that has it.
    `first_position`: the row of the table that the first token has.
    """

    activation: PlainActivation = "gelu_erf"
    first_position: int = 0
    gate: Literal["silu", "gelu_erf"] = "silu"


def _enters(_spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    return part.first_stage


def has_types(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    """The row of the first type is added to those of all tokens."""
    return part.first_stage and spec.dimensions.get("types", 0) > 0 and SECOND not in spec.dimensions


def _has_second_types(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    return part.first_stage and SECOND in spec.dimensions


EMBEDDING = Parameter("embed", "model.embed_tokens.weight", ("vocabulary", "hidden"), "token_embd.weight", _enters)
EMBEDDING_NORM = (
    Parameter("embed_norm", "model.embed_norm.weight", ("hidden",), "token_embd_norm.weight", _enters),
    Parameter("embed_norm_bias", "model.embed_norm.bias", ("hidden",), "token_embd_norm.bias", _enters),
)
POSITIONS = Parameter("positions", "model.positions.weight", ("positions", "hidden"), "position_embd.weight", _enters)
TYPES = Parameter("types", _TYPE, ("hidden",), "token_types.weight", has_types)
SECOND_TYPES = Parameter("type_table", _TYPES, (SECOND, "hidden"), "token_types.weight", _has_second_types)
WITHOUT_POSITIONS = (
    EMBEDDING,
    TYPES,
    *EMBEDDING_NORM,
    *tables.PROJECTIONS,
    *tables.QKV_BIASES,
    *tables.OUTPUT_BIAS,
)
GGUF_NAMES = {"token_types.weight": _TYPES}
POST_NORMS = tuple(
    make(f"{key}{suffix}", key, gguf, "hidden", when=always)
    for key, gguf in (("attended_norm", "attn_output_norm"), ("mlp_norm", "layer_output_norm"))
    for make, suffix in ((layer_weight, ""), (layer_bias, "_bias"))
)


def folder_figures(config: FolderConfig, defaults: Defaults) -> ModelSpec:
    """The figures in config.json that encoders have in common."""
    return _encoder(config.respelled(EPS).of_encoder().decoder(defaults))


def gguf_figures(config: GgufConfig) -> ModelSpec:
    """The same in a GGUF file."""
    if config.fields.boolean("attention.causal", False):
        raise config.fields.wrong("attention.causal", True, "false, as this is an encoder")
    return _encoder(config.respelled(EPS_KEY).decoder())


def _encoder(spec: ModelSpec) -> ModelSpec:
    return replace(
        spec,
        num_kv_heads=spec.num_heads,
        attention_mask="all",
        pooling=PoolingSpec("mean", spec.hidden_size),
        tie_word_embeddings=False,
        eos_token_ids=(),
    )


def harmless_but(fields: Collection[str]) -> dict[str, str]:
    """Return what is harmless in encoders, without `fields`, which one of them reads."""
    return {key: why for key, why in HARMLESS.items() if key not in fields}


def types_of_folder(fields: Fields, default: int) -> int:
    """Rows of the table of types. `default`: where config.json does not say."""
    return fields.integer("type_vocab_size", default, minimum=0, maximum=limits.MOST_HIDDEN)


def types_of_gguf(config: GgufConfig) -> int:
    """The same in a GGUF file, where one row counts."""
    return int(_TYPES in config.tensors)


def biased(spec: ModelSpec, own: EncoderStyle, **dimensions: int) -> ModelSpec:
    """`spec` of an encoder with biases everywhere."""
    return replace(spec, attention_bias=True, output_bias=True, mlp_bias=True, own=own, dimensions=dimensions)


def gguf_format(name: str, read: Callable[[GgufConfig], ModelSpec], convert: Conversion, **more: Any) -> GgufFormat:
    """Files with this `general.architecture`, which have a table of types."""
    keys = GGUF_KEYS | {"token_type_count"}
    return GgufFormat(name, read, keys=keys, names=GGUF_NAMES, convert=convert, **more)


def without_unread(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors that an encoder needs, and of the table of types the first row."""
    head = frozenset[str]() if spec.pooling is None else spec.pooling.tensors
    found = {n: entry for n, entry in tensors.items() if n in head or not n.startswith(_UNREAD)}
    if SECOND not in spec.dimensions and (types := found.pop(_TYPES, None)) is not None:
        found[_TYPE] = slice_of(types, 0, _TYPE) if len(types.shape) == 2 else replace(types, name=_TYPE)
    return found


def split_tensors(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """Return these, fused matrices as an entry for each."""
    return split_fused_rows(without_unread(tensors, spec), spec)


def positions_in(tensors: Tensors, otherwise: int) -> int:
    """Rows of the table of positions."""
    table = tensors.get("model.positions.weight")
    return table.shape[0] if table is not None and table.shape else min(otherwise, limits.MOST_POSITION)


def enter(ops: Ops, model: ForwardContext) -> Tensor:
    """The rows that the first of this stage's layers begins with: of tokens, types and positions together, normed."""
    x, top = stage.enter(ops, model), model.parameters.top
    if not model.part.first_stage:
        return x
    if "types" in top:
        x = ops.add(x, top["types"])
    elif "type_table" in top:
        x = ops.add(x, ops.type_rows(top["type_table"]))
    if "positions" in top:
        own = model.spec.own
        first = own.first_position if isinstance(own, EncoderStyle) else 0
        x = ops.add(x, ops.position_rows(top["positions"], first))
    return normed(ops, model, top, "embed_norm", x)


def forward_with(
    positions: Literal["table", "rope", "alibi"],
    project: Project = attention.project_qkv,
    bias: Callable[[ForwardContext], RelativeBias | None] = lambda model: None,
) -> Callable[[Ops, ForwardContext], Tensor]:
    """The forward function of an encoder each half of whose layers is normed after it was added. `project`: rows to q,
    k and v. `bias`: what all layers add to scores.
    """

    def forward(ops: Ops, model: ForwardContext) -> Tensor:
        """The step's selected rows, or the rows for the next stage."""
        x, here, slopes = enter(ops, model), model.part.heads, None
        rotation = attention.angles(ops, model.rope) if positions == "rope" else None
        if positions == "alibi":
            slopes = slopes_of(model.spec.num_heads, _ALIBI_BITS)[here.first : here.end]
        for index, layer in enumerate(model.parameters.layers):
            qkv = project(ops, model, index, x)
            found = attention.attended(ops, model, index, qkv, rotation, slopes, bias(model))
            x = _add_attended(ops, model, index, x, found)
            x = normed(ops, model, layer, "mlp_norm", _feed_forward(ops, model, index, x))
        return x

    return forward


def _add_attended(ops: Ops, model: ForwardContext, index: int, x: Tensor, found: Tensor) -> Tensor:
    """x plus `found`, projected, and normed; of the model's last layer the selected rows only."""
    layer = model.parameters.layers[index]
    inner = stage.select_last(ops, model, index, found)
    x = stage.select_last(ops, model, index, x)
    attended = normed(
        ops, model, layer, "attended_norm", stage.project_out(ops, model, inner, layer["o"], layer.get("o_bias"), x)
    )
    if "residual_norm" in layer:
        attended = normed(ops, model, layer, "residual_norm", ops.add(attended, x))
    return attended


def _feed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    layer = model.parameters.layers[index]
    if "router" in layer:
        x = mlp.mixture(ops, model, index, x, x)
        return ops.add(x, layer["experts_bias"]) if "experts_bias" in layer else x
    return stage.project_out(ops, model, _inner(ops, model, layer, x), layer["down"], layer.get("down_bias"), x)


def _inner(ops: Ops, model: ForwardContext, layer: Layer, x: Tensor) -> Tensor:
    own = model.spec.own if isinstance(model.spec.own, EncoderStyle) else EncoderStyle()
    if "gate" not in layer:
        return ops.activate(ops.linear(x, (layer["up"],), (layer.get("up_bias"),)), own.activation)
    if own.gate == "silu":
        return mlp.gated(ops, layer, x)
    return ops.gelu_mul(ops.linear(x, (layer["gate"], layer["up"])), form="gelu_erf")
