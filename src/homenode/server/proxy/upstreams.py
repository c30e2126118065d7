"""Connections to the servers. Each has a pool of its own, so that one that hangs takes nothing from the others."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import httpx
from starlette.requests import Request

from homenode.net.api_keys import KEY_HEADERS, header_with
from homenode.server.http.failures import ApiError
from homenode.server.keys.told_usage import USAGE_HEADER
from homenode.server.proxy.config import ProxyConfig
from homenode.server.tracing.span import RequestSpan, current_span

_IDLE_S = 5.0  # less than servers keep an idle connection, so that none is used that is just being closed
_MOST_IDLE = 256
_PLAIN = "!$&'()*+,;=:@~"  # in a part of a path (RFC 3986, 3.3), beside letters, digits and `-._`
_PLAIN_IN_QUERY = f"{_PLAIN}/?%"  # what is encoded there stays so
_LONGEST_TARGET = 60_000  # bytes; HTTP heads of more than 64 KiB are taken nowhere here
LARGEST_SMALL = 1 << 20  # bytes of an answer that is read whole

# Of one connection (RFC 9110, 7.6.1), or set anew by whoever sends: never passed on.
_OF_A_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade")
)  # fmt: skip
_OF_A_REQUEST = _OF_A_HOP | {"host", "content-length", "accept-encoding", "expect", "x-request-id", USAGE_HEADER}
_OF_AN_ANSWER = _OF_A_HOP | {"date", "server", "x-request-id", USAGE_HEADER}


class UpstreamError(Exception):
    """No answer, or not a whole one: the connection could not be made or was lost, or what came is not HTTP."""


class UpstreamAnswerTooLong(Exception):
    """An answer has more bytes than were wanted."""


@dataclass(frozen=True)
class UpstreamAnswer:
    """An answer of a server that was read whole."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Upstream:
    """The connections to one server."""

    def __init__(self, url: str, config: ProxyConfig) -> None:
        self.url = url
        self._key = config.upstream_api_key
        self._client = httpx.AsyncClient(
            base_url=url,
            verify=_public_keys() if config.peer_keys is None else _keys_of(config.peer_keys),
            timeout=httpx.Timeout(None, connect=config.connect_timeout),  # the other deadlines are the caller's
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_MOST_IDLE, keepalive_expiry=_IDLE_S),
            trust_env=False,
            follow_redirects=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "homenode-proxy"},
        )

    def headers(
        self, given: Iterable[tuple[str, str]], request_id: str, span: RequestSpan | None = None
    ) -> dict[str, str]:
        """A client's headers as they are passed on; where traces are made, in place of its own place in one that of
        `span`, or of the request that is being handled.
        """
        span = span or current_span()
        kept = {name: value for name, value in given if name not in _OF_A_REQUEST}
        others = {name: value for name, value in kept.items() if name not in KEY_HEADERS}
        traced = {} if span is None else span.headers()
        return {**others, **self.credentials(kept), "x-request-id": request_id, **traced}

    def credentials(self, given: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """The key for this server, else those among a client's headers `given` that hold its own."""
        if self._key is not None:
            return header_with(self._key)
        return {name: given[name] for name in KEY_HEADERS if name in given}

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> httpx.Response:
        """An answer whose body has not been read, to be closed by the caller; the connection ends if that is too early.
        Raises UpstreamError.
        """
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        try:
            request = self._client.build_request(method, path, headers=raw, content=body)
            return await self._client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UpstreamError(_reason(error)) from error

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None, limit: int = LARGEST_SMALL
    ) -> UpstreamAnswer:
        """A whole answer. Raises UpstreamError, and UpstreamAnswerTooLong for more than `limit` bytes."""
        response = await self.send(method, path, headers, body)
        try:
            parts, size = [], 0
            async for chunk in chunks(response):
                size += len(chunk)
                if size > limit:
                    raise UpstreamAnswerTooLong
                parts.append(chunk)
            return UpstreamAnswer(response.status_code, passed_on(response), b"".join(parts))
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def target_of(request: Request) -> str:
    """The path and the query of a request, as they are passed on: encoded anew, so that the server finds the same path
    that was found here. A name that holds `?`, `#` or `..` stays a name. Raises ApiError 400 for what is too long to be
    passed on: a server would seem broken.
    """
    names = str(request.scope["path"]).split("/")
    path = "/".join("%2E" * len(name) if name in (".", "..") else quote(name, _PLAIN) for name in names)
    query: bytes = request.scope["query_string"]
    target = f"{path}?{quote(query, _PLAIN_IN_QUERY)}" if query else path
    if len(target) > _LONGEST_TARGET:
        raise ApiError(
            400, f"the address has more than {_LONGEST_TARGET} bytes where it is passed on", code="invalid_value"
        )
    return target


def check_keys(config: ProxyConfig) -> None:
    """UserError for --peer-keys that cannot be used."""
    if config.peer_keys is not None:
        from homenode.net.keys import KeyFolder

        KeyFolder(Path(config.peer_keys)).check()


@cache
def _public_keys() -> ssl.SSLContext:
    """The settings of connections to servers with certificates that everybody trusts, which take 50 ms to read."""
    return httpx.create_ssl_context(trust_env=False)


def _keys_of(folder: str) -> ssl.SSLContext:
    """The settings of connections to servers that are pinned, to which this host shows its own certificate."""
    from homenode.net.keys import KeyFolder

    return KeyFolder(Path(folder)).context(connects=True, protocol="http/1.1")


async def chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The bytes of an answer as they come. Raises UpstreamError when they end too early."""
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx.HTTPError as error:
        raise UpstreamError(_reason(error)) from error


def passed_on(response: httpx.Response) -> list[tuple[bytes, bytes]]:
    """The headers of an answer that its client gets."""
    return [
        (name.lower(), value)
        for name, value in response.headers.raw
        if name.lower().decode("latin-1") not in _OF_AN_ANSWER
        and not name.lower().startswith(b"access-control-")  # which pages may see it is for the proxy to say
    ]


async def within(seconds: float, work: asyncio.Task[Any]) -> bool:
    """Return whether `work` ended in time. A loop that was held up itself is no proof: what has come meanwhile is
    looked at first.
    """
    done, _ = await asyncio.wait({work}, timeout=seconds)
    if not done:
        done, _ = await asyncio.wait({work}, timeout=min(0.25, seconds))
    return bool(done)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
