"""The file system of a folder of KV blocks: which ones several hosts share, where locks and names are not what they are
on a disk. Facts are read here, and the decision is pure.
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


def is_shared(kind: str) -> bool:
    """Return whether a file system of this kind may be of another host, or of several."""
    return kind in _SHARED or kind.startswith("fuse.")


def kind_in(mounts: str, device: int) -> str:
    """Return the kind of the file system with a device number, by the text of mountinfo; empty where it has none."""
    wanted, found = f"{os.major(device)}:{os.minor(device)}", ""
    for line in mounts.splitlines():
        place, _, rest = line.partition(" - ")
        if place.split()[2:3] == [wanted] and rest:
            found = rest.split()[0]
    return found


def kind_of(path: Path) -> str:
    """Return the kind of the file system that a folder is on; empty where it is not known."""
    try:
        return kind_in(_MOUNTS.read_text("utf-8", "replace"), path.stat().st_dev)
    except OSError:
        return ""
