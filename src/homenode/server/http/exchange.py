"""The two ends of an HTTP exchange: a body read within bounds, and a client that may leave before the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from homenode.server.http.bodies import Bodies, Lease
from homenode.server.http.config import HttpConfig
from homenode.server.http.decoding import BodyDecoder
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_ignored
from homenode.server.http.json_size import SMALL_BODY, check_json_size
from homenode.server.http.unknown_fields import UnknownField

T = TypeVar("T")
_OF_BROWSERS = ("origin", "sec-fetch-site")  # headers of every request that a web page sends elsewhere
_CLOSE = {"Connection": "close"}  # the rest of the body is not read


class BodyLimits(Protocol):
    """The limits of request bodies of an application: of all together, and of each."""

    bodies: Bodies

    @property
    def config(self) -> HttpConfig: ...


class ClientGone(Exception):
    """The client has closed its connection before it was answered."""


async def read_json(state: BodyLimits, request: Request, decode: BodyDecoder[T], *, any_type: bool = False) -> T:
    """The request's body as `decode` makes it, which raises ApiError 400. The names of unknown fields are told.
    `any_type`: the body need not be sent as JSON where no browser sends it.

    Raises ApiError 400, 408, 413, 415 or 503, and ClientGone when the client left while sending.
    """
    if not any_type or any(name in request.headers for name in _OF_BROWSERS):
        _check_type(request)
    _check_coding(request)
    with state.bodies.lease() as lease:
        body = await read_body(state, request, lease)
        unknown: list[UnknownField] = []
        if len(body) <= SMALL_BODY:
            decoded = _decoded(body, decode, unknown)
        else:
            decoded = await asyncio.to_thread(_decoded, body, decode, unknown)
    for field in unknown:
        note_ignored(request, field.name, field.place)
    return decoded


def _decoded(body: bytes, decode: BodyDecoder[T], unknown: list[UnknownField]) -> T:
    if len(body) > SMALL_BODY:
        check_json_size(body)
    return decode(body, unknown)


async def read_body(state: BodyLimits, request: Request, lease: Lease) -> bytes:
    """The request's body, its bytes taken from `lease`. Raises ApiError 408, 413 or 503, and ClientGone."""
    return await _read(request, lease, state.config.max_request_body, state.config.request_read_timeout)


def _check_type(request: Request) -> None:
    """Only application/json: a web page can send any other type to a server on the reader's machine without asking."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415,
            f"the body must be sent as Content-Type: application/json; got {kind[:80] or 'none'}",
            code="unsupported_media_type",
        )


def _check_coding(request: Request) -> None:
    """A body comes as it is: one that grows when it is unpacked would have no size before."""
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        text = f"the body must be sent without Content-Encoding; got {coding[:80]}"
        raise ApiError(415, text, code="unsupported_media_type")


async def _read(request: Request, lease: Lease, limit: int, timeout_s: float) -> bytes:
    too_large = ApiError(
        413, f"the body is larger than {limit} bytes (--max-request-body)", code="request_too_large", headers=_CLOSE
    )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 18 or int(length) > limit:
        raise too_large
    chunks, size = [], 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size > limit:
                    raise too_large
                lease.take(len(chunk))
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise ApiError(
            408, f"the body did not arrive within {timeout_s:g} s", code="request_timeout", headers=_CLOSE
        ) from None


async def disconnected(receive: Receive) -> None:
    """Returns when the client closes the connection; only after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def beside_loop(request: Request, work: Callable[[], T]) -> T:
    """The result of `work` on a body that was read: beside the event loop, where that is large."""
    length = request.headers.get("content-length")
    if length is not None and int(length) <= SMALL_BODY:
        return work()
    return await asyncio.to_thread(work)


async def unless_gone_early(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work` on a body that was read; where that is large, as `unless_gone`."""
    length = request.headers.get("content-length")
    if length is not None and int(length) <= SMALL_BODY:
        return await work  # done sooner than somebody can be set to watch
    return await unless_gone(request.receive, work)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when the client leaves first, `work` is cancelled and ClientGone raised."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
