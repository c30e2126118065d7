"""Ministral 3 and Mistral 3: Mistral's block with queries that grow with their position."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import attention, llama
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import Heads, forward_with
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=262144, heads=32, kv_heads=8, head_dim=128, vocab=131072, bos_id=1, eos_id=2, norm_eps=1e-5
)
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "attention_factor": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_TABLES = ("rope_parameters", "rope_scaling")
_IN_TABLES = ("llama_4_scaling_beta", "max_position_embeddings")


@dataclass(frozen=True)
class QueryGrowth:
    """Queries are multiplied by 1 + growth * ln(1 + floor(position / length))."""

    growth: float
    length: int


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.with_rope(ROPE)
    spec, table = config.uniform_decoder(DEFAULTS, window=config.window(default=None)), config.rope_table
    if table is None:
        return spec
    told = table.optional_integer("original_max_position_embeddings", maximum=limits.MOST_POSITION)
    length = spec.rope.original_max_position or told
    return _with_growth(spec, table.optional_number("llama_4_scaling_beta", least=0.0), length)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields = config.fields
    spec = config.uniform_decoder(whole_heads=True, own_magnitude=True)
    multiplier = fields.number("rope.scaling.yarn_log_multiplier", 0.0, least=0.0)
    if spec.rope.kind == "yarn" and multiplier:
        logarithm = 0.1 * math.log(max(spec.rope.factor, 1.0))
        spec = replace(spec, rope=replace(spec.rope, attention_factor=(logarithm + 1) / (multiplier * logarithm + 1)))
    growth = fields.number("attention.temperature_scale", 0.0, least=0.0)
    return _with_growth(spec, growth, spec.rope.original_max_position)


def _with_growth(spec: ModelSpec, growth: float | None, length: int | None) -> ModelSpec:
    return replace(spec, own=QueryGrowth(growth, length or spec.max_position)) if growth else spec


def project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` with queries that grow with their position."""
    q, k, v = attention.project_qkv(ops, model, index, h)
    own = model.spec.own
    if isinstance(own, QueryGrowth):
        q = ops.scale_by_position(q, own.growth, own.length)
    return attention.rotated(ops, model, index, (q, k, v), rotation)


ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "ministral3",
    "Ministral3ForCausalLM",
    read=_read_folder,
    fields=DEFAULTS.fields.union(["sliding_window"], (f"{table}.{_IN_TABLES[0]}" for table in _TABLES)),
    harmless=dict.fromkeys(("attention_bias", "use_sliding_window", "max_window_layers"), NOT_READ)
    | {f"{table}.{_IN_TABLES[1]}": "the field of the model says it" for table in _TABLES},
    forward=forward_with(project),
    gguf=llama.gguf_format("mistral3", _read_gguf, keys=frozenset(("attention.temperature_scale",))),
)
