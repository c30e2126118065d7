"""KV on a simulated disk: prompts that begin alike are read where that takes less time than computing them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.errors import UserError
from homenode.simulate.disk import DiskSpeed, SimulatedDisk, read_disk
from homenode.units import parse_bytes

SHAPE = "shape:layers=4,hidden=256,heads=4,kv_heads=2,intermediate=512,vocab=1000,format=Q4_0,tied=1"


def first_token_s(trace: Path, *more: str) -> float:
    words = ["simulate", "--from", "1s/1n/4c", "--model", SHAPE, "--workload", str(trace), "--json"]
    result = CliRunner().invoke(cli, [*words, "--kv-cache-memory", "3MiB", "--max-model-len", "1400", *more])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["results"][0]
    assert found["finished"] == found["requests"] == 12
    return float(found["ttft_s"]["p50"])


def test_what_lies_on_disk_is_read_where_that_is_faster(tmp_path: Path) -> None:
    """Each of four prompts comes three times, and KV memory has room for one."""
    trace = tmp_path / "trace.jsonl"
    lines = [
        {
            "timestamp": 10_000 * n,
            "input_length": 1024,
            "output_length": 2,
            "hash_ids": [10 * (n % 4), 10 * (n % 4) + 1],
        }
        for n in range(12)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    without = first_token_s(trace)
    assert first_token_s(trace, "--disk", "size=1GiB,read_gb_s=10") < 0.5 * without
    assert first_token_s(trace, "--disk", "size=1GiB,read_gb_s=0.000001") == pytest.approx(without, rel=0.01)


def test_reading_takes_its_turn_and_can_be_stopped() -> None:
    disk = SimulatedDisk(DiskSpeed(parse_bytes("1MiB"), 1e-6), 1000, 4)  # a second a block
    names = [bytes([n]) for n in range(6)]
    assert disk.find(names) is None and disk.offer("kept/0", b"", 24, names, 0.0) == 0
    assert disk.offer("kept/1", b"", 24, names, 0.0) == 6
    first, second = disk.find(names[:2]), disk.find(names)
    assert first is not None and second is not None and second.seconds == pytest.approx(6.0)
    disk.fetch(first.key, [0, 1], 0)
    disk.fetch(second.key, [*range(6)], 2)
    assert disk.next_time == pytest.approx(2.0) and disk.take().key == first.key
    assert disk.next_time == pytest.approx(6.0)
    disk.now = 3.0
    disk.stop(second.key)
    assert disk.next_time == 3.0 and type(disk.take()).__name__ == "BlocksFailed"


@pytest.mark.parametrize("text", ["", "size=1GiB", "size=x,read_gb_s=1", "size=1,read_gb_s=0", "size=1,read_gb_s=nan"])
def test_what_describes_no_disk_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--disk"):
        read_disk(text)
