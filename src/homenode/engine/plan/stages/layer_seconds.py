"""Measured seconds of a layer by model and device, kept in a file of the user's cache folder: what `--layer-split auto`
knows of unlike devices.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from homenode.model.spec import ModelSpec
from homenode.model.weights.layout import WeightLayout
from homenode.user_cache import own_cache_folder

_MOST_BYTES = 1 << 20
_NAME = "layer-seconds.json"


def cache_file() -> Path:
    """Return where they are kept: $XDG_CACHE_HOME/homenode, else ~/.cache/homenode."""
    return own_cache_folder() / _NAME


def key_of(spec: ModelSpec, layout: WeightLayout, device: str, threads: int) -> str:
    """A word for all that a layer's time depends on: the shapes and formats of the model, the device, and
    its threads.
    """
    formats = sorted({(m.rows, m.columns, m.target) for m in layout.matrices})
    shape = repr((spec.architecture, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim, formats))
    return f"{hashlib.blake2b(shape.encode(), digest_size=8).hexdigest()} {device} x{threads}"


def read_seconds(path: Path) -> dict[str, float]:
    """Return what the file holds; nothing where it is not there or makes no sense: it is measured again."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        if path.stat().st_size <= _MOST_BYTES:
            found = msgspec.json.decode(path.read_bytes(), type=dict[str, float])
            return {key: seconds for key, seconds in found.items() if 0 < seconds < 1e6}
    return {}


def keep_seconds(path: Path, more: Mapping[str, float]) -> None:
    """Add to the file; a reader sees the old one or the new one. Where it cannot be written it is left: the next start
    measures again.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=_NAME, delete=False) as new:
            try:
                new.write(msgspec.json.encode(read_seconds(path) | dict(more)))
                new.flush()
                Path(new.name).replace(path)
            except OSError:  # a full disk is not filled further
                Path(new.name).unlink(missing_ok=True)
                raise
