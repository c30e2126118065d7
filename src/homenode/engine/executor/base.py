"""The interface to where steps are computed: the seam between the engine's loop and its workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from homenode.engine.binding import EngineBinding
from homenode.engine.kv.chunks import PageChange
from homenode.engine.step import Step, StepResult, WorkerLimits

if TYPE_CHECKING:
    from homenode.compute.kv_memory import KvMemory
    from homenode.compute.ops import Backend, StateMemory
    from homenode.engine.channels.messages import Fits
    from homenode.engine.kv_transfer.setup import KvTransferLink, KvTransferSetup
    from homenode.host.topology.finding import Finding


LoadProgress = Callable[[int, int], None]  # is told (bytes taken in, bytes in all)


class EngineWorkers(Protocol):
    """The workers that compute a plan, from its start to the executor that gives it steps."""

    @property
    def backend(self) -> Backend:
        """Return what maps KV memory that is handed over; after `start`."""

    def start(self, progress: LoadProgress | None = None) -> Sequence[Fits]:
        """Load all parts of the model; what each worker says fits, in their order. Raises what the engine's starter is
        to be told of.
        """

    def lay(self, limits: WorkerLimits, sharing: KvTransferSetup | None = None) -> Executor:
        """Take KV memory of `limits.num_blocks` blocks, such as `sharing` can hand over if it is given, and prepare to
        compute. Raises as `start`.
        """

    @property
    def state_memory(self) -> StateMemory:
        """Return that of an engine of one worker in this process; None elsewhere, and where no layer keeps a state."""

    def kv_memories(self) -> Sequence[KvMemory]:
        """The KV memory, in this process, of an engine whose KV is kept on disk; after `lay`. Raises as `start`."""

    def findings(self) -> tuple[Finding, ...]:
        """Return what is to be told of the memory taken so far, beside the notes of `Fits`. HostError under
        --numa-strict.
        """

    def hand_over(self, sharing: KvTransferSetup) -> KvTransferLink:
        """The agent that hands over the KV memory laid with `sharing`. Raises as `KvTransferLink`."""

    def close(self) -> None:
        """End what was started and not closed by its executor."""


class Executor(Protocol):
    """Computes steps in the order they are submitted. All calls but those of the callback come from one thread."""

    @property
    def serving(self) -> bool:
        """Return whether steps may be submitted: not from the loss of a worker until all are there again and `result`
        has raised the error, so that whoever submits cannot miss it. The callback of `on_result` is called when a
        worker is lost, whether or not a step is pending, and when all are back.
        """

    @property
    def pending(self) -> int:
        """Steps submitted whose result was not taken yet."""

    def limits(self) -> WorkerLimits:
        """Return what its workers can take."""

    def on_result(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on any thread, each time a result can be taken, and when figures have changed without
        one. To be set before the first step.
        """

    def submit(self, step: Step) -> None:
        """Hand over a step; returns at once. One that comes too late, when a worker has just been lost, is lost as
        well.
        """

    def change_pages(self, changes: Sequence[PageChange]) -> None:
        """Have pages of KV memory taken, or given back, after the steps submitted so far and before those that are
        submitted later; returns at once. What cannot be taken comes when it is first used.
        """

    def prepare_grammar(self, grammar: str, ready: Callable[[], None]) -> bool:
        """Have ready what binds a sequence by `grammar`, so that no step waits until it is made. Whether `ready` will
        be called, on any thread: when it is there, or will not be before a step asks for it. False: it is there.
        """

    def result(self, timeout: float | None = None) -> StepResult | None:
        """The result of the oldest pending step; None when there is none within `timeout` seconds (None: wait for it).

        Raises StepError when it failed; all pending steps are then gone. Raises StepsLostError once for each loss.
        """

    def statistics(self) -> dict[str, Any]:
        """Figures of the computing part, plain values."""

    def close(self) -> None:
        """Finish the step being computed, drop the others, give everything back. Calling it again does nothing."""


@runtime_checkable
class MovableExecutor(Protocol):
    """An executor whose workers can go on in other places of this host, without a step being lost."""

    @property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the processes whose threads compute, as they are now."""

    def move(self, places: Sequence[EngineBinding]) -> None:
        """Have each worker compute in its place, and whoever is started in its place, after the steps submitted so far
        and before those that are submitted later; returns at once. What the machine refuses is logged. From any thread.
        """
