"""The state that all requests of one proxy share."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time

from homenode.server.http.admission import RequestAdmission
from homenode.server.http.bodies import Bodies
from homenode.server.keys.keyring import Keyring
from homenode.server.keys.named_key import unnamed_keys
from homenode.server.proxy.breaker import CircuitBreaker
from homenode.server.proxy.config import ProxyConfig
from homenode.server.proxy.health_watch import HealthWatch
from homenode.server.proxy.instances import Instance, Role, obstacle
from homenode.server.proxy.metrics import ProxyMetrics
from homenode.server.proxy.proxied_request import Choose, ProxiedRequest
from homenode.server.proxy.releases import Releases
from homenode.server.proxy.routing import ChosenRoute, LoadTable, Prompt, RouteTarget
from homenode.server.proxy.upstreams import Upstream
from homenode.server.tracing.endpoint import begin_tracing

_LOG = logging.getLogger("homenode.proxy")
_BODIES_AT_ONCE = 8  # bodies of the largest size that may be in memory together


class ProxyState(RequestAdmission):
    """The servers, what is known of them, and the requests under way. Made inside the event loop."""

    def __init__(self, config: ProxyConfig, keys: Keyring | None = None) -> None:
        """`keys`: None: those of --api-key alone."""
        super().__init__()
        self.keys = Keyring(unnamed_keys(config.api_key)) if keys is None else keys
        self.config = config
        self.instances = {url: self._instance(url, "prefill") for url in config.prefill}
        self.instances |= {url: self._instance(url, "decode") for url in config.decode}
        self.upstreams = {url: Upstream(url, config) for url in self.instances}
        self.loads = LoadTable()
        self.proxied_requests: set[ProxiedRequest] = set()
        self.metrics = ProxyMetrics(self.instances.values(), self.loads, self.proxied_requests, self.keys)
        self.tracing = begin_tracing(config.otlp_traces_endpoint, "homenode-proxy")
        self.watch = HealthWatch(config, self.instances, self.upstreams, self._changed)
        self.releases = Releases(self.upstreams, config.release_timeout, self.metrics.released)
        self.bodies = Bodies(_BODIES_AT_ONCE * config.max_request_body)
        self.aborting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Tickets of several proxies, and of one before and after a restart, are never the same.
        self._incarnation = secrets.token_hex(8)
        self._tickets = itertools.count(1)
        self._lives: dict[str, int] = {}
        self._logged_obstacles: set[tuple[str, str, str]] = set()

    def start(self) -> None:
        """Begin to look at the servers."""
        self.watch.start()

    async def close(self) -> None:
        """Look no more, and close all connections."""
        await self.watch.close()
        await self.releases.close()
        for upstream in self.upstreams.values():
            await upstream.close()

    def next_ticket(self) -> str:
        """A name no hand-over ever had."""
        return f"{self._incarnation}-{next(self._tickets)}"

    def of(self, role: Role) -> list[Instance]:
        """The servers of one kind."""
        return [instance for instance in self.instances.values() if instance.role == role]

    def usable(self, role: Role, model: str | None = None) -> list[str]:
        """Addresses of the servers that a request may go to now. `model`: that it is for: where servers of several
        have it, to one of these; else to one of which that is not known.
        """
        now, all_of_role = time.monotonic(), self.of(role)
        having = [instance for instance in all_of_role if instance.models is not None and model in instance.models]
        if model is not None and not having:
            having = [instance for instance in all_of_role if instance.models is None]
        return [instance.url for instance in having or all_of_role if instance.usable(now)]

    def choose(
        self, prompt: Prompt, step: Choose, holder: str | None = None, model: str | None = None
    ) -> ChosenRoute | None:
        """Servers for a request; None while there is no decode server for it. `holder`: the only one that can answer,
        whatever models it has. `model`: that it names.
        """
        usable = self.usable("decode", model if holder is None else None)
        if holder is not None:
            usable = [holder] if holder in usable else []
        fresh = [url for url in usable if url not in step.avoid]
        decoders = [
            target for url in (fresh if fresh or step.strict else usable) for target in self.targets(url, model)
        ]
        prefillers = (
            [RouteTarget(url) for url in self.usable("prefill", model) if url not in step.failed_prefillers]
            if step.handover
            else []
        )
        least = self.config.min_handover_tokens if prefillers else 0

        def fits(prefiller: RouteTarget, decoder: RouteTarget) -> bool:
            return self._fits(prefiller.server, decoder.server, model)

        def model_at(target: RouteTarget) -> str | None:
            return self.instances[target.server].loaded_model(model)

        return self.loads.choose(prompt, prefillers, decoders, fits, least, model_at)

    def targets(self, url: str, model: str | None = None) -> list[RouteTarget]:
        """Return where KV of a model for this decode server may go: to each of its engines, where it has several."""
        engines = self.instances[url].kv(model).engines
        return [RouteTarget(url, each.incarnation) for each in engines] or [RouteTarget(url)]

    def fits(self, prefiller: str, decoder: str) -> bool:
        """KV of any model can be handed over between these."""
        return any(self._fits(prefiller, decoder, model) for model in self._models_of(prefiller, decoder))

    def _fits(self, prefiller: str, decoder: str, model: str | None) -> bool:
        return (
            obstacle(self.instances[prefiller].kv(model).document, self.instances[decoder].kv(model).document) is None
        )

    def _models_of(self, *urls: str) -> list[str | None]:
        """The models of which some of these servers publish anything; None where they have one each."""
        told = [models for url in urls if (models := self.instances[url].models) is not None]
        return [*sorted({name for models in told for name in models.published})] if told else [None]

    def obstacles(self) -> list[tuple[str, str, str]]:
        """Pairs of servers that publish, but cannot hand KV over: prefill server, decode server, why."""
        found = []
        for prefiller in self.of("prefill"):
            for decoder in self.of("decode"):
                if (prefiller.models is None) != (decoder.models is None):
                    continue  # most of them are other models
                for model in self._models_of(prefiller.url, decoder.url):
                    here, there = prefiller.kv(model).document, decoder.kv(model).document
                    if here and there and (why := obstacle(here, there)):
                        found.append((prefiller.url, decoder.url, f"{model}: {why}" if model else why))
        return found

    @property
    def looked_at_all(self) -> bool:
        """Every server has been looked at, so that it is known which there are."""
        return all(instance.looked_at for instance in self.instances.values())

    def refused(self, reason: str) -> None:
        """Count a request that was turned away."""
        self.metrics.refuse(reason)

    async def abort_all(self) -> None:
        """Ends every request; each is answered with 503, or its stream with an error."""
        if not self.aborting.done():
            self.aborting.set_result(None)

    def _instance(self, url: str, role: Role) -> Instance:
        return Instance(url, role, CircuitBreaker(self.config.breaker_failures, self.config.breaker_pause))

    def _changed(self, url: str) -> None:
        """Something about a server changed."""
        lives, engines = self.instances[url].lives, self.instances[url].all_engines
        self.loads.keep(url, engines)
        self.loads.divide(url, len(engines) if self.instances[url].role == "prefill" else 1)
        if self._lives.setdefault(url, lives) != lives:
            self._lives[url] = lives
            self.loads.forget(url)
        for told in self.obstacles():
            if told not in self._logged_obstacles:
                self._logged_obstacles.add(told)
                _LOG.warning("%s cannot hand over to %s: %s", *told)
