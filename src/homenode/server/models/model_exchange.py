"""The models that a request uses until it is answered, and the beginning of its answer while it waits for one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.types import Send

from homenode.server.http.failures import ApiError
from homenode.server.http.sse import EVENTS, STREAM_GRACE_S, StreamForm
from homenode.server.models.kept_model import ModelLease

_LOOK_S = 0.5
_LEAST_S = 1.0  # between comments


class ModelExchange:
    """One request and its answer."""

    def __init__(self, send: Send, form: StreamForm, failure: Callable[[ApiError], bytes], keep_alive_s: float) -> None:
        """`form`: of a stream at this path; `failure`: the event that ends one that had begun. `keep_alive_s`: the
        longest silence, 0: any.
        """
        self._send, self._form, self._failure, self._keep_alive_s = send, form, failure, keep_alive_s
        self._leases: list[ModelLease] = []
        self.begun = False

    def add(self, lease: ModelLease) -> None:
        """The request uses a model from here on."""
        self._leases.append(lease)

    @property
    def load_seconds(self) -> float:
        """Seconds that the request has waited for models."""
        return sum(lease.waited_s for lease in self._leases)

    def release(self) -> None:
        """The request is answered."""
        for lease in self._leases:
            lease.release()

    @asynccontextmanager
    async def kept_alive(self, progress: Callable[[], str]) -> AsyncIterator[None]:
        """Within it the client of a stream is told that it is not forgotten: by the head of its answer after a moment,
        then by comments. `progress`: what one says.
        """
        telling = asyncio.ensure_future(self._tell(progress))
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _tell(self, progress: Callable[[], str]) -> None:
        await asyncio.sleep(STREAM_GRACE_S)
        last = 0.0
        while True:
            every_s = self._keep_alive_s
            if not self.begun or (every_s and time.monotonic() - last >= max(_LEAST_S, every_s)):
                await self._begin()
                if self._form is EVENTS:
                    await self._body(f": {progress()}\n\n".encode("ascii", "replace"))
                last = time.monotonic()
            await asyncio.sleep(_LOOK_S)

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._form.headers})

    async def _body(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send what the endpoint answers. Where the answer has begun already its head is left out."""
        if self.begun and message["type"] == "http.response.start":
            return
        await self._send(message)

    async def fail(self, error: ApiError) -> None:
        """End an answer that has begun with what went wrong."""
        await self._body(self._failure(error), more=False)


def exchange_of(request: Request) -> ModelExchange:
    """The exchange of a request to a server of several models."""
    found: ModelExchange = request.state.model_exchange
    return found
