"""How much memory lies on huge pages: what the kernel says is understood, and what is said of too little of it."""

from __future__ import annotations

import ctypes
import json
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from homenode.host.bind.memory.huge_pages import Residence, disabled_for_this_process, residences, small_pages

HUGE = 2 << 20
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
given = pytest.mark.skipif(
    not SETTING.exists() or "[never]" in SETTING.read_text(),
    reason=f"{SETTING} is never or missing: this kernel gives no huge pages",
)

SMAPS = """\
7f0000000000-7f0004000000 rw-p 00000000 00:00 0
Size:              65536 kB
Rss:               10240 kB
AnonHugePages:     10240 kB
VmFlags: rd wr mr mw me ac hg
7f0008000000-7f0008800000 rw-p 00000000 00:00 0          [anon: name: with colons]
Rss:                8192 kB
AnonHugePages:      2048 kB
a line of a kernel to come
Rss: many kB
7f0010000000-7f0010800000 rw-s 00000000 00:01 77         /memfd:shared (deleted)
Rss:                6144 kB
AnonHugePages:         0 kB
ShmemPmdMapped:     4096 kB
"""


def test_ranges_count_what_is_present_of_them(tmp_path: Path) -> None:
    file = tmp_path / "smaps"
    file.write_text(SMAPS)
    whole, half, none = residences(
        [(0x7F0000000000, 64 << 20)],
        [(0x7F0008000000, 4 << 20), (0x7F0000000000, 64 << 20)],
        [(0x1000, 4096)],
        smaps=file,
    ) or (None, None, None)
    assert whole == Residence(10 << 20, 10 << 20)
    assert half == Residence(14 << 20, 11 << 20)  # half of an entry is half of what is in it
    assert none == Residence() and none.share == 0
    assert residences([(0x7F0010000000, 8 << 20)], smaps=file) == (Residence(6 << 20, 4 << 20),)


def test_a_kernel_that_does_not_tell_is_no_error(tmp_path: Path) -> None:
    assert residences([(0x1000, 4096)], smaps=tmp_path / "none") is None
    assert not disabled_for_this_process(tmp_path / "none")


@given
def test_memory_of_this_process_is_where_the_kernel_was_asked_to_put_it() -> None:
    block = mmap.mmap(-1, 3 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    small = mmap.mmap(-1, 3 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    small.madvise(mmap.MADV_NOHUGEPAGE)
    for touched in (block, small):
        touched[:] = b"x" * len(touched)
    address, other = (ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in (block, small))
    seen = residences([(address, 3 * HUGE)], [(other, 3 * HUGE)])
    assert seen is not None
    assert seen[0].present == 3 * HUGE and seen[0].huge >= 2 * HUGE  # an end may share its huge page with nothing
    assert seen[1].huge == 0 and seen[1].present == 3 * HUGE


def run(program: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_process_without_huge_pages_knows() -> None:
    program = (
        "import ctypes, json; from homenode.host.bind.memory.huge_pages import disabled_for_this_process as off\n"
        "before = off(); refused = ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE\n"
        "print(json.dumps({'before': before, 'refused': refused, 'after': off()}))"
    )
    assert run(program) == {"before": False, "refused": 0, "after": True}


@pytest.mark.parametrize(
    ("setting", "disabled", "words"),
    [
        ("never", False, "echo madvise"),
        ("", False, "CONFIG_TRANSPARENT_HUGEPAGE"),
        ("madvise", True, "prctl"),
        ("always", False, "compact"),
    ],
)
def test_the_remedy_follows_from_the_cause(setting: str, disabled: bool, words: str) -> None:
    (finding,) = small_pages(Residence(1 << 30, 1 << 29), setting, disabled)
    assert (finding.severity, finding.code) == ("warning", "small_pages")
    assert "1GiB" in finding.message and "50%" in finding.message and "slower" in finding.message
    assert words in finding.text


@pytest.mark.parametrize("seen", [Residence(), Residence(1 << 20, 0), Residence(1 << 30, (1 << 30) * 95 // 100)])
def test_enough_huge_pages_and_little_memory_are_nothing_to_tell(seen: Residence) -> None:
    assert small_pages(seen, "never", True) == ()
