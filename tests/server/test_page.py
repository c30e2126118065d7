"""The page in the browser: its files, what they may do, and what it asks for besides the APIs."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import msgspec
import pytest
from click.testing import CliRunner
from starlette.requests import Request

from homenode.cli.main import cli
from homenode.engine.messages import RequestRow
from homenode.server.monitoring import history
from homenode.server.page.files import PageFiles, _version, page_files
from homenode.server.page.machine_watch import MachineWatch
from homenode.server.page.waiting_words import waiting_words
from tests.paths import ROOT
from tests.server.conftest import Running, Start
from tests.server.fakes import ScriptedClient
from tests.waiting import wait_until

BROWSER = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
STATIC = ROOT / "src/homenode/server/page/static"
LOADED = re.compile(r"""(?:src|href)="([^"#]+)"|from\s+"([^"]+\.js)"|url\(["']?([^"')]+)""")


def all_files(server: Running, at: str = "/") -> dict[str, httpx.Response]:
    """The page at `at`, and all files that it loads, however deep."""
    found: dict[str, httpx.Response] = {}
    todo = [at]
    while todo:
        path = todo.pop()
        found[path] = server.http.get(path, headers=BROWSER)
        for names in LOADED.findall(found[path].text) if "image" not in found[path].headers["content-type"] else ():
            target = urljoin(path, next(filter(None, names)))
            if target not in found and target.startswith("/"):
                todo.append(target)
    return found


