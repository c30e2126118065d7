"""A request that the server makes to its own application: every API answers it as it answers a client."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from homenode.server.http.middleware import INSIDE
from homenode.server.keys.caller import KeyHolder


@dataclass
class InsideAnswer:
    """An answer. `request_id`: under which it is in the logs. `retry_after_s`: when to come again, where it says so."""

    status: int = 500
    body: bytes = b""
    request_id: str = ""
    retry_after_s: float | None = None


async def ask_inside(app: ASGIApp, path: str, body: bytes, who: KeyHolder) -> InsideAnswer:
    """POST `body` to `path` for `who`. Where it is cancelled, the request is, as by a client that leaves."""
    answer, chunks = InsideAnswer(), list[bytes]()
    asked, never = False, asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        nonlocal asked
        if asked:
            await never.wait()  # nobody leaves
        asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            for name, value in message.get("headers", ()):
                _note_header(answer, name.lower(), value)
        else:
            chunks.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": None,
        "server": None,
        "state": {},
        INSIDE: who,
    }
    await app(scope, receive, send)
    answer.body = b"".join(chunks)
    return answer


def _note_header(answer: InsideAnswer, name: bytes, value: bytes) -> None:
    if name == b"x-request-id":
        answer.request_id = value.decode()
    elif name == b"retry-after" and value.isdigit():
        answer.retry_after_s = float(value)
