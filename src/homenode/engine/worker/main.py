"""A worker as a process of its own: `python -m homenode.engine.worker.main FD PARENT NAME [DEVICE]`.

DEVICE, an accelerator, is there for others to read: `homenode run` tells by it which rank this is. FD is one end of a
socket pair; what is said on it is in `channels.messages`. Two threads: one reads, and answers questions whatever the
other one computes. The process does not outlive the thread that started it
(`child_process.die_with_parent`), and ends by itself when the stream does. It ignores SIGINT and SIGTERM: when to end
is the engine's decision.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from homenode.compute.kv_memory import KvLayout
from homenode.engine.binding import EngineBinding
from homenode.engine.channels.base import OpenChannels, WorkerChannels
from homenode.engine.channels.messages import (
    Alive,
    Attach,
    Detach,
    Forget,
    GrammarPrepared,
    Join,
    Laid,
    Lay,
    Leave,
    LivenessProbe,
    MoveThreads,
    Pages,
    PartLoading,
    PrepareGrammar,
    RunStep,
    ToWorker,
    WorkerFailed,
    WorkerStepDone,
    WorkerStepFailed,
    shared_memories,
)
from homenode.engine.child_process import LoadingProgress, call_itself, die_with_parent, in_words, show_crashes
from homenode.errors import HomenodeError, HostError, PeerError
from homenode.host.process_limits import on_large_stack
from homenode.host.refusals import start_thread
from homenode.logs.setup import begin_service_log, end_log
from homenode.net.message_frames import FrameSocket, StreamClosedError, decode_body
from homenode.net.streams import drain

if TYPE_CHECKING:
    from homenode.engine.worker.worker import PartWorker

_log = logging.getLogger(__name__)
_MOST_DESCRIPTORS = 16  # with one frame
# A request's own fault, the machine's for a moment, or another worker's.
_EXPECTED = (MemoryError, ValueError, PeerError)

MakeWorker = Callable[[Join], "PartWorker"]
OpenFor = Callable[[Join], OpenChannels]


def main(
    arguments: list[str],
    make: MakeWorker | None = None,
    open_for: OpenFor | None = None,
    place: Callable[[Join], Join] | None = None,
) -> int:
    """Be a worker, made by `make`, with channels opened by what `open_for` gives, until the engine leaves. `place`:
    what the engine said as it is on this host. Returns the exit code.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    show_crashes()
    descriptor, parent, name = int(arguments[0]), int(arguments[1]), "".join(arguments[2:3])
    begin_service_log(name)
    call_itself(name)
    engine = FrameSocket(socket.socket(fileno=descriptor), descriptors=_MOST_DESCRIPTORS)
    try:
        die_with_parent(parent)
        first = engine.receive()
        if first is None:
            return 0
        join = decode_body(first, Join)
        join = _with_roles(join if place is None else place(join))
        on_large_stack(_Post(engine, join, make or _make, (open_for or _open_for)(join)).run)
    except StreamClosedError:
        return 0  # the engine has left: the thread that reads hears of that at the same moment, or a little later
    except BaseException as error:
        if not isinstance(error, HomenodeError):
            _log.exception("the worker failed")
        with suppress(HomenodeError):  # nobody listens any more
            engine.send(WorkerFailed(*in_words(error)))
        return 1
    return 0


def _with_roles(join: Join) -> Join:
    """Begin what needs a process of one thread."""
    if join.binding.roles is None:
        return join
    from homenode.engine.worker.driver_roles import begin_roles  # only workers on NPUs need it

    return begin_roles(join)


def _make(join: Join) -> PartWorker:
    from homenode.engine.worker.worker import PartWorker

    return PartWorker(join)


def _open_for(join: Join) -> OpenChannels:
    from homenode.engine.channels.shared import open_shared  # maps memory by the native core

    return open_shared(join)


