"""The making of /overview: at most once in a second, whoever asks; those who ask in between share it."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from homenode import __version__
from homenode.engine.messages import EngineStats, RequestRow
from homenode.errors import PeerError
from homenode.host.plan.select import STRATEGIES
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import ServedModel
from homenode.server.monitoring.snapshots import EngineSnapshot
from homenode.server.page.machine_watch import MachineWatch
from homenode.server.page.overview_answer import EngineShown, ModelShown, NodeMemory, Overview, RequestShown
from homenode.server.page.packed_json import packed_json, packed_response
from homenode.server.page.waiting_words import waiting_words
from homenode.transfer.scheduler_events import TransferStats

_MADE_FOR_S = 1.0  # how long one is given out
_ENGINE_TIMEOUT_S = 0.5  # an engine in a long step says nothing; the page shows the rest
_MOST_ROWS = 100  # requests of each kind that are told of
ASK_AGAIN_S = 2.0
_POLLS_PER_S = 100.0  # all clients together are told to come about so often


@dataclass
class _Made:
    """One overview, and its bodies by what was left out of them."""

    overview: Overview
    at: float
    bodies: dict[tuple[bool, float], tuple[bytes, bytes]] = field(default_factory=dict)


class OverviewWork:
    """Makes overviews of one server, for all who ask."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._watch = MachineWatch(os.getppid() if state.is_one_of_several else os.getpid())
        self._made: _Made | None = None
        self._making: asyncio.Task[_Made] | None = None
        self._polls: deque[float] = deque(maxlen=4096)

    async def answer(self, request: Request) -> Response:
        """The answer to one who asks."""
        now = time.monotonic()
        self._polls.append(now)
        made = self._made
        if made is None or now - made.at > _MADE_FOR_S:
            made = await self._make()
        since = _since(request.query_params.get("since", ""))
        known = request.query_params.get("known") == made.overview.machine.fingerprint
        newest = self._state.history.newest
        key = (known, min(since, newest))
        if key not in made.bodies:
            shown = msgspec.structs.replace(
                made.overview, hour=self._state.history.since(since), host=UNSET if known else self._watch.map
            )
            made.bodies[key] = packed_json(shown)
        return packed_response(request, made.bodies[key])

    async def _make(self) -> _Made:
        """One that is new; those who ask meanwhile get the same."""
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._look())
        return await asyncio.shield(self._making)

    async def _look(self) -> _Made:
        state, at = self._state, time.monotonic()
        models, machine = await asyncio.gather(
            asyncio.gather(*map(_see_model, state.models)), asyncio.to_thread(self._watch.look)
        )
        overview = Overview(
            kind="server",
            version=__version__,
            at=round(time.time(), 3),
            started=state.started,
            ask_again_s=self._ask_again_s(at),
            models=list(models),
            machine=machine,
            strategies=[str(name) for name in STRATEGIES],
            hour=[],
        )
        self._made = _Made(overview, at)
        return self._made

    def _ask_again_s(self, now: float) -> float:
        """Return when a client is to come again: with very many of them less often."""
        while self._polls and now - self._polls[0] > 2 * ASK_AGAIN_S:
            self._polls.popleft()
        per_second = len(self._polls) / (2 * ASK_AGAIN_S)
        return round(ASK_AGAIN_S * min(10.0, max(1.0, per_second / _POLLS_PER_S)), 1)


async def _see_model(model: ServedModel) -> ModelShown:
    ready, now = model.ready, model.client.statistics
    rows, left_out = await _requests(model)
    why = model.lost or model.client.hindrance or ""
    return ModelShown(
        name=model.name,
        names=list(model.names),
        state="lost" if model.lost else "hindered" if why else "ok",
        why=why,
        generates=ready.pooling is None,
        max_model_len=ready.max_model_len,
        max_num_seqs=ready.max_num_seqs,
        blocks=ready.num_blocks,
        block_size=ready.block_size,
        details=_details(ready.details, now.compute),
        gauges={"running": now.num_running, "waiting": now.num_waiting, "kv_usage": round(now.kv_usage, 4)},
        counters=_counters(now),
        waiting_for={str(reason): count for reason, count in now.waiting_for.items()},
        memory=_memory(now.compute),
        lost_cpu=_lost_cpu(now.compute),
        barrier_wait=EngineSnapshot(now).barrier_wait,
        stages=_stages(now.compute),
        transfer=_transfer(now.transfer),
        engines=[EngineShown(each.number, each.node, each.state, each.restarts) for each in model.client.engines],
        requests=[_seen(row, model) for row in rows],
        left_out=left_out,
        sampling_defaults=dict(model.sampling_defaults),
    )


async def _requests(model: ServedModel) -> tuple[Sequence[RequestRow], int]:
    """The requests that its engines tell of; none where they do not answer now."""
    if model.lost is not None:
        return (), 0
    try:
        told = await model.client.list_requests(_MOST_ROWS, _ENGINE_TIMEOUT_S)
    except PeerError:
        return (), 0
    return told.rows, told.left_out


def _seen(row: RequestRow, model: ServedModel) -> RequestShown:
    return RequestShown(
        id=str(row.id),
        state="running" if row.waits_for is None else "waiting",
        why="" if row.waits_for is None else waiting_words(row.waits_for, model.ready),
        prompt=row.prompt,
        computed=row.computed,
        generated=row.generated,
        cached=row.cached,
        age_s=row.age_s,
        preemptions=row.preemptions,
    )


_TOLD = ("architecture", "weight_bytes", "kv_bytes", "kv_dtype", "kv_grows", "numa", "cpus", "cpu_sets", "neighbours")


def _details(ready: Mapping[str, Any], compute: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of the start, and of the backend, that are worth a line."""
    found = {name: ready[name] for name in _TOLD if ready.get(name)}
    return found | {name: compute[name] for name in ("backend", "level", "threads") if compute.get(name) is not None}


def _counters(now: EngineStats) -> dict[str, float]:
    names = (
        "prefix_queries", "prefix_hits", "preemptions", "prompt_tokens", "generation_tokens", "drafted_tokens",
        "accepted_tokens", "handed_tokens", "steps",
    )  # fmt: skip
    return {name: getattr(now, name) for name in names}


def _memory(compute: Mapping[str, Any]) -> list[NodeMemory]:
    seen = compute.get("residency")
    return [
        NodeMemory(use, line["node"], line["present"], line["local"])
        for use, lines in (seen.items() if isinstance(seen, dict) else ())
        for line in lines or ()
    ]


def _lost_cpu(compute: Mapping[str, Any]) -> dict[int, float]:
    cpus, shares = compute.get("cpus"), compute.get("lost_cpu_shares")
    if not isinstance(cpus, list) or not isinstance(shares, list):
        return {}
    return {cpu: share for cpu, share in zip(cpus, shares, strict=False) if cpu >= 0}


def _stages(compute: Mapping[str, Any]) -> list[dict[str, Any]]:
    stages = compute.get("stages")
    return stages if isinstance(stages, list) else []


def _transfer(now: TransferStats | None) -> dict[str, int] | None:
    if now is None:
        return None
    failed = sum(now.failed.values())
    return {"bytes": now.bytes, "completed": now.completed, "failed": failed, "waiting": now.waiting}


def _since(text: str) -> float:
    """Raises ApiError 400 for what is no time."""
    if not text:
        return 0.0
    try:
        if (found := float(text)) >= 0:
            return found
    except ValueError:
        pass
    raise ApiError(400, f"`since` is {text[:40]!r}, wanted Unix seconds", param="since", code="invalid_value")
