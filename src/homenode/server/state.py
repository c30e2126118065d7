"""What the endpoints of one application share, and whether it takes work: serving, draining or without its engine."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from homenode import __version__
from homenode.engine.messages import Ready
from homenode.server.config import ServerConfig
from homenode.server.engine import EngineClient, Tokenizer
from homenode.server.failures import ApiError
from homenode.server.metrics import Metrics
from homenode.transfer.published import Published

_BODIES_AT_ONCE = 8  # bodies of the largest size that may be in memory together


class Bodies:
    """Counts the bytes of all bodies being read, so that many large ones together cannot take the memory either."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """For the reading of one body; what was taken is given back at the end."""
        lease = Lease(self)
        try:
            yield lease
        finally:
            self.held -= lease.taken


class Lease:
    """The bytes of one body."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self.taken = bodies, 0

    def take(self, size: int) -> None:
        """Raises ApiError 503 when all bodies together are too large."""
        if self._bodies.held + size > self._bodies.limit:
            raise ApiError(
                503, "too many large request bodies at once", code="overloaded", retry_after_s=1, headers={"Connection": "close"}
            )
        self._bodies.held += size
        self.taken += size


class ServerState:
    """The engine client, the tokenizer, the settings, and the count of requests in flight."""

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, config: ServerConfig) -> None:
        self.client, self.tokenizer, self.config = client, tokenizer, config
        self.ready = client.ready
        self.models = config.served_model_name or (_public_name(self.ready.model),)
        self.metrics = Metrics(self.models[0], client)
        self.fingerprint = _fingerprint(self.ready)
        self.started = int(time.time())
        self.lost: str | None = None  # why the engine is gone
        self.active: set[int] = set()  # engine requests that have not ended
        self.tickets: dict[str, int] = {}  # those of them whose KV is handed over, by ticket
        self.kv_transfer = _published(self.ready)  # None: this server has no part in that
        self._drain_ends: float | None = None  # time.monotonic() at which a drain gives up
        self.bodies = Bodies(_BODIES_AT_ONCE * config.max_request_body)
        self._ids = itertools.count(1)
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def draining(self) -> bool:
        """No newcomers from here on."""
        return self._drain_ends is not None

    @property
    def in_flight(self) -> int:
        """Requests being answered."""
        return self._in_flight

    def next_id(self) -> int:
        """A request id never given before."""
        return next(self._ids)

    def model(self, name: str | None) -> str:
        """The name to answer under. Raises ApiError 404 for a name that is not served."""
        if name is None or name in self.models:
            return name or self.models[0]
        known = ", ".join(f"`{model}`" for model in self.models)
        raise ApiError(404, f"`model` is `{name[:200]}`, which is not served here; there is {known}", param="model", code="model_not_found")

    def drain(self, timeout_s: float) -> None:
        """Take no new work; what runs has `timeout_s` seconds."""
        self._drain_ends = time.monotonic() + timeout_s

    def check_available(self) -> None:
        """Raises ApiError 503 while draining and after the engine was lost."""
        if self.lost is not None:
            raise ApiError(503, "the engine is gone; the server is ending", code="engine_lost", retry_after_s=5)
        if self._drain_ends is not None:
            left = max(1.0, self._drain_ends - time.monotonic())
            raise ApiError(503, "the server is shutting down and takes no new requests", code="draining", retry_after_s=left)

    async def abort_all(self) -> None:
        """Asks the engine to forget everything that runs; each request is then answered with 503."""
        for id in tuple(self.active):
            await self.client.abort(id, "abort")

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around the handling of one piece of work, its stream included. Raises ApiError 503 when none is taken."""
        try:
            self.check_available()
        except ApiError:
            self.metrics.refuse("engine_lost" if self.lost is not None else "draining")
            raise
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def idle(self, timeout_s: float) -> bool:
        """Waits until nothing is in flight; False after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


def _public_name(model: str) -> str:
    """A model read from a path is known by its last part: where it lies on the server is nobody's business."""
    return model.rstrip("/").rsplit("/", 1)[-1] if model.startswith(("/", ".", "~")) else model


def _published(ready: Ready) -> Published | None:
    """What the engine publishes for others to hand KV to or from it."""
    document = ready.details.get("kv_transfer")
    return None if document is None else msgspec.convert(document, Published)


def _fingerprint(ready: Ready) -> str:
    """Changes with the version, the model and the engine's settings."""
    facts = msgspec.json.encode([__version__, ready], enc_hook=repr)
    return "fp_" + hashlib.blake2b(facts, digest_size=6).hexdigest()
