"""StableLM: Llama's block with LayerNorm and a rope over a part of each head."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import PARAMETERS, BlockStyle, forward, gguf_figures
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec

NAME = "stablelm"
DEFAULTS = Defaults(
    max_position=4096, heads=32, kv_heads=32, vocab=50304, bos_id=0, eos_id=0, norm_eps=1e-5, intermediate=6912,
    rotary_share=0.25,
)  # fmt: skip


def _style(fields: Fields, parallel: bool) -> BlockStyle:
    return BlockStyle("silu_gate", "one_norm" if fields.boolean("use_parallel_residual", parallel) else "serial")


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"})
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    if fields.boolean("qk_layernorm", False):
        raise UnsupportedError(f"{config.path}: qk_layernorm true is not supported in {NAME}; homenode wants false")
    spec = config.decoder(NAME, DEFAULTS, rotates_part=True)
    return replace(spec, attention_bias=fields.boolean("use_qkv_bias", False), own=_style(fields, False))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return gguf_figures(config, NAME, _style(config.fields, True))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "StableLmForCausalLM",
        read_folder,
        fields=frozenset("hidden_act layer_norm_eps use_qkv_bias qk_layernorm use_parallel_residual".split()),
    ),
    GgufFormat("stablelm", read_gguf, keys=frozenset(("use_parallel_residual",))),
    PARAMETERS,
    forward,
)
