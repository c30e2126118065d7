"""Children in a process group of their own, so that a terminal's Ctrl-C is for who started them (setpgid(2))."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from homenode.host.refused_errors import REFUSALS


def start_in_own_group(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start it, with `options` as subprocess.Popen has them; in the caller's group where a filter refuses another.
    Raises OSError as subprocess.Popen."""
    try:
        return subprocess.Popen(command, process_group=0, **options)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        return subprocess.Popen(command, **options)
