"""The backend that computes, by the settings of an engine."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.compute.devices import torch_missing
from homenode.compute.ops import Backend
from homenode.compute.thread_memory import ThreadMemory
from homenode.engine.config import ComputeConfig
from homenode.host.process_limits import ensure_thread_stacks


def make_backend(
    compute: ComputeConfig,
    cpus: tuple[int, ...],
    groups: Sequence[Sequence[int]] | None = None,
    memory: ThreadMemory | None = None,
) -> Backend:
    """Return what computes, one thread on each of `cpus` (-1: not pinned), in the groups of `placement.team_groups`,
    with memory of their homes.

    UserError for an unknown level, HostError where the native core is needed and was not compiled.
    """
    if compute.backend == "reference":
        from homenode.compute.reference import ReferenceBackend

        return ReferenceBackend()
    if compute.backend == "torch":
        return _torch_backend(compute)
    ensure_thread_stacks()  # also where this is a part of another program
    from homenode.compute.native import (
        NativeBackend,  # needs the compiled core, which the reference backend does without
    )

    return NativeBackend(cpus, spin_us=compute.spin_us, level=compute.isa, groups=groups, memory=memory)


def _torch_backend(compute: ComputeConfig) -> Backend:
    if missing := torch_missing("--backend torch", "backend"):
        raise missing
    from homenode.compute.torch import open_backend  # takes seconds, and is an extra

    return open_backend("torch:cpu", attention=compute.attention_backend, enforce_eager=compute.enforce_eager)
