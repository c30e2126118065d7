"""Tells servers that a ticket is given up: in the background, within a deadline, as well as it can be done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from homenode.server.proxy.proxied_request import ReleaseTicket
from homenode.server.proxy.upstreams import Upstream, UpstreamAnswerTooLong, UpstreamError

_LOG = logging.getLogger("homenode.proxy")
_MOST_AT_ONCE = 4096


class Releases:
    """The releases of tickets under way. `count` is called with how each ended: ok, failed, late or dropped."""

    def __init__(self, upstreams: Mapping[str, Upstream], timeout_s: float, count: Callable[[str], None]) -> None:
        self._upstreams, self._timeout_s, self._count = upstreams, timeout_s, count
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, release: ReleaseTicket, given: Mapping[str, str]) -> None:
        """Tell every server of the release. `given`: the client's headers, among them its key."""
        _LOG.info("ticket %s is given up: %s", release.ticket, release.reason)
        for url in release.servers:
            if len(self._tasks) >= _MOST_AT_ONCE:
                self._count("dropped")
                continue
            task = asyncio.create_task(self._send_release(self._upstreams[url], release, given))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for those under way; each has its deadline."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send_release(self, upstream: Upstream, release: ReleaseTicket, given: Mapping[str, str]) -> None:
        headers = {"content-type": "application/json", **upstream.credentials(given)}
        body = msgspec.json.encode({"ticket": release.ticket, "reason": release.reason})
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await upstream.ask("POST", "/kv_transfer/release", headers, body)
            self._count("ok" if answer.status < 300 else "failed")
        except (UpstreamError, UpstreamAnswerTooLong):
            self._count("failed")
        except TimeoutError:
            self._count("late")
