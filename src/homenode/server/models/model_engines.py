"""The engines of a server of several models: each is started and ended here, and begun again where it fails. On one
event loop; what blocks is done on threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import gc
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress

from homenode.errors import HomenodeError
from homenode.server.http.failures import ApiError
from homenode.server.models.kept_model import KeptModel
from homenode.server.models.lifecycle import ModelState
from homenode.server.models.model_host import ModelHost
from homenode.server.models.model_versions import ModelVersions
from homenode.server.models.served_model import ServedModel
from homenode.server.models.text_work import TextWork
from homenode.server.monitoring.server_metrics import Metrics
from homenode.units import format_bytes

_LOG = logging.getLogger("homenode.models")
_DRAIN_S = 5.0  # for an engine without requests to end


class ModelEngines:
    """Loads and unloads models when `kept_models` has decided so. `look`: has it decide again."""

    def __init__(self, versions: ModelVersions, host: ModelHost, look: Callable[[], None]) -> None:
        self._versions, self._host, self._look = versions, host, look
        self._text_work: TextWork | None = None
        self._metrics: Metrics | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def begin(self, text_work: TextWork, metrics: Metrics) -> None:
        """Have what served models are made with. `text_work`, `metrics`: of the server."""
        self._text_work, self._metrics = text_work, metrics

    def drain(self) -> None:
        """Begin nothing again."""
        self._closing = True

    async def close(self) -> None:
        """End all engines."""
        self._closing = True
        for task in tuple(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ends = [
            self._host.end(kept.planned, kept.served.parts, 0.0) for kept in self._versions if kept.served is not None
        ]
        await asyncio.gather(*ends, return_exceptions=True)

    def load(self, kept: KeptModel, lent: frozenset[int] = frozenset()) -> None:
        """Begin to load it. `lent`: CPUs that it is to have beside its own."""
        kept.lent = lent
        kept.to(ModelState.LOADING)
        self._begin(kept, self._load(kept))

    def unload(self, kept: KeptModel, because: str, *, again: bool = False) -> None:
        """Begin to unload it. `because`: in words. `again`: it is loaded again at once."""
        kept.to(ModelState.UNLOADING)
        kept.loads_again = again
        self._begin(kept, self._unload(kept, because))

    def _begin(self, kept: KeptModel, work: Coroutine[object, object, None]) -> None:
        kept.work = _task(work)
        self._tasks.add(kept.work)
        kept.work.add_done_callback(self._tasks.discard)

    # Files

    async def measure(self, kept: KeptModel) -> None:
        """Look at its files again; several who want that wait for the same look."""
        if kept.measuring is None:
            kept.measuring = _task(self._look_at_files(kept))
        await asyncio.shield(kept.measuring)

    async def _look_at_files(self, kept: KeptModel) -> None:
        try:
            try:
                planned = await asyncio.to_thread(self._host.measure, kept.planned)
            except HomenodeError as error:  # pinned models that are too large now
                self._fail_again(kept, error.message)
                return
            self._versions.take(planned)
            if (problem := kept.planned.problem) is not None:
                self._fail_again(kept, problem)
        finally:
            kept.measuring = None

    def _fail_again(self, kept: KeptModel, problem: str) -> None:
        if kept.state is ModelState.FAILED:
            kept.to(ModelState.UNLOADED)
        if kept.state is ModelState.UNLOADED:
            self._fail(kept, problem)

    # Loading

    async def _load(self, kept: KeptModel) -> None:
        begin = time.monotonic()
        kept.progress = (0, 0)
        planned = kept.place
        nodes = ", ".join(map(str, planned.nodes))
        _LOG.info("loading %s: %s on node %s; %s", kept.name, format_bytes(planned.total), nodes, planned.reason)

        def progress(done: int, total: int) -> None:
            kept.progress = (done, total)

        try:
            parts = await self._host.start(planned, progress)
        except (HomenodeError, OSError) as error:
            self._fail(kept, error.message if isinstance(error, HomenodeError) else str(error))
            return
        except asyncio.CancelledError:
            raise
        except Exception:
            _LOG.exception("loading %s failed", kept.name)
            self._fail(kept, "an internal error, which the server's log tells")
            return
        assert self._text_work is not None and self._metrics is not None  # `begin` was called
        served = ServedModel(parts, self._text_work, self._metrics)
        kept.loaded(served, time.monotonic() - begin)
        parts.client.on_engine_lost = lambda reason: self._lost(kept, served, reason)
        _LOG.info("loaded %s in %.1f s", kept.name, kept.load_seconds)
        self._take_place(kept)
        kept.admit()
        self._look()

    def _take_place(self, kept: KeptModel) -> None:
        """From now on it answers in place of an earlier version."""
        if (earlier := kept.replaces) is not None:
            kept.replaces = None
            self._versions.let_go(earlier)

    def _fail(self, kept: KeptModel, reason: str) -> None:
        wants = kept.planned.entry.pin or not kept.planned.entry.on_demand
        delay = kept.failed(reason)
        _LOG.error("%s cannot be loaded: %s; it is tried again in %.0f s at the earliest", kept.name, reason, delay)
        if kept.replaces is not None:
            self.keep_earlier(kept, reason)
        elif wants and not kept.removed:
            self._later(delay, kept)
        kept.wake(failed_error(kept, delay))
        self._versions.drop_if_gone(kept)
        self._look()

    def keep_earlier(self, kept: KeptModel, reason: str) -> None:
        """The new version of a model cannot be loaded: the earlier one goes on, if it is still there."""
        earlier = kept.replaces
        if earlier is not None and earlier.state is ModelState.LOADED:
            _LOG.error(
                "%s goes on as it was before its settings changed, as the new version fails: %s", kept.name, reason
            )

    def _later(self, delay: float, kept: KeptModel) -> None:
        """Try again by itself."""

        async def again() -> None:
            await asyncio.sleep(delay)
            if kept.removed or kept.state is not ModelState.FAILED or self._closing:
                return
            if not kept.looked_at:
                await self.measure(kept)
            if kept.looked_at and kept.state is ModelState.FAILED:
                kept.want()
                self._look()

        task = _task(again())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Unloading

    def _lost(self, kept: KeptModel, served: ServedModel, reason: str) -> None:
        """Its engine has died: its requests are answered by the client; the others go on."""
        served.lost = served.lost or reason
        if kept.served is not served or kept.state is not ModelState.LOADED:
            return
        delay = kept.failed(f"its engine is gone: {reason}")
        _LOG.error("the engine of %s is gone: %s; it is started again in %.0f s", kept.name, reason, delay)
        self._begin(kept, self._clear(kept, served))
        if not kept.removed:
            self._later(delay, kept)
        self._versions.drop_if_gone(kept)
        kept.wake()
        self._look()

    async def _clear(self, kept: KeptModel, served: ServedModel) -> None:
        """Give back what a lost engine leaves."""
        with suppress(HomenodeError, OSError):
            await self._host.end(kept.planned, served.parts, 0.0)
        self._give_back(served)

    async def _unload(self, kept: KeptModel, because: str) -> None:
        served = kept.served
        assert served is not None  # it was loaded
        _LOG.info("unloading %s: %s", kept.name, because)
        try:
            await self._host.end(kept.planned, served.parts, _DRAIN_S)
        except Exception:
            _LOG.exception("the engine of %s did not end as it should", kept.name)
        kept.served, kept.lent = None, frozenset()
        again = kept.loads_again = kept.loads_again and not (kept.leaves or kept.removed)
        kept.unloads += not again
        if not again:
            kept.keep_alive, kept.leaves = None, kept.removed
        self._give_back(served)
        del served
        kept.to(ModelState.UNLOADED)
        if kept.next_place is not None:
            kept.measured(kept.next_place)
        if again:
            kept.want()
        self._versions.drop_if_gone(kept)
        kept.wake()
        self._look()

    def _give_back(self, served: ServedModel) -> None:
        if self._metrics is not None:
            self._metrics.rest_model(served.name, served.client)
        served.close()
        asyncio.get_running_loop().call_soon(_trim_memory)


def failed_error(kept: KeptModel, wait_s: float) -> ApiError:
    """Return the answer of a model that cannot be loaded. `wait_s`: until the next try."""
    text = f"the model `{kept.name}` cannot be loaded: {kept.reason}"
    return ApiError(503, text, param="model", code="model_failed", retry_after_s=max(1.0, wait_s))


def _task(work: Coroutine[object, object, None]) -> asyncio.Task[None]:
    """Begin what outlives the request that is handled now: what it logs is not of that request."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


def _trim_memory() -> None:
    """Give what a model's vocabulary took back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
