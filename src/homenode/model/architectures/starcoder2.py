"""StarCoder 2: LayerNorm, biases, a window in the larger ones, and an MLP of gelu without a gate."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import EPS_KEY, PARAMETERS, BlockStyle, forward
from homenode.model.config.folder_config import GELU, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=4096, heads=24, kv_heads=2, vocab=49152, bos_id=50256, eos_id=50256, norm_eps=1e-5, intermediate=12288,
    activation=None,
)  # fmt: skip
_MLP = "model.layers.{layer}.mlp."


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"norm_epsilon": "rms_norm_eps"})
    bias = config.fields.boolean("use_bias", True)
    style = BlockStyle(config.plain_activation("hidden_act", GELU))
    spec = config.uniform_decoder(DEFAULTS, window=config.window(default=None))
    return replace(spec, attention_bias=bias, output_bias=bias, mlp_bias=bias, own=style)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    config = config.respelled(EPS_KEY)
    return replace(config.decoder(), sliding_window=config.window(), own=BlockStyle())


ARCHITECTURE = Architecture(
    "starcoder2",
    FolderFormat(
        "Starcoder2ForCausalLM",
        _read_folder,
        fields=frozenset("hidden_act norm_epsilon sliding_window use_bias".split()),
        harmless=dict.fromkeys(("residual_dropout", "embedding_dropout"), "of training only"),
        modules={_MLP + "c_fc": _MLP + "up_proj", _MLP + "c_proj": _MLP + "down_proj"},
    ),
    GgufFormat("starcoder2", _read_gguf),
    PARAMETERS,
    forward,
)
