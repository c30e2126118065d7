"""Limits of this process, also where the call that tells and sets them is refused (prlimit64(2), which getrlimit(3) and
setrlimit(3) are): then the kernel tells them in a file, and they stay as they are.

Sources: getrlimit(2), proc_pid_limits(5).
"""

from __future__ import annotations

import resource
from pathlib import Path

from homenode.host.refused_errors import REFUSALS

_OWN = Path("/proc/self/limits")
_NAMES = {
    resource.RLIMIT_AS: "Max address space",
    resource.RLIMIT_CORE: "Max core file size",
    resource.RLIMIT_CPU: "Max cpu time",
    resource.RLIMIT_DATA: "Max data size",
    resource.RLIMIT_FSIZE: "Max file size",
    resource.RLIMIT_NOFILE: "Max open files",
    resource.RLIMIT_STACK: "Max stack size",
}
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def read_limit(limit: int, own: Path = _OWN) -> tuple[int, int]:
    """The soft and the hard limit, as getrlimit(2) has them; RLIM_INFINITY twice where nobody tells."""
    try:
        return resource.getrlimit(limit)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
    try:
        text = own.read_text()
    except OSError:
        return _UNLIMITED
    return limits_in(text).get(_NAMES[limit], _UNLIMITED)


def limits_in(text: str) -> dict[str, tuple[int, int]]:
    """Soft and hard limits by the kernel's names for them, of the text of /proc/PID/limits; lines that say something
    else are left out."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        places = [place for place, word in enumerate(words) if word == "unlimited" or word.isdecimal()]
        if len(places) >= 2 and places[1] == places[0] + 1:
            soft, hard = (resource.RLIM_INFINITY if w == "unlimited" else int(w) for w in words[places[0] :][:2])
            found[" ".join(words[: places[0]])] = (soft, hard)
    return found


def set_limit(limit: int, soft: int, hard: int) -> bool:
    """Set both; False where the call is refused and all stays as it is. ValueError for a soft limit above the hard
    one, OSError as `resource.setrlimit`."""
    try:
        resource.setrlimit(limit, (soft, hard))
    except ValueError:  # which stands for EPERM as well
        if _above(soft, hard):
            raise
        return False
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        return False
    return True


def _above(soft: int, hard: int) -> bool:
    return hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard)
