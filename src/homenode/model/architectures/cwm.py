"""Code World Model (Meta): Llama's block with a window in three of four layers."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import llama
from homenode.model.architectures.layer_kinds import all_but_first_of_each
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=131072, heads=48, kv_heads=8, head_dim=128, vocab=128256, bos_id=128000, norm_eps=1e-5, theta=1e6,
    intermediate=21504, mlp_bias=False
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


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.with_rope(ROPE)
    if not config.fields.has("eos_token_id"):
        config = replace(config, fields=config.fields.with_value("eos_token_id", STOPS))
    return config.with_window_in(config.decoder(DEFAULTS), config.window(default=WINDOW), all_but_first_of_each)


ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "cwm", "CwmForCausalLM", read=_read_folder, fields=DEFAULTS.fields | {"sliding_window"}
)
