"""The workers of an engine over all their lives: started, connected with each other, replaced where they are lost,
ended. One thread at a time.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from homenode.compute.kv_memory import KvLayout
from homenode.engine.binding import EngineBinding
from homenode.engine.channels.base import Channels, MakeChannels
from homenode.engine.channels.messages import (
    Alive,
    Attach,
    Detach,
    Forget,
    FromWorker,
    Join,
    Lay,
    Leave,
    MoveThreads,
    Pages,
    PrepareGrammar,
)
from homenode.engine.executor.kv_file import KvFile
from homenode.engine.executor.neighbours import Attached, sliced
from homenode.engine.executor.worker_handle import WorkerHandle
from homenode.engine.executor.worker_process import StartedWorker
from homenode.engine.experts.usage import Table
from homenode.engine.kv.chunks import PageChange
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.engine.step import WorkerLimits
from homenode.errors import PeerError
from homenode.model.spec import ModelSpec
from homenode.net.message_frames import decode_body

_END_S = 3.0  # for a worker to finish its step and end
_LAST_FIGURES_S = 1.0

JoinOf = Callable[[WorkerPlan], Join]  # as for generation 0 without channels
MemoriesOf = Callable[[WorkerPlan], Sequence[int]]  # descriptors that go with its Join, after those of channels
Launch = Callable[[WorkerPlan], StartedWorker]


class WorkerPool:
    """`handles`: one for each plan, from `begin` on. `selector`: of the connections of those that are watched, with the
    member as data.
    """

    def __init__(
        self,
        plans: Sequence[WorkerPlan],
        join_of: JoinOf,
        make_channels: MakeChannels,
        launch: Launch,
        experts: ModelSpec | None,
        clock: Callable[[], float],
        memories_of: MemoriesOf,
    ) -> None:
        """Take the arguments of `ProcessExecutor`."""
        self._plans, self._join_of, self._make_channels = plans, join_of, make_channels
        self.launch, self._experts, self._clock = launch, experts, clock
        self._memories_of = memories_of
        self._channels: Channels | None = None
        self.kv_file: KvFile | None = None  # where the workers' KV memory lies, if that is not their own
        self._attached = Attached()
        self._places: dict[int, EngineBinding] = {}  # of workers that were moved
        self._generation = 0
        self.handles: list[WorkerHandle] = []
        self.restarts = 0
        self.selector = selectors.DefaultSelector()

    def begin(self) -> None:
        """Start all. HostError when the machine refuses."""
        self._channels = self._make_channels(0)
        for plan in self._plans:
            self.handles.append(self._started(plan))

    def start_anew(self, dead: Collection[int]) -> None:
        """A generation in which nobody knows of any sequence, with new processes in place of dead ones."""
        old, self._channels = self._channels, None
        self._generation += 1
        if old is not None:
            old.leave()
            old.close()
        self._channels = self._make_channels(self._generation)
        for number, handle in enumerate(self.handles):
            if number in dead:
                self.drop(handle)
                handle.process.end(0)
                self.restarts += 1
                self.handles[number] = self._started(handle.plan, handle.uses)
            else:
                handle.drawn, handle.answers = [], handle.answers + 1
                channels, descriptors = self._channels.of(number)
                handle.process.socket.send(Forget(self._generation, channels), descriptors)

    def lay(self, handle: WorkerHandle, limits: WorkerLimits) -> None:
        """Have a worker take KV memory, or reserve it where that grows, and state memory."""
        handle.state, handle.answers = "laying", handle.answers + 1
        file, blocks, slots = self.kv_file, limits.num_blocks, limits.state_slots
        if file is None:
            handle.process.socket.send(Lay(blocks, grows=limits.chunk_blocks > 0, state_slots=slots))
        else:
            lay = Lay(blocks, file.shares[handle.plan.number], state_slots=slots)
            handle.process.socket.send(lay, [file.fd])
        for message, fd in self._attached.of(handle.plan.part):
            handle.process.socket.send(message, [fd])

    def attach(self, fd: int, layout: KvLayout, num_blocks: int) -> int:
        """Have all workers read a neighbour's memory in place, now and whoever takes their place. The number of its
        first block; ValueError when there is none left. The descriptor stays the caller's.
        """
        first = self._attached.add(fd, layout, num_blocks)
        for handle in self._laid():
            handle.process.socket.send(Attach(first, sliced(layout, handle.plan.part)), [fd])
        return first

    def detach(self, first: int) -> None:
        """End that. ValueError where it did not begin."""
        self._attached.remove(first)
        for handle in self._laid():
            handle.process.socket.send(Detach(first))

    def change_pages(self, changes: Sequence[PageChange]) -> None:
        """Have all workers take and give back pages of KV memory."""
        told = Pages([(change.first, change.past, bool(change.presence)) for change in changes])
        for handle in self._laid():
            handle.process.socket.send(told)

    def move(self, places: Sequence[EngineBinding]) -> None:
        """Have all workers compute in their places, now and whoever takes their place."""
        self._places = dict(zip((plan.number for plan in self._plans), places, strict=True))
        for handle in self.handles:  # who is loading goes there when it has
            handle.process.socket.send(MoveThreads(self._places[handle.plan.number]))

    def that_draw(self) -> list[int]:
        """Numbers of the workers that draw tokens, and were told to take KV memory."""
        return [handle.plan.number for handle in self._laid() if handle.plan.part.last_stage]

    def prepare_grammar(self, number: int, grammar: str) -> None:
        """Have those have a grammar ready; their answers have this number."""
        for handle in self._laid():
            if handle.plan.part.last_stage:
                handle.process.socket.send(PrepareGrammar(number, grammar))

    def _laid(self) -> list[WorkerHandle]:
        """Return those that were told to take KV memory; others will be told of everything then."""
        return [handle for handle in self.handles if handle.state in ("laying", "ready")]

    def drop(self, handle: WorkerHandle) -> None:
        """What a worker says is read no more."""
        if handle.watched:
            handle.watched = False
            self.selector.unregister(handle.process.socket)

    def watch_writable(self) -> None:
        """Wait for room on connections that are behind."""
        for handle in self.handles:
            sock = handle.process.socket
            if handle.watched:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if sock.behind else 0)
                if self.selector.get_key(sock).events != wanted:
                    self.selector.modify(sock, wanted, handle)

    def dismiss(self) -> None:
        """Tell all to leave, and take down what they have to say before they do."""
        if self._channels is not None:
            self._channels.leave()
        for handle in self.handles:
            handle.process.socket.send(Leave())
        if self._experts is not None:
            self._hear_last_figures()
        for handle in self.handles:
            self.drop(handle)

    def end(self) -> None:
        """See all end, by force where they do not by themselves."""
        deadline = self._clock() + _END_S
        for handle in self.handles:
            handle.process.end(max(0.0, deadline - self._clock()))
        if self._channels is not None:
            self._channels.close()
        if self.kv_file is not None:
            self.kv_file.close()
        self._attached.close()

    def _started(self, plan: WorkerPlan, uses: Table | None = None) -> WorkerHandle:
        assert self._channels is not None
        process = self.launch(plan)
        handle = WorkerHandle(plan, process, heard_at=self._clock(), uses=uses, uses_before=uses)
        self.selector.register(process.socket, selectors.EVENT_READ, handle)
        channels, descriptors = self._channels.of(plan.number)
        kv_there = self.kv_file.taken(plan.number) if self.kv_file is not None else 0
        join = replace_join(self._join_of(plan), self._generation, channels, kv_there)
        join = msgspec.structs.replace(join, binding=self._places.get(plan.number, join.binding))
        process.socket.send(join, [*descriptors, *self._memories_of(plan)])
        return handle

    def _hear_last_figures(self) -> None:
        """Take what workers have counted since they last told, if they can say it at once."""
        deadline = self._clock() + _LAST_FIGURES_S
        while any(m.watched and m.is_ready for m in self.handles) and (left := deadline - self._clock()) > 0:
            for key, _ in self.selector.select(left):
                handle = key.data
                if handle is None or not self._hear_out(handle):
                    self.selector.unregister(key.fileobj)

    def _hear_out(self, handle: WorkerHandle) -> bool:
        """Return whether more may come of it."""
        with contextlib.suppress(PeerError):
            for frame in (frames := handle.process.socket.receive()) or ():
                match decode_body(frame, FromWorker):
                    case Alive(_, _, _, compute):
                        handle.record_stats(compute, self._experts, self._clock())
            if frames is not None:
                return True
        handle.watched = False
        return False


def replace_join(join: Join, generation: int, channels: list[Any], kv_there: int) -> Join:
    """A Join for another generation, with its channels. `kv_there`: bytes of its KV memory that are there already,
    which is then as large as that.
    """
    memory = kv_there or join.kv_cache_memory
    return msgspec.structs.replace(
        join, generation=generation, channels=channels, kv_cache_memory=memory, kv_there=kv_there
    )
