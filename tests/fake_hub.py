"""A hub on loopback that answers what huggingface_hub asks: descriptions, listings, files by range. It counts the bytes
of weights that left.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


@dataclass
class FakeFile:
    """`size`: what is declared; what `data` has not is sent as zeros."""

    data: bytes = b""
    size: int = -1

    def __post_init__(self) -> None:
        self.size = len(self.data) if self.size < 0 else self.size
        self.sha = hashlib.sha256(self.data + b"%d" % self.size).hexdigest()


@dataclass
class FakeHub:
    """`gguf`: of each repository. `gated`: repositories whose files nobody may have. `breaks`: answers of weights that
    end in the middle.
    """

    repositories: dict[str, dict[str, FakeFile]]
    gguf: dict[str, dict[str, Any]] = field(default_factory=dict)
    gated: frozenset[str] = frozenset()
    breaks: int = 0
    url: str = ""
    weights_sent: int = 0


def _tree(files: dict[str, FakeFile]) -> list[dict[str, Any]]:
    return [{"type": "file", "path": path, "size": file.size, "oid": file.sha[:40]} for path, file in files.items()]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub, answering at `hub.url`."""

    class Desk(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/paths-info/.*", urllib.parse.unquote(self.path))
            files = hub.repositories.get(match[1], {}) if match else {}
            known = {path: files[path] for path in asked["paths"] if path in files}
            self.say(200, json.dumps(_tree(known)).encode())

        def answer(self, body: bool) -> None:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/.*)?", path):
                self.describe(match[1], match[2] or "")
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                self.resolve(match[1], match[2], body)
            else:
                self.refuse(404, "EntryNotFound")

        def say(self, status: int, data: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data)

        def refuse(self, status: int, code: str) -> None:
            self.say(status, b"" if self.command == "HEAD" else b"{}", X_Error_Code=code, X_Error_Message="no")

        def describe(self, name: str, rest: str) -> None:
            files = hub.repositories.get(name)
            if files is None:
                return self.refuse(404, "RepoNotFound")
            if rest.startswith("/tree/"):
                return self.say(200, json.dumps(_tree(files)).encode())
            listed = [{"rfilename": path, "size": f.size, "blobId": f.sha[:40]} for path, f in files.items()]
            found: dict[str, Any] = {"id": name, "sha": COMMIT, "siblings": listed, "tags": [], "private": False}
            if name in hub.gguf:
                found["gguf"] = hub.gguf[name]
            return self.say(200, json.dumps(found).encode())

        def resolve(self, name: str, path: str, body: bool) -> None:
            file = hub.repositories.get(name, {}).get(path)
            if name in hub.gated:
                return self.refuse(403, "GatedRepo")
            if file is None:
                return self.refuse(404, "EntryNotFound")
            first, end = 0, file.size
            if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
                first, end = int(match[1]), min(file.size, int(match[2]) + 1) if match[2] else file.size
            if first >= file.size > 0:
                return self.say(416)
            self.send_response(206 if match else 200)
            length = end - first
            for header, value in (
                ("Content-Length", str(length)), ("ETag", f'"{file.sha[:40]}"'), ("X-Repo-Commit", COMMIT),
                ("Content-Range", f"bytes {first}-{end - 1}/{file.size}"),
            ):  # fmt: skip
                self.send_header(header, value)
            self.end_headers()
            if not body:
                return None
            weights = path.endswith((".safetensors", ".gguf"))
            broken = weights and hub.breaks > 0
            hub.breaks -= broken
            piece = file.data[first:end] + bytes(max(0, min(length, 1 << 20) - len(file.data[first:end])))
            piece = piece[: length // 2] if broken else piece
            hub.weights_sent += len(piece) if weights else 0
            self.wfile.write(piece)
            if len(piece) < length:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Desk)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
