"""InternLM 2 and 2.5: Llama's block under other names, with queries, keys and values in one matrix, in groups."""

from __future__ import annotations

from homenode.model.architectures import conversions, llama
from homenode.model.architectures.architecture import renamed
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=32, vocab=103168, norm_eps=1e-6, bos_id=1, eos_id=2, intermediate=11008)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config.fields.refuse_others({"bias": False})
    return config.uniform_decoder(DEFAULTS)


ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "internlm2",
    "InternLM2ForCausalLM",
    read=_read_folder,
    fields=DEFAULTS.fields | {"bias"},
    modules=renamed(
        "model.layers.{layer}.",
        "attention.wqkv=self_attn.grouped_qkv attention.wo=self_attn.o_proj attention_norm=input_layernorm "
        "ffn_norm=post_attention_layernorm feed_forward.w1=mlp.gate_proj feed_forward.w2=mlp.down_proj "
        "feed_forward.w3=mlp.up_proj",
        "model.tok_embeddings=model.embed_tokens output=lm_head",
    ),
    convert=conversions.split_grouped_rows,
    gguf=llama.gguf_format("internlm2"),
)
