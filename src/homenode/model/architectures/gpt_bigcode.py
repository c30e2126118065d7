"""StarCoder 1 and SantaCoder: GPT-2 with one key and one value for all heads, and matrices as they are."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import gpt2
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import PARAMETERS, forward, split_grouped_rows
from homenode.model.config.folder_config import GELU, HEAD_FIELDS, ROPE, FolderConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(gpt2.SPELLED).without(*ROPE, *HEAD_FIELDS)
    fields = config.fields
    spec = config.uniform_decoder(gpt2.DEFAULTS)
    return replace(
        spec,
        num_kv_heads=1 if fields.boolean("multi_query", True) else spec.num_heads,
        intermediate_size=fields.integer("n_inner", 4 * spec.hidden_size, maximum=limits.MOST_INTERMEDIATE),
        attention_scale=None if fields.boolean("scale_attn_weights", True) else 1.0,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        dimensions={"positions": spec.max_position},
        own=replace(gpt2.STYLE, activation=config.plain_activation("activation_function", GELU)),
    )


ARCHITECTURE = Architecture(
    "gpt_bigcode",
    FolderFormat(
        "GPTBigCodeForCausalLM",
        _read_folder,
        fields=frozenset((*gpt2.SPELLED, "n_inner", "activation_function", "multi_query", "scale_attn_weights")),
        harmless=gpt2.HARMLESS
        | dict.fromkeys(
            "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner max_batch_size "
            "max_sequence_length pre_allocate_kv_cache validate_runner_input".split(),
            "how, not what, transformers computes",
        ),
        modules=gpt2.module_names("grouped_qkv"),
        convert=split_grouped_rows,
    ),
    GgufFormat("starcoder", gpt2.read_gguf),
    PARAMETERS,
    forward,
)
