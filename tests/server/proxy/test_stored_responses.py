"""Responses that decode servers keep, through the proxy: a request goes to the one that keeps what it goes on from."""

from __future__ import annotations

import pytest

from homenode.server.http.failures import ApiError
from homenode.server.proxy.events import Events
from homenode.server.proxy.forwarded_apis import RESPONSES
from tests.server.proxy.scripted import Asked, Connection, Scripted, prefiller, run, stage

ID = "resp_" + "0a" * 16
ENDED = b'event: response.completed\ndata: {"type": "response.completed", "text": "%s"}\n\n' % (b"x" * 200)


def keeper(*ids: str) -> Scripted:
    """A decode server that keeps these responses."""

    async def answers(server: Scripted, asked: Asked, connection: Connection) -> None:
        if asked.path == "/v1/responses":
            if asked.json.get("stream"):
                connection.begin_stream()
                connection.chunk(b'event: response.created\ndata: {"type": "response.created"}\n\n' + ENDED)
                connection.writer.write(b"0\r\n\r\n")
            else:
                connection.answer(200, {"id": ID, "output": []})
        elif any(id in asked.path for id in ids):
            connection.answer(200, {"path": asked.path, "method": asked.method})
        else:
            connection.answer(404, {"error": {"message": "not here", "code": "response_not_found"}})

    return Scripted("receiver", answers)


def paths(server: Scripted) -> list[str]:
    return [asked.path for asked in server.asked]


def test_a_request_goes_to_who_keeps_what_is_before() -> None:
    async def test() -> None:
        decoders = [keeper(), keeper(ID), keeper()]
        async with stage(decoders=decoders) as on:
            body = {"input": "x", "previous_response_id": ID}
            for stream in (False, True):
                answer = await on.http.post("/v1/responses", json={**body, "stream": stream})
                assert answer.status_code == 200
            assert [paths(server).count("/v1/responses") for server in decoders] == [0, 2, 0]
            assert not on.prefillers[0].asked
            await on.shows(2, "direct_total", reason="previous_response")
            await on.shows(2, "requests_total", way="direct", outcome="ok")

    run(test)


def test_who_keeps_what_is_before_answers_whatever_models_it_has() -> None:
    async def test() -> None:
        decoders = [keeper(), keeper(ID)]
        for server, name in zip(decoders, ("asked", "other"), strict=True):
            server.models = {name: {}}
        async with stage(decoders=decoders) as on:
            body = {"input": "x", "previous_response_id": ID, "model": "asked"}
            assert (await on.http.post("/v1/responses", json=body)).status_code == 200
            assert [paths(server).count("/v1/responses") for server in decoders] == [0, 1]

    run(test)


def test_a_prompt_of_items_is_handed_over() -> None:
    async def test() -> None:
        async with stage(decoders=[keeper()]) as on:
            answer = await on.http.post("/v1/responses", json={"input": "x", "stream": True})
            assert answer.content.endswith(ENDED)
            assert paths(on.prefillers[0]) == paths(on.decoders[0]) == ["/v1/responses"]
            assert on.decoders[0].asked[0].params["do_remote_prefill"] is True
            later = await on.http.post("/v1/responses", json={"input": "x", "background": True})
            assert later.status_code == 200 and on.decoders[0].asked[-1].json["background"] is True
            assert on.prefillers[0].asked[-1].json["background"] is False  # which gives no answer to be kept
            await on.shows(2, "requests_total", way="handover", outcome="ok")
            assert on.prefillers[0].released == []

    run(test)


def test_what_is_kept_is_asked_of_who_keeps_it() -> None:
    async def test() -> None:
        async with stage([prefiller()], [keeper(), keeper(ID)]) as on:
            for method, path in (
                ("GET", f"/v1/responses/{ID}"),
                ("GET", f"/v1/responses/{ID}/input_items?limit=3"),
                ("POST", f"/v1/responses/{ID}/cancel"),
                ("DELETE", f"/v1/responses/{ID}"),
            ):
                answer = await on.http.request(method, path)
                assert answer.status_code == 200 and answer.json() == {"path": path, "method": method}
            for id in ("resp_" + "1" * 32, "no-id"):
                missing = await on.http.get(f"/v1/responses/{id}")
                assert missing.status_code == 404 and missing.json()["error"]["code"] == "response_not_found"
            await on.decoders[0].kill()
            assert (await on.http.get(f"/v1/responses/{ID}")).status_code == 200

    run(test)


def test_what_nobody_keeps_is_for_any_decoder_to_refuse() -> None:
    async def test() -> None:
        async with stage(decoders=[keeper(), keeper()]) as on:
            answer = await on.http.post("/v1/responses", json={"input": "x", "previous_response_id": ID})
            assert answer.status_code == 200  # these servers refuse nothing
            assert sum(paths(server).count("/v1/responses") for server in on.decoders) == 1

    run(test)


@pytest.mark.parametrize(
    ("stream", "done"),
    [
        (b"event: a\ndata: 1\n\n" + ENDED, True),
        (ENDED.replace(b"\n", b"\r\n"), True),
        (ENDED + b"data: 1\n\n", False),
        (b"event: response.created\ndata: event: response.completed\n\n", False),
        (ENDED[:-1], False),
        (b"event: response.completed\ndata: " + b"x" * (3 << 20) + b"\n\n", True),
        (b"event: response.created\ndata: " + b"x" * (3 << 20) + b"\n\n", False),
    ],
)
@pytest.mark.parametrize("cut", [1, 7, 1 << 16])
def test_the_end_of_a_stream_is_known_by_its_last_event(stream: bytes, done: bool, cut: int) -> None:
    size = cut if len(stream) < 1 << 20 else cut << 18
    events = Events(RESPONSES)
    given = b"".join(events.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    assert given + events.flush() == stream and events.done == done


def test_an_error_of_the_proxy_is_an_event() -> None:
    told = Events(RESPONSES).failure(ApiError(502, "m", code="c"))
    assert told.startswith(b'event: error\ndata: {"type":"error",') and b'"message":"m"' in told
