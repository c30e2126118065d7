"""Seed-OSS: Llama's block with biases of q, k and v."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import llama, tables
from homenode.model.architectures.architecture import GgufFormat
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=524288, heads=80, kv_heads=8, head_dim=128, vocab=155136, bos_id=0, eos_id=2, intermediate=27648,
    attention_bias=True, mlp_bias=False,
)  # fmt: skip
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_BIASES,
    tables.POST_ATTENTION_NORM,
    *tables.GATE_UP_DOWN,
    *tables.MLP_BIASES,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    output_bias = config.fields.boolean("attention_out_bias", False)
    return replace(config.uniform_decoder(DEFAULTS), output_bias=output_bias)


ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "seed_oss",
    "SeedOssForCausalLM",
    read=_read_folder,
    fields=DEFAULTS.fields | {"attention_out_bias"},
    harmless={"residual_dropout": "of training only"},
    parameters=PARAMETERS,
    gguf=GgufFormat("seed_oss", GgufConfig.uniform_decoder),
)
