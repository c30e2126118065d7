"""BLOOM: ALiBi, a LayerNorm behind the embedding as well, and biases everywhere."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import (
    PARAMETERS,
    BlockStyle,
    forward,
    gguf_figures,
    split_grouped_rows,
)
from homenode.model.config.folder_config import HEAD_FIELDS, ROPE, Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=2048, heads=8, vocab=250880, bos_id=1, eos_id=2, norm_eps=1e-5, intermediate=256, activation=None
)
STYLE = BlockStyle("gelu", positions="alibi", embedding_norm=True)
_LAYER = "model.layers.{layer}."
MODULES = {
    "word_embeddings": "model.embed_tokens",
    "ln_f": "model.norm",
    "h.{layer}.input_layernorm": _LAYER + "input_layernorm",
    "h.{layer}.post_attention_layernorm": _LAYER + "post_attention_layernorm",
    "h.{layer}.self_attention.query_key_value": _LAYER + "self_attn.grouped_qkv",
    "h.{layer}.self_attention.dense": _LAYER + "self_attn.o_proj",
    "h.{layer}.mlp.dense_h_to_4h": _LAYER + "mlp.up_proj",
    "h.{layer}.mlp.dense_4h_to_h": _LAYER + "mlp.down_proj",
}
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
    spec = config.uniform_decoder(DEFAULTS)
    return replace(
        spec,
        num_kv_heads=spec.num_heads,
        intermediate_size=4 * spec.hidden_size,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        own=STYLE,
    )


ARCHITECTURE = Architecture(
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
    PARAMETERS,
    forward,
)
