"""Code World Model (Meta): Llama's block with a window in three of four layers."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import llama
from homenode.model.architectures.layer_kinds import all_but_first_of_each
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

NAME = "cwm"
DEFAULTS = Defaults(
    max_position=131072, heads=48, kv_heads=8, head_dim=128, vocab=128256, bos_id=128000, norm_eps=1e-5, theta=1e6,
    intermediate=21504,
)  # fmt: skip
STOPS = [128001, 128008, 128009]  # tokens that end a text where no file names one
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
WINDOW = 8192


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    fields = config.fields
    if not any(fields.has(key) for key in ("rope_parameters", "rope_scaling")):
        fields = fields.with_value("rope_parameters", ROPE)
    if not fields.has("eos_token_id"):
        fields = fields.with_value("eos_token_id", STOPS)
    config = replace(config, fields=fields)
    spec = replace(config.decoder(NAME, DEFAULTS), mlp_bias=fields.boolean("mlp_bias", False))
    return config.with_window_in(spec, config.window(default=WINDOW), all_but_first_of_each)


ARCHITECTURE = replace(
    llama.ARCHITECTURE,
    name=NAME,
    folder=llama.ARCHITECTURE.folder.of_class(
        "CwmForCausalLM",
        read=read_folder,
        fields=frozenset(("hidden_act", "mlp_bias", "sliding_window")),
        harmless={},
    ),
    gguf=llama.ARCHITECTURE.gguf.without_files(NAME),
)
