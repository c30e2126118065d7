"""MPT: ALiBi, LayerNorm and matrices without biases; q, k and v may be limited."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures.architecture import FolderFormat, GgufFormat, renamed
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures, gguf_figures, layer_norm_family
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fields import Fields
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=16, vocab=50368, norm_eps=1e-5, intermediate=8192, activation=None)
STYLE = BlockStyle("gelu_erf", positions="alibi", norm_biases=False)
SPELLED = {  # of the makers' classes
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "max_seq_len": "max_position_embeddings",
}
_SPELLED = SPELLED | {"layer_norm_epsilon": "rms_norm_eps"}
# Values of config.json and of its `attn_config`; with others the class, or the original code, computes something else.
_WANTED = {"no_bias": True, "expansion_ratio": 4, "logit_scale": None}
_WANTED_OF_ATTENTION = {"alibi": True, "prefix_lm": False, "qk_ln": False, "attn_type": "multihead_attention"}


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(_SPELLED).without(*ROPE, *HEAD_FIELDS)
    attention = config.fields.table("attn_config") or Fields(config.path, {})
    config.fields.refuse_others(_WANTED)
    attention.refuse_others(_WANTED_OF_ATTENTION)
    clip = attention.optional_number("clip_qkv", least=0.0) or None
    style = replace(STYLE, clip=clip, alibi_bits=attention.number("alibi_bias_max", 8.0, most=1e3))
    spec, scale = folder_figures(config, DEFAULTS, style), attention.optional_number("softmax_scale")
    return replace(spec, intermediate_size=4 * spec.hidden_size, attention_scale=scale)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields = config.fields
    bits = fields.number("attention.max_alibi_bias", least=0.0, most=1e3)
    if not bits:
        raise UnsupportedError(
            f"{config.path}: attention.max_alibi_bias 0 (no ALiBi) is not supported in {config.architecture}"
        )
    clip = fields.optional_number("attention.clamp_kqv", least=0.0) or None
    return gguf_figures(config, replace(STYLE, clip=clip, alibi_bits=bits))


ARCHITECTURE = layer_norm_family(
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
        modules=renamed(
            "blocks.{layer}.",
            "norm_1=input_layernorm norm_2=post_attention_layernorm attn.Wqkv=self_attn.qkv_proj "
            "attn.out_proj=self_attn.o_proj ffn.up_proj=mlp.up_proj ffn.down_proj=mlp.down_proj",
            "wte=model.embed_tokens norm_f=model.norm",
        ),
        convert=split_fused_rows,
    ),
    GgufFormat("mpt", _read_gguf, keys=frozenset(("attention.max_alibi_bias", "attention.clamp_kqv"))),
)
