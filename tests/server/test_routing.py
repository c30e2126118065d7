"""Endpoints that routers ask, by the words of vLLM."""

from __future__ import annotations

import pytest

from tests.server.conftest import Running


def test_a_server_tells_routers_its_blocks(server: Running) -> None:
    told = server.http.get("/get_server_info").json()
    ready = server.client.ready
    assert told["block_size"] == told["effective_attention_block_size"] == ready.block_size
    assert (told["num_blocks"], told["dp_size"]) == (ready.num_blocks, 1)
    assert "kv_block_size" not in told  # one reader takes it for the same key, and fails


def test_without_events_there_are_no_sources(server: Running) -> None:
    assert server.http.get("/kv_event_sources").json() == {}


@pytest.mark.parametrize("path", ["/kv_event_sources", "/get_server_info"])
def test_a_model_that_is_not_there_has_none(server: Running, path: str) -> None:
    assert server.http.get(f"{path}?model=nobody").status_code == 404


def test_the_prefix_cache_is_emptied(server: Running) -> None:
    before = server.client.resets
    assert server.http.post("/reset_prefix_cache").json() == {"success": True}
    assert server.client.resets == before + 1
    assert server.http.post("/reset_prefix_cache?reset_external=false").status_code == 200


@pytest.mark.parametrize("switch", ["reset_external", "reset_running_requests"])
def test_what_cannot_be_emptied_is_refused_by_name(server: Running, switch: str) -> None:
    before = server.client.resets
    answer = server.http.post(f"/reset_prefix_cache?{switch}=true")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == switch
    assert server.client.resets == before
