"""Named sessions, whose KV stays on disk: how requests name them, and how they are released."""

from __future__ import annotations

import pytest

from homenode.engine.request import session_ticket
from tests.server.conftest import Running


def test_a_session_reaches_the_engine_by_a_name_of_its_key_and_salt(server: Running) -> None:
    for body in ({}, {"session": "paper"}, {"session": "paper", "cache_salt": "red"}):
        assert server.complete(max_tokens=1, **body).status_code == 200
    asked = [request.session for request in server.client.requests[-3:]]
    assert asked == ["", session_ticket("", "", "paper"), session_ticket("", "red", "paper")]
    assert len(set(asked)) == 3 and "paper" not in "".join(asked)


def test_a_session_is_released_by_its_name(server: Running) -> None:
    for _ in range(2):  # once more does no harm
        answer = server.post("/kv_sessions/release", {"session": "paper", "cache_salt": "red"})
        assert answer.json() == {"session": "paper", "status": "released"}
    assert server.client.tickets_released[-2:] == [(session_ticket("", "red", "paper"), "released")] * 2


@pytest.mark.parametrize("body", [{}, {"session": ""}, {"session": 1}, {"session": "x" * 129}])
def test_what_names_no_session_is_refused(server: Running, body: dict[str, object]) -> None:
    answer = server.post("/kv_sessions/release", body)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"
