"""StarCoder 1 and SantaCoder: GPT-2 with one key and one value for all heads, and matrices as they are."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import gpt2
from homenode.model.architectures.architecture import GgufFormat
from homenode.model.architectures.conversions import split_grouped_rows
from homenode.model.architectures.layer_norm_decoder import folder_figures
from homenode.model.config.folder_config import GELU, FolderConfig
from homenode.model.spec import ModelSpec


def _read_folder(config: FolderConfig) -> ModelSpec:
    activation = ("activation_function", GELU)
    spec = folder_figures(gpt2.respelled(config), gpt2.DEFAULTS, gpt2.STYLE, activation, bias=True, inner="n_inner")
    return replace(
        spec,
        num_kv_heads=1 if config.fields.boolean("multi_query", True) else spec.num_heads,
        attention_scale=None if config.fields.boolean("scale_attn_weights", True) else 1.0,
    )


ARCHITECTURE = gpt2.ARCHITECTURE.of_class(
    "gpt_bigcode",
    "GPTBigCodeForCausalLM",
    read=_read_folder,
    fields=gpt2.FIELDS | {"multi_query", "scale_attn_weights"},
    harmless=gpt2.HARMLESS
    | dict.fromkeys(
        "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner max_batch_size "
        "max_sequence_length pre_allocate_kv_cache validate_runner_input".split(),
        "how, not what, transformers computes",
    ),
    modules=gpt2.module_names("grouped_qkv"),
    convert=split_grouped_rows,
    gguf=GgufFormat("starcoder", gpt2.read_gguf),
)
