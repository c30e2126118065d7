"""MPT: ALiBi, LayerNorm and matrices without biases; q, k and v may be limited."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import PARAMETERS, BlockStyle, forward, gguf_figures
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fields import Fields
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=16, vocab=50368, norm_eps=1e-5, intermediate=8192, activation=None)
STYLE = BlockStyle("gelu_erf", positions="alibi", norm_biases=False)
_LAYER = "model.layers.{layer}."
_SPELLED = {
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "max_seq_len": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
}
# Values of config.json and of its `attn_config`; with others the class, or the original code, computes something else.
_WANTED = {"no_bias": True, "expansion_ratio": 4, "logit_scale": None}
_WANTED_OF_ATTENTION = {"alibi": True, "prefix_lm": False, "qk_ln": False, "attn_type": "multihead_attention"}


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(_SPELLED).without(*ROPE, *HEAD_FIELDS)
    fields = config.fields
    attention = fields.table("attn_config") or Fields(config.path, {})
    fields.refuse_others(_WANTED)
    attention.refuse_others(_WANTED_OF_ATTENTION)
    spec = config.uniform_decoder(DEFAULTS)
    style = replace(
        STYLE,
        clip=attention.optional_number("clip_qkv", least=0.0) or None,
        alibi_bits=attention.number("alibi_bias_max", 8.0, most=1e3),
    )
    scale = attention.optional_number("softmax_scale")
    return replace(
        spec, num_kv_heads=spec.num_heads, intermediate_size=4 * spec.hidden_size, attention_scale=scale, own=style
    )


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields = config.fields
    bits = fields.number("attention.max_alibi_bias", least=0.0, most=1e3)
    if not bits:
        raise UnsupportedError(
            f"{config.path}: attention.max_alibi_bias 0 (no ALiBi) is not supported in {config.architecture}"
        )
    clip = fields.optional_number("attention.clamp_kqv", least=0.0) or None
    return gguf_figures(config, replace(STYLE, clip=clip, alibi_bits=bits))


ARCHITECTURE = Architecture(
    "mpt",
    FolderFormat(
        "MptForCausalLM",
        _read_folder,
        fields=frozenset((*_SPELLED, *_WANTED, "attn_config")),
        harmless=dict.fromkeys(
            "learned_pos_emb init_device embedding_fraction norm_type emb_pdrop init_config tokenizer_name verbose "
            "ffn_config use_pad_tok_in_ffn".split(),
            "transformers does not read it",
        ),
        older_classes=("MPTForCausalLM",),
        modules={
            "wte": "model.embed_tokens",
            "norm_f": "model.norm",
            "blocks.{layer}.norm_1": _LAYER + "input_layernorm",
            "blocks.{layer}.norm_2": _LAYER + "post_attention_layernorm",
            "blocks.{layer}.attn.Wqkv": _LAYER + "self_attn.qkv_proj",
            "blocks.{layer}.attn.out_proj": _LAYER + "self_attn.o_proj",
            "blocks.{layer}.ffn.up_proj": _LAYER + "mlp.up_proj",
            "blocks.{layer}.ffn.down_proj": _LAYER + "mlp.down_proj",
        },
        convert=split_fused_rows,
    ),
    GgufFormat("mpt", _read_gguf, keys=frozenset(("attention.max_alibi_bias", "attention.clamp_kqv"))),
    PARAMETERS,
    forward,
)
