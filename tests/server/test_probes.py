"""Probes say what they are asked for, without a key; /load counts all fronts; /docs is a page by itself."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from homenode.server.http.request_load import RequestLoad, forget_load
from tests.paths import ROOT
from tests.server.conftest import Running, Start
from tests.server.test_page import BROWSER, all_files
from tests.waiting import wait_until

REFERENCE = ROOT / "src/homenode/server/page/reference"
PROBES = (("GET", "/livez"), ("GET", "/readyz"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/health"))


@pytest.fixture(scope="module")
def keyed(start: Start) -> Running:
    return start(api_key=("secret",), ui=False, root_path="/llm")


def test_probes_need_no_key_and_the_load_does(keyed: Running) -> None:
    assert {each: keyed.http.request(*each).status_code for each in PROBES} == dict.fromkeys(PROBES, 200)
    assert keyed.http.get("/load").status_code == 401
    assert keyed.http.get("/load", headers={"Authorization": "Bearer secret"}).json() == {"server_load": 0}


def test_a_server_that_computes_nothing_now_lives_and_is_not_ready_and_says_why(start: Start) -> None:
    server = start()
    paths = ("/livez", "/readyz", "/ping")
    server.client.hindrance = "a worker is being replaced"
    assert [server.http.get(path).status_code for path in paths] == [200, 503, 503]
    assert "a worker is being replaced" in server.http.get("/readyz").text
    server.client.hindrance = None
    assert [server.http.get(path).status_code for path in paths] == [200, 200, 200]


def test_requests_under_way_are_counted_as_long_as_they_are(server: Running) -> None:
    with server.http.stream("POST", "/v1/completions", json={"prompt": "hang", "stream": True, "max_tokens": 200}):
        seen = server.http.get("/load").json()["server_load"]
    assert seen in (0, 1)  # a short answer may be over by then
    wait_until(lambda: server.http.get("/load").json() == {"server_load": 0})


def test_the_load_is_that_of_all_fronts_that_live(tmp_path: Path) -> None:
    alone, mine = RequestLoad(), RequestLoad(str(tmp_path))
    alone.set(5)
    mine.set(3)
    assert (alone.total(), mine.total()) == (5, 3)
    (tmp_path / f"load_{os.getppid()}").write_bytes((4).to_bytes(8, "little"))
    (tmp_path / "load_999999999").write_bytes((100).to_bytes(8, "little"))  # of a process that has ended
    (tmp_path / "load_strange").write_bytes(b"")
    assert mine.total() == 7
    for _ in range(2):
        forget_load(tmp_path, 999999999)
    assert not (tmp_path / "load_999999999").exists()
    mine.set(0)
    assert mine.total() == 4


def test_the_page_of_the_api_is_there_by_itself(keyed: Running) -> None:
    found = all_files(keyed, "/llm/docs")
    assert {path.rpartition("/")[2] for path in found} >= {"docs", "reference.js", "reference.css"}
    assert {found[path].status_code for path in found if "/docs" in path} == {200}
    front = found["/llm/docs"]
    assert "default-src 'none'" in front.headers["content-security-policy"] and '<base href="/llm/">' in front.text
    assert keyed.http.get("/docs/index.html").status_code == keyed.http.get("/docs/..%2fapi.py").status_code == 404
    assert keyed.http.get("/openapi.json", headers=BROWSER).status_code == 401
    for file in REFERENCE.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|document\.write|\beval\(|https?://|\sstyle=", text), file.name
