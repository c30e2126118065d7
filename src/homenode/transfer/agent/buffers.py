"""KV memory within reach of an agent, this engine's and that of its peers, and the thread that copies and digests it
off the agent's loop: jobs in the order given, in chunks, so that a stop is noticed soon."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from homenode.compute.kv_memory import Copier, KvMemory
from homenode.errors import PeerError
from homenode.host.refusals import start_thread
from homenode.transfer.carriers.carrier import Carrier, Chunk, KvBackend, LocalBuffer, PeerBuffer, StillWritingError
from homenode.transfer.carriers.sockets import MappedBuffer, digests_of, run
from homenode.transfer.state.machine import Copied
from homenode.transfer.state.pages import readable_in_place
from homenode.transfer.wire.message import Buffer

_log = logging.getLogger(__name__)
FDS_PER_BUFFER = 2
_KEPT_S = 60.0  # a lost peer's memory after its last use, if nobody says that it is done with
CHUNK_BYTES = 4 << 20
_SHORT_TABLE = 64  # is converted sooner than cut
_LOOK_AGAIN_S = 0.05
INLINE_BYTES = 1 << 20  # so much is done sooner than a thread is woken, and what it has done is heard of
AT_ONCE_BYTES = 4 << 20  # so much is read at once where another engine waits for it: less than a millisecond


def register(memory: KvMemory, backend: KvBackend) -> LocalBuffer:
    """Give KV memory an id, and an epoch word for each block (0). HostError when there is no memory for them."""
    return LocalBuffer(Buffer(os.urandom(16), memory.layout), memory, backend.create_words(memory.layout.blocks))


@dataclass(frozen=True)
class InPlace:
    """Access that lets the engine's steps read a peer's memory where it is. `attach`: page p of the memory is block
    (the result) + p from then on; ValueError where that cannot be. `detach` ends it; no step may name its blocks any
    more."""

    attach: Callable[[KvMemory], int]
    detach: Callable[[int], None]


@dataclass
class _Attached:
    """A peer's buffer. `users`: numbers of the connections it came over (`lost` ones too); `jobs`: copies that use
    it."""

    memory: PeerBuffer
    owner: tuple[bytes, int]  # incarnation, pid
    users: set[int] = field(default_factory=set)
    lost: bool = False
    used_at: float = 0.0
    jobs: int = 0
    base: int | None = None  # steps may read it in place, from this block on


class Buffers:
    """All buffers, by id."""

    def __init__(self, local: Sequence[LocalBuffer], carrier: Carrier, in_place: InPlace | None = None) -> None:
        self._in_place = in_place
        self.local = {buffer.buffer.id: buffer for buffer in local}
        self._carrier = carrier
        self._peers: dict[bytes, _Attached] = {}

    def attach(
        self,
        peer: int,
        owner: tuple[bytes, int],
        carrier: bytes,
        buffers: Sequence[Buffer],
        fds: list[int],
        *,
        writable: bool,
    ) -> None:
        """A peer's Hello names these. PeerError for an id that is somebody else's, or memory that is not what it should
        be. Takes `fds` over."""
        wanted = FDS_PER_BUFFER * len(buffers) if self._carrier.passes_memory else 0
        try:
            if len(fds) != wanted:
                raise PeerError(
                    f"{len(fds)} descriptors came with a Hello that names {len(buffers)} buffers; {wanted} are due",
                    code="fds",
                )
            each = wanted // max(1, len(buffers))
            for buffer in buffers:
                mine, fds[:each] = fds[:each], []
                self._attach(peer, owner, carrier, buffer, mine, writable)
        finally:
            self.refuse(fds)

    def _attach(
        self, peer: int, owner: tuple[bytes, int], carrier: bytes, buffer: Buffer, fds: list[int], writable: bool
    ) -> None:
        known = self._peers.get(buffer.id)
        if buffer.id in self.local or (known is not None and known.owner != owner):
            for fd in fds:
                os.close(fd)
            raise PeerError("a buffer's id is already taken by another process", code="buffer")
        if known is None:
            memory = self._carrier.attach(buffer, fds, carrier, writable=writable)
            if memory is None:
                return
            known = self._peers[buffer.id] = _Attached(memory, owner)
        else:
            for fd in fds:
                os.close(fd)
        known.users.add(peer)
        known.lost = False

    def bases(self, buffers: Sequence[Buffer]) -> dict[bytes, int]:
        """Return which of these can be read in place, and as which blocks."""
        found = {buffer.id: self._base_of(self._peers.get(buffer.id)) for buffer in buffers} if self._in_place else {}
        return {buffer_id: base for buffer_id, base in found.items() if base is not None}

    def _base_of(self, attached: _Attached | None) -> int | None:
        if attached is None or self._in_place is None or not isinstance(attached.memory, MappedBuffer):
            return None
        own = next(iter(self.local.values())).memory.layout  # the KV cache's
        if attached.base is None and readable_in_place(attached.memory.layout, own):
            try:
                attached.base = self._in_place.attach(attached.memory.memory)
            except ValueError as error:
                _log.warning("a peer's KV is copied, as it cannot be read in place: %s", error)
        return attached.base

    def refuse(self, fds: list[int]) -> None:
        """Close descriptors that came with a Hello that is not taken."""
        while fds:
            os.close(fds.pop())

    def borrow(self, buffer_id: bytes, now: float) -> LocalBuffer | PeerBuffer | None:
        """A buffer for a copy, to be given back with `give_back`; None when it is not (or no more) known."""
        local = self.local.get(buffer_id)
        if local is not None:
            return local
        attached = self._peers.get(buffer_id)
        if attached is None or not attached.users:
            return None
        attached.jobs += 1
        attached.used_at = now
        return attached.memory

    def within_reach(self, buffer_id: bytes) -> PeerBuffer | None:
        """A peer's buffer, as long as its memory is; who keeps it keeps that."""
        attached = self._peers.get(buffer_id)
        return attached.memory if attached is not None and attached.users else None

    def give_back(self, buffer_id: bytes, now: float) -> None:
        """The copy is over."""
        attached = self._peers.get(buffer_id)
        if attached is not None:
            attached.jobs -= 1
            attached.used_at = now
            self._drop_unused(buffer_id, attached)

    def lose(self, peer: int, now: float) -> None:
        """The connection has ended; its memory is kept until `release`, or a while."""
        for attached in self._peers.values():
            if peer in attached.users:
                attached.lost, attached.used_at = True, now

    def release(self, peer: int) -> list[bytes]:
        """Nothing of this connection's buffers is to be copied any more: the ids of those that nobody else uses."""
        unused = []
        for buffer_id, attached in list(self._peers.items()):
            attached.users.discard(peer)
            if not attached.users:
                unused.append(buffer_id)
                self._drop_unused(buffer_id, attached)
        return unused

    def close(self) -> None:
        """Give all mappings back; no copy may be under way. What is read in place stays in the engine's reach: its
        requests may go on."""
        for attached in self._peers.values():
            attached.memory.close()
        self._peers.clear()

    @property
    def lingering(self) -> bool:
        """Tell whether `retire` will have something to drop."""
        return any(attached.lost and attached.base is None for attached in self._peers.values())

    def retire(self, now: float) -> None:
        """Drop what lost peers left behind. What may be read in place is dropped by `release` alone."""
        for buffer_id, attached in list(self._peers.items()):
            if attached.lost and attached.base is None and now - attached.used_at > _KEPT_S:
                attached.users.clear()
                self._drop_unused(buffer_id, attached)

    def _drop_unused(self, buffer_id: bytes, attached: _Attached) -> None:
        if not attached.users and not attached.jobs:
            del self._peers[buffer_id]
            if attached.base is not None and self._in_place is not None:
                self._in_place.detach(attached.base)
            attached.memory.close()


