"""Prefill and decode apart, as HTTP sees it: the document, requests with tickets, tickets given up, and the
counters.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from homenode.engine.messages import EngineStats, Output, ReplicaStats
from homenode.engine.request import Request
from homenode.transfer.scheduler_events import BOUNDS_S, KvTicket, TransferStats, duration_class
from homenode.transfer.wire.message import Published, decode_documents, decode_published, encode_published
from tests.server.conftest import Running, Start
from tests.server.fakes import ScriptedClient, scripted

RECEIVER = Published(
    role="receiver",
    mode="push",
    channel="shm",
    incarnation="ab" * 16,
    fingerprint={"weights": "1"},
    block_size=64,
    alloc=["unix:@r"],
)
SENDER = Published(
    role="sender",
    mode="push",
    channel="shm",
    incarnation="cd" * 16,
    fingerprint={"weights": "1"},
    block_size=64,
    done=["unix:@s"],
)
PEER = msgspec.to_builtins(RECEIVER)


def client_of(document: Published, **rest: Any) -> ScriptedClient:
    client = ScriptedClient(**rest)
    client.ready = msgspec.structs.replace(client.ready, details={"kv_transfer": msgspec.to_builtins(document)})
    return client


@pytest.fixture(scope="module")
def sender(start: Start) -> Running:
    return start(client_of(SENDER))


@pytest.fixture(scope="module")
def receiver(start: Start) -> Running:
    return start(client_of(RECEIVER))


def error_of(answer: Any, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_the_document_is_what_the_engine_published(receiver: Running) -> None:
    answer = receiver.http.get("/kv_transfer")
    assert answer.status_code == 200
    assert decode_published(answer.content) == RECEIVER


def test_of_several_engines_each_that_is_there_publishes_and_a_request_says_which_has_its_kv(start: Start) -> None:
    other = msgspec.structs.replace(RECEIVER, incarnation="ef" * 16)
    client = client_of(RECEIVER)
    client.engines = tuple(
        ReplicaStats(number, None, "ready", 0, 0, EngineStats(), document)
        for number, document in enumerate((RECEIVER, other, None))
    )
    server = start(client)
    assert decode_documents(server.http.get("/kv_transfer").content) == [RECEIVER, other]
    params = {"do_remote_prefill": True, "ticket": "t-1", "engine": other.incarnation}
    assert (
        server.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2, "kv_transfer_params": params}).status_code
        == 200
    )
    assert client.requests[-1].kv == KvTicket("t-1", sends=False, engine=other.incarnation)
    wrong = {"prompt": [1, 2, 3], "kv_transfer_params": {**params, "engine": "1"}}
    assert error_of(server.post("/v1/completions", wrong))["type"] == "invalid_request_error"
    client.engines = tuple(msgspec.structs.replace(each, published=None) for each in client.engines)
    assert error_of(server.http.get("/kv_transfer"), 503)["code"] == "engine_unavailable"


def test_a_server_without_a_part_says_so(server: Running) -> None:
    assert error_of(server.http.get("/kv_transfer"), 404)["code"] == "kv_transfer_off"
    assert error_of(server.post("/kv_transfer/release", {"ticket": "t"}), 404)["code"] == "kv_transfer_off"
    for params in ({"do_remote_prefill": True, "ticket": "t"}, {"do_remote_decode": True, "ticket": "t", "peer": PEER}):
        error = error_of(server.complete(kv_transfer_params=params))
        assert "pd-role" in error["message"] and error["param"].startswith("kv_transfer_params.do_remote")
    assert server.complete(kv_transfer_params={}).status_code == 200  # asks for nothing
    assert server.complete(kv_transfer_params={"do_remote_decode": False, "do_remote_prefill": None}).status_code == 200


def test_the_sender_gets_the_ticket_and_computes_only(sender: Running) -> None:
    answer = sender.complete(
        prompt=[1, 2, 3],
        max_tokens=50,
        logprobs=3,
        echo=True,
        kv_transfer_params={"do_remote_decode": True, "ticket": "a-1", "peer": PEER},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["kv_transfer_params"] == {"ticket": "a-1", "tokens": 2, "status": "computed"}
    request = sender.client.requests[-1]
    assert request.kv == KvTicket("a-1", sends=True, peer=encode_published(RECEIVER))
    assert (
        request.params.max_tokens,
        request.params.min_tokens,
        request.params.logprobs,
        request.params.prompt_logprobs,
    ) == (
        0,
        0,
        None,
        None,
    )
    assert answer.json()["choices"][0]["text"] == ""


def test_chat_alike(sender: Running, receiver: Running) -> None:
    answer = sender.chat(kv_transfer_params={"do_remote_decode": True, "ticket": "c-1", "peer": PEER})
    assert answer.json()["kv_transfer_params"]["ticket"] == "c-1"
    answer = receiver.chat(max_tokens=3, kv_transfer_params={"do_remote_prefill": True, "ticket": "c-1"})
    assert "kv_transfer_params" not in answer.json()
    assert receiver.client.requests[-1].kv == KvTicket("c-1", sends=False)


def test_a_prompt_of_one_token_leaves_nothing_to_hand_over(sender: Running) -> None:
    answer = sender.complete(prompt=[7], kv_transfer_params={"do_remote_decode": True, "ticket": "one", "peer": PEER})
    assert answer.json()["kv_transfer_params"] == {"ticket": "one", "tokens": 0, "status": "nothing"}
    assert sender.client.requests[-1].kv is None


def test_the_first_sequence_at_the_receiver_has_the_ticket(receiver: Running) -> None:
    before = len(receiver.client.requests)
    answer = receiver.complete(n=3, max_tokens=4, kv_transfer_params={"do_remote_prefill": True, "ticket": "b-1"})
    assert answer.status_code == 200
    assert [request.kv for request in receiver.client.requests[before:]] == [KvTicket("b-1", sends=False), None, None]


def test_streams_at_the_receiver(receiver: Running) -> None:
    answer = receiver.complete(
        stream=True, max_tokens=4, kv_transfer_params={"do_remote_prefill": True, "ticket": "b-2"}
    )
    assert answer.status_code == 200 and answer.text.rstrip().endswith("[DONE]")


def test_a_prompt_that_is_scored_is_computed_and_the_ticket_given_up(receiver: Running) -> None:
    answer = receiver.complete(
        prompt=[1, 2],
        echo=True,
        logprobs=1,
        max_tokens=1,
        kv_transfer_params={"do_remote_prefill": True, "ticket": "b-3"},
    )
    assert answer.status_code == 200
    assert receiver.client.requests[-1].kv is None
    assert receiver.client.tickets_released[-1][0] == "b-3"


@pytest.mark.parametrize(
    ("params", "rest", "word"),
    [
        ({"do_remote_decode": True, "do_remote_prefill": True, "ticket": "t", "peer": PEER}, {}, "exclude"),
        ({"do_remote_decode": True, "peer": PEER}, {}, "ticket"),
        ({"do_remote_decode": True, "ticket": "t"}, {}, "peer"),
        ({"do_remote_decode": True, "ticket": "t", "peer": msgspec.to_builtins(SENDER)}, {}, "receiver"),
        ({"do_remote_decode": True, "ticket": "t", "peer": PEER}, {"stream": True}, "stream"),
        ({"do_remote_decode": True, "ticket": "t", "peer": PEER}, {"n": 2}, "n"),
        ({"do_remote_decode": True, "ticket": "t", "peer": PEER}, {"prompt": ["a", "b"]}, "2 prompts"),
        ({"do_remote_prefill": True, "ticket": "t"}, {}, "sender"),
        ({"do_remote_decode": True, "ticket": "a b", "peer": PEER}, {}, "ticket"),
        ({"do_remote_decode": True, "ticket": "", "peer": PEER}, {}, "ticket"),
        ({"do_remote_decode": True, "ticket": "t" * 129, "peer": PEER}, {}, "ticket"),
        ({"do_remote_decode": 1, "ticket": "t", "peer": PEER}, {}, "do_remote_decode"),
        ({"do_remote_decode": True, "ticket": "t", "peer": {**PEER, "role": "king"}}, {}, "role"),
        ({"do_remote_decode": True, "ticket": "t", "peer": {**PEER, "block_size": -1}}, {}, "block_size"),
    ],
)
def test_what_a_sender_refuses(sender: Running, params: dict[str, Any], rest: dict[str, Any], word: str) -> None:
    before = len(sender.client.requests)
    error = error_of(sender.complete(**{"kv_transfer_params": params, **rest}))
    assert word in error["message"]
    assert len(sender.client.requests) == before


def test_a_receiver_does_not_send(receiver: Running) -> None:
    error = error_of(receiver.complete(kv_transfer_params={"do_remote_decode": True, "ticket": "t", "peer": PEER}))
    assert "this server is a receiver" in error["message"]


def test_a_refusal_of_the_engine_says_when_to_come_again(start: Start) -> None:
    def refuses(request: Request) -> list[Output]:
        if request.kv is None:
            return scripted(request)
        return [
            Output(
                request.id,
                finish_reason="error",
                error="no room at the receiver",
                error_kind="KvRefusedError",
                retry_after_s=2.5,
            )
        ]

    server = start(client_of(SENDER, script=refuses))
    answer = server.complete(kv_transfer_params={"do_remote_decode": True, "ticket": "t", "peer": PEER})
    assert error_of(answer, 503)["code"] == "kv_transfer_refused"
    assert answer.headers["Retry-After"] == "3"
    assert server.complete(max_tokens=2).status_code == 200


def test_a_ticket_is_of_one_request_at_a_time_and_giving_it_up_ends_that(start: Start) -> None:
    server = start(client_of(RECEIVER, hold_after=1))
    params = {"do_remote_prefill": True, "ticket": "held"}
    with server.http.stream(
        "POST", "/v1/completions", json={"prompt": "hi", "stream": True, "kv_transfer_params": params}
    ) as first:
        assert server.client.held.wait(10)
        assert error_of(server.complete(kv_transfer_params=params))["code"] == "ticket_in_use"
        for _ in range(2):  # once more does no harm
            answer = server.post("/kv_transfer/release", {"ticket": "held", "reason": "the client left"})
            assert answer.json() == {"ticket": "held", "status": "released"}
        assert b"aborted" in first.read()
    assert server.client.tickets_released == [("held", "the client left")] * 2
    assert server.client.aborts[0][1] == "abort"
    server.call(server.client.release)
    assert server.complete(max_tokens=1, kv_transfer_params=params).status_code == 200  # free again


def test_giving_up_a_ticket_nobody_knows(sender: Running) -> None:
    answer = sender.post("/kv_transfer/release", {"ticket": "never-seen"})
    assert (answer.status_code, answer.json()["status"]) == (200, "released")
    assert sender.client.tickets_released[-1][0] == "never-seen"
    for body in ({}, {"ticket": "a b"}, {"ticket": 1}):
        assert error_of(sender.post("/kv_transfer/release", body))["type"] == "invalid_request_error"


def test_a_key_is_asked_for(start: Start) -> None:
    server = start(client_of(RECEIVER), api_key=("k" * 20,))
    assert server.http.get("/kv_transfer").status_code == 401
    assert server.post("/kv_transfer/release", {"ticket": "t"}).status_code == 401
    assert server.http.get("/kv_transfer", headers={"Authorization": f"Bearer {'k' * 20}"}).status_code == 200


def test_counters_are_there_from_the_start_and_only_where_kv_is_handed_over(server: Running, sender: Running) -> None:
    assert "kv_transfer" not in server.http.get("/metrics").text
    text = sender.http.get("/metrics").text
    for name in (
        "pinned_pages",
        "bytes_total",
        "recomputed_tokens_total",
        "waits_total",
        "lease_expiries_total",
        "seconds_count",
    ):
        assert f'homenode:kv_transfer_{name}{{model_name="story-teller"}} 0' in text, name


def test_counters_as_the_engine_told_them(start: Start) -> None:
    client = client_of(SENDER)
    durations = [0] * (len(BOUNDS_S) + 1)
    for seconds in (0.0004, 0.002, 0.002, 100.0):
        durations[duration_class(seconds)] += 1
    client.statistics = EngineStats(
        recomputed_tokens=7,
        transfer=TransferStats(
            bytes=4096,
            pinned_pages=3,
            refused={"no_room": 2, "breaker": 1},
            failed={"peer_lost": 1},
            expired=5,
            durations=durations,
            seconds=100.0044,
        ),
    )
    server = start(client)
    assert server.metric("homenode:kv_transfer_bytes_total") == 4096
    assert server.metric("homenode:kv_transfer_pinned_pages") == 3
    assert server.metric("homenode:kv_transfer_recomputed_tokens_total") == 7
    assert server.metric("homenode:kv_transfer_refusals_total") == 3
    assert server.metric("homenode:kv_transfer_lease_expiries_total") == 5
    assert server.metric("homenode:kv_transfer_seconds_count") == 4
    text = server.http.get("/metrics").text
    assert 'homenode:kv_transfer_seconds_bucket{le="0.0005",model_name="story-teller"} 1' in text
    assert 'homenode:kv_transfer_seconds_bucket{le="0.0025",model_name="story-teller"} 3' in text
    assert 'homenode:kv_transfer_seconds_bucket{le="+Inf",model_name="story-teller"} 4' in text
    assert 'homenode:kv_transfer_failures_total{model_name="story-teller",reason="peer_lost"} 1' in text
