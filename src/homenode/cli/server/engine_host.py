"""The engines of a server of several models: each a process of its own, or several, in the place that was planned for
its model, whose CPUs are claimed while it is loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from homenode.cli.models.announcement import announce_fetch
from homenode.cli.output.loading_progress import loading_progress
from homenode.cli.output.report import with_origins
from homenode.cli.several_models.models_file import read_models
from homenode.cli.several_models.models_host import beside_neighbours
from homenode.cli.several_models.models_plan import MeasuredModel, ModelsPlan, measure_model, plan_models
from homenode.engine.assignment import EngineAssignment
from homenode.engine.connection.early_start import end_engine_process, start_engine_process
from homenode.engine.connection.engine_client import AsyncEngineClient
from homenode.engine.cpu_claims import CpuClaim, open_claims
from homenode.engine.plan.several_models.assignments import assign_model
from homenode.engine.router.client import ReplicasClient
from homenode.errors import HomenodeError, PeerError
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.files_read import recorded_files
from homenode.model.identity import refuse_other_texts
from homenode.server.models.lifecycle import ModelsMemory
from homenode.server.models.media import media_works
from homenode.server.models.model_entry import PlannedModel
from homenode.server.models.model_host import PlannedModels
from homenode.server.models.served_model import ModelParts

_LOG = logging.getLogger("homenode.models")
Client = AsyncEngineClient | ReplicasClient


class EngineHost:
    """A `ModelHost` on this machine. The places that were planned first stay: whoever is read again later is planned
    beside the same neighbours.
    """

    def __init__(self, paths: Sequence[str], usual: Mapping[str, Any], budget: int | None, reserve: int | None) -> None:
        """`paths`, `usual`: as `read_models` takes them. `budget`: bytes for all models; None: what is available."""
        self._paths, self._usual, self._reserve = tuple(paths), dict(usual), reserve
        self._host = read_host(LiveSource(), accelerators=True)
        self._beside = beside_neighbours(self._host)
        self._budget, self._asked = budget, budget is not None
        self._measured: dict[str, MeasuredModel] = {}
        self._claims: dict[int, CpuClaim] = {}

    @property
    def host(self) -> Host:
        """Return this machine."""
        return self._host

    def plan(self) -> ModelsPlan:
        """Read the models, and plan their places. Raises UserError for what is wrong with their settings."""
        entries = read_models(self._paths, self._usual)
        known = self._measured
        measured = {
            entry.name: known[entry.name]
            if entry.name in known and known[entry.name].entry == entry and known[entry.name].problem is None
            else measure_model(entry, announce_fetch(entry.engine, _LOG.info))
            for entry in entries
        }
        made = plan_models(list(measured.values()), self._beside, self._budget, self._reserve)
        self._measured, self._budget = measured, made.budget  # what is available later lacks what models have taken
        return made

    def read(self) -> PlannedModels:
        """See `ModelHost.read`."""
        return planned_models(self.plan(), self._beside)

    def measure(self, planned: PlannedModel) -> PlannedModels:
        """See `ModelHost.measure`."""
        measured = measure_model(planned.entry, announce_fetch(planned.entry.engine, _LOG.info))
        known = self._measured.get(planned.name)
        if known is not None and known.entry == planned.entry:  # settings may have been read again meanwhile
            self._measured[planned.name] = measured
        made = plan_models(list(self._measured.values()), self._beside, self._budget, self._reserve)
        return planned_models(made, self._beside)

    async def start(self, planned: PlannedModel, progress: Callable[[int, int], None]) -> ModelParts:
        """See `ModelHost.start`."""
        # The process of an engine that is alone is started first: it imports while its place is settled.
        early = None if planned.config.may_be_several else start_engine_process(_process_name(planned))
        try:
            assignments = await asyncio.to_thread(self._assignments, planned)
        except BaseException:
            if early is not None:
                await asyncio.to_thread(end_engine_process, early)
            raise
        client: Client = (
            AsyncEngineClient(assignments[0], started=early) if len(assignments) == 1 else ReplicasClient(assignments)
        )
        self._claims[id(client)] = self._claim(planned)
        try:
            return await _start(planned, client, progress)
        except BaseException:
            await asyncio.shield(client.close())
            self._release(client)
            raise

    def _assignments(self, planned: PlannedModel) -> tuple[EngineAssignment, ...]:
        checkpoint = open_checkpoint(Path(str(planned.config.model.path)))
        made = assign_model(planned.config, checkpoint, self._host, planned.cpus, shared=planned.shares_cpus)
        return tuple(replace(each, name=_process_name(planned)) for each in made)

    async def end(self, planned: PlannedModel, parts: ModelParts, drain_s: float) -> None:
        """See `ModelHost.end`."""
        client = parts.client
        assert isinstance(client, AsyncEngineClient | ReplicasClient)  # started here
        try:
            if drain_s:
                await client.drain(drain_s)
            else:
                await client.close()
        finally:
            self._release(client)
            for work in parts.media.values():
                await work.close()
            close = getattr(parts.tokenizer, "close", None)
            if close is not None:
                await asyncio.to_thread(close)

    def _claim(self, planned: PlannedModel) -> CpuClaim:
        """Have others keep clear of the CPUs of a model."""
        claim = CpuClaim(f"model {planned.name}")
        with open_claims(claim) as claims:
            claims.take(claim, planned.cpus)
        for line in claims.lines:
            _LOG.warning("%s", line)
        return claim

    def _release(self, client: Client) -> None:
        if (claim := self._claims.pop(id(client), None)) is not None:
            claim.release()


def _process_name(planned: PlannedModel) -> str:
    return f"homenode-{planned.name}"


async def _start(planned: PlannedModel, client: Client, progress: Callable[[int, int], None]) -> ModelParts:
    """Start the engines and read the vocabulary at the same time. Whoever calls closes the client where this fails."""
    path = Path(str(planned.config.model.path))

    def told(write: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def update(done: int, total: int) -> None:
            progress(done, total)
            write(done, total)

        return update

    with loading_progress(lambda line: _LOG.info("%s: %s", planned.name, line)) as write:
        loading = asyncio.ensure_future(client.start(told(write)))
        try:
            await asyncio.sleep(0)  # the child is started first: it has the longer way to go
            tokenizer, texts = await asyncio.to_thread(_read_vocabulary, planned, path)
            ready = await loading
            if isinstance(client, AsyncEngineClient) and client.lost is not None:  # nobody was listening yet
                raise PeerError(f"the engine was lost while the vocabulary was read: {client.lost}")
        except BaseException:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            raise
    try:
        if ready.identity is not None:
            refuse_other_texts("the API server", str(path), ready.identity.texts, texts)
    except HomenodeError:
        with suppress(HomenodeError):
            tokenizer.close()
        raise
    notes: Any = ready.details.get("notes", ())
    for note in notes:
        _LOG.warning("%s: %s", planned.name, with_origins(note))
    served = planned.entry.served
    return ModelParts(client, tokenizer, served, media_works(path, ready, served))


def _read_vocabulary(planned: PlannedModel, path: Path) -> tuple[Any, Any]:
    with recorded_files() as read:
        tokenizer = planned.entry.text.load(path)
    return tokenizer, read.texts


def planned_models(made: ModelsPlan, host: Host) -> PlannedModels:
    """The plan in the words of the server."""
    nodes = {
        node.id: size for node in host.nodes if (size := node.memory if node.free is None else node.free) is not None
    }
    models = [_planned(each, made) for each in made.measured]
    return PlannedModels(models, ModelsMemory(made.budget, nodes if len(nodes) > 1 else {}))


def _planned(measured: MeasuredModel, made: ModelsPlan) -> PlannedModel:
    entry = measured.entry
    place, problem = made.places.get(entry.name), made.problems.get(entry.name)
    if place is None:
        return PlannedModel(entry, measured.config, problem=problem.message if problem else "it has no place")
    return PlannedModel(
        entry, measured.config, dict(place.memory), place.nodes, place.cpus, place.reason, bool(place.shared_with)
    )
