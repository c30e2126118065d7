"""The architecture that a GGUF file holds, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from homenode.errors import UnsupportedError
from homenode.model.architectures.architecture import Architecture
from homenode.model.architectures.registry import gguf_names, instead_of, with_gguf_name
from homenode.model.checkpoint.pooling_files import gguf_pooling
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_keys import refuse_active_keys, refuse_other_kinds
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import quoted
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, TensorEntry

_WINDOW_LAYERS = "attention.sliding_window_pattern"


def gguf_architecture(path: Path, metadata: Mapping[str, Any]) -> Architecture:
    """The architecture of the file with these key-value pairs. Where several have its `general.architecture`, as
    Mistral and Mixtral have that of Llama, experts and other keys tell which it is. UnsupportedError for another one.
    """
    refuse_other_kinds(path, metadata)
    name = Fields(path, metadata).text("general.architecture")
    named = with_gguf_name(name)
    if not named:
        known = gguf_names()
        raise UnsupportedError(
            f"{path}: architecture {quoted(name)} is not supported; {instead_of(name, known, 'GGUF files of ')}",
            architecture=name,
            known=known,
        )
    refuse_active_keys(path, metadata, name, frozenset().union(*(each.gguf.keys for each in named)))
    fields, experts = figures_of(path, metadata), num_experts(path, metadata)
    fitting = [each for each in named if each.gguf.with_or_without_experts or each.has_experts == (experts > 0)]
    if not fitting and not experts:
        raise fields.wrong("expert_count", None, "the number of experts")
    if not fitting:
        raise UnsupportedError(
            f"{path}: mixtures of experts are not supported in architecture {name!r}; homenode runs dense models of it"
        )
    return next(each for each in fitting if each.gguf.accepts(fields))


def num_experts(path: Path, metadata: Mapping[str, Any]) -> int:
    """Experts of a layer, 0 in dense models."""
    return figures_of(path, metadata).integer("expert_count", 0, minimum=0, maximum=limits.MOST_EXPERTS)


def spec_from_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, TensorEntry], rope_factors: Mapping[str, TensorEntry]
) -> ModelSpec:
    """The figures of the model with these key-value pairs and `tensors` (Hugging Face names)."""
    architecture = gguf_architecture(path, metadata)
    config = GgufConfig(figures_of(path, metadata), metadata, tensors, rope_factors, architecture.name)
    spec = architecture.gguf.read(config)
    if _WINDOW_LAYERS not in architecture.gguf.keys:
        _check_window_layers(config, spec)
    limits.check_spec(spec, path)
    name = Fields(path, metadata).text("general.architecture")
    pooling = gguf_pooling(path, metadata, tensors, name, spec)
    return replace(spec, pooling=pooling or spec.pooling)


def figures_of(path: Path, metadata: Mapping[str, Any]) -> Fields:
    """The keys of the file's architecture, without the name of that in front."""
    return Fields(path, metadata, Fields(path, metadata).text("general.architecture") + ".")


def _check_window_layers(config: GgufConfig, spec: ModelSpec) -> None:
    """UnsupportedError where the file names other layers as those with a window than the architecture has: truth
    values, or each n-th has none.
    """
    key = _WINDOW_LAYERS
    if spec.sliding_window is None:
        return
    listed = config.marked_layers(key)
    if listed is not None and listed != (spec.sliding_layers or (True,) * spec.num_layers):
        raise UnsupportedError(
            f"{config.path}: {key} that differs from the architecture's own is not supported; homenode runs "
            f"{spec.architecture} with that"
        )
