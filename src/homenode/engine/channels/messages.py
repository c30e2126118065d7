"""Frames between an engine and its workers: msgspec structs, msgpack encoded, tagged by type, framed as in
engine/messages.py.

One connection for each worker: a socket pair on one host, an authenticated TCP connection between hosts. The engine
says everything in the order it is to be done; a worker answers each `RunStep` with one `WorkerStepDone` or
`WorkerStepFailed`, in that order.

Join -> Loading... -> Fits -> Lay -> Laid, then Work -> Done | Failed, Probe -> Alive, and Leave.

Rows between stages and sums between ranks do not go through the engine: workers of one host have shared memory for
them, whose descriptors come with `Join` (SCM_RIGHTS), in the order of `Join.channels`, and after them that of memory
for experts which several engines keep in common. Of an engine that hands KV over the file with the KV memory of all
comes with `Lay`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from homenode.compute.kv_memory import KvLayout
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.experts.group import ExpertGroupRank
from homenode.engine.step import Step, StepResult, WorkerReport
from homenode.host.plan.numa.demand import Decision
from homenode.model.identity import ModelIdentity
from homenode.model.part import ModelPart

# Sums and gathers of one stage's ranks; rows from the stage before; rows for the stage after.
Role = Literal["ranks", "inlet", "outlet"]


class Channel(msgspec.Struct, frozen=True, array_like=True):
    """The way in which a worker reaches others. `kind` shm: a memfd that comes with the frame; tcp: `address`, greeted
    with `secret`.
    """

    role: Role
    kind: Literal["shm", "tcp", "torch"]
    address: str = ""
    secret: bytes = b""


def shared_memories(channels: list[Channel]) -> int:
    """Return how many descriptors come with these."""
    return sum(channel.kind == "shm" for channel in channels)


class FileRange(msgspec.Struct, frozen=True, array_like=True):
    """Bytes offset .. offset + nbytes - 1 of a file."""

    offset: int
    nbytes: int


class Join(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker, first: who you are, what is yours, whom you work with. `number` counts the workers of the
    engine, stage after stage.

    `generation` counts how often the engine has (re)started any of its workers: a channel of an earlier one is dead.
    """

    number: int
    generation: int
    config: EngineConfig
    device: str  # "cpu", or a torch device: "torch:cuda:0", "torch:cpu"
    part: ModelPart
    binding: EngineBinding
    channels: list[Channel]
    kv_cache_memory: int | None = None  # bytes of its KV memory, where set; else it says itself what fits
    kv_there: int = 0  # bytes of its KV memory that are taken already: of who had its place before
    experts: ExpertGroupRank | None = (
        None  # with it comes the descriptor of the memory that the engines' workers of this number keep experts in
    )
    memory_share: int | None = None  # bytes it may take for weights, buffers and KV memory; None: whatever is free
    allowed_cpus: list[int] = []  # that the engine was allowed when it began; empty: those this process has
    nodes_memory: int | None = None  # bytes for buffers and KV memory that nodes have, where it is spread over several
    numa_decision: Decision | None = None  # what --numa auto has come to for the whole engine
    texts: dict[str, str] = {}  # digests of the files of text that the engine has read, by their paths
    drafts: bool = False  # what drafts tokens by the settings is kept by those who draw them


class PartLoading(msgspec.Struct, frozen=True, tag=True):
    """Worker to engine: bytes of the model's files taken in, and in all."""

    done: int
    total: int


class Fits(WorkerReport, frozen=True, kw_only=True, tag=True):
    """Worker to engine: the weights are there, and so many KV blocks would fit. `identity`: of the model that it has
    read.
    """

    notes: tuple[str, ...] = ()
    identity: ModelIdentity | None = None


class Lay(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker: take KV memory of so many blocks, the fewest over all workers, and prepare to compute.

    `share`: of the file that comes with the frame, where it is to lie, with what it holds; None: in memory of its own.
    `grows`: that is reserved only, where the worker's backend can, and `Pages` say what of it is to be there.
    `state_slots`: of the state memory, where layers of the worker keep a state.
    """

    num_blocks: int
    share: FileRange | None = None
    grows: bool = False
    state_slots: int = 0


class Laid(msgspec.Struct, frozen=True, tag=True):
    """Worker to engine: ready. `compute`: the backend's statistics. `kv`: after a `Lay` with a share, how its KV memory
    lies there.
    """

    compute: dict[str, object]
    kv: KvLayout | None = None


class Attach(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker: steps after this read a neighbour's memory in place, whose file comes with the frame, as blocks
    first, first + 1, ...

    `layout`: of what the worker has of the model.
    """

    first: int
    layout: KvLayout


class Detach(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker: no step names those blocks any more."""

    first: int


class RunStep(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker: a step. `drawn`: (sequence, token) of the steps before it that this worker was not told yet,
    because it did not draw itself.
    """

    step: Step
    drawn: list[tuple[int, int]] = []


class Pages(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker: between the steps before this and those after it take the pages of KV blocks first .. past - 1,
    or give them back: (first, past, whether they are to be there).
    """

    changes: list[tuple[int, int, bool]]


class MoveThreads(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker: between the steps before this and those after it go on in another place of the same nodes."""

    place: EngineBinding


class PrepareGrammar(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker: have ready what binds sequences by `grammar`; a thread that does not compute answers with
    `GrammarPrepared`. What fails then fails again in the step that needs it.
    """

    number: int
    grammar: str


class GrammarPrepared(msgspec.Struct, frozen=True, tag=True):
    """Worker to engine: it is ready, or cannot be had."""

    number: int


class WorkerStepDone(msgspec.Struct, frozen=True, tag=True):
    """Worker to engine: a step is done. Only rank 0 of the last stage gives tokens and scores. `waited`: seconds it
    waited for the stage before it.
    """

    result: StepResult
    waited: float = 0.0


class WorkerStepFailed(msgspec.Struct, frozen=True, tag=True):
    """Worker to engine: a step could not be computed, for reasons of its own; `kind` as in StepError. It skips what
    follows until `Forget`.
    """

    number: int
    kind: str
    message: str
    fatal: bool = False


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker: every sequence is gone, and what failed is over. Frames sent before it are not answered any
    more after it: the worker answers it with `Laid`. `channels`: new ones in place of the old where a worker was
    replaced; empty: go on with those there are.
    """

    generation: int
    channels: list[Channel] = []


class LivenessProbe(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker: answer with `Alive`, from a thread that does not compute."""

    number: int


class Alive(msgspec.Struct, frozen=True, tag=True):
    """Worker to engine. `step`: the number of the step it computes or waits in, -1: none; `since`: seconds it has been
    at it.
    """

    number: int
    step: int = -1
    since: float = 0.0
    compute: dict[str, object] = {}


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Engine to worker: end. Whoever does nothing else at the moment tells its figures in an `Alive` with the number -1
    before.
    """


class WorkerFailed(msgspec.Struct, frozen=True, tag=True):
    """Worker to engine: it cannot start or go on; `kind` is a class name of homenode.errors. Its last frame."""

    kind: str
    message: str


ToWorker = (
    Join | Lay | Attach | Detach | Pages | MoveThreads | PrepareGrammar | RunStep | Forget | LivenessProbe | Leave
)
FromWorker = PartLoading | Fits | Laid | GrammarPrepared | WorkerStepDone | WorkerStepFailed | Alive | WorkerFailed
