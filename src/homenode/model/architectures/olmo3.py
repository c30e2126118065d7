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
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, RopeSpec

NAME = "olmo3"
DEFAULTS = Defaults(max_position=2048, norm_eps=1e-5, eos_id=50279, theta=5e5, local_theta=5e5)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    bias = config.fields.boolean("attention_bias", False)
    spec = replace(config.decoder(NAME, DEFAULTS), attention_bias=bias, output_bias=bias)
    return config.with_window_in(spec, config.window(default=4096), all_but_each)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME)
    theta = config.fields.number("rope.freq_base_swa", spec.rope.theta, above=1.0, most=limits.MOST_THETA)
    sliding = config.marked_layers("attention.sliding_window_pattern") or all_but_each(spec.num_layers)
    return replace(spec, sliding_window=config.window(), sliding_layers=sliding, local_rope=RopeSpec(theta=theta))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Olmo3ForCausalLM",
        read_folder,
        fields=frozenset(("hidden_act", "attention_bias", "sliding_window", "rope_local_base_freq")),
    ),
    GgufFormat("olmo2", read_gguf, keys=frozenset(("rope.freq_base_swa",))),
    olmo2.PARAMETERS,
    olmo2.forward,
)
