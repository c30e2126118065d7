"""StarCoder 2: LayerNorm, biases, a window in the larger ones, and an MLP of gelu without a gate."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures.architecture import FolderFormat, GgufFormat, renamed
from homenode.model.architectures.layer_norm_decoder import EPS_KEY, BlockStyle, folder_figures, layer_norm_family
from homenode.model.config.folder_config import GELU, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=4096, heads=24, kv_heads=2, vocab=49152, bos_id=50256, eos_id=50256, norm_eps=1e-5, intermediate=12288,
    activation=None,
)  # fmt: skip


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"norm_epsilon": "rms_norm_eps"})
    bias, window = config.fields.boolean("use_bias", True), config.window(default=None)
    return folder_figures(config, DEFAULTS, BlockStyle(), ("hidden_act", GELU), bias=bias, window=window)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    config = config.respelled(EPS_KEY)
    return replace(config.decoder(), sliding_window=config.window(), own=BlockStyle())


ARCHITECTURE = layer_norm_family(
    "starcoder2",
    FolderFormat(
        "Starcoder2ForCausalLM",
        _read_folder,
        fields=frozenset("hidden_act norm_epsilon sliding_window use_bias".split()),
        harmless=dict.fromkeys(("residual_dropout", "embedding_dropout"), "of training only"),
        modules=renamed("model.layers.{layer}.mlp.", "c_fc=mlp.up_proj c_proj=mlp.down_proj"),
    ),
    GgufFormat("starcoder2", _read_gguf),
)
