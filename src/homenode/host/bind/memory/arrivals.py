"""Pages that were taken between two steps: on which nodes they came to lie; those that lie elsewhere are moved to the
planned nodes."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.memory.pages import bring_home
from homenode.host.bind.memory.residency import PAGE, PlannedRange, pages_by_node

_LONGEST_S = 0.05  # that the next step waits for pages to be moved
_HUGE_PAGE = 2 << 20


def settle_arrivals(came: Sequence[PlannedRange], calls: Syscalls) -> int:
    """Bytes that lie on none of the nodes planned, after what could be moved at once was. 0 where the kernel does not
    tell.

    One small page in each huge page is asked for, as those of a huge page are together; of what lies elsewhere all
    are looked at.
    """
    try:
        if not any(_away(part, calls, _HUGE_PAGE // PAGE) for part in came):
            return 0
        bring_home(came, calls, deadline_s=_LONGEST_S)
        return sum(_away(part, calls, 1) * PAGE for part in came)
    except OSError:
        return 0


def _away(part: PlannedRange, calls: Syscalls, stride: int) -> int:
    """Return of every `stride`-th page those that are elsewhere."""
    seen = pages_by_node(part, calls, stride)
    return sum(count for node, count in seen.items() if node not in part.nodes)
