"""`benchmarks.pictures` on servers that answer after a script: new pictures and known ones are told apart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from benchmarks import pictures
from benchmarks.contender import Command, Unavailable
from benchmarks.servers import Server

ROUNDS = 3
NEW_S, KNOWN_S = 0.08, 0.01


class Scripted(BaseHTTPRequestHandler):
    """Looks at a picture that it has not seen for a while; `seen` and `slower` belong to its server."""

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "scripted"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        image, text = asked["messages"][0]["content"]
        url, server = image["image_url"]["url"], self.server
        assert url.startswith("data:image/png;base64,")
        if text["text"] == "refuse":
            self._answer(400, {"error": {"message": "no pictures here"}})
            return
        time.sleep((KNOWN_S if url in server.seen else NEW_S) * server.slower)  # type: ignore[attr-defined]
        server.seen.add(url)  # type: ignore[attr-defined]
        self._answer(200, {"usage": {"prompt_tokens": 70}})

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def scripted(name: str, slower: float) -> Iterator[Server]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.seen, server.slower = set(), slower  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever)
    thread.start()
    with server:
        try:
            yield Server(name, "", Command(()), server.server_port)
        finally:
            server.shutdown()
            thread.join()


def test_new_pictures_and_known_ones_are_told_apart() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(scripted(*each)) for each in (("one", 1.0), ("other", 3.0))]
        found, tokens = pictures.measure(servers, 16, ROUNDS, ("What is it?", "And its colours?"))
    assert tokens == [70, 70]
    for name, slower in (("one", 1.0), ("other", 3.0)):
        new, known = found[name].values()
        assert len(new) == len(known) == ROUNDS
        assert min(new) >= NEW_S * slower
        assert KNOWN_S * slower <= min(known) < min(new)  # another would have looked at it
    lines = pictures.table(found).splitlines()
    assert [line.count("|") for line in lines] == [5] * 4


def test_a_refusal_ends_the_measurement_with_its_words() -> None:
    with scripted("one", 1.0) as server, pytest.raises(Unavailable, match=r"one: 400 .*no pictures here"):
        pictures.measure([server], 16, ROUNDS, ("refuse", "refuse"))
