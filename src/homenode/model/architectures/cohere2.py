"""Cohere's Command R7B and Command A: as Command R, with a window and rope in most layers, and neither in every fourth."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.cohere import (
    DEFAULTS,
    PARAMETERS,
    add_layer,
    in_halves,
    leave_scaled,
    read_cohere,
    read_cohere_gguf,
)
from homenode.model.architectures.layer_kinds import INTERVAL, all_but_each
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

NAME = "cohere2"
WINDOW = 4096


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    spec = read_cohere(config, NAME, replace(DEFAULTS, theta=10000.0))
    period = fields.integer("sliding_window_pattern", INTERVAL, maximum=limits.MOST_LAYERS)
    windowed = config.with_window_in(spec, config.window(WINDOW), lambda layers: all_but_each(layers, period))
    if windowed.sliding_window is None:
        raise UnsupportedError(f"{config.path}: no layer with a window is not supported in {NAME}, as only those turn")
    return windowed


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = read_cohere_gguf(config, NAME)
    marked = config.marked_layers("attention.sliding_window_pattern")
    sliding = all_but_each(spec.num_layers) if marked is None else marked
    return replace(spec, sliding_window=config.window(WINDOW), sliding_layers=sliding)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index in range(len(model.parameters.layers)):
        slides = common.window(model, index) is not None
        x = add_layer(ops, model, index, x, rotation if slides else None)
    return leave_scaled(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Cohere2ForCausalLM",
        read_folder,
        fields=frozenset(
            "hidden_act layer_norm_eps attention_bias logit_scale sliding_window sliding_window_pattern".split()
        ),
        harmless=dict.fromkeys(
            "rotary_pct order_of_interleaved_layers position_embedding_type use_embedding_sharing use_gated_activation "
            "use_parallel_block use_parallel_embedding use_qk_norm".split(),
            "transformers does not read it",
        ),
        convert=in_halves,
    ),
    GgufFormat("cohere2", read_gguf, keys=frozenset(("logit_scale",)), convert=in_halves),
    PARAMETERS,
    forward,
)
