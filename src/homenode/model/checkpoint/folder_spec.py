"""The architecture that a config.json describes, and its figures."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.architectures.architecture import Architecture
from homenode.model.architectures.registry import class_names, instead_of, with_class, with_model_type
from homenode.model.config.folder_config import FolderConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import quoted
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec


def spec_from_config(config: FolderConfig) -> ModelSpec:
    """The figures of the model that `config` describes.

    Raises UnsupportedError for another architecture or an option we lack, CheckpointError for values that cannot be.
    """
    architecture = folder_architecture(config.fields)
    spec = architecture.folder.read(replace(config, architecture=architecture.name))
    limits.check_spec(spec, config.path)
    return spec


def folder_architecture(fields: Fields) -> Architecture:
    """The architecture that a config.json names: by its class or, where it names none, by its `model_type`.
    UnsupportedError for another one.
    """
    named = fields.texts("architectures")
    model_type = fields.text("model_type")
    architecture = with_class(class_with_output(named[0])) if named else with_model_type(model_type)
    if architecture is None:
        seen = named[0] if named else model_type or "none"
        also = f"; its model_type is {quoted(model_type)}" if named and model_type else ""
        known = class_names()
        raise UnsupportedError(
            f"{fields.path}: architecture {quoted(seen)} is not supported; {instead_of(seen, known)}{also}",
            architecture=seen,
            known=known,
        )
    return architecture


def class_with_output(name: str) -> str:
    """The class of a whole decoder for that of one without an output for text, as embedding models are saved; any other
    as it is.
    """
    if with_class(name) is not None or not name.endswith("Model"):
        return name
    return f"{name.removesuffix('Model')}ForCausalLM"
