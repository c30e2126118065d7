"""An engine on two threads of this process, the loop and the computing one; for Python programs and the
command line.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.kv_transfer.checks import refuse_transfer
from homenode.engine.messages import Abort, EngineReady, EngineStats, Output, Outputs, Submit, ToFront
from homenode.engine.request import Request
from homenode.engine.runtime.build import build_engine
from homenode.engine.runtime.engine import MakeDrafter
from homenode.engine.runtime.loop import EngineCore
from homenode.errors import HomenodeError, InternalError
from homenode.host.refusals import start_thread

_log = logging.getLogger(__name__)
_PUBLISHING_ENDS_S = 2.0  # for routers to hear what was held last
_WRITING_ENDS_S = 20.0  # for what is still to be written to disk
Sink = SimpleQueue[Output]


class LocalEngine:
    """Loads a model and runs it until closed. All methods may be called from any thread."""

    def __init__(
        self,
        config: EngineConfig,
        progress: Callable[[int, int], None] | None = None,
        make_drafter: MakeDrafter | None = None,
    ) -> None:
        """Raises what `build_engine` raises, which has the arguments, too."""
        refuse_transfer(config, "an engine in this process")
        engine = build_engine(EngineAssignment(config), progress, make_drafter=make_drafter)
        self.ready: EngineReady = engine.ready
        self.statistics = EngineStats()
        self.executor = engine.executor
        self._claim, self._watch = engine.claim, engine.watch
        self._disk, self._events = engine.disk, engine.events
        self._core = EngineCore(
            engine.scheduler,
            engine.executor,
            self._take,
            disk=engine.disk,
            events=engine.events,
            headroom=engine.headroom,
            log_stats=not config.disable_log_stats,
        )
        if self._disk is not None:
            self._disk.start(self._core.give)
        if self._events is not None:
            self._events.start()
        self._sinks: dict[int, Sink] = {}
        self._lock = threading.Lock()  # around the sinks and the end
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._run, name="homenode-engine", daemon=True)
        try:
            start_thread(self._thread)
        except HomenodeError:
            self._give_back()
            raise
        if self._watch is not None:
            self._watch.start()

    def submit(self, requests: Sequence[Request], sink: Sink) -> None:
        """Start requests; all their outputs go into `sink`. InternalError when the engine has ended."""
        with self._lock:
            if self._lost is not None:
                raise InternalError(f"the engine has ended: {self._lost}")
            self._sinks.update((request.id, sink) for request in requests)
            self._core.post(Submit(list(requests)))

    def abort(self, ids: Sequence[int], reason: str = "abort") -> None:
        """End requests early; unknown and finished ones are ignored. No further output of theirs is delivered."""
        with self._lock:
            for request_id in ids:
                self._sinks.pop(request_id, None)
            self._core.post(Abort(list(ids), reason))

    def close(self) -> None:
        """End the engine and give its memory back. Calling it again does nothing."""
        self._core.stop()
        if threading.current_thread() is not self._thread:  # a finalizer may run anywhere
            self._thread.join()

    def _run(self) -> None:
        reason, kind = "it was closed", "InternalError"
        try:
            self._core.run()
        except HomenodeError as error:
            reason = error.message
            _log.error("the engine failed: %s", reason)
        except MemoryError:
            reason, kind = "memory ran out", "HostError"
            _log.error("the engine failed: %s", reason)
        except Exception as error:  # logged, and the reason every waiting request gets
            reason = f"{type(error).__name__}: {error}"
            _log.exception("the engine failed")
        finally:
            try:
                self._give_back()
            finally:  # whatever cannot be given back, who waits is told
                self._end(reason, kind)

    def _give_back(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self._events is not None:
            self._events.close(_PUBLISHING_ENDS_S)
        if self._disk is not None:
            self._disk.close(_WRITING_ENDS_S)
        self.executor.close()
        self._claim.release()

    def _take(self, message: ToFront) -> None:
        if isinstance(message, EngineStats):
            self.statistics = message
        elif isinstance(message, Outputs):
            with self._lock:
                for output in message.outputs:
                    sink = self._sinks.get(output.id)
                    if sink is not None:
                        if output.finish_reason is not None:
                            del self._sinks[output.id]
                        sink.put(output)

    def _end(self, reason: str, kind: str) -> None:
        """Tell everyone who still waits, as an error of this kind."""
        with self._lock:
            self._lost = reason
            sinks, self._sinks = self._sinks, {}
        for request_id, sink in sinks.items():
            sink.put(
                Output(
                    request_id,
                    finish_reason="error",
                    error=f"the engine has ended: {reason}",
                    error_kind=kind,
                )
            )
