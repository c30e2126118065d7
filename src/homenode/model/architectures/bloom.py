"""BLOOM: ALiBi, a LayerNorm behind the embedding as well, and biases everywhere."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import gpt_neox
from homenode.model.architectures.architecture import FolderFormat, GgufFormat, renamed
from homenode.model.architectures.conversions import split_grouped_rows
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures, gguf_figures, layer_norm_family
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=2048, heads=8, vocab=250880, bos_id=1, eos_id=2, norm_eps=1e-5, intermediate=256, activation=None
)
STYLE = BlockStyle("gelu", positions="alibi", embedding_norm=True)
MODULES = renamed(
    "h.{layer}.",
    "input_layernorm post_attention_layernorm "
    f"self_attention.query_key_value=self_attn.grouped_qkv self_attention.dense=self_attn.o_proj {gpt_neox.MATRICES}",
    "word_embeddings=model.embed_tokens ln_f=model.norm",
)
_SPELLED = {
    "n_embed": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "seq_length": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
}


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json. The inner columns of the MLP are always four times the hidden size."""
    config = config.respelled(_SPELLED).without(*ROPE, *HEAD_FIELDS)
    config.fields.refuse_others({"apply_residual_connection_post_layernorm": False})
    spec = folder_figures(config, DEFAULTS, STYLE, bias=True)
    return replace(spec, intermediate_size=4 * spec.hidden_size)


ARCHITECTURE = layer_norm_family(
    "bloom",
    FolderFormat(
        "BloomForCausalLM",
        read_folder,
        fields=frozenset((*_SPELLED, "apply_residual_connection_post_layernorm")),
        harmless=dict.fromkeys(
            "slow_but_exact attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion skip_bias_add "
            "skip_bias_add_qkv offset_alibi".split(),
            "how, not what, transformers computes",
        ),
        modules=MODULES | {"word_embeddings_layernorm": "model.embed_norm"},
        convert=split_grouped_rows,
    ),
    GgufFormat("bloom", lambda config: gguf_figures(config, STYLE)),
)
