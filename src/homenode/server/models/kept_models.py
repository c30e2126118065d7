"""The models of a server of several: loads them when they are asked for and unloads them when others need their memory,
as `lifecycle` decides.

Everything here runs on one event loop; what blocks is done on threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from starlette.requests import Request

from homenode.server.http.exchange import unless_gone
from homenode.server.http.failures import ApiError
from homenode.server.models.kept_model import KeptModel, ModelLease
from homenode.server.models.lent_cores import CoreOwner, lent_cpus
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
from homenode.server.models.model_engines import ModelEngines, failed_error
from homenode.server.models.model_entry import check_endpoints, check_names
from homenode.server.models.model_exchange import exchange_of
from homenode.server.models.model_host import ModelHost, PlannedModels
from homenode.server.models.model_versions import ModelChanges, ModelVersions
from homenode.server.models.served_model import AskedModel, ServedModel
from homenode.server.models.text_work import TextWork
from homenode.server.monitoring.server_metrics import Metrics
from homenode.units import format_bytes

_LOG = logging.getLogger("homenode.models")
_RETRY_S = 5.0
_SETTLE_S = 5.0  # between looks whether one that is to have other cores is idle
_NEVER = float("inf")


class KeptModels:
    """All models by name. Iterating gives those that are loaded."""

    changes = True  # which models there are, and what they can do

    def __init__(self, planned: PlannedModels, host: ModelHost, wait_s: float, lend_after_s: float = _NEVER) -> None:
        """`wait_s`: how long a request waits for its model. `lend_after_s`: how long nobody has asked for a model that
        lends its cores.
        """
        self._host, self._wait_s, self._lend_after_s = host, wait_s, lend_after_s
        self._versions = ModelVersions(planned)
        self._engines = ModelEngines(self._versions, host, self._look)
        self._held: frozenset[str] = frozenset()
        self._staying: frozenset[str] = frozenset()
        self._looking: asyncio.TimerHandle | None = None
        self._draining = False
        self._reloading = asyncio.Lock()

    # Life

    def begin(self, text_work: TextWork, metrics: Metrics) -> None:
        """Serve from now on. `text_work`, `metrics`: of the server."""
        self._engines.begin(text_work, metrics)
        metrics.show_lives(lambda: [(kept.name, kept.life) for kept in self.kept])

    def start(self) -> None:
        """Load those that are not left to be asked for. To be called on the event loop."""
        for kept in self._versions.named:
            if not kept.planned.entry.on_demand:
                kept.want()
        self._look()

    def drain(self) -> None:
        """Load nothing more: who waits for a model is refused."""
        self._draining = True
        self._engines.drain()
        error = ApiError(503, "the server is shutting down and loads no more models", code="draining", retry_after_s=5)
        for kept in self._versions:
            kept.wanted_by_itself = None
            kept.wake(error)

    async def close(self) -> None:
        """End all engines."""
        self._draining = True
        if self._looking is not None:
            self._looking.cancel()
        await self._engines.close()

    # Names

    def __iter__(self) -> Iterator[ServedModel]:
        return iter([kept.served for kept in self._versions.named if kept.served is not None])

    def __len__(self) -> int:
        return len(self._versions)

    def __contains__(self, name: object) -> bool:
        return name in self._versions

    @property
    def kept(self) -> Sequence[KeptModel]:
        """All that settings name, loaded or not, in their order."""
        return self._versions.answering

    @property
    def memory(self) -> ModelsMemory:
        """Return the memory that they share."""
        return self._versions.memory

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models, aliases included."""
        return self._versions.names

    def find_kept(self, name: str | None, tag: str = "") -> KeptModel:
        """The model of this name, loaded or not. Raises as `ModelVersions.find`."""
        return self._versions.find(name, tag)

    def find(self, name: str | None, tag: str = "") -> AskedModel:
        """The loaded model of this name. Raises as `find_kept`, and ApiError 503 where it is not loaded."""
        kept = self.find_kept(name, tag)
        if kept.served is None:
            text = f"the model `{kept.name}` is not loaded; ask it something, or POST /models/load"
            raise ApiError(503, text, param="model", code="model_not_loaded", retry_after_s=1)
        return AskedModel.by(kept.served, name, tag)

    @property
    def first(self) -> ServedModel:
        """The model of requests that name none. Raises ApiError 503 where none is loaded."""
        return self.find(None).model

    # Use

    async def obtain(self, request: Request, name: str | None, tag: str = "", *, stream: bool = False) -> AskedModel:
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
        return AskedModel.by(lease.kept.served, name, tag)

    def _usable(self, kept: KeptModel) -> bool:
        return (
            kept.state is ModelState.LOADED
            and kept.key not in self._held
            and not kept.leaves
            and (not kept.moves or kept.key in self._staying)
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
            raise failed_error(kept, wait_s)
        if kept.state in (ModelState.UNLOADED, ModelState.FAILED) and not kept.looked_at:
            await self._engines.measure(kept)
            if not kept.looked_at:
                raise failed_error(kept, kept.retry_at - time.monotonic())

    def _progress(self, name: str | None, tag: str) -> str:
        with suppress(ApiError):
            kept = self.find_kept(name, tag)
            done, total = kept.progress
            if kept.state is ModelState.LOADING and 0 < done < total:
                return f"loading the model: {100 * done // total} %"
        return "waiting for the model"

    def released(self) -> None:
        """A request is answered: its model may be unloaded for another, or in time."""
        if any(kept.waiting or kept.wanted_by_itself or kept.passing for kept in self._versions):
            self._look()

    def keep(self, served: ServedModel, seconds: float | None) -> None:
        """Keep a model for so long after its last use; None: as its settings say."""
        for kept in self._versions:
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
            kept.want()
            self._look()
        return kept

    def unload(self, name: str) -> KeptModel:
        """Unload a model as soon as it has no requests. Raises as `find_kept`."""
        kept = self.find_kept(name)
        kept.wanted_by_itself = None
        kept.loads_again = kept.moves = False
        if kept.state in (ModelState.LOADED, ModelState.LOADING):
            kept.leaves = True
        elif kept.state is ModelState.FAILED:
            kept.to(ModelState.UNLOADED)
        self._look()
        return kept

    async def reload(self) -> ModelChanges:
        """Read the settings again: new models appear, those that are gone are unloaded when they have no requests, and
        of a changed one the new version takes the place of the old one. Raises UserError for what is wrong; then
        nothing changes.
        """
        async with self._reloading:
            planned = await asyncio.to_thread(self._host.read)
            check_names([model.entry for model in planned.models])
            check_endpoints([model.entry for model in planned.models])
            changes = self._versions.change(planned)
            self._look()
            return changes

    # Decisions

    def _look(self) -> None:
        """Decide, and do it."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._draining:
            return
        owners = [kept.owner(self._lend_after_s) for kept in self._versions]
        lent = lent_cpus(owners, time.monotonic())
        made = self._decided(lent)
        self._held, self._staying = made.held, made.staying
        by_key = {kept.key: kept for kept in self._versions}
        for decision in made.decisions:
            kept = by_key[decision.key]
            match decision:
                case Load():
                    self._engines.load(kept, lent.get(kept.key, frozenset()))
                case Unload(because=because, again=at_once):
                    self._engines.unload(kept, because, again=at_once)
                case Refuse():
                    self._refuse(kept, decision, by_key)
        for kept in self._versions:
            if kept.waiting and self._usable(kept):
                kept.admit()
        behind = any(kept.served is not None and kept.served.active and not kept.leases for kept in self._versions)
        looks = (made.look_again, time.monotonic() + LOOK_S if behind else None, self._settles_next(owners, lent))
        if (again := min((at for at in looks if at), default=None)) is not None:
            delay = max(0.01, again - time.monotonic())
            unmarked = contextvars.Context()  # what it logs is not of the request that is handled now
            self._looking = asyncio.get_running_loop().call_later(delay, self._look, context=unmarked)

    def _settles_next(self, owners: Sequence[CoreOwner], lent: Mapping[str, frozenset[int]]) -> float | None:
        """The time when cores can be lent otherwise than they are, as far as that is known."""
        now = time.monotonic()
        loaded = [kept for kept in self._versions if kept.state is ModelState.LOADED]
        times = [max(kept.settles_from, now + _SETTLE_S) for kept in loaded if lent.get(kept.key) != kept.lent]
        times += [each.lends_from for each in owners if each.node is not None and now < each.lends_from < _NEVER]
        return min(times, default=None) if loaded else None

    def _decided(self, lent: Mapping[str, frozenset[int]]) -> Decided:
        situations = [kept.situation(held=kept.key in self._held, lent=lent.get(kept.key)) for kept in self._versions]
        return decide(situations, self._versions.memory, time.monotonic(), PATIENCE_S)

    def _refuse(self, kept: KeptModel, refusal: Refuse, by_key: Mapping[str, KeptModel]) -> None:
        text = self._refusal_text(kept, refusal, by_key)
        kept.wanted_by_itself = None
        kept.reason = text
        _LOG.warning("%s", text)
        kept.wake(ApiError(503, text, param="model", code="models_memory_exceeded", retry_after_s=_RETRY_S))
        if kept.replaces is not None:
            self._engines.keep_earlier(kept, text)

    def _refusal_text(self, kept: KeptModel, refusal: Refuse, by_key: Mapping[str, KeptModel]) -> str:
        if refusal.node is None:
            limit = f"all models together may take {format_bytes(self._versions.memory.total)} (--models-memory)"
        else:
            limit = f"node {refusal.node} has {format_bytes(self._versions.memory.nodes[refusal.node])} for models"
        holders = ", ".join(f"`{by_key[key].name}` has {format_bytes(size)}" for key, size in refusal.holders)
        beside = f"; of these {holders}, pinned" if holders else ""
        return (
            f"the model `{kept.name}` takes {format_bytes(refusal.takes)}, and {limit}{beside}: "
            f"{format_bytes(refusal.lacking)} are lacking"
        )
