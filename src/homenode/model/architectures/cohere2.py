"""Cohere's Command R7B and Command A: as Command R, with a window and rope in most layers, and neither in every
fourth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.cohere import DEFAULTS, PARAMETERS, forward, in_halves, read_cohere, read_cohere_gguf
from homenode.model.architectures.layer_kinds import INTERVAL, all_but_each
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

WINDOW = 4096


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec = read_cohere(config, replace(DEFAULTS, theta=10000.0))
    period = fields.integer("sliding_window_pattern", INTERVAL, maximum=limits.MOST_LAYERS)
    windowed = with_windows(config, spec, lambda layers: all_but_each(layers, period))
    return replace(windowed, rope_layers=windowed.sliding_layers)


def with_windows(config: FolderConfig, spec: ModelSpec, placed: Callable[[int], tuple[bool, ...]]) -> ModelSpec:
    """`spec` with a window in the layers that config.json names or, of so many, those `placed`. UnsupportedError where
    no layer has one.
    """
    windowed = config.with_window_in(spec, config.window(WINDOW), placed)
    if windowed.sliding_window is None:
        raise UnsupportedError(
            f"{config.path}: no layer with a window is not supported in {config.architecture}, as only those turn"
        )
    return windowed


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = read_cohere_gguf(config)
    marked = config.marked_layers("attention.sliding_window_pattern")
    sliding = all_but_each(spec.num_layers) if marked is None else marked
    window = config.window(WINDOW)
    rotated = sliding if window is not None else (False,) * spec.num_layers
    return replace(spec, sliding_window=window, sliding_layers=sliding, rope_layers=rotated)


ARCHITECTURE = Architecture(
    "cohere2",
    FolderFormat(
        "Cohere2ForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | {"layer_norm_eps", "logit_scale", "sliding_window", "sliding_window_pattern"},
        harmless=dict.fromkeys(
            "rotary_pct order_of_interleaved_layers position_embedding_type use_embedding_sharing use_gated_activation "
            "use_parallel_block use_parallel_embedding use_qk_norm".split(),
            "transformers does not read it",
        ),
        convert=in_halves,
    ),
    GgufFormat("cohere2", _read_gguf, keys=frozenset(("logit_scale",)), convert=in_halves),
    PARAMETERS,
    forward,
)
