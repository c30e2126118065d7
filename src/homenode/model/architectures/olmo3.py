"""OLMo 3: OLMo 2 with a window in three of four layers, whose rope is never stretched. GGUF files call it olmo2, too: a
window tells the two apart.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import olmo2
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import all_but_each
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, norm_eps=1e-5, eos_id=50279, theta=5e5, local_theta=5e5, attention_bias=False)


def _read_folder(config: FolderConfig) -> ModelSpec:
    return config.with_window_in(config.decoder(DEFAULTS), config.window(default=4096), all_but_each)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.decoder()
    spec = config.with_window_in(spec, config.window(), all_but_each)
    return replace(spec, local_rope=config.local_rope(spec.rope.theta))


ARCHITECTURE = Architecture(
    "olmo3",
    FolderFormat("Olmo3ForCausalLM", _read_folder, fields=DEFAULTS.fields | {"sliding_window", "rope_local_base_freq"}),
    GgufFormat("olmo2", _read_gguf, keys=frozenset(("rope.freq_base_swa",))),
    olmo2.PARAMETERS,
    olmo2.forward,
)
