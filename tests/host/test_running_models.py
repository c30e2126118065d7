"""`homenode models served`, `load`, `unload` and `reload` against a server that answers as one of several models
does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner, Result

from homenode.cli.main import cli

KEY = "ключ"  # a key may have any letters


class Answering(BaseHTTPRequestHandler):
    """Two models; `slow` takes two looks to be loaded, `broken` fails."""

    words: dict[str, list[str]]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        models = [
            {"id": name, "aliases": [f"{name}-alias"], "status": self._status(words)}
            for name, words in self.words.items()
        ]
        self._answer(200, {"data": models})

    def _status(self, words: list[str]) -> dict[str, Any]:
        word = words.pop(0) if len(words) > 1 else words[0]
        told = {"value": word, "memory_bytes": 3 << 20, "nodes": [0, 1], "cpus": "0-3"}
        return told | ({"reason": "the file is cut"} if word == "failed" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization", "").encode("latin-1") != f"Bearer {KEY}".encode():
            self._answer(401, {"error": {"message": "the API key is missing or wrong"}})
        elif self.path == "/models/reload":
            self._answer(200, {"success": True, "added": ["new"], "changed": [], "removed": []})
        elif (name := body["model"].removesuffix("-alias")) not in self.words:
            self._answer(404, {"error": {"message": f"`model` is `{name}`, which is not served here"}})
        else:
            after = {
                "/models/load": ["loading", "failed" if name == "broken" else "loaded"],
                "/models/unload": ["unloaded"],
            }
            self.words[name] = after[self.path]
            self._answer(200, {"success": True})

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("homenode.cli.models.running._LOOK_S", 0.01)
    Answering.words = {"slow": ["unloaded"], "broken": ["unloaded"]}
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run(*arguments: str, key: str = KEY) -> Result:
    return CliRunner().invoke(cli, ["models", *arguments], env={"HOMENODE_API_KEY": key})


def test_the_models_are_listed(url: str) -> None:
    shown = run("served", "--server", url)
    assert shown.exit_code == 0
    for part in ("slow", "slow-alias", "unloaded", "3MiB", "0,1", "0-3"):
        assert part in shown.output
    assert [each["id"] for each in json.loads(run("served", "--server", url, "--json").output)] == ["slow", "broken"]


def test_a_model_is_loaded_and_unloaded(url: str) -> None:
    loaded = run("load", "slow-alias", "--server", url, "--json")
    assert loaded.exit_code == 0 and json.loads(loaded.output)["status"]["value"] == "loaded"
    assert "slow is unloaded" in run("unload", "slow", "--server", url).output
    assert "added: new" in run("reload", "--server", url).output


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    (
        (("load", "broken"), KEY, "broken is failed: the file is cut"),
        (("load", "nobody"), KEY, "`nobody`, which is not served here"),
        (("load", "slow"), "wrong", "the API key is missing or wrong"),
    ),
)
def test_a_refusal_is_told(url: str, arguments: tuple[str, ...], key: str, words: str) -> None:
    refused = run(*arguments, "--server", url, key=key)
    assert refused.exit_code == 2 and words in refused.output, refused.output


def test_no_server_is_told(url: str) -> None:
    refused = run("served", "--server", "http://127.0.0.1:9")
    assert refused.exit_code == 1 and "no server answers at http://127.0.0.1:9" in refused.output, refused.output
