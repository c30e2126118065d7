"""The thread that copies and digests KV off the agent's loop. Jobs are done in the order given, in chunks, so that a
stop is noticed soon."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from homenode.compute.kv_memory import Copier
from homenode.errors import PeerError
from homenode.host.refusals import start_thread
from homenode.transfer.carriers.carrier import Chunk, LocalBuffer, PeerBuffer, StillWritingError
from homenode.transfer.carriers.mapped import digests_of, run
from homenode.transfer.machine import Copied

_log = logging.getLogger(__name__)
CHUNK_BYTES = 4 << 20
_SHORT_TABLE = 64  # is converted sooner than cut
_LOOK_AGAIN_S = 0.05
INLINE_BYTES = 1 << 20  # so much is done sooner than a thread is woken, and what it has done is heard of
AT_ONCE_BYTES = 4 << 20  # so much is read at once where another engine waits for it: less than a millisecond


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
        """Whether so much is small enough, and nothing is before it."""
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
        """What was done since."""
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
        """Whether nothing is written for it any more; its result is then told."""
        if job.ended is not None and not job.ended():
            return False
        assert job.answer is not None
        self._results.append((job, job.answer))
        self._wake()
        return True
