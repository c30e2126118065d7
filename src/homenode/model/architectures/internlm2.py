"""InternLM 2 and 2.5: Llama's block under other names, with queries, keys and values in one matrix, in groups."""

from __future__ import annotations

from homenode.model.architectures import conversions, llama
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import split_grouped_rows
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=32, vocab=103168, norm_eps=1e-6, bos_id=1, eos_id=2, intermediate=11008)
_LAYER = "model.layers.{layer}."


def _read_folder(config: FolderConfig) -> ModelSpec:
    config.fields.refuse_others({"bias": False})
    return config.uniform_decoder(DEFAULTS)


ARCHITECTURE = Architecture(
    "internlm2",
    FolderFormat(
        "InternLM2ForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | {"bias"},
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
    GgufFormat(
        "internlm2",
        lambda config: config.refuse_window(config.decoder(whole_heads=True)),
        convert=conversions.interleaved_heads,
    ),
    llama.PARAMETERS,
    forward,
)
