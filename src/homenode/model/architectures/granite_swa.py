"""Granite with a window in three of four layers, and sinks in all; layers may have no rope."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures import granite, llama, tables
from homenode.model.architectures.layer_kinds import all_but_first_of_each
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=8192, heads=20, kv_heads=4, vocab=100352, norm_eps=1e-5, bos_id=100257, eos_id=100257,
    intermediate=8192, attention_bias=False, mlp_bias=False,
)  # fmt: skip
WINDOW = 128


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec = config.with_window_in(config.decoder(DEFAULTS), config.window(default=WINDOW), all_but_first_of_each)
    thetas = fields.numbers("layer_rope_theta", above=-1.0)
    if thetas and (len(thetas) != spec.num_layers or len(set(thetas) - {0.0}) > 1):
        raise UnsupportedError(
            f"{config.path}: layer_rope_theta with several bases of a rope is not supported in {config.architecture}; "
            "homenode wants one and 0 for layers without a rope"
        )
    if any(thetas):
        spec = replace(spec, rope=replace(spec.rope, theta=max(thetas)))
    return granite.read_multipliers(config, replace(spec, rope_layers=tuple(theta > 0 for theta in thetas)))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = granite.with_multipliers(config, config.decoder(whole_heads=True, own_scale=True))
    spec = replace(spec, rope_layers=config.marked_layers("attention.rope_pattern") or ())
    return config.with_window_in(spec, config.window(default=WINDOW), all_but_first_of_each)


ARCHITECTURE = granite.ARCHITECTURE.of_class(
    "granite_swa",
    "GraniteSWAForCausalLM",
    read=_read_folder,
    fields=DEFAULTS.fields | granite.FIELDS | {"sliding_window", "layer_rope_theta"},
    parameters=(*llama.PARAMETERS, tables.SINKS),
    gguf=llama.gguf_format("granite_swa", _read_gguf, keys=granite.KEYS | {"attention.rope_pattern"}),
)
