"""The parts of a checkpoint that homenode leaves alone: what its configuration says that homenode neither reads nor
knows to be harmless, and the parts of a model that are not for text.
"""

from __future__ import annotations

from homenode.model.architectures.registry import architecture_of
from homenode.model.checkpoint.folder import CONFIG
from homenode.model.checkpoint.folder_text import holds_text_of, text_config
from homenode.model.config.known_fields import unknown_fields
from homenode.model.config.known_keys import unknown_keys
from homenode.model.formats.bounded_files import printable
from homenode.model.spec import Checkpoint


def unknown_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The names of those fields of config.json, or of those keys of a GGUF file, printable."""
    architecture, config = architecture_of(checkpoint.spec.architecture), checkpoint.metadata.get(CONFIG)
    if not isinstance(config, dict):
        return tuple(printable(name) for name in unknown_keys(checkpoint.metadata, architecture.gguf.keys))
    if text := holds_text_of(checkpoint.path / CONFIG, config):
        config = text_config(checkpoint.path / CONFIG, config, text)
    own = architecture.folder.fields | architecture.folder.harmless.keys()
    return tuple(printable(name) for name in unknown_fields(config, own))


def sees_more_than_text(checkpoint: Checkpoint) -> str | None:
    """The class, or the architecture in a GGUF file, of a model that sees or hears; None for one of text alone."""
    config = checkpoint.metadata.get(CONFIG)
    if isinstance(config, dict):
        return str(config["architectures"][0]) if holds_text_of(checkpoint.path / CONFIG, config) else None
    name = checkpoint.metadata.get("general.architecture")
    return str(name) if name in architecture_of(checkpoint.spec.architecture).gguf.picture_names else None
