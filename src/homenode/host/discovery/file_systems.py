"""The file system that a path is on: which ones several hosts share, where locks and names are not what they are on a
disk, and on which every write to a file changes the time of its last change. Facts are read here, and the decisions are
pure.
"""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_SHARED = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "gpfs", "afs", "ocfs2", "gfs2", "beegfs",
        "glusterfs", "virtiofs", "orangefs", "pvfs2", "ncpfs", "coda", "fuse",
    }
)  # fmt: skip
_TIMED = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs"})


def is_shared(kind: str) -> bool:
    """Return whether a file system of this kind may be of another host, or of several."""
    return kind in _SHARED or kind.startswith("fuse.")


def tells_changes(kind: str) -> bool:
    """Return whether no byte of a file changes without the time of its last change (`ctime`), which no program can set.
    Memory that is mapped for writing tells nothing on tmpfs, another host's clock may be any, and what lies below an
    overlay may be either.
    """
    return kind in _TIMED


def kind_in(mounts: str, device: int, path: str = "") -> str:
    """Return the kind of the file system with a device number, by the text of mountinfo, else of the one that is
    mounted nearest above `path`: subvolumes have numbers of their own. Empty where there is neither.
    """
    wanted, found, above, longest = f"{os.major(device)}:{os.minor(device)}", "", "", 0
    for line in mounts.splitlines():
        place, _, rest = line.partition(" - ")
        fields, kind = place.split(), (rest.split() or [""])[0]
        if fields[2:3] == [wanted] and kind:
            found = kind
        point = fields[4].rstrip("/") if len(fields) > 4 else None
        if point is not None and f"{path}/".startswith(f"{point}/") and len(point) + 1 >= longest:
            above, longest = kind, len(point) + 1
    return found or above


def kind_of(path: Path) -> str:
    """Return the kind of the file system that a path is on; empty where it is not known."""
    try:
        return kind_in(_MOUNTS.read_text("utf-8", "replace"), path.stat().st_dev, str(path.resolve()))
    except OSError:
        return ""
