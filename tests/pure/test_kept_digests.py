"""Digests that are kept between starts: whatever changes a byte of a file has it digested again, and whatever became of
an entry, what is returned is the digest of what lies there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from homenode.dtypes import BY_NAME
from homenode.host.discovery.file_systems import is_shared, kind_in, kind_of, tells_changes
from homenode.model.spec import TensorEntry
from homenode.model.weights.content_digest import tensors_digest
from homenode.model.weights.kept_digests import KeptDigests
from tests.waiting import wait_until

LATER = 120_000_000_000


class Digests:
    """The digests of one file, and how often it was read for them."""

    def __init__(self, folder: Path, path: Path, *, later: int = LATER, tells: bool = True) -> None:
        self.kept = KeptDigests(folder, lambda: time.time_ns() + later, lambda path: tells)
        self.path, self.reads = path, 0

    def obtain(self, size: int = 1000, meanwhile: Callable[[], object] = lambda: None) -> bytes:
        fd = os.open(self.path, os.O_RDONLY)

        def compute() -> bytes:
            self.reads += 1
            content = os.pread(fd, size, 0)
            meanwhile()
            return hashlib.sha256(content).digest()

        try:
            return self.kept.obtain(self.path, fd, [(0, size)], compute)
        finally:
            os.close(fd)

    def right(self, size: int = 1000) -> bool:
        return self.obtain(size) == hashlib.sha256(self.path.read_bytes()[:size]).digest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(250)) * 4)
    return path


def test_a_file_is_read_once_and_by_what_is_asked_of_it(file: Path, tmp_path: Path) -> None:
    first, again = Digests(tmp_path / "kept", file), Digests(tmp_path / "kept", file)
    assert first.right() and first.right() and again.right() and (first.reads, again.reads) == (1, 0)
    assert again.right(500) and again.reads == 1, "of other bytes"
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


def write_in_place(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(500)
        opened.write(b"\xff")


def write_mapped(file: Path) -> None:
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[500] = 0xFF
        mapped.flush()


def exchange(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"\xff" * 1000)
    other.replace(file)


def copy(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[500] = 0xFF
    file.unlink()
    file.write_bytes(content)


def wait_for_later_times(file: Path) -> None:
    """Until what changes has other times than a file has: the clock of files goes in steps."""
    probe = file.with_name("probe")

    def now() -> int:
        probe.touch()
        return probe.stat().st_ctime_ns

    wait_until(lambda: now() > file.stat().st_ctime_ns)


@pytest.mark.parametrize("change", [write_in_place, write_mapped, exchange, copy])
def test_what_changes_a_byte_has_it_read_again_whatever_its_size_and_times(
    file: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    if not tells_changes(kind_of(tmp_path)):
        pytest.skip(f"{kind_of(tmp_path)} does not tell every change")
    digests = Digests(tmp_path / "kept", file)
    before, seen = digests.obtain(), file.stat()
    wait_for_later_times(file)  # a minute is left where it counts
    change(file)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert file.stat().st_size == seen.st_size and file.stat().st_mtime_ns == seen.st_mtime_ns
    assert digests.right() and digests.obtain() != before and digests.reads == 2


@pytest.mark.parametrize("which", [{"later": 0}, {"later": -LATER}, {"tells": False}])
def test_what_may_change_untold_is_never_kept(file: Path, tmp_path: Path, which: dict[str, int]) -> None:
    """A file that was written a moment ago, one of the future, and any of a file system that does not tell."""
    digests = Digests(tmp_path / "kept", file, later=which.get("later", LATER), tells=bool(which.get("tells", True)))
    assert digests.right() and digests.right() and digests.reads == 2
    assert not list(tmp_path.glob("kept/*"))


def test_what_changed_while_it_was_read_is_not_kept(file: Path, tmp_path: Path) -> None:
    digests = Digests(tmp_path / "kept", file)
    digests.obtain(meanwhile=lambda: (wait_for_later_times(file), write_in_place(file)))
    assert digests.right() and digests.reads == 2


def of_another(entry: Path) -> None:
    """What is kept of other bytes of the file, under the name of these."""
    Digests(entry.parent, entry.parent.parent / "weights").obtain(500)
    (other,) = set(entry.parent.iterdir()) - {entry}
    other.replace(entry)


def empty(entry: Path) -> None:
    entry.write_bytes(b"")


def cut(entry: Path) -> None:
    os.truncate(entry, entry.stat().st_size - 1)


def flip(entry: Path) -> None:
    content = bytearray(entry.read_bytes())
    content[-1] ^= 1
    entry.write_bytes(content)


def open_to_others(entry: Path) -> None:
    entry.chmod(0o666)


def link(entry: Path) -> None:
    there = entry.rename(entry.parent.parent / "elsewhere")
    entry.symlink_to(there)


def pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


def folder(entry: Path) -> None:
    entry.unlink()
    entry.mkdir()


@pytest.mark.parametrize("damage", [of_another, empty, cut, flip, open_to_others, link, pipe, folder])
def test_an_entry_that_is_none_is_not_believed(file: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    digests = Digests(tmp_path / "kept", file)
    digests.obtain()
    (entry,) = (tmp_path / "kept").iterdir()
    damage(entry)
    assert digests.right() and digests.reads == 2


def test_a_short_list_of_digests_is_computed_again(file: Path) -> None:
    class Short(KeptDigests):
        def obtain(self, *_: object) -> bytes:
            return b"short"

    entry = TensorEntry("w", BY_NAME["F32"], (250,), file, 0, 1000)
    assert tensors_digest([entry], Short()) == tensors_digest([entry])


def test_who_cannot_keep_anything_computes(file: Path, tmp_path: Path) -> None:
    digests = Digests(file / "no-folder", file)
    assert digests.right() and digests.right() and digests.reads == 2


def open_entries(folder: Path) -> int:
    """How many descriptors of this process are of files in a folder."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found += descriptor.readlink().parent == folder
    return found


