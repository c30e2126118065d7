"""MiniCPM 3: latent attention whose pairs that turn are halves of a head, an MLP in every layer, and MiniCPM's
multipliers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import common, latent_attention
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.latent_attention import LatentHeads, heads_of
from homenode.model.architectures.minicpm import DEPTH, EMBEDDING, WIDTH, multipliers
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "minicpm3"
DEFAULTS = Defaults(max_position=32768, heads=40, kv_heads=40, vocab=73448, bos_id=1, eos_id=2, norm_eps=1e-5)
HEADS = LatentHeads(query_rank=768, latent=256, plain=64, rotary=32, value=64)
PARAMETERS = (*common.EMBEDDING_AND_HEAD, *latent_attention.PARAMETERS, *common.GATED_MLP)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    if fields.boolean("mlp_bias", False):
        raise UnsupportedError(f"{config.path}: mlp_bias true is not supported in {NAME}; homenode wants false")
    heads = replace(HEADS, value=_value_width(fields.integer("hidden_size"), fields.integer("num_attention_heads", 40)))
    spec = latent_attention.read_folder(config, NAME, DEFAULTS, heads)
    scales = multipliers(config, spec, depth=DEPTH, width=WIDTH)
    spec = replace(spec, embedding_scale=fields.number("scale_emb", EMBEDDING))
    return _with_scales(spec, scales.residual, scales.logits)


def _value_width(hidden: int, heads: int) -> int:
    """Of a head, where the file does not say."""
    return max(hidden // heads, 1)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which says nothing of the multipliers."""
    fields = config.fields
    value = _value_width(fields.integer("embedding_length"), fields.integer("attention.head_count"))
    spec = replace(latent_attention.read_gguf(config, NAME, value=value), embedding_scale=EMBEDDING)
    return _with_scales(spec, DEPTH / math.sqrt(spec.num_layers), spec.hidden_size / WIDTH)


def _with_scales(spec: ModelSpec, residual: float, logits: float) -> ModelSpec:
    return replace(spec, own=replace(heads_of(spec), adjacent=False, residual=residual, logits=logits))


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    own = heads_of(model.spec)
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        x, _ = latent_attention.attend(ops, model, index, x, rotation, None)
        inner = common.gated(ops, layer, common.normed(ops, model, x, layer["post_norm"]))
        x = ops.add(x, ops.scale(common.project_out(ops, model, inner, layer["down"], None, None), own.residual))
    return common.leave_scaled(ops, model, x, 1.0 / own.logits)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "MiniCPM3ForCausalLM",
        read_folder,
        fields=latent_attention.FIELDS | {"scale_emb", "scale_depth", "dim_model_base", "mlp_bias"},
        convert=latent_attention.split_folder_heads,
    ),
    GgufFormat(
        "minicpm3",
        read_gguf,
        keys=latent_attention.KEYS,
        names=latent_attention.GGUF_NAMES,
        convert=latent_attention.split_gguf_heads,
    ),
    PARAMETERS,
    forward,
)
