"""The files in which a front counts, on disk before anything is counted.

prometheus_client maps its files and lets them grow without their blocks being there: where the disk is full the first
write to such a page ends the process by SIGBUS. So a front takes the blocks first, and where there is no room it counts
in its own memory. To be used before prometheus_client is imported, which looks then whether it is to map files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import MutableMapping
from pathlib import Path

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # as prometheus_client calls it
# Bytes of the file for each kind of metric that a front has. Every sample is a name with its labels, of which the
# longest is the model's name; with one of 4096 bytes the histograms take more than 4 MiB, so no file grows.
FILE_BYTES = {"counter": 256 << 10, "histogram": 8 << 20}

_log = logging.getLogger(__name__)


def reserve_metrics_files(environment: MutableMapping[str, str]) -> bool:
    """Make this process's files in the folder that `environment` names, with all their blocks.

    False where there is no room: then nothing is left in the folder, and the variable is taken out of `environment`,
    so that prometheus_client maps no files.
    """
    folder = Path(environment[FOLDER_VARIABLE])
    made: list[Path] = []
    try:
        for kind, size in FILE_BYTES.items():
            path = folder / f"{kind}_{os.getpid()}.db"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            made.append(path)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        del environment[FOLDER_VARIABLE]
        _log.warning("/metrics will lack what this front counts: %s: %s; make room there", folder, error.strerror)
        return False
    return True
