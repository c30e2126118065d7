"""The models of a server of several: loads them when they are asked for and unloads them when others need their memory,
as `lifecycle` decides.

Everything here runs on one event loop; what blocks is done on threads.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.requests import Request

from homenode.errors import HomenodeError
from homenode.server.http.exchange import unless_gone
from homenode.server.http.failures import ApiError
from homenode.server.models.kept_model import KeptModel, ModelLease
from homenode.server.models.lifecycle import (
    LOOK_S,
    PATIENCE_S,
    Decided,
    Load,
    ModelsMemory,
    ModelState,
    Refuse,
    Unload,
    decide,
)
from homenode.server.models.model_entry import PlannedModel, check_names
from homenode.server.models.model_exchange import exchange_of
from homenode.server.models.model_host import ModelHost, PlannedModels
from homenode.server.models.model_names import check_key, unknown_model
from homenode.server.models.served_model import ServedModel
from homenode.server.models.text_work import TextWork
from homenode.server.monitoring.server_metrics import Metrics
from homenode.units import format_bytes, format_count

_LOG = logging.getLogger("homenode.models")
_DRAIN_S = 5.0  # for an engine without requests to end
_RETRY_S = 5.0


@dataclass(frozen=True)
class _Reload:
    """The names of models that settings changed."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


