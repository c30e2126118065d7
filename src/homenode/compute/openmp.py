"""The CPUs on which threads of an OpenMP library run, and how they wait, as its variables say it. Libraries read these
when they are loaded, so they are set before anything that computes with OpenMP is imported: for who owns the process.

Each thread has a CPU of its own. At the end of a parallel region threads watch for each other for about as long as
those of the native core do, then sleep: watching for as long as libraries do by themselves takes the CPU from whoever
is waited for as soon as another program runs there, and a step then takes tens of times as long.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence

UNPINNED = -1  # the CPU of a thread that may run anywhere
_SPINS_PER_US = 30  # turns of a watching loop
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def openmp_variables(cpus: Sequence[int], spin_us: int, given: Mapping[str, str]) -> dict[str, str]:
    """The variables for a thread on each of `cpus`, in their order. `spin_us`: how long threads watch for each other
    before they sleep. `given`: the variables there are; what these say about waiting is kept. Pure.
    """
    found = {"OMP_NUM_THREADS": str(len(cpus)), "OMP_DYNAMIC": "false"}
    if cpus and UNPINNED not in cpus:
        places = ",".join(f"{{{cpu}}}" for cpu in cpus)
        found |= {"OMP_PLACES": places, "OMP_PROC_BIND": "close"}
    if not any(name in given for name in _WAITING):
        found |= {"GOMP_SPINCOUNT": str(_SPINS_PER_US * spin_us), "KMP_BLOCKTIME": "0"}
    return found


def set_openmp_variables(cpus: Sequence[int], spin_us: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set them for whatever this process loads from now on."""
    environment.update(openmp_variables(cpus, spin_us, environment))
