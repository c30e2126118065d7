"""Falcon: attention and MLP beside each other behind one LayerNorm (7B) or one each (40B, 180B); the RW models have
them one after the other, ALiBi and biases.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import bloom
from homenode.model.architectures.architecture import FolderFormat, GgufFormat, renamed
from homenode.model.architectures.conversions import split_grouped_rows
from homenode.model.architectures.layer_norm_decoder import (
    BlockStyle,
    folder_figures,
    gguf_figures,
    layer_norm_family,
    style_of,
)
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=2048, heads=71, vocab=65024, bos_id=11, eos_id=11, norm_eps=1e-5, intermediate=18176, activation=None
)
_SPELLED = {"n_embed": "hidden_size", "num_kv_heads": "num_key_value_heads", "layer_norm_epsilon": "rms_norm_eps"}
_INPUT, _POST = ".input_layernorm.", ".post_attention_layernorm."


def _residual_style(fields: Fields) -> BlockStyle:
    """One norm for both where they are beside each other, unless the newer architecture has two."""
    newer = fields.boolean("new_decoder_architecture", False)
    parallel = fields.boolean("parallel_attn", True)
    norms = fields.integer("num_ln_in_parallel_attn", 2 if newer else 1, maximum=2)
    if not parallel and not newer:
        return BlockStyle("gelu_erf", "serial")
    if not parallel or (norms == 2 and not newer):
        raise UnsupportedError(
            f"{fields.path}: new_decoder_architecture {str(newer).lower()} with parallel_attn {str(parallel).lower()} "
            f"and num_ln_in_parallel_attn {norms} is not supported; homenode runs Falcon 7B, 40B and RW"
        )
    return BlockStyle("gelu_erf", "parallel" if norms == 2 else "one_norm")


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(_SPELLED)
    fields, style = config.fields, _residual_style(config.fields)
    bias, activation = fields.boolean("bias", False), ("activation", "gelu")
    spec = folder_figures(config, DEFAULTS, style, activation, bias=bias, inner="ffn_hidden_size")
    if not fields.boolean("new_decoder_architecture", False):
        spec = replace(spec, num_kv_heads=1 if fields.boolean("multi_query", True) else spec.num_heads)
    if fields.boolean("alibi", False):
        spec = replace(spec, own=replace(style_of(spec), positions="alibi", alibi_scale=spec.head_dim**-0.5))
    return spec


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which has two norms in a layer or one."""
    two = "model.layers.0.post_attention_layernorm.weight" in config.tensors
    return gguf_figures(config, BlockStyle("gelu_erf", "parallel" if two else "one_norm"))


def _norms_exchanged(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """Where a GGUF file has two norms in a layer, `attn_norm` is that of the MLP, and `attn_norm_2` that of
    attention.
    """
    other = {_INPUT: _POST, _POST: _INPUT} if any(_POST in name for name in tensors) else {}
    found = {}
    for name, entry in tensors.items():
        part = next((part for part in other if part in name), None)
        name = name.replace(part, other[part]) if part else name
        found[name] = replace(entry, name=name)
    return found


ARCHITECTURE = layer_norm_family(
    "falcon",
    FolderFormat(
        "FalconForCausalLM",
        _read_folder,
        fields=frozenset(_SPELLED).union(
            "ffn_hidden_size activation new_decoder_architecture parallel_attn num_ln_in_parallel_attn multi_query "
            "alibi bias".split()
        ),
        model_types=("RefinedWeb", "RefinedWebModel"),
        modules=bloom.MODULES | renamed("h.{layer}.", "ln_attn=input_layernorm ln_mlp=post_attention_layernorm"),
        convert=split_grouped_rows,
    ),
    GgufFormat(
        "falcon",
        read_gguf,
        names={
            f"blk.{{layer}}.attn_norm_2.{kind}": f"model.layers.{{layer}}.post_attention_layernorm.{kind}"
            for kind in ("weight", "bias")
        },
        convert=_norms_exchanged,
    ),
)
