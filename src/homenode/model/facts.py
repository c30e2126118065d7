"""Facts that are told of a model to people and programs that ask about it, none of which computing depends on."""

from __future__ import annotations

import math
from typing import Any

from homenode.model.spec import Checkpoint


def model_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Values that JSON has. `parameters`: numbers in all tensors; `bytes`: what these take on disk; `modified`: when
    the file or folder was, in Unix seconds, 0 where that cannot be told.
    """
    spec = checkpoint.spec
    files = {entry.file.suffix for entry in checkpoint.tensors.values()}
    return {
        "format": "gguf" if ".gguf" in files else "safetensors",
        "parameters": sum(math.prod(entry.shape) for entry in checkpoint.tensors.values()),
        "bytes": sum(part.nbytes for entry in checkpoint.tensors.values() for part in entry.stored),
        "storage": spec.storage,
        "modified": _modified(checkpoint),
        "layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "heads": spec.num_heads,
        "kv_heads": spec.num_kv_heads,
        "max_position": spec.max_position,
    }


def _modified(checkpoint: Checkpoint) -> float:
    try:
        return checkpoint.path.stat().st_mtime
    except OSError:
        return 0.0