class KeptModels:
    """All models by name. Iterating gives those that are loaded."""

    changes = True  # which models there are, and what they can do

    def __init__(self, planned: PlannedModels, host: ModelHost, wait_s: float) -> None:
        """`wait_s`: how long a request waits for its model."""
        self._host, self._memory, self._wait_s = host, planned.memory, wait_s
        self._kept: dict[str, KeptModel] = {model.name: KeptModel(model, model.name) for model in planned.models}
        self._by_name: dict[str, KeptModel] = {}
        self._leaving: list[KeptModel] = []  # versions that settings name no more, and that are not gone yet
        self._held: frozenset[str] = frozenset()
        self._text_work: TextWork | None = None
        self._metrics: Metrics | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._versions = 0
        self._draining = False
        self._reloading = asyncio.Lock()
        self._name_all()

    # Life

    def begin(self, text_work: TextWork, metrics: Metrics) -> None:
        """Serve from now on. `text_work`, `metrics`: of the server."""
        self._text_work, self._metrics = text_work, metrics
        metrics.show_lives(lambda: [(kept.name, kept.life) for kept in self.kept])

    def start(self) -> None:
        """Load those that are not left to be asked for. To be called on the event loop."""
        for kept in self._kept.values():
            if not kept.planned.entry.on_demand:
                self._want(kept)
        self._look()

    def drain(self) -> None:
        """Load nothing more: who waits for a model is refused."""
        self._draining = True
        error = ApiError(503, "the server is shutting down and loads no more models", code="draining", retry_after_s=5)
        for kept in self._all:
            kept.wanted_by_itself = None
            kept.wake(error)

    async def close(self) -> None:
        """End all engines."""
        self._draining = True
        if self._looking is not None:
            self._looking.cancel()
        for task in tuple(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ends = [self._host.end(kept.planned, kept.served.parts, 0.0) for kept in self._all if kept.served is not None]
        await asyncio.gather(*ends, return_exceptions=True)

    @property
    def _all(self) -> tuple[KeptModel, ...]:
        """All versions of all models."""
        return (*self._kept.values(), *self._leaving)

    # Names

    def __iter__(self) -> Iterator[ServedModel]:
        return iter([kept.served for kept in self._kept.values() if kept.served is not None])

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def kept(self) -> Sequence[KeptModel]:
        """All that settings name, loaded or not, in their order."""
        return tuple(self._current(kept) for kept in self._kept.values())

    @property
    def memory(self) -> ModelsMemory:
        """Return the memory that they share."""
        return self._memory

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models, aliases included."""
        return tuple(self._by_name)

    def find_kept(self, name: str | None, tag: str = "") -> KeptModel:
        """The model of this name, behind which `tag` may stand, loaded or not. A request that names none means the
        first. Raises ApiError 404, and 403 for a model that its key may not use.
        """
        kept = self._first() if name is None else self._by_name.get(name) or self._by_name.get(name.removesuffix(tag))
        if kept is None:
            raise unknown_model(str(name).removesuffix(tag), self.names)
        check_key(kept.name, kept.planned.entry.names)
        return self._current(kept)

    def find(self, name: str | None, tag: str = "") -> ServedModel:
        """The loaded model of this name. Raises as `find_kept`, and ApiError 503 where it is not loaded."""
        kept = self.find_kept(name, tag)
        if kept.served is None:
            text = f"the model `{kept.name}` is not loaded; ask it something, or POST /models/load"
            raise ApiError(503, text, param="model", code="model_not_loaded", retry_after_s=1)
        return kept.served

    @property
    def first(self) -> ServedModel:
        """The model of requests that name none. Raises ApiError 503 where none is loaded."""
        return self.find(None)

    def _first(self) -> KeptModel:
        return next(iter(self._kept.values()))

    def _current(self, kept: KeptModel) -> KeptModel:
        """The version that answers: the earlier one, until the new one is loaded."""
        earlier = kept.replaces
        return earlier if earlier is not None and earlier.state is ModelState.LOADED else kept

    def _name_all(self) -> None:
        self._by_name = {name: kept for kept in self._kept.values() for name in kept.planned.entry.names}

    # Use

    async def obtain(self, request: Request, name: str | None, tag: str = "", *, stream: bool = False) -> ServedModel:
        """The model of this name, loaded for this request. `stream`: its answer is one, whose client hears that it
        waits. Raises as `find_kept`, ApiError 503 where it cannot be loaded, and ClientGone.
        """
        exchange = exchange_of(request)
        kept = self.find_kept(name, tag)
        if self._usable(kept):
            lease = kept.lease()
        elif stream:
            async with exchange.kept_alive(lambda: self._progress(name, tag)):
                lease = await unless_gone(request.receive, self._wait(name, tag))
        else:
            lease = await unless_gone(request.receive, self._wait(name, tag))
        exchange.add(lease)
        assert lease.kept.served is not None  # it is usable
        return lease.kept.served

    def _usable(self, kept: KeptModel) -> bool:
        return (
            kept.state is ModelState.LOADED
            and kept.key not in self._held
            and not (kept.leaves or kept.moves)
            and kept.served is not None
            and kept.served.lost is None
        )

    async def _wait(self, name: str | None, tag: str) -> ModelLease:
        begin = time.monotonic()
        while True:
            kept = self.find_kept(name, tag)
            if self._usable(kept):
                lease = kept.lease()
                lease.waited_s = time.monotonic() - begin
                return lease
            await self._make_ready(kept)
            try:
                given = await kept.wait(self._wait_s - (time.monotonic() - begin), self._look)
                if given is not None:
                    given.waited_s = time.monotonic() - begin
                    return given
            except TimeoutError:
                text = (
                    f"the model `{kept.name}` could not be loaded within {self._wait_s:g} s (--model-wait-timeout); "
                    f"it is {kept.state.word}"
                )
                raise ApiError(503, text, param="model", code="model_not_loaded", retry_after_s=_RETRY_S) from None

    async def _make_ready(self, kept: KeptModel) -> None:
        """Have a model whose files were not as they should be looked at again. Raises ApiError 503 where it has failed
        a moment ago, and when nothing is loaded any more.
        """
        if self._draining:
            text = "the server is shutting down and loads no more models"
            raise ApiError(503, text, code="draining", retry_after_s=_RETRY_S)
        if kept.state is ModelState.FAILED and (wait_s := kept.retry_at - time.monotonic()) > 0:
            raise _failed(kept, wait_s)
        if kept.state in (ModelState.UNLOADED, ModelState.FAILED) and not kept.looked_at:
            await self._measure(kept)
            if not kept.looked_at:
                raise _failed(kept, kept.retry_at - time.monotonic())

    async def _measure(self, kept: KeptModel) -> None:
        """Look at its files again; several who want that wait for the same look."""
        if kept.measuring is None:
            kept.measuring = asyncio.ensure_future(self._look_at_files(kept))
        await asyncio.shield(kept.measuring)

    async def _look_at_files(self, kept: KeptModel) -> None:
        try:
            try:
                planned = await asyncio.to_thread(self._host.measure, kept.planned)
            except HomenodeError as error:  # pinned models that are too large now
                self._fail_again(kept, error.message)
                return
            found = {model.name: model for model in planned.models}
            for other in self._kept.values():
                if (model := found.get(other.name)) is not None and model.entry == other.planned.entry:
                    self._place(other, model, planned)
            if (problem := kept.planned.problem) is not None:
                self._fail_again(kept, problem)
        finally:
            kept.measuring = None

    def _fail_again(self, kept: KeptModel, problem: str) -> None:
        if kept.state is ModelState.FAILED:
            kept.to(ModelState.UNLOADED)
        if kept.state is ModelState.UNLOADED:
            self._fail(kept, problem)

    def _progress(self, name: str | None, tag: str) -> str:
        with suppress(ApiError):
            kept = self.find_kept(name, tag)
            done, total = kept.progress
            if kept.state is ModelState.LOADING and 0 < done < total:
                return f"loading the model: {100 * done // total} %"
        return "waiting for the model"

    def released(self) -> None:
        """A request is answered: its model may be unloaded for another, or in time."""
        if any(kept.waiting or kept.wanted_by_itself or kept.passing for kept in self._all):
            self._look()

    def keep(self, served: ServedModel, seconds: float | None) -> None:
        """Keep a model for so long after its last use; None: as its settings say."""
        for kept in self._all:
            if kept.served is served:
                kept.keep_alive = seconds
                self._look()

    # Wishes

    async def load(self, name: str) -> KeptModel:
        """Begin to load a model, unless it is. Raises as `find_kept`, and ApiError 503 where its files cannot be
        used.
        """
        kept = self.find_kept(name)
        await self._make_ready(kept)
        if kept.state in (ModelState.UNLOADED, ModelState.FAILED):
            self._want(kept)
            self._look()
        return kept

    def unload(self, name: str) -> KeptModel:
        """Unload a model as soon as it has no requests. Raises as `find_kept`."""
        kept = self.find_kept(name)
        kept.wanted_by_itself = None
        if kept.state in (ModelState.LOADED, ModelState.LOADING):
            kept.leaves = True
        elif kept.state is ModelState.FAILED:
            kept.to(ModelState.UNLOADED)
        self._look()
        return kept

    async def reload(self) -> _Reload:
        """Read the settings again: new models appear, those that are gone are unloaded when they have no requests, and
        of a changed one the new version takes the place of the old one. Raises UserError for what is wrong; then
        nothing changes.
        """
        async with self._reloading:
            planned = await asyncio.to_thread(self._host.read)
            check_names([model.entry for model in planned.models])
            return self._change(planned)

    def _change(self, planned: PlannedModels) -> _Reload:
        told, before = _Reload(), self._kept
        self._memory, self._kept = planned.memory, {}
        for model in planned.models:
            kept = before.pop(model.name, None)
            if kept is None:
                told.added.append(model.name)
                kept = KeptModel(model, model.name)
                if not model.entry.on_demand:
                    self._want(kept)
            elif kept.planned.entry != model.entry:
                told.changed.append(model.name)
                kept = self._next_version(kept, model)
            else:
                self._place(kept, model, planned)
                if kept.replaces is not None and kept.state is ModelState.FAILED:  # perhaps it is mended
                    kept.retry_at = 0.0
                    self._want(kept)
            self._kept[model.name] = kept
        for kept in before.values():
            told.gone.append(kept.name)
            if (earlier := kept.replaces) is not None:  # which had gone on until this one would be loaded
                kept.replaces = None
                self._let_go(earlier)
            self._let_go(kept)
        self._name_all()
        _LOG.info("%s", _told(told))
        self._look()
        return told

    def _place(self, kept: KeptModel, model: PlannedModel, planned: PlannedModels) -> None:
        """Take in where a model is to be, which may be elsewhere now that others have come or gone."""
        if kept.state in (ModelState.UNLOADED, ModelState.FAILED):
            kept.measured(model)
        else:
            kept.next_place = model if model != kept.planned else None
            kept.move_out_of(planned.models)

    def _next_version(self, kept: KeptModel, model: PlannedModel) -> KeptModel:
        """The model by its new settings, which is loaded if the earlier version is."""
        self._versions += 1
        earlier = kept
        if kept.replaces is not None and kept.state is not ModelState.LOADED:
            earlier, kept.replaces = kept.replaces, None  # the version between was never in use, nor takes its place
            self._let_go(kept)
        new = KeptModel(model, f"{model.name} (version {self._versions})")
        new.loads, new.unloads, new.failures = kept.loads, kept.unloads, kept.failures
        if earlier.state in (ModelState.LOADED, ModelState.LOADING) or earlier.waiting:
            self._want(new)
        if earlier.state is ModelState.LOADED:
            new.replaces = earlier
            if earlier not in self._leaving:
                self._leaving.append(earlier)
        else:
            self._let_go(earlier)
        earlier.wake()
        return new

    def _let_go(self, kept: KeptModel) -> None:
        """Settings name it no more."""
        kept.removed = kept.leaves = True
        kept.wanted_by_itself = None
        kept.wake()
        if kept.state in (ModelState.UNLOADED, ModelState.FAILED):
            if kept in self._leaving:
                self._leaving.remove(kept)
        elif kept not in self._leaving:
            self._leaving.append(kept)

    # Decisions

    def _want(self, kept: KeptModel) -> None:
        """Have it loaded although nobody asks for it now."""
        kept.wanted_by_itself = time.monotonic()
        kept.leaves = False

    def _look(self) -> None:
        """Decide, and do it."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._draining:
            return
        made = self._decided()
        freed, self._held = self._held - made.held, made.held
        by_key = {kept.key: kept for kept in self._all}
        for decision in made.decisions:
            kept = by_key[decision.key]
            match decision:
                case Load():
                    kept.to(ModelState.LOADING)
                    self._begin(kept, self._load(kept))
                case Unload(because=because):
                    kept.to(ModelState.UNLOADING)
                    self._begin(kept, self._unload(kept, because))
                case Refuse():
                    self._refuse(kept, decision, by_key)
        for key in freed:
            if key in by_key and self._usable(by_key[key]):
                by_key[key].admit()
        behind = any(kept.served is not None and kept.served.active and not kept.leases for kept in self._all)
        again = min((at for at in (made.look_again, time.monotonic() + LOOK_S if behind else None) if at), default=None)
        if again is not None:
            delay = max(0.01, again - time.monotonic())
            self._looking = asyncio.get_running_loop().call_later(delay, self._look)

    def _decided(self) -> Decided:
        situations = [kept.situation(held=kept.key in self._held) for kept in self._all]
        return decide(situations, self._memory, time.monotonic(), PATIENCE_S)

    def _begin(self, kept: KeptModel, work: Callable[[], object] | object) -> None:
        kept.work = asyncio.ensure_future(work)  # type: ignore[call-overload]  # a coroutine
        self._tasks.add(kept.work)
        kept.work.add_done_callback(self._tasks.discard)

    def _refuse(self, kept: KeptModel, refusal: Refuse, by_key: dict[str, KeptModel]) -> None:
        text = self._refusal_text(kept, refusal, by_key)
        kept.wanted_by_itself = None
        kept.reason = text
        _LOG.warning("%s", text)
        kept.wake(ApiError(503, text, param="model", code="models_memory_exceeded", retry_after_s=_RETRY_S))
        if kept.replaces is not None:
            self._keep_earlier(kept, text)

    def _refusal_text(self, kept: KeptModel, refusal: Refuse, by_key: dict[str, KeptModel]) -> str:
        if refusal.node is None:
            limit = f"all models together may take {format_bytes(self._memory.total)} (--models-memory)"
        else:
            limit = f"node {refusal.node} has {format_bytes(self._memory.nodes[refusal.node])} for models"
        holders = ", ".join(f"`{by_key[key].name}` has {format_bytes(size)}" for key, size in refusal.holders)
        beside = f"; of these {holders}, pinned" if holders else ""
        return (
            f"the model `{kept.name}` takes {format_bytes(refusal.takes)}, and {limit}{beside}: "
            f"{format_bytes(refusal.lacking)} are lacking"
        )

    # Loading and unloading

    async def _load(self, kept: KeptModel) -> None:
        begin = time.monotonic()
        kept.progress = (0, 0)
        planned = kept.planned
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
            self._let_go(earlier)

    def _fail(self, kept: KeptModel, reason: str) -> None:
        wants = kept.planned.entry.pin or not kept.planned.entry.on_demand
        delay = kept.failed(reason)
        _LOG.error("%s cannot be loaded: %s; it is tried again in %.0f s at the earliest", kept.name, reason, delay)
        if kept.replaces is not None:
            self._keep_earlier(kept, reason)
        elif wants and not kept.removed:
            self._later(delay, kept)
        kept.wake(_failed(kept, delay))
        self._drop_if_removed(kept)
        self._look()

    def _keep_earlier(self, kept: KeptModel, reason: str) -> None:
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
            if kept.removed or kept.state is not ModelState.FAILED or self._draining:
                return
            if not kept.looked_at:
                await self._measure(kept)
            if kept.looked_at and kept.state is ModelState.FAILED:
                self._want(kept)
                self._look()

        task = asyncio.ensure_future(again())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        self._drop_if_removed(kept)
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
        _LOG.info("unloading %s: %s", kept.name, "it moves to other cores" if kept.moves else because)
        try:
            await self._host.end(kept.planned, served.parts, _DRAIN_S)
        except Exception:
            _LOG.exception("the engine of %s did not end as it should", kept.name)
        kept.served = None
        kept.unloads += 1
        kept.keep_alive, kept.leaves = None, kept.removed
        self._give_back(served)
        del served
        kept.to(ModelState.UNLOADED)
        if kept.next_place is not None:
            moves = kept.moves and not kept.removed
            kept.measured(kept.next_place)
            if moves:
                self._want(kept)
        self._drop_if_removed(kept)
        kept.wake()
        self._look()

    def _give_back(self, served: ServedModel) -> None:
        if self._metrics is not None:
            self._metrics.rest_model(served.name, served.client)
        served.close()
        asyncio.get_running_loop().call_soon(_trim_memory)

    def _drop_if_removed(self, kept: KeptModel) -> None:
        if kept.removed and kept in self._leaving and not kept.state.holds_memory:
            self._leaving.remove(kept)


def _failed(kept: KeptModel, wait_s: float) -> ApiError:
    text = f"the model `{kept.name}` cannot be loaded: {kept.reason}"
    return ApiError(503, text, param="model", code="model_failed", retry_after_s=max(1.0, wait_s))


def _told(told: _Reload) -> str:
    parts = [("new", told.added), ("changed", told.changed), ("gone", told.gone)]
    found = [f"{word}: {', '.join(names)}" for word, names in parts if names]
    count = format_count(sum(len(names) for _, names in parts), "model")
    return (
        f"settings were read again: {count} differ ({'; '.join(found)})"
        if found
        else "settings were read again: no model differs"
    )


def _trim_memory() -> None:
    """Give what a model's vocabulary took back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