@dataclass(eq=False)
class CopyJob:
    """Pages from one buffer to another, or with `target` None only their digests. `stop` may be set from any thread."""

    token: int
    source: LocalBuffer | PeerBuffer
    target: LocalBuffer | PeerBuffer | None
    work: Chunk
    page_bytes: int
    borrowed: Sequence[bytes] = ()  # buffer ids to give back
    stop: str = ""
    seconds: float = field(default=0.0)
    ended: Callable[[], bool] | None = None  # it was given up, and may be written until this says so
    answer: Copied | None = None  # for then

    @property
    def nbytes(self) -> int:
        """An upper bound: pages held already are left out of it only when it is done."""
        return self.work.pages * self.page_bytes


def perform(job: CopyJob, copier: Copier, stopped: Callable[[], str]) -> Copied:
    """Do all of a job; never raises. `stopped` is asked between chunks."""
    begun = time.perf_counter()
    digests: list[bytes] = []
    step = max(1, CHUNK_BYTES // max(1, job.page_bytes))
    work = job.work
    answer = None
    for first in range(work.first_page, work.first_page + work.pages, step):
        reason = job.stop or stopped()
        if not reason:
            pages = min(step, work.first_page + work.pages - first)
            got, reason = _one(job, _cut(job, first, pages), copier)
            digests += got or []
        if reason:
            answer = Copied(job.token, None, reason)
            break
    job.seconds = time.perf_counter() - begun
    return answer or Copied(job.token, digests)


def _cut(job: CopyJob, first: int, pages: int) -> Chunk:
    """Some of the pages, with no more of the tables than they need: of a long sequence the rest would be converted
    again for every chunk."""
    work = job.work
    if pages == work.pages and len(work.source_table) <= _SHORT_TABLE:
        return work
    source_size = _block_size(job.source)
    target_size = source_size if job.target is None else _block_size(job.target)
    begin = first * work.page_tokens
    begin -= begin % math.lcm(source_size, target_size, work.page_tokens)
    end = min((first + pages) * work.page_tokens, work.tokens)
    at = first - work.first_page
    return Chunk(
        work.source_table[begin // source_size : -(-end // source_size)],
        work.target_table[begin // target_size : -(-end // target_size)],
        first - begin // work.page_tokens,
        pages,
        end - begin,
        work.page_tokens,
        None if work.epochs is None else work.epochs[at : at + pages],
    )


def _block_size(buffer: LocalBuffer | PeerBuffer) -> int:
    return buffer.memory.layout.block_size if isinstance(buffer, LocalBuffer) else buffer.layout.block_size


def _one(job: CopyJob, chunk: Chunk, copier: Copier) -> tuple[list[bytes] | None, str]:
    try:
        digests = _copy(job.source, job.target, chunk, copier)
    except StillWritingError as error:
        _log.error("KV transfer: %s", error)
        job.ended = error.ended
        return None, str(error)
    except PeerError as error:
        return None, error.message
    except Exception as error:
        _log.exception("copying KV failed")
        return None, f"copying failed: {error}"
    return digests, "" if digests is not None else "the source's epochs have changed: its pages were given to others"


def _copy(
    source: LocalBuffer | PeerBuffer, target: LocalBuffer | PeerBuffer | None, chunk: Chunk, copier: Copier
) -> list[bytes] | None:
    if target is None:
        return (
            digests_of(source.memory, source.words, chunk) if isinstance(source, LocalBuffer) else source.digests(chunk)
        )
    if not isinstance(source, LocalBuffer):
        if not isinstance(target, LocalBuffer):
            raise ValueError("neither side of a copy is this process's own")
        return source.copy_from(copier, target, chunk)
    if not isinstance(target, LocalBuffer):
        return target.copy_to(copier, source, chunk)
    return run(copier, target.memory, source.memory, source.words, chunk)


class CopyThread:
    """`submit` and `results` are for the agent's thread. `wake` is called from the copy thread when there is a
    result."""

    def __init__(self, copier: Copier, wake: Callable[[], None]) -> None:
        self._copier, self._wake = copier, wake
        self._jobs: SimpleQueue[CopyJob | None] = SimpleQueue()
        self._results: deque[tuple[CopyJob, Copied]] = deque()
        self._open: set[CopyJob] = set()
        self._stopping = ""
        self._thread = threading.Thread(target=self._run, name="homenode-kv-copy", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        start_thread(self._thread)

    def submit(self, job: CopyJob) -> tuple[CopyJob, Copied] | None:
        """Do a job: a small one at once, when nothing is before it, and its result is returned; else None, and it will
        be among `results`."""
        if self.takes_at_once(job.nbytes):
            answer = perform(job, self._copier, lambda: "")
            if job.ended is None:
                return job, answer
            job.answer = answer
        self._open.add(job)
        self._jobs.put(job)
        return None

    def takes_at_once(self, nbytes: int) -> bool:
        """Tell whether so much is small enough, and nothing is before it."""
        return not self._open and nbytes <= INLINE_BYTES

    def reads_at_once(self, pages: int, page_bytes: int) -> bool:
        """The same where another engine waits. A single page always is: a step reads all weights, which are a thousand
        times as much."""
        return not self._open and (pages == 1 or pages * page_bytes <= AT_ONCE_BYTES)

    def at_once(
        self, source: LocalBuffer | PeerBuffer, target: LocalBuffer | PeerBuffer | None, chunk: Chunk
    ) -> list[bytes] | None:
        """The digests of pages that `takes_at_once` was asked about; None if the copy came to nothing."""
        try:
            return _copy(source, target, chunk, self._copier)
        except PeerError:
            return None

    def results(self) -> list[tuple[CopyJob, Copied]]:
        """Return what was done since."""
        done = []
        while self._results:
            done.append(self._results.popleft())
            self._open.discard(done[-1][0])
        return done

    def stop_using(self, buffer_id: bytes, reason: str) -> None:
        """Jobs with this buffer end after the chunk they are in."""
        for job in self._open:
            if buffer_id in job.borrowed:
                job.stop = reason

    def close(self, timeout: float) -> bool:
        """End after the chunk under way; whether the thread has ended in time, so that nothing is written any more."""
        self._stopping = "the engine is shutting down"
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        late: list[CopyJob] = []
        while True:
            try:
                job = self._jobs.get(timeout=_LOOK_AGAIN_S if late else None)
                if job is None:
                    return
                job.answer = job.answer or perform(job, self._copier, lambda: self._stopping)
                late.append(job)
            except Empty:
                pass
            late = [one for one in late if not self._has_ended(one)]

    def _has_ended(self, job: CopyJob) -> bool:
        """Tell whether nothing is written for it any more; its result is then told."""
        if job.ended is not None and not job.ended():
            return False
        assert job.answer is not None
        self._results.append((job, job.answer))
        self._wake()
        return True
