"""The bytes of pictures and other media that a request names: out of data: URLs, from hosts that the server may ask,
and from files of the folder that it may read.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http.client
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from homenode.server.core.media.content import MediaSource
from homenode.server.http.config import ServedModelConfig
from homenode.server.http.failures import ApiError
from homenode.server.models.media import media_input
from homenode.units import format_bytes

MOST_BYTES = 32 * 2**20  # of a file
_FETCH_S = 15.0  # of one file, redirects included
_CONNECT_S = 5.0
_MOST_REDIRECTS = 3
_CHUNK = 64 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_USER_AGENT = "homenode"
_FETCHING = ThreadPoolExecutor(16, "homenode-fetch")  # a host that is slow holds up nothing but other files


async def media_bytes(source: MediaSource, config: ServedModelConfig) -> bytes:
    """The bytes of a file. Raises ApiError 400, which names the part of the request."""
    if source.data:
        return await asyncio.to_thread(_decoded, source, source.data)
    url = source.url.strip()
    kind = url.partition(":")[0].lower() if ":" in url[:16] else ""
    if kind == "data":
        return await asyncio.to_thread(_of_data_url, source, url)
    if kind == "file":
        return await asyncio.to_thread(_of_file, source, url, config.media_path)
    if kind in ("http", "https"):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_FETCHING, _fetched, source, url, config.media_domains)
    raise bad_media(source, "is no data:, https:, http: or file: URL")


def _of_data_url(source: MediaSource, url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise bad_media(source, "is a data: URL without `;base64,`")
    return _decoded(source, body)


def _decoded(source: MediaSource, text: str) -> bytes:
    if len(text) > MOST_BYTES * 4 // 3 + 4:
        raise bad_media(source, f"is larger than the {format_bytes(MOST_BYTES)} that are taken")
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise bad_media(source, "is no base64") from None
    if not data:
        raise bad_media(source, "has no bytes")
    return data


def _of_file(source: MediaSource, url: str, folder: str | None) -> bytes:
    """The file is opened before it is judged, so that it is the one that was judged."""
    if folder is None:
        raise bad_media(source, "is a file, and this server reads none (--media-path)")
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise bad_media(source, "is a file of another host")
    try:
        descriptor = os.open(unquote(parts.path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        raise bad_media(source, "is no file that this server reads (--media-path)") from None
    with closing_descriptor(descriptor):
        real = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        root = os.path.realpath(folder)
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)  # what is none has no path: a pipe is called `pipe:[1]`
        if not is_file or not real.startswith("/") or os.path.commonpath([root, real]) != root:
            raise bad_media(source, "is no file that this server reads (--media-path)")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise bad_media(source, f"is larger than the {format_bytes(MOST_BYTES)} that are taken")
    return data


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[None]:
    """Close it in the end."""
    try:
        yield
    finally:
        os.close(descriptor)


def _fetched(source: MediaSource, url: str, hosts: Sequence[str]) -> bytes:
    until = time.monotonic() + _FETCH_S
    for _ in range(_MOST_REDIRECTS + 1):
        answer = _asked(source, url, hosts, until)
        if isinstance(answer, bytes):
            return answer
        url = answer
    raise bad_media(source, f"leads on more than {_MOST_REDIRECTS} times")


def _asked(source: MediaSource, url: str, hosts: Sequence[str], until: float) -> bytes | str:
    """What one address answers: bytes, or where they are."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise bad_media(source, "is no address") from None
    if parts.scheme not in ("http", "https") or not host or not is_allowed(host, port, hosts):
        raise bad_media(source, "is of a host that this server does not ask (--media-domains)")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=_CONNECT_S)
    ender: threading.Timer | None = None
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.connect()
        ender = threading.Timer(max(0.0, until - time.monotonic()), _cut, (connection.sock,))  # also a head that drips
        ender.daemon = True
        ender.start()
        connection.request("GET", path, headers={"User-Agent": _USER_AGENT, "Accept": media_input(source.kind).accept})
        answer = connection.getresponse()
        if answer.status in _REDIRECTS and (where := answer.getheader("Location")):
            return urljoin(url, where)
        if answer.status != 200:
            raise bad_media(source, f"could not be fetched: its host answers {answer.status}")
        return _body(source, answer, until)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise bad_media(source, f"could not be fetched: {type(error).__name__}") from None
    finally:
        if ender is not None:
            ender.cancel()
        connection.close()


def _cut(sock: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _body(source: MediaSource, answer: http.client.HTTPResponse, until: float) -> bytes:
    data = bytearray()
    while piece := answer.read1(_CHUNK):
        data += piece
        if len(data) > MOST_BYTES:
            raise bad_media(source, f"is larger than the {format_bytes(MOST_BYTES)} that are taken")
        if time.monotonic() > until:
            raise bad_media(source, f"could not be fetched within {_FETCH_S:.0f} s")
    if time.monotonic() > until:  # it was cut
        raise bad_media(source, f"could not be fetched within {_FETCH_S:.0f} s")
    return bytes(data)


def is_allowed(host: str, port: int | None, hosts: Sequence[str]) -> bool:
    """Return whether a host is among those that may be asked, with any port where its entry has none."""
    names = {host.lower(), f"{host.lower()}:{port}"} if port is not None else {host.lower()}
    return any(name.lower() in names for name in hosts)


def bad_media(source: MediaSource, what: str) -> ApiError:
    """The error of a file, in the words of the part that it is."""
    text, code = f"`{source.place}`: the {source.kind} {what}", f"invalid_{source.kind}"
    return ApiError(400, text, param=source.place, code=code)
