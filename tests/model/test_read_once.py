"""Mirrored weights come from one read of the file: what the kernel counts as read by this process, with three homes and
with one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from homenode.compute.thread_memory import ThreadMemory
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.parts import PartitionSpec
from homenode.model.weights.load import load_model
from homenode.numa_policy import NumaPolicy
from tests.checkpoints import make_folder

pytest.importorskip("homenode._native", reason="needs the compiled core")
from homenode.compute.native import NativeBackend
from tests.model.split import plan

HOMES = (0, 0, 1, 1, 2)
SLACK = 64 << 10  # bytes: headers, and what Python reads for itself
IO = Path("/proc/self/io")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(
        tmp_path_factory.mktemp("model"), hidden_size=256, intermediate_size=1024, vocab_size=2048, dtype="BF16"
    )


def bytes_read(act: Callable[[], object]) -> int:
    """By all threads of this process, from whatever file, page cache or not (proc_pid_io(5), rchar)."""
    if not IO.exists():
        pytest.skip("this kernel does not count what processes read")

    def so_far() -> int:
        found = re.search(r"^rchar: (\d+)$", IO.read_text(), re.MULTILINE)
        assert found
        return int(found[1])

    before = so_far()
    act()
    return so_far() - before


def test_parts_read_what_is_theirs(folder: Path) -> None:
    """Four workers together read each matrix once, columns too: what stands between theirs is skipped."""
    checkpoint = open_checkpoint(folder)
    parts = plan(checkpoint, PartitionSpec(stages=2, ranks=2))
    read = [bytes_read(lambda part=part: load_model(checkpoint, NativeBackend([-1]), part=part)) for part in parts]  # type: ignore[misc]
    assert matrix_bytes(folder) <= sum(read) <= matrix_bytes(folder) + len(parts) * SLACK


def load(folder: Path, policy: NumaPolicy, cache: Path | None = None) -> int:
    """Bytes that loading has read; copies are counted by their weights."""
    checkpoint = open_checkpoint(folder)
    backend = NativeBackend(
        [-1] * len(HOMES),
        spin_us=20,
        groups=[(home,) for home in HOMES],
        memory=ThreadMemory(HOMES, (0, 0, 0), bound=False),
    )
    read = bytes_read(lambda: load_model(checkpoint, backend, packed_cache=cache, matrix_policy_of=lambda name: policy))
    copies = 3 if policy == "mirror" else 1
    assert backend.statistics()["weight_bytes"] >= copies * matrix_bytes(folder)
    return read


def matrix_bytes(folder: Path) -> int:
    return sum(entry.nbytes for entry in open_checkpoint(folder).tensors.values() if len(entry.shape) == 2)


def test_three_copies_are_read_once(folder: Path) -> None:
    size = matrix_bytes(folder)
    alone, mirrored = load(folder, "shard"), load(folder, "mirror")
    assert size > 40 * SLACK
    assert size <= alone <= size + SLACK
    assert abs(mirrored - alone) <= SLACK


def test_three_copies_are_read_once_from_packed_weights_too(folder: Path, tmp_path: Path) -> None:
    load(folder, "shard", tmp_path)
    (kept,) = [file.stat().st_size for file in tmp_path.iterdir() if file.is_file()]
    assert matrix_bytes(folder) <= kept
    assert load(folder, "mirror", tmp_path) <= kept + kept // 50 + SLACK
