"""The files in which a front counts have all their blocks on the disk before anything is counted, or are not used."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from homenode.server.monitoring.files import FILE_BYTES, FOLDER_VARIABLE, reserve_metrics_files

_BLOCK = 512  # bytes that `st_blocks` counts in


def has_all_blocks(path: Path) -> bool:
    """Whether writing to a page of the mapped file can never find the disk full."""
    status = path.stat()
    return status.st_blocks * _BLOCK >= status.st_size


def test_every_block_is_there_before_anything_is_counted(tmp_path: Path) -> None:
    environment = {FOLDER_VARIABLE: str(tmp_path)}
    assert reserve_metrics_files(environment)
    assert environment == {FOLDER_VARIABLE: str(tmp_path)}
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {f"{kind}_{os.getpid()}.db": size for kind, size in FILE_BYTES.items()}
    assert all(map(has_all_blocks, tmp_path.iterdir()))


@pytest.mark.parametrize("largest", [0, FILE_BYTES["counter"], FILE_BYTES["histogram"] - 1])
def test_without_room_no_file_is_left_and_the_front_counts_in_memory(
    largest: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files cannot grow beyond `largest` bytes, as on a full disk or beyond a quota."""
    environment = {FOLDER_VARIABLE: str(tmp_path), "OTHER": "kept"}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        assert not reserve_metrics_files(environment)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert environment == {"OTHER": "kept"}
    assert list(tmp_path.iterdir()) == []
    assert f"{tmp_path}" in caplog.text and "make room there" in caplog.text


_COUNT = """
import os, sys
from homenode.server.monitoring.files import reserve_metrics_files
assert reserve_metrics_files(os.environ) and "prometheus_client" not in sys.modules
from homenode.server.monitoring.server_metrics import Metrics
name = "\u00e9" * 2048
metrics = Metrics(name, sys.argv[1])
of_model = metrics.add_model(name, None)
metrics.front_begins(True)
metrics.refuse("queue full")
recorder = of_model.recorder()
recorder.tokens(1)
recorder.tokens(3)
recorder.end("stop")
"""


def test_what_a_front_counts_fits_the_files_whatever_the_name_of_its_model(tmp_path: Path) -> None:
    """A file that had to grow would do so without blocks. The name has the 4096 bytes that the sizes are made for, of
    letters that are written as escapes, which are three times as long.
    """
    environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", _COUNT, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    files = {path.name.partition("_")[0]: path for path in tmp_path.iterdir()}
    assert {kind: path.stat().st_size for kind, path in files.items()} == FILE_BYTES
    assert all(b"\\u00e9" * 2048 in path.read_bytes() for path in files.values())
