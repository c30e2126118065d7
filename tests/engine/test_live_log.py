"""The log of a service: one form of line in one stream, whatever process or library has something to say."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from tests.engine.live import LiveServer

pytestmark = pytest.mark.skipif(not LiveServer.possible(), reason="no model to serve")

_SMALL = ("--kv-cache-memory", "16MiB", "--threads", "1")
_LINE = re.compile(r"(debug|info|warning|error) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([a-z0-9-]+): \S.*")


def log_of(*flags: str) -> list[str]:
    """All lines of a server that was asked something, something wrong, and in no HTTP."""
    server = LiveServer(*_SMALL, *flags)
    try:
        address = urlsplit(server.url)
        body = {"model": "live", "prompt": "One", "max_tokens": 3}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
        assert httpx.post(f"{server.url}/v1/completions", content=b"{", timeout=60).status_code == 415
        with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=20) as connection:
            connection.sendall(b"this is no HTTP\r\n\r\n")
            connection.recv(100)
    finally:
        assert server.close() == 0
    return [line for line in b"".join(server.log).decode().splitlines() if line.strip()]


@pytest.mark.parametrize(
    "flags", [("--access-log",), ("--tensor-parallel-size", "2", "--api-server-count", "2", "--access-log")]
)
def test_every_line_is_dated_and_names_its_process(flags: tuple[str, ...]) -> None:
    lines = log_of(*flags)
    assert [line for line in lines if not _LINE.fullmatch(line)] == []
    assert not any("uvicorn" in line for line in lines)
    assert sum('"POST /v1/completions HTTP/1.1" 200' in line for line in lines) == 1
    assert any(line.startswith("info ") and " server: ready http" in line for line in lines)


def test_verbose_tells_how_weights_lie_in_every_process() -> None:
    lines = log_of("--verbose", "--tensor-parallel-size", "2")
    for worker in ("homenode-worker-0", "homenode-worker-1"):
        told = [line.partition(f" {worker}: ")[2] for line in lines if line.startswith("debug ")]
        assert any(text.startswith("weights ") for text in told)
        assert any(re.match(r"node \d+: .* of weights", text) for text in told) or any("not known" in t for t in told)
