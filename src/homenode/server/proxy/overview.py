"""GET /overview of the proxy: both sides with their states, and the requests under way, as the page shows them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode import __version__
from homenode.server.page.packed_json import packed_json, packed_response
from homenode.server.proxy.instances import Instance, Role, State
from homenode.server.proxy.proxied_request import PHASES
from homenode.server.proxy.state import ProxyState
from homenode.server.proxy.upstreams import UpstreamAnswerTooLong, UpstreamError

_ASK_AGAIN_S = 2.0
_MADE_FOR_S = 1.0
_SERVER_TIMEOUT_S = 0.5  # one that takes longer is shown without its own figures


class ToldByServer(Struct):
    """The figures of a server itself, its models together: requests, the share of KV blocks of the fullest, bytes of KV
    that was handed over, hand-overs that ended well and badly, and those that wait.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    handed_bytes: int = 0
    handed: int = 0
    failed: int = 0
    handing: int = 0


class ServerShown(Struct):
    """One server behind the proxy. `since_s`: how long it has been in this state. `waiting_tokens`: of prompts,
    estimated. `lives`: how often it was found anew. `told`: what it says of itself; None where it says nothing to a
    proxy without its key, or is not there.
    """

    url: str
    role: Role
    state: State
    reason: str
    since_s: float
    requests: int
    waiting_tokens: int
    breaker_open: bool
    lives: int
    engines: int
    told: ToldByServer | None = None


class ProxyOverview(Struct):
    """Answer of the proxy's /overview. `pairs`: of a prefill and a decode server that can hand over now; `obstacles`:
    why others cannot. `phases`: requests under way by phase; `ways`: those that are over, by the way their prompt was
    computed, `prefilled` by a prefill server or at the decoder.
    """

    kind: Literal["proxy"]
    version: str
    at: float
    ask_again_s: float
    servers: list[ServerShown]
    pairs: int
    obstacles: list[str]
    phases: dict[str, int]
    ways: dict[str, float]


class _ToldModel(Struct):
    """The part that is read of a model in a server's overview."""

    gauges: dict[str, float]
    transfer: dict[str, int] | None = None


class _ToldMachine(Struct):
    """The name of a server's machine."""

    fingerprint: str


class _ToldOverview(Struct):
    """The part that is read of a server's overview."""

    models: list[_ToldModel]
    machine: _ToldMachine


_DECODER = msgspec.json.Decoder(_ToldOverview)


class ProxyOverviewWork:
    """Makes overviews of one proxy; those who ask at about the same time share one."""

    def __init__(self) -> None:
        self._made: tuple[float, tuple[bytes, bytes]] | None = None
        self._making: asyncio.Task[tuple[bytes, bytes]] | None = None
        self._machines: dict[str, str] = {}  # of each server, so that it need not tell of it again

    async def answer(self, state: ProxyState, request: Request) -> Response:
        """The answer to one who asks."""
        if self._made is not None and time.monotonic() - self._made[0] <= _MADE_FOR_S:
            return packed_response(request, self._made[1])
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._make(state))
        return packed_response(request, await asyncio.shield(self._making))

    async def _make(self, state: ProxyState) -> tuple[bytes, bytes]:
        ready = [url for url, instance in state.instances.items() if instance.state == "ready"]
        told = dict(zip(ready, await asyncio.gather(*(self._ask(state, url) for url in ready)), strict=True))
        now = time.monotonic()
        body = packed_json(_look(state, now, told))
        self._made = now, body
        return body

    async def _ask(self, state: ProxyState, url: str) -> ToldByServer | None:
        """Ask a server of itself, with the proxy's own key or none: who asks the proxy may have another one."""
        upstream = state.upstreams[url]
        path = "/overview?" + urlencode({"known": self._machines.get(url, "")})
        try:
            async with asyncio.timeout(_SERVER_TIMEOUT_S):
                answer = await upstream.ask("GET", path, upstream.credentials())
            if answer.status != 200:
                return None
            seen = _DECODER.decode(answer.body)
        except (UpstreamError, UpstreamAnswerTooLong, TimeoutError, ValueError):  # msgspec.DecodeError is one
            return None
        self._machines[url] = seen.machine.fingerprint
        return _summed(seen.models)


def _summed(models: Sequence[_ToldModel]) -> ToldByServer:
    transfers = [model.transfer for model in models if model.transfer is not None]
    return ToldByServer(
        running=sum(int(model.gauges.get("running", 0)) for model in models),
        waiting=sum(int(model.gauges.get("waiting", 0)) for model in models),
        kv_usage=max((model.gauges.get("kv_usage", 0.0) for model in models), default=0.0),
        handed_bytes=sum(each.get("bytes", 0) for each in transfers),
        handed=sum(each.get("completed", 0) for each in transfers),
        failed=sum(each.get("failed", 0) for each in transfers),
        handing=sum(each.get("waiting", 0) for each in transfers),
    )


def _look(state: ProxyState, now: float, told: Mapping[str, ToldByServer | None]) -> ProxyOverview:
    prefillers, decoders = state.usable("prefill"), state.usable("decode")
    counts = Counter(proxied.phase for proxied in state.proxied_requests)
    return ProxyOverview(
        kind="proxy",
        version=__version__,
        at=round(time.time(), 3),
        ask_again_s=_ASK_AGAIN_S,
        servers=[_seen(state, instance, now, told.get(instance.url)) for instance in state.instances.values()],
        pairs=sum(state.fits(prefiller, decoder) for prefiller in prefillers for decoder in decoders),
        obstacles=[f"{prefiller} to {decoder}: {why}" for prefiller, decoder, why in state.obstacles()],
        phases={phase: counts[phase] for phase in PHASES},
        ways=state.metrics.ways(),
    )


def _seen(state: ProxyState, instance: Instance, now: float, told: ToldByServer | None) -> ServerShown:
    return ServerShown(
        url=instance.url,
        role=instance.role,
        state=instance.state,
        reason=instance.reason,
        since_s=round(max(0.0, now - instance.since), 1) if instance.since else 0.0,
        requests=state.loads.requests(instance.url),
        waiting_tokens=int(state.loads.waiting(instance.url)),
        breaker_open=instance.breaker.open(now),
        lives=instance.lives,
        engines=max(1, len(instance.all_engines)),
        told=told,
    )
