"""MPNet: BERT's layer with a bias of every head by how far a key is from its query, which all layers share. The first
token has the row behind that of the padding token in the table of positions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from homenode.compute.ops import RelativeBias
from homenode.model.architectures import bert, encoder
from homenode.model.architectures.architecture import Architecture, FolderFormat, renamed
from homenode.model.architectures.parameters import ForwardContext, Parameter
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, FolderConfig
from homenode.model.pooling import PoolingSpec
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = replace(bert.DEFAULTS, vocab=30527)
BUCKETS, FARTHEST, FIRST_POSITION = 32, 128, 2  # whatever config.json says of the padding token
_BIAS = "model.relative_bias.weight"
PARAMETERS = (
    *(each for each in bert.PARAMETERS if each not in (encoder.TYPES, encoder.SECOND_TYPES)),
    Parameter("relative_bias", _BIAS, ("relative_biases",), "relative_bias.weight"),
)
_MODULES = encoder.MODULES | renamed(
    "encoder.layer.{layer}.",
    "attention.attn.[qkvo]=self_attn.[qkvo]_proj attention.LayerNorm=attended_norm intermediate.dense=mlp.up_proj "
    "output.dense=mlp.down_proj output.LayerNorm=mlp_norm",
    "encoder.relative_attention_bias=model.relative_bias",
)
FIELDS = frozenset((*encoder.EPS, "hidden_act", "relative_attention_num_buckets", "id2label"))


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others({"relative_attention_num_buckets": BUCKETS})
    spec, labels = encoder.folder_figures(config.without(*ROPE, *HEAD_FIELDS), DEFAULTS), config.labels()
    if spec.max_position <= FIRST_POSITION:
        raise fields.wrong("max_position_embeddings", spec.max_position, f"a whole number above {FIRST_POSITION}")
    style = encoder.EncoderStyle(config.plain_activation("hidden_act", "gelu"), FIRST_POSITION)
    figures = {"positions": spec.max_position, "relative_biases": BUCKETS * spec.num_heads}
    return replace(
        encoder.biased(spec, style, **figures),
        max_position=spec.max_position - FIRST_POSITION,
        pooling=PoolingSpec("cls", len(labels), bert.ROBERTA_HEAD, labels) if labels else spec.pooling,
    )


def _buckets() -> tuple[int, ...]:
    """Return which numbers count for distances -FARTHEST .. FARTHEST of a key behind its query: half of them for keys
    in front, half for those behind; of each half one for each of the nearest, then for ranges that grow by a factor.
    """
    half, exact = BUCKETS // 2, BUCKETS // 4
    apart = np.arange(FARTHEST + 1)
    growth = np.log(np.maximum(apart, 1).astype(np.float32) / exact) / np.float32(np.log(FARTHEST / exact))
    far = np.minimum(exact + (growth * (half - exact)).astype(int), half - 1)
    near = np.where(apart < exact, apart, far)
    return (*near[:0:-1].tolist(), 0, *(half + near[1:]).tolist())


def bias_of(model: ForwardContext) -> RelativeBias:
    """The bias of the heads that are here."""
    return RelativeBias(model.parameters.top["relative_bias"], _buckets(), model.spec.num_heads, model.part.heads.first)


def _as_vector(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    found = encoder.without_unread(tensors, spec)
    if (table := found.get(_BIAS)) is not None and table.shape == (BUCKETS, spec.num_heads):
        found[_BIAS] = replace(table, shape=(BUCKETS * spec.num_heads,))
    return found


ARCHITECTURE = Architecture(
    "mpnet",
    FolderFormat(
        "MPNetModel",
        _read_folder,
        fields=FIELDS,
        harmless=encoder.harmless_but(FIELDS),
        older_classes=("MPNetForMaskedLM", "MPNetForSequenceClassification"),
        modules=encoder.with_fronts(_MODULES, "mpnet"),
        convert=_as_vector,
    ),
    bert.ARCHITECTURE.gguf.without_files(),
    PARAMETERS,
    encoder.forward_with("table", bias=bias_of),
)