class _Post:
    """Between the engine and the worker: what comes is read at once, and done in its order."""

    def __init__(self, engine: FrameSocket, join: Join, make: MakeWorker, open_channels: OpenChannels) -> None:
        self._engine, self._join, self._open = engine, join, open_channels
        # To be opened when the worker is where it belongs.
        self._given = (join.channels, engine.descriptors(shared_memories(join.channels)))
        self._experts = engine.descriptors(1)[0] if join.experts else None
        self._laid = False
        self._kv: KvLayout | None = None
        self._links = WorkerChannels()
        self._links_lock = threading.Lock()
        self._worker = make(join)
        self._todo: SimpleQueue[tuple[int, ToWorker, list[int]]] = SimpleQueue()
        self._forgets = 0  # that came; what was said before the last is not done any more
        self._now: tuple[int, float] | None = None  # the step being computed, and since when

    def run(self) -> NoReturn:
        """Load, and work until told to leave; does not return."""
        start_thread(threading.Thread(target=self._read, name="homenode-engine", daemon=True))
        progress = LoadingProgress(lambda done, total: self._engine.send(PartLoading(done, total)))
        self._engine.send(self._worker.load(progress, self._experts))
        failed = False  # a step was; what follows is lost until the engine says that it knows
        while True:
            epoch, message, descriptors = self._todo.get()
            match message:
                case Lay(num_blocks, share, grows, state_slots):
                    memory = None if share is None else (descriptors[0], share)
                    self._kv = self._worker.lay(num_blocks, memory, grows, state_slots)
                    _close_all(descriptors)
                    self._laid = True
                    self._engine.send(self._prepared(epoch))
                case Attach(first, layout):
                    self._worker.attach(descriptors[0], first, layout)
                    _close_all(descriptors)
                case Detach(first):
                    self._worker.detach(first)
                case Pages(changes):
                    self._worker.change_pages(changes)
                case MoveThreads(place):
                    self._move(place)
                case Forget(_, channels):
                    failed = False
                    _close_all(self._given[1])
                    self._given = (channels, descriptors)
                    self._engine.send(self._prepared(epoch))
                case RunStep() if not failed and epoch == self._forgets:
                    answer = self._answer(message)
                    failed = isinstance(answer, WorkerStepFailed)
                    self._engine.send(answer)
                case Leave():
                    with suppress(HomenodeError):  # nobody listens any more
                        self._engine.send(Alive(-1, compute=self._worker.statistics()))
                    _leave(0)

    def _move(self, place: EngineBinding) -> None:
        try:
            self._worker.move(place)
        except (HomenodeError, OSError, MemoryError) as error:
            _log.warning("compute threads stay where they are, as they could not be moved: %s", error)

    def _answer(self, work: RunStep) -> WorkerStepDone | WorkerStepFailed:
        self._now = (work.step.number, time.monotonic())
        try:
            return self._worker.compute(work)
        except Exception as error:  # whatever a step can raise must end its requests, not the worker
            if not isinstance(error, _EXPECTED):
                _log.exception("step %d of %d tokens failed", work.step.number, work.step.num_tokens)
            return _failure(work, error)
        finally:
            self._now = None

    def _prepared(self, epoch: int) -> Laid:
        """Ready with the channels that were given last, unless there is no memory yet, or others are on their way
        already.
        """
        if self._laid and epoch == self._forgets:
            channels, descriptors = self._given
            with self._links_lock:
                self._links.leave()
                self._links.close()
                self._links = WorkerChannels()
                self._given = (channels, [])
                self._links = self._open(channels, descriptors)
            self._worker.prepare(self._links)
        return Laid(self._worker.statistics(), self._kv)

    # The thread that reads

    def _read(self) -> None:
        """The end of the stream ends the process at once, in whatever it is doing."""
        try:
            while (body := self._engine.receive()) is not None:
                self._sort(decode_body(body, ToWorker))
        except PeerError as error:
            _log.error("%s", error.message)
            _leave(1)
        except Exception:  # without this thread nothing more would be heard of the worker
            _log.exception("reading from the engine failed")
            _leave(1)
        _leave(0)

    def _sort(self, message: ToWorker) -> None:
        descriptors: list[int] = []
        if isinstance(message, PrepareGrammar):
            self._prepare_grammar(message)
            return
        if isinstance(message, LivenessProbe):
            number, since = self._now or (-1, time.monotonic())
            self._engine.send(Alive(message.number, number, time.monotonic() - since, self._worker.statistics()))
            return
        if isinstance(message, Attach) or (isinstance(message, Lay) and message.share is not None):
            descriptors = self._engine.descriptors(1)
        if isinstance(message, Forget):
            descriptors = self._engine.descriptors(shared_memories(message.channels))
            self._forgets += 1
            with self._links_lock:
                self._links.leave()  # nobody comes any more: a step that waits is over
        self._todo.put((self._forgets, message, descriptors))

    def _prepare_grammar(self, message: PrepareGrammar) -> None:
        def answer() -> None:
            with suppress(PeerError):  # nobody listens any more
                self._engine.send(GrammarPrepared(message.number))

        made = self._worker.prepare_grammar(message.grammar)
        if made is None:
            answer()
        else:
            made.add_done_callback(lambda _: answer())


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _failure(work: RunStep, error: Exception) -> WorkerStepFailed:
    from homenode.engine.errors import step_error

    told = step_error(work.step, error)
    kind = PeerError.__name__ if isinstance(error, PeerError) else told.kind
    return WorkerStepFailed(work.step.number, kind, told.message, isinstance(error, HostError))


def _leave(code: int) -> NoReturn:
    """Exit without waiting for any thread, or tidying up what the kernel takes back: the step in progress is of use to
    nobody. What was said is sent, over TLS, too.
    """
    drain()
    end_log()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
