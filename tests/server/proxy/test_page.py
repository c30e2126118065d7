"""The proxy's own page: it answers browsers itself, and tells of both sides."""

from __future__ import annotations

from typing import Any

import pytest

from homenode.server.page.files import page_files
from homenode.server.proxy.upstreams import Upstream, UpstreamAnswer
from tests.server.proxy.scripted import run, stage
from tests.waiting import wait_in_loop

BROWSER = {"Accept": "text/html,*/*;q=0.8"}


def test_a_proxy_has_a_page_and_never_that_of_its_servers() -> None:
    async def test() -> None:
        async with stage() as on:
            asked = len(on.decoders[0].asked)
            front = await on.http.get("/", headers=BROWSER)
            assert front.status_code == 200 and "<html" in front.text
            assert "default-src 'none'" in front.headers["content-security-policy"]
            script = await on.http.get(f"/page/{page_files('').version}/app.js")
            assert script.status_code == 200 and script.headers["content-type"].startswith("text/javascript")
            assert len(on.decoders[0].asked) == asked, "nobody else was asked"
            await on.http.get("/", headers={"Accept": "*/*"})
            assert len(on.decoders[0].asked) == asked + 1, "programs get a decode server's answer"
        async with stage(ui=False) as on:
            assert "<html" not in (await on.http.get("/", headers=BROWSER)).text
            assert (await on.http.get(f"/page/{page_files('').version}/app.js")).status_code == 404

    run(test)


def test_an_overview_has_both_sides_their_states_and_requests_under_way() -> None:
    async def test() -> None:
        async with stage() as on:
            await on.complete()
            await on.shows(1, "requests_total")
            seen: dict[str, Any] = (await on.http.get("/overview")).json()
            assert seen["kind"] == "proxy" and seen["pairs"] == 1
            states = {(each["url"], each["role"]): each["state"] for each in seen["servers"]}
            servers = [(on.prefillers[0].url, "prefill"), (on.decoders[0].url, "decode")]
            assert states == dict.fromkeys(servers, "ready")
            assert sum(seen["ways"].values()) == 1 and set(seen["phases"].values()) == {0}
            await on.decoders[0].kill()

            async def gone() -> bool:
                told = (await on.http.get("/overview")).json()["servers"]
                return any(each["url"] == servers[1][0] and each["state"] not in ("ready", "suspect") for each in told)

            await wait_in_loop(gone)

    run(test)


def test_an_overview_of_a_server_that_cannot_be_read_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are no UTF-8 among them."""
    ask = Upstream.ask

    async def damaged(upstream: Upstream, method: str, path: str, *rest: Any, **more: Any) -> Any:
        if path.startswith("/overview"):
            seen.append(upstream.url)
            return UpstreamAnswer(200, [], b'{"models": [], "machine": {"fingerprint": "\xff"}}')
        return await ask(upstream, method, path, *rest, **more)

    monkeypatch.setattr(Upstream, "ask", damaged)
    seen: list[str] = []

    async def test() -> None:
        async with stage() as on:
            answer = await on.http.get("/overview")
            assert answer.status_code == 200 and len(answer.json()["servers"]) == 2 == len(seen)

    run(test)


def test_a_key_is_asked_for_what_is_shown_and_not_for_the_page() -> None:
    async def test() -> None:
        async with stage(api_key=("secret",)) as on:
            assert (await on.http.get("/", headers=BROWSER)).status_code == 200
            assert (await on.http.get("/overview", headers={"Authorization": "Bearer wrong"})).status_code == 401

    run(test)
