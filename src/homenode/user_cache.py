"""The folder of what this user's programs may compute again: $XDG_CACHE_HOME/homenode, else ~/.cache/homenode."""

from __future__ import annotations

import os
from pathlib import Path


def own_cache_folder() -> Path:
    """Return it; it need not be there."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(folder) if folder else Path.home() / ".cache") / "homenode"
