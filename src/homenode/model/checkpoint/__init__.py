"""Model files: Hugging Face folders and GGUF, opened and checked. See `open_checkpoint`."""

from homenode.model.checkpoint.index import OpenedCheckpoint, open_checkpoint
from homenode.model.checkpoint.spec import Checkpoint, ModelSpec, RopeSpec, TensorEntry

__all__ = ["Checkpoint", "ModelSpec", "OpenedCheckpoint", "RopeSpec", "TensorEntry", "open_checkpoint"]
