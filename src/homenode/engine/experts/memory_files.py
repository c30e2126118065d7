"""Memory in which engines of one host keep the experts of a model in common: a memfd for each worker of an engine, the
same for all engines.

It is made by who keeps the engines, before any of them is there, and outlives each of them: one that is started again
finds there what it had read. Who makes it knows nothing of the model. It begins as a page of zeros, which the workers
fill and lengthen (`model.weights.expert_share`), and cannot be made shorter under those that have it mapped.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence

from homenode.engine.assignment import EngineAssignment
from homenode.engine.experts.group import wants_shared_experts
from homenode.errors import HostError
from homenode.host.refusals import with_limit


class ExpertMemoryFiles:
    """The memory files of the engines with these assignments, if they are to keep experts in common. `close` it when
    they have ended.
    """

    def __init__(self, assignments: Sequence[EngineAssignment]) -> None:
        """Nothing is taken before `descriptors` is asked for."""
        self._workers = assignments[0].config.parallel.workers if all(map(wants_shared_experts, assignments)) else 0
        self._descriptors: tuple[int, ...] = ()

    def descriptors(self) -> tuple[int, ...]:
        """The memory of each worker of an engine, stage after stage; empty where nothing is kept in common. They stay
        ours. HostError when the machine refuses.
        """
        if len(self._descriptors) < self._workers:
            self._descriptors = _made(self._workers)
        return self._descriptors

    def close(self) -> None:
        """Let go of it: it goes with its last user."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors, self._workers = (), 0


def _made(count: int) -> tuple[int, ...]:
    made: list[int] = []
    try:
        for _ in range(count):
            made.append(os.memfd_create("homenode experts", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(made[-1], mmap.PAGESIZE)
            fcntl.fcntl(made[-1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except OSError as error:
        said = f"memfd_create: {error.strerror}"
        for descriptor in made:
            os.close(descriptor)
        raise HostError(
            f"memory for experts that engines keep in common could not be made: {with_limit(said, error.errno)}",
            errno=error.errno,
        ) from error
    return tuple(made)
