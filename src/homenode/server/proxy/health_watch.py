"""Looks at every server's health and published document again and again, and tells those who wait of changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

import msgspec

from homenode.server.proxy.config import ProxyConfig
from homenode.server.proxy.instances import Instance, Sight
from homenode.server.proxy.server_models import PublishedKv, ServerModels, is_of_several, read_listed
from homenode.server.proxy.upstreams import Upstream, UpstreamAnswer, UpstreamAnswerTooLong, UpstreamError, within
from homenode.transfer.wire.message import decode_documents

_LOG = logging.getLogger("homenode.proxy")


class ChangeSignal:
    """Wakes everybody who waits for a change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Something changed."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until the next change, or for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            pass


class HealthWatch:
    """Polls each server. `on_change` is called with the address of a server about which something changed."""

    def __init__(
        self,
        config: ProxyConfig,
        instances: Mapping[str, Instance],
        upstreams: Mapping[str, Upstream],
        on_change: Callable[[str], None],
    ) -> None:
        self.changes = ChangeSignal()
        self._config, self._instances, self._upstreams, self._on_change = config, instances, upstreams, on_change
        self._nudges = {url: asyncio.Event() for url in instances}
        self._tasks: list[asyncio.Task[None]] = []
        self._looks: dict[str, asyncio.Task[bool]] = {}  # of those who wait at a server

    def start(self) -> None:
        """Begin to look."""
        self._tasks = [asyncio.create_task(self._watch(instance)) for instance in self._instances.values()]

    async def close(self) -> None:
        """Look no more."""
        tasks = [*self._tasks, *self._looks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def broke(self, url: str) -> None:
        """A connection to this server broke: look at once."""
        self._suspect(url, "a connection broke")

    def _suspect(self, url: str, reason: str) -> None:
        self._instances[url].suspected(time.monotonic(), reason)
        self._nudges[url].set()
        self.changes.notify()

    async def until_suspect(self, url: str, after_s: float) -> None:
        """Returns when the server has answered nobody for `after_s`, and leaves a look unanswered as long."""
        instance, began = self._instances[url], time.monotonic()
        while True:
            left = max(began, instance.heard_at) + after_s - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
            elif not await self._answers(url, after_s):
                return

    async def _answers(self, url: str, within_s: float) -> bool:
        """Return whether the server answers a look, which all who wait at it share."""
        look = self._looks.get(url)
        if look is None:
            look = self._looks[url] = asyncio.create_task(self._look(url, within_s))
            look.add_done_callback(lambda _: self._looks.pop(url, None))
        return await asyncio.shield(look)

    async def _look(self, url: str, within_s: float) -> bool:
        asked = asyncio.create_task(self._upstreams[url].ask("GET", "/health", {}))
        try:
            if not await within(within_s, asked):
                self._suspect(url, f"/health was not answered within {within_s:g} s")
                return False
            asked.result()
        except UpstreamError:
            self.broke(url)
            return False
        except UpstreamAnswerTooLong:
            pass  # it answers
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        self._instances[url].heard_at = time.monotonic()
        return True

    async def until_lost(self, url: str, patience_s: float) -> None:
        """Returns when those who wait at the server should give up."""
        instance = self._instances[url]
        life = instance.lives
        while (left := instance.lost_in(time.monotonic(), life, patience_s)) is None or left > 0:
            await self.changes.wait(left)

    async def _watch(self, instance: Instance) -> None:
        nudge = self._nudges[instance.url]
        while True:
            nudge.clear()
            sight = await self._poll(instance)
            heard = instance.state == "ready" and time.monotonic() - instance.heard_at < self._config.silent_after
            if not (sight.state == "silent" and heard) and instance.looked(time.monotonic(), sight):
                _LOG.log(
                    logging.INFO if instance.state == "ready" else logging.WARNING,
                    "%s server %s is %s%s", instance.role, instance.url, instance.state,
                    f": {instance.reason}" if instance.reason else "",
                )  # fmt: skip
                self._on_change(instance.url)
                self.changes.notify()
            try:
                async with asyncio.timeout(self._config.poll_interval):
                    await nudge.wait()
            except TimeoutError:
                pass

    async def _poll(self, instance: Instance) -> Sight:
        look = asyncio.create_task(self._ask(self._upstreams[instance.url]))
        try:
            if not await within(self._config.silent_after, look):
                return Sight("silent", f"/health was not answered within {self._config.silent_after:g} s")
            return look.result()
        except UpstreamError as error:
            return Sight("down", str(error))
        except UpstreamAnswerTooLong:
            return Sight("unfit", "its answer to /health or /kv_transfer is too long")
        finally:
            look.cancel()
            await asyncio.gather(look, return_exceptions=True)

    async def _ask(self, upstream: Upstream) -> Sight:
        health = await upstream.ask("GET", "/health", {})
        if health.status != 200:
            return _unwell(health)
        document = await upstream.ask("GET", "/kv_transfer", upstream.credentials())
        if document.status in (401, 403):
            return Sight("unfit", "it wants a key: give it with --upstream-api-key")
        if document.status == 404 and is_of_several(document.body):
            return await self._ask_models(upstream)
        if document.status in (404, 405):
            return Sight("ready")
        if document.status != 200:
            return _unwell(document)
        try:
            found = _read_published(document.body)
        except msgspec.DecodeError as error:
            return Sight("unfit", f"what it publishes at /kv_transfer cannot be read: {error}"[:300])
        return Sight("ready", "", found.document, found.raw, found.engines)

    async def _ask_models(self, upstream: Upstream) -> Sight:
        """Look at a server of several models: at what each publishes that is loaded."""
        listed = await upstream.ask("GET", "/v1/models", upstream.credentials())
        if listed.status != 200:
            return _unwell(listed)
        try:
            names, loaded = read_listed(listed.body)
            published = {}
            for model in loaded:
                path = "/kv_transfer?" + urlencode({"model": model})
                document = await upstream.ask("GET", path, upstream.credentials())
                if document.status == 200:
                    published[model] = _read_published(document.body)
        except msgspec.DecodeError as error:
            return Sight("unfit", f"what it tells of its models cannot be read: {error}"[:300])
        return Sight("ready", models=ServerModels(names, published, loaded))


def _read_published(body: bytes) -> PublishedKv:
    found = decode_documents(body)
    return PublishedKv(found[0], body, tuple(found)) if isinstance(found, list) else PublishedKv(found, body)


def _unwell(answer: UpstreamAnswer) -> Sight:
    """Return what an answer other than 200 says about the server."""
    code, message = "", ""
    try:
        error = msgspec.json.decode(answer.body)["error"]
        code, message = str(error.get("code", "")), str(error.get("message", ""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
        pass
    reason = f"status {answer.status}" + (f": {message[:200]}" if message else "")
    return Sight("draining" if code == "draining" else "unhealthy", reason)
