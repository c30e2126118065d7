"""The process of a measured server: its memory, and its end."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.M)


def end_process(process: subprocess.Popen[bytes], patience_s: float) -> int:
    """Ask a process to end (SIGTERM) and kill it if it has not within `patience_s` seconds. Returns its exit code,
    negative for a signal."""
    process.terminate()
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def pss_bytes(pid: int) -> int | None:
    """Bytes of memory of a process, of what n processes share the n-th part. None where the process is gone or the
    kernel does not tell."""
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None
