"""The engine as a process of its own: `python -m homenode.engine.runtime.process FD[,DOOR][:EXPERTS] PARENT [NAME]`.

FD is one end of a socket pair. The first frame on it is the EngineAssignment; after that messages as in
engine/messages.py. Through DOOR come the streams of further fronts, if there are any (`fronts.front_mux`). EXPERTS are
memfds joined by commas, one for each worker, where several engines keep experts in common (`experts.memory_files`). The
process does not outlive its front: the kernel kills it when the thread that started it ends (prctl(2),
PR_SET_PDEATHSIG), and it ends by itself when the stream does. It ignores SIGINT and SIGTERM: when to end is the front's
decision. NAME is what one of several engines is called, in the log and by ps and top.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from homenode.engine.assignment import EngineAssignment
from homenode.engine.child_process import LoadingProgress, call_itself, die_with_parent, in_words, show_crashes
from homenode.engine.messages import EngineLoading, Fatal, FreeCpusChanged, ToEngine, ToFront
from homenode.engine.runtime.inbox import Inbox
from homenode.errors import HomenodeError, PeerError
from homenode.host.process_limits import on_large_stack
from homenode.host.refusals import start_thread
from homenode.logs.setup import begin_service_log, end_log
from homenode.net.message_frames import FrameSocket, StreamClosedError, decode_body
from homenode.start_phases import mark_phase, marked_phases

if TYPE_CHECKING:
    from homenode.engine.runtime.engine import Engine


_WRITING_ENDS_S = 20.0  # for what is still to be written to disk
_PUBLISHING_ENDS_S = 2.0  # for routers to hear what was held last
_HANDING_OVER_ENDS_S = 3.0  # for other engines to hear that what was handed over is no more
_log = logging.getLogger(__name__)

# With the memory for experts in common.
Build = Callable[[EngineAssignment, Callable[[int, int], None], Sequence[int]], "Engine"]


def main(arguments: list[str], build: Build | None = None) -> int:
    """Run an engine, made by `build`, until the front drains or leaves it. Returns the exit code."""
    mark_phase("interpreter")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    show_crashes()
    parent, name = int(arguments[1]), "".join(arguments[2:])
    streams, _, memories = arguments[0].partition(":")
    experts = [int(each) for each in memories.split(",") if each]
    for descriptor in experts:
        os.set_inheritable(descriptor, False)  # a worker is given its own
    begin_service_log(name or "engine")
    if name:
        call_itself(name)
    front, *doors = (socket.socket(fileno=int(each)) for each in streams.split(","))
    return _main(FrameSocket(front), doors, parent, build or _build, experts)


def _main(front: FrameSocket, doors: list[socket.socket], parent: int, build: Build, experts: Sequence[int]) -> int:
    try:
        die_with_parent(parent)
        _import_engine()
        mark_phase("imports")
        first = front.receive()
        if first is None:
            return 0
        mark_phase("wait for settings")
        assignment = decode_body(first, EngineAssignment)
        on_large_stack(lambda: serve(front, assignment, build, doors, experts))
    except StreamClosedError:
        return 0  # the front has left: the thread that reads hears of that at the same moment, or a little later
    except BaseException as error:
        if not isinstance(error, HomenodeError):
            _log.exception("the engine failed")
        _report(front, error)
        return 1
    return 0


def _import_engine() -> None:
    """Import what an engine is built of while the front reads its settings. What is missing is told when it is built,
    which asks for it again.
    """
    with contextlib.suppress(Exception):
        import homenode.compute.native
        import homenode.engine.runtime.build
        import homenode.engine.runtime.loop  # noqa: F401


def _build(assignment: EngineAssignment, progress: Callable[[int, int], None], experts: Sequence[int]) -> Engine:
    from homenode.engine.runtime.build import build_engine  # heavy, and errors of its import are to be told as well

    return build_engine(assignment, progress, own_process=True, experts=experts)


def serve(
    front: FrameSocket,
    assignment: EngineAssignment,
    build: Build,
    doors: Sequence[socket.socket] = (),
    experts: Sequence[int] = (),
) -> None:
    """Load, say Ready, and work until drained. `doors`: that further fronts come through. `experts`: memory for those
    in common. Raises what loading or the loop raise.
    """
    from homenode.engine.runtime.loop import EngineCore

    inbox = Inbox() if assignment.config.transfer.on else SimpleQueue[object]()
    start_thread(threading.Thread(target=_read, args=(front, inbox), name="homenode-front", daemon=True))
    send = _further_fronts(front, inbox, doors) if doors else front.send
    engine = build(assignment, LoadingProgress(lambda done, total: front.send(EngineLoading(done, total))), experts)
    try:
        agent = engine.kv_transfer.start(inbox.put) if engine.kv_transfer else None
        if isinstance(inbox, Inbox) and agent is not None:
            inbox.work_for(agent)
        if engine.disk is not None:
            engine.disk.start(inbox.put)
        if engine.events is not None:
            engine.events.start()
        mark_phase("scheduler")
        engine.ready.details["start_phases"] = marked_phases()
        front.send(engine.ready)
        core = EngineCore(
            engine.scheduler,
            engine.executor,
            send,
            inbox=inbox,
            agent=agent,
            disk=engine.disk,
            events=engine.events,
            headroom=engine.headroom,
            log_stats=not assignment.config.disable_log_stats,
            move=engine.move,
        )
        if engine.watch is not None:
            engine.watch.start(lambda cpus: core.post(FreeCpusChanged(list(cpus))))
        core.run()
    finally:
        if engine.watch is not None:
            engine.watch.stop()
        if engine.events is not None:
            engine.events.close(_PUBLISHING_ENDS_S)
        if engine.disk is not None:
            engine.disk.close(_WRITING_ENDS_S)
        if engine.kv_transfer is not None:
            engine.kv_transfer.close(_HANDING_OVER_ENDS_S)
        engine.executor.close()


def _further_fronts(
    front: FrameSocket, inbox: SimpleQueue[object] | Inbox, doors: Sequence[socket.socket]
) -> Callable[[ToFront], None]:
    """Take them, and send to whom it concerns."""
    from homenode.engine.fronts.front_mux import FrontMux

    switchboard = FrontMux(front, inbox.put)
    for door in doors:
        switchboard.open(door)
    return switchboard.send


def _read(front: FrameSocket, inbox: SimpleQueue[object] | Inbox) -> None:
    """Feed the inbox. The end of the stream ends the process at once, in whatever it is doing."""
    try:
        while (body := front.receive()) is not None:
            inbox.put(decode_body(body, ToEngine))
    except PeerError as error:
        _log.error("%s", error.message)
        _leave(1)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """Exit without waiting for any thread: the step in progress is of use to nobody."""
    end_log()
    os._exit(code)


def _report(front: FrameSocket, error: BaseException) -> None:
    try:
        front.send(Fatal(*in_words(error)))
    except HomenodeError:
        pass  # nobody listens any more


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
