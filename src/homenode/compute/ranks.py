"""Workers that compute one step together: what a backend needs of the others, whatever carries it (shared memory,
torch.distributed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class RankGroup(Protocol):
    """The tensor-parallel ranks of one stage. All of them make the same calls in the same order.

    Every call waits for the slowest rank, at most the time the group was made with. PeerError names the ranks that did
    not come in time, or that the group was told are gone (`leave`); after one, every further call fails at once: a step
    that lost a rank is lost for all.
    """

    rank: int
    size: int

    def sum(self, values: npt.NDArray[np.float32]) -> None:
        """Replace `values` (C-contiguous float32) by the element-wise sum over all ranks, added in the order of the
        ranks: the same bits everywhere.
        """

    def gather(self, values: npt.NDArray[np.float32], widths: Sequence[int]) -> npt.NDArray[np.float32]:
        """The columns of all ranks beside each other in their order: values [rows, widths[rank]] -> [rows, sum of
        widths].
        """

    def leave(self) -> None:
        """Tell everybody who waits here, now or later, that this group is over. May be called from any thread, more
        than once.
        """
