"""What a checkpoint's configuration says that homenode neither reads nor knows to be harmless."""

from __future__ import annotations

from homenode.model.checkpoint.folder import CONFIG
from homenode.model.checkpoint.folder_text import holds_text_of, text_config
from homenode.model.checkpoint.known_fields import unknown_fields
from homenode.model.checkpoint.known_keys import unknown_keys
from homenode.model.formats.reading import printable
from homenode.model.spec import Checkpoint


def unknown_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The names of those fields of config.json, or of those keys of a GGUF file, printable."""
    config = checkpoint.metadata.get(CONFIG)
    if not isinstance(config, dict):
        return tuple(printable(name) for name in unknown_keys(checkpoint.metadata))
    if text := holds_text_of(config):
        config = text_config(config, text)
    return tuple(printable(name) for name in unknown_fields(config, checkpoint.spec.architecture))
