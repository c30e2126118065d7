"""InternLM 2 and 2.5: Llama's block under other names, with queries, keys and values in one matrix, in groups."""

from __future__ import annotations

from homenode.errors import UnsupportedError
from homenode.model.architectures import common, llama
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import split_grouped_rows
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "internlm2"
DEFAULTS = Defaults(max_position=2048, heads=32, vocab=103168, norm_eps=1e-6, bos_id=1, eos_id=2, intermediate=11008)
_LAYER = "model.layers.{layer}."


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    if config.fields.boolean("bias", False):
        raise UnsupportedError(f"{config.path}: bias true is not supported in {NAME}; homenode wants false")
    return config.decoder(NAME, DEFAULTS)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return config.refuse_window(config.decoder(NAME, whole_heads=True))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "InternLM2ForCausalLM",
        read_folder,
        fields=frozenset(("hidden_act", "bias")),
        modules={
            "model.tok_embeddings": "model.embed_tokens",
            "output": "lm_head",
            _LAYER + "attention.wqkv": _LAYER + "self_attn.grouped_qkv",
            _LAYER + "attention.wo": _LAYER + "self_attn.o_proj",
            _LAYER + "attention_norm": _LAYER + "input_layernorm",
            _LAYER + "ffn_norm": _LAYER + "post_attention_layernorm",
            _LAYER + "feed_forward.w1": _LAYER + "mlp.gate_proj",
            _LAYER + "feed_forward.w2": _LAYER + "mlp.down_proj",
            _LAYER + "feed_forward.w3": _LAYER + "mlp.up_proj",
        },
        convert=split_grouped_rows,
    ),
    GgufFormat("internlm2", read_gguf, convert=common.interleaved_heads),
    llama.PARAMETERS,
    forward,
)
