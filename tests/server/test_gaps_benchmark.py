"""`benchmarks.gaps` on a server that answers after a script: readers, long prompts and short ones are told apart."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gaps

LONG_S, SHORT_S, TOKEN_S = 1.5, 0.05, 0.01


class Scripted(BaseHTTPRequestHandler):
    """A reader has a token each `TOKEN_S`, and none while a long prompt is computed."""

    busy, ended = threading.Event(), threading.Event()

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "scripted"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["model"] == "scripted"
        self.send_response(200)
        self.end_headers()
        if asked["max_tokens"] > 1:
            self._read_along()
            return
        long = len(asked["prompt"]) == 900
        if long:
            self.busy.set()
        self.ended.wait(LONG_S if long else SHORT_S)
        self.busy.clear()
        self._token()

    def _read_along(self) -> None:
        try:
            while not self.ended.wait(TOKEN_S):
                if not self.busy.is_set():
                    self._token()
        except OSError:
            return

    def _token(self) -> None:
        self.wfile.write(b'data: {"choices": [{"text": "a"}]}\n')
        self.wfile.flush()


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever)
    Scripted.ended.clear()
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        Scripted.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_silence_beside_a_long_prompt_is_seen(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "_AFTER_S", 0.9)
    load = gaps.Load(readers=2, long=900, short=8, rounds=1, vocab_size=2000)
    (found,) = gaps.measure_server(url, load)
    assert max(found.gaps) > 0.5 and found.long >= LONG_S
    assert min(found.short) >= SHORT_S and found.reader_alone < 0.5


def test_servers_are_named_and_their_commands_filled_in() -> None:
    load = gaps.Load(1, 900, 8, 1, 2000)
    given = gaps.servers_of(Path("m"), 3, load, None, ["a=http://h:1", "b=run {model} --at {port} -t {threads}"])
    (_, own), (a, running), (b, command) = given
    assert not isinstance(own, str) and "m" in own.command.argv
    assert (a, running) == ("a", "http://h:1")
    assert b == "b" and not isinstance(command, str)
    assert command.command.argv == ("run", "m", "--at", str(command.port), "-t", "3")
    with pytest.raises(ValueError, match="NAME=URL"):
        list(gaps.servers_of(Path("m"), 3, load, None, ["a"]))