def test_the_page_and_its_files_are_small_compressed_and_all_there(server: Running) -> None:
    found = all_files(server)
    assert {path: answer.status_code for path, answer in found.items()} == dict.fromkeys(found, 200)
    assert {path.rpartition("/")[2] for path in found} >= {each.name for each in STATIC.iterdir()} - {"index.html"}
    assert all(answer.headers["content-encoding"] == "gzip" for answer in found.values())
    assert sum(int(answer.headers["content-length"]) for answer in found.values()) < 100_000
    plain = server.http.get("/", headers={**BROWSER, "Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.text == found["/"].text


@pytest.mark.parametrize("at", ["/", "/docs"])
def test_a_browser_keeps_files_and_asks_for_the_page_that_names_their_version(server: Running, at: str) -> None:
    found = all_files(server, at)
    page = found.pop(at)
    assert page.headers["cache-control"] == "no-cache"
    files = [answer for path, answer in found.items() if not path.endswith(".json")]
    assert files and {answer.headers["cache-control"] for answer in files} == {"public, max-age=31536000, immutable"}
    assert not any("etag" in answer.headers or "last-modified" in answer.headers for answer in (page, *files))


def test_the_version_of_files_changes_with_any_of_them() -> None:
    contents = {"index.html": b"<head>", "a.js": b"1", "b.css": b"2"}
    versions = {_version({**contents, name: change}) for name in contents for change in (contents[name], b"", b"3")} | {
        _version({**contents, "c.js": b""})
    }
    assert len(versions) == 1 + 2 * len(contents) + 1


def test_nothing_runs_or_comes_from_elsewhere(server: Running) -> None:
    front = server.http.get("/", headers=BROWSER)
    rules = dict(each.strip().split(" ", 1) for each in front.headers["content-security-policy"].split(";"))
    assert rules["default-src"] == "'none'"
    for name in ("form-action", "frame-ancestors", "base-uri"):
        assert rules[name] == "'none'", name
    for name in ("script-src", "style-src", "connect-src"):
        assert rules[name] == "'self'", name
    assert rules["img-src"] == "'self' data: blob:"
    for path, answer in all_files(server).items():
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["referrer-policy"] == "no-referrer", path
    for file in STATIC.iterdir():
        text = file.read_text("utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            file
        )
        outside = set(re.findall(r"""["'(]((?:https?:|wss?:)?//[a-z0-9.-]+\.[a-z]+)""", text))
        assert outside <= {"http://www.w3.org"}, file  # names of SVG and MathML, which are never loaded
    assert not re.search(r"<[^>]+\s(?:on[a-z]+|style)\s*=", front.text)


@pytest.mark.parametrize(
    "path",
    [
        "/page/", "/page/index.html", "/page/app.js", "/page/0123456789abcdef/app.js", "/page/VERSION/index.html",
        "/page/VERSION/nothing.js", "/page/VERSION/../health.py", "/page/VERSION/%2e%2e%2ffiles.py", "/page/a/b/c.js",
    ],
)  # fmt: skip
def test_what_is_no_file_of_the_page_is_not_found(server: Running, path: str) -> None:
    answer = server.http.get(path.replace("VERSION", page_files("").version), headers=BROWSER)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "unknown_path"


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/plain", ""])
def test_programs_are_told_that_the_server_runs(server: Running, accept: str) -> None:
    answer = server.http.get("/", headers={"Accept": accept})
    assert answer.status_code == 200 and "is running" in answer.text and "<html" not in answer.text


def test_without_a_key_there_is_the_page_and_nothing_of_the_server(start: Start) -> None:
    server = start(api_key=("secret",), served_model_name=("hidden-name",))
    found = all_files(server)
    assert all(answer.status_code == 200 for answer in found.values())
    assert not any(word in answer.text for answer in found.values() for word in ("hidden-name", "secret"))
    for path in ("/overview", "/metrics", "/v1/models"):
        assert server.http.get(path, headers=BROWSER).status_code == 401, path
    assert server.post("/plan", {}).status_code == 401
    assert server.http.get("/").status_code == 401  # of programs nothing has changed
    assert server.http.get("/overview", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_behind_a_root_path_all_is_found_below_it(start: Start) -> None:
    server = start(root_path="/llm")
    for at in ("/llm/", "/llm"):
        front = server.http.get(at, headers=BROWSER)
        assert '<base href="/llm/">' in front.text
        assert "base-uri 'self'" in front.headers["content-security-policy"]
    found = all_files(server, "/llm/")
    assert all(path.startswith("/llm/") and answer.status_code == 200 for path, answer in found.items())
    quoted = PageFiles('/a"b').page(Request({"type": "http", "headers": []}))
    assert b'<base href="/a&quot;b/">' in bytes(quoted.body)


def test_no_ui_leaves_the_rest_as_it_is(start: Start) -> None:
    server = start(ui=False)
    assert "is running" in server.http.get("/", headers=BROWSER).text
    assert server.http.get(f"/page/{page_files('').version}/app.js").status_code == 404
    assert server.http.get("/overview").status_code == 200


def test_the_files_are_read_once() -> None:
    assert page_files("/x") is page_files("/x") and "app.js" in page_files("").names


# /overview


def overview(server: Running, **query: object) -> dict[str, Any]:
    answer = server.http.get("/overview", params=query)
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    return answer.json()


def test_an_overview_has_the_figures_of_metrics_and_every_request(start: Start) -> None:
    client = ScriptedClient()
    client.statistics.compute["barrier_wait_share"] = 0.125
    client.rows = [RequestRow(7, 100, 60, 0, 32, 1.5, None, 0), RequestRow(8, 20, 0, 0, 0, 0.25, "slots", 1)]
    server = start(client)
    seen = overview(server)
    (model,) = seen["models"]
    assert model["barrier_wait"] == server.metric("homenode:barrier_wait_ratio") == 0.125
    assert seen["kind"] == "server" and model["name"] == "story-teller" and model["state"] == "ok"
    assert model["gauges"]["running"] == server.metric("homenode:num_requests_running")
    assert model["gauges"]["waiting"] == server.metric("homenode:num_requests_waiting")
    assert model["gauges"]["kv_usage"] == server.metric("homenode:kv_cache_usage_perc")
    assert model["counters"]["prefix_hits"] == server.metric("homenode:prefix_cache_hits_total")
    first, second = model["requests"]
    assert (first["id"], first["state"], first["prompt"], first["computed"], first["cached"]) == (
        "7",
        "running",
        100,
        60,
        32,
    )
    assert second["state"] == "waiting" and "--max-num-seqs" in second["why"]
    nodes = [node for socket in seen["host"]["sockets"] for node in socket["nodes"]]
    cpus = {cpu for node in nodes for cache in node["caches"] for core in cache for cpu in core}
    assert cpus and "fair" in seen["strategies"]


def test_who_knows_the_machine_is_not_told_again(server: Running) -> None:
    first = overview(server)
    again = overview(server, known=first["machine"]["fingerprint"], since=first["at"])
    assert "host" not in again and again["hour"] == []
    assert server.http.get("/overview", params={"since": "x"}).status_code == 400


def test_those_who_ask_together_share_one_look(start: Start) -> None:
    client, asked = ScriptedClient(), []
    real = client.list_requests

    async def counted(most: int, timeout: float) -> Any:
        asked.append(most)
        return await real(most, timeout)

    client.list_requests = counted  # type: ignore[method-assign]
    server = start(client)

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url) as http:
            return await asyncio.gather(*(http.get("/overview") for _ in range(40)))

    began = time.monotonic()
    answers = asyncio.run(ask())
    assert all(answer.status_code == 200 for answer in answers)
    assert len(asked) <= 2 + (time.monotonic() - began), "one look a second at most"
    assert max(answer.json()["ask_again_s"] for answer in answers) == 2.0


def test_a_silent_engine_keeps_nobody_from_the_rest(start: Start) -> None:
    client = ScriptedClient()
    server = start(client)
    client.silent = True
    (model,) = overview(server)["models"]
    assert model["requests"] == [] and model["gauges"]["running"] == 2


def test_the_last_hour_is_kept_while_nobody_looks(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SPACING_S", 0.05)
    server = start()
    assert server.complete(max_tokens=4).status_code == 200

    def told() -> list[dict[str, Any]] | None:
        hour: list[dict[str, Any]] = overview(server)["hour"]
        return hour if len(hour) >= 2 and any(point["first_token"] for point in hour) else None

    hour = wait_until(told)
    assert hour is not None
    assert hour[-1]["running"] == server.metric("homenode:num_requests_running")


@pytest.mark.parametrize("reason", ["slots", "blocks", "turn", "prefix", "kv"])
def test_every_reason_to_wait_has_words(reason: Any) -> None:
    words = waiting_words(reason, ScriptedClient().ready)
    assert len(words) > 30 and (reason in ("prefix", "kv") or re.search(r"--[a-z]|\d", words))


# /plan


@pytest.mark.parametrize("host", ["2s/4n/64c/smt2", "epyc-96cpu-8node.json", "2s/2n/48c/gpu=4"])
@pytest.mark.parametrize("strategy", ["fair", "numa-bind"])
def test_a_plan_is_the_one_of_the_command(server: Running, host: str, strategy: str) -> None:
    file = ROOT / "tests/hosts" / host
    text = file.read_text() if file.is_file() else f"{host}\n"
    source = str(file if file.is_file() else host)
    said = CliRunner().invoke(cli, ["plan", "--from", source, "--strategy", strategy, "--json"])
    answer = server.post("/plan", {"host": text, "strategy": strategy})
    if said.exit_code == 2:
        assert answer.status_code == 400, answer.text
        return
    assert answer.status_code == 200, answer.text
    assert answer.json()["plan"] == json.loads(said.stdout)
    assert answer.json()["host"]["sockets"]


def test_a_plan_for_a_model_has_its_weights_by_node_and_the_speed_of_each_policy(start: Start) -> None:
    client = ScriptedClient()
    client.ready = msgspec.structs.replace(client.ready, model="builtin")
    server = start(client, served_model_name=("m",))
    said = CliRunner().invoke(cli, ["plan", "--weights", "builtin", "--from", "2s/4n/64c", "--json"])
    answer = server.post("/plan", {"host": "2s/4n/64c", "strategy": "fair", "model": "m"})
    assert answer.status_code == 200, answer.text
    wanted, weights = json.loads(said.stdout), answer.json()["weights"]
    assert {name: wanted[name] for name in weights} == weights
    assert set(weights["nodes"]) == {"0", "1", "2", "3"} and "tokens/s" in weights["why"]
    assert "weights" not in server.post("/plan", {"host": "2s/4n/64c", "strategy": "fair"}).json()
    assert server.post("/plan", {"strategy": "fair", "model": "nobody"}).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"host": "no host"}, {"host": "{}"}, {"host": "[" * 5000}, {"strategy": "best"}, {"host": "9s/1n/"},
        {"host": 3}, {"host": '{"format": "homenode-host/1", "machine": "x86_64"}'}, {"strategy": None},
    ],
)  # fmt: skip
def test_what_is_no_host_is_refused_in_words(server: Running, body: dict[str, Any]) -> None:
    answer = server.post("/plan", {"strategy": "fair", **body})
    assert answer.status_code == 400 and len(answer.json()["error"]["message"]) > 20


def test_the_files_are_part_of_an_installation() -> None:
    names = {file.name for file in STATIC.iterdir()}
    assert names == {*page_files("").names, "index.html"}, "a kind of file that is not served"
    assert all(gzip.compress(file.read_bytes()) for file in STATIC.iterdir())
    assert Path(STATIC).is_relative_to(ROOT / "src/homenode")


def test_a_folder_of_claims_that_cannot_be_trusted_hides_no_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "link"))
    seen = MachineWatch(os.getpid()).look()
    assert seen.fingerprint and not seen.known and seen.threads == []
