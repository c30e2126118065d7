"""Keys of a made-up cluster, for tests that need no others: made once in a run."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from homenode.net.make_keys import make_keys


@functools.cache
def shared_keys() -> Path:
    """A folder of keys that all hosts of the cluster share. It goes with the folder of this run's claims."""
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("HOMENODE_STATE_DIR"))) / "keys"
    make_keys(folder, [], 30)
    return folder
