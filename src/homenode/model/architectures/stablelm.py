"""StableLM: Llama's block with LayerNorm and a rope over a part of each head."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures.architecture import FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import BlockStyle, folder_figures, gguf_figures, layer_norm_family
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=4096, heads=32, kv_heads=32, vocab=50304, bos_id=0, eos_id=0, norm_eps=1e-5, intermediate=6912,
    rotary_share=0.25,
)  # fmt: skip


def _style(fields: Fields, parallel: bool) -> BlockStyle:
    return BlockStyle("silu_gate", "one_norm" if fields.boolean("use_parallel_residual", parallel) else "serial")


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"})
    config.fields.refuse_others({"qk_layernorm": False})
    spec = folder_figures(config, DEFAULTS, _style(config.fields, False), rotates_part=True)
    return replace(spec, attention_bias=config.fields.boolean("use_qkv_bias", False))


ARCHITECTURE = layer_norm_family(
    "stablelm",
    FolderFormat(
        "StableLmForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | {"layer_norm_eps", "use_qkv_bias", "qk_layernorm", "use_parallel_residual"},
    ),
    GgufFormat(
        "stablelm",
        lambda config: gguf_figures(config, _style(config.fields, True)),
        keys=frozenset(("use_parallel_residual",)),
    ),
)
