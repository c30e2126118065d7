"""Responses that are made in the background: fetched when they are there, cancelled, removed, and lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from homenode.engine.messages import Output
from homenode.server.apis.responses import background
from homenode.server.core.response_store import FolderStore, StoredResponse, StoreLimits, new_response_id
from tests.server.conftest import Running, Start
from tests.server.fakes import ScriptedClient, scripted
from tests.server.test_responses import PATH, Service
from tests.waiting import wait_until

ASKED = {"input": "hi", "background": True, "max_output_tokens": 9}


def wait_for(server: Running, id: str, *statuses: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def comes() -> bool:
        found.update(server.http.get(f"{PATH}/{id}").json())
        return found["status"] in statuses

    wait_until(comes, lambda: found)
    return found


def test_it_is_answered_at_once_and_fetched_later(start: Start) -> None:
    client = ScriptedClient(hold_after=3)
    server = start(client)
    begun = server.post(PATH, ASKED).json()
    assert (begun["status"], begun["background"], begun["output"]) == ("in_progress", True, [])
    assert client.held.wait(10)
    assert server.http.get(f"{PATH}/{begun['id']}").json()["status"] == "in_progress"
    early = server.post(PATH, {"input": "x", "previous_response_id": begun["id"]})
    assert early.status_code == 400 and "not complete" in early.json()["error"]["message"]
    server.call(client.release)
    made = wait_for(server, begun["id"], "completed", "incomplete")
    whole = server.post(PATH, {**ASKED, "background": False}).json()
    assert made["output"][0]["content"] == whole["output"][0]["content"] and made["usage"] == whole["usage"]
    again = server.post(f"{PATH}/{begun['id']}/cancel", {})
    assert again.status_code == 200 and again.json() == made


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_it_ends_when_nobody_wants_it(start: Start, how: str) -> None:
    client = ScriptedClient(hold_after=3)
    server = start(client)
    begun = server.post(PATH, ASKED).json()
    assert client.held.wait(10) and not client.closed.is_set()
    if how == "cancel":
        ended = server.post(f"{PATH}/{begun['id']}/cancel", {}).json()
        assert ended["status"] == "cancelled" and ended["id"] == begun["id"]
    else:
        assert server.http.delete(f"{PATH}/{begun['id']}").json()["deleted"] is True
    assert client.closed.wait(10)
    after = server.http.get(f"{PATH}/{begun['id']}")
    assert after.json()["status"] == "cancelled" if how == "cancel" else after.status_code == 404


def test_one_that_is_not_in_the_background_is_not_cancelled(start: Start) -> None:
    server = start()
    made = server.post(PATH, {"input": "hi", "max_output_tokens": 2}).json()
    refused = server.post(f"{PATH}/{made['id']}/cancel", {})
    assert refused.status_code == 400 and "background" in refused.json()["error"]["message"]


def test_a_failure_is_told_when_it_is_fetched(start: Start) -> None:
    def failing(request: Any) -> list[Output]:
        lost = Output(request.id, finish_reason="error", error="the worker is gone", error_kind="WorkerLostError")
        return [*scripted(request)[:1], lost]

    server = start(ScriptedClient(failing))
    begun = server.post(PATH, ASKED).json()
    made = wait_for(server, begun["id"], "failed")
    assert made["error"]["message"] == "the worker is gone" and made["error"]["code"] == "server_error"


def test_one_that_nobody_makes_any_more_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        service = Service("x")
        store = service.state.responses = FolderStore(tmp_path / "shared", StoreLimits(9, 10**6, 60.0))
        id, response = new_response_id(), {"status": "in_progress", "background": True, "output": []}
        stored = StoredResponse(response=Raw(msgspec.json.encode(response)), items=[])
        await store.put(id, stored)
        assert msgspec.json.decode(await background.as_it_is(service.state, id, stored)) == response
        monkeypatch.setattr(background, "_LOST_AFTER_S", 0.0)
        lost = msgspec.json.decode(await background.as_it_is(service.state, id, stored))
        assert lost["status"] == "failed" and "gone" in lost["error"]["message"]
        assert await store.touch(id) and not await store.touch(new_response_id())
        assert await store.age(new_response_id()) is None

    asyncio.run(run())


def test_a_stream_whose_first_token_takes_long_begins_after_a_second(start: Start) -> None:
    """With what is known of the response, so that a client can tell that it was taken, and cancel by its id."""
    client = ScriptedClient(hold_after=0)
    server = start(client)
    with server.http.stream("POST", PATH, json={"input": "hi", "stream": True, "max_output_tokens": 2}) as answer:
        lines = answer.iter_lines()
        begun = [next(lines) for _ in range(6)]
        assert begun[0] == "event: response.created" and begun[3] == "event: response.in_progress"
        server.call(client.release)
        rest = [line for line in lines if line.startswith("event: ")]
    assert rest[0] == "event: response.output_item.added" and rest[-1] == "event: response.incomplete"
    assert "event: response.created" not in rest