def test_several_at_once_read_it_once(file: Path, tmp_path: Path) -> None:
    several = [Digests(tmp_path / "kept", file) for _ in range(4)]

    def all_look() -> None:
        wait_until(lambda: open_entries(tmp_path / "kept") == len(several))

    threads = [threading.Thread(target=each.obtain, kwargs={"meanwhile": all_look}) for each in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.reads for each in several) == 1


def test_one_that_holds_the_lock_for_ever_is_not_waited_for(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homenode.model.weights.kept_digests._LONGEST_WAIT_S", 0.1)
    digests = Digests(tmp_path / "kept", file)
    digests.obtain()
    (entry,) = (tmp_path / "kept").iterdir()
    with entry.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert digests.right() and digests.reads == 2


def test_the_number_of_entries_is_bounded(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homenode.model.weights.kept_digests._MOST_ENTRIES", 3)
    digests = Digests(tmp_path / "kept", file)
    for size in range(1, 9):
        digests.obtain(size)
    assert len(list((tmp_path / "kept").iterdir())) <= 4


MOUNTS = """\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:25 / /home rw - btrfs /dev/sdb rw
23 21 0:30 / /home/nfs rw,relatime shared:7 - nfs4 host:/x rw
24 21 0:31 / /tmp rw - tmpfs none rw
25 21 0:32 / /mnt rw - fuse.sshfs x rw
"""


@pytest.mark.parametrize(
    ("device", "path", "kind"),
    [
        ((8, 1), "/x", "ext4"), ((0, 30), "/home/nfs/a", "nfs4"), ((0, 31), "/tmp", "tmpfs"),
        ((0, 99), "/home/me", "btrfs"), ((0, 99), "/homes", "ext4"), ((0, 99), "/home/nfs", "nfs4"),
    ],
)  # fmt: skip
def test_the_file_system_of_a_path(device: tuple[int, int], path: str, kind: str) -> None:
    assert kind_in(MOUNTS, os.makedev(*device), path) == kind
    assert kind_in("", os.makedev(*device), path) == ""


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "nfs4", "fuse.sshfs", "9p", "", "new"])
def test_who_tells_every_change_is_no_other_host(kind: str) -> None:
    assert not (tells_changes(kind) and is_shared(kind))
    assert tells_changes(kind) == (kind in ("ext4", "xfs", "btrfs"))
