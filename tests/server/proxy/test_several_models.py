"""Servers of several models behind a proxy: each request goes where its model is, and KV is handed over by the pair of
that model.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from homenode.server.proxy.server_models import PublishedKv, ServerModels, is_of_several, model_in, read_listed
from tests.server.proxy.scripted import FINGERPRINT, decoder, document, prefiller, run, stage


def of(role: str, *names: str, **rest: Any) -> dict[str, Any]:
    return {name: document(role, fingerprint={**FINGERPRINT, "weights": name}) for name in names} | rest


def several() -> Any:
    """Two prefill and three decode servers: `one` and `two` on both sides, `alone` on one decode server."""
    return stage(
        [prefiller(models=of("sender", "one")), prefiller(models=of("sender", "two", "other"))],
        [decoder(models=of("receiver", "one", "two")), decoder(models=of("receiver", "two", alone={})), decoder()],
    )


@pytest.mark.parametrize(
    ("model", "prefill", "decode"),
    [
        ("one", {0}, {0}), ("one-alias", {0}, {0}), ("two:latest", {1}, {0, 1}), ("two", {1}, {0, 1}),
        ("alone", set(), {1}), ("unknown", set(), {2}),
    ],
)  # fmt: skip
def test_a_request_goes_where_its_model_is(model: str, prefill: set[int], decode: set[int]) -> None:
    async def test() -> None:
        async with several() as on:
            for number in range(4):
                assert (await on.complete(model=model, prompt=f"{number} upon a time")).status_code == 200
            asked = [[each for each in server.asked if each.path == "/v1/completions"] for server in on.prefillers]
            assert {at for at, each in enumerate(asked) if each} == prefill
            told = [[each for each in server.asked if each.path == "/v1/completions"] for server in on.decoders]
            assert {at for at, each in enumerate(told) if each} == decode
            assert sum(map(len, told)) == 4 and sum(map(len, asked)) == (4 if prefill else 0)
            peers = [each.params["peer"] for requests in asked for each in requests]
            own = [models[model.split(":")[0].split("-")[0]] for at in decode if (models := on.decoders[at].models)]
            assert all(peer in own for peer in peers)

    run(test)


def test_what_is_listed_is_of_all_decode_servers() -> None:
    async def test() -> None:
        async with several() as on:
            told = (await on.http.get("/v1/models")).json()
            ids = [each["id"] for each in told["data"]]
            assert sorted(ids) == ["alone", "one", "two"]
            assert (told["first_id"], told["last_id"], told["has_more"]) == (ids[0], ids[-1], False)
            health = await on.health()
            assert health["pairs"] == 3 and not health.get("obstacles")

    run(test)


def test_what_is_asked_of_a_decode_server_goes_to_one_with_the_model() -> None:
    async def test() -> None:
        async with several() as on:
            for _ in range(3):
                await on.http.post("/tokenize", json={"model": "alone", "prompt": "x"})
                await on.http.get("/v1/models/alone")
            assert [len(server.asked) for server in on.decoders] == [0, 6, 0]

    run(test)


def test_models_come_and_go_while_the_proxy_runs() -> None:
    async def test() -> None:
        first = prefiller(models=of("receiver", "one"))
        async with stage([first], [decoder(models=of("receiver", "one"))]) as on:
            await on.is_state("prefill", 0, "unfit")
            first.models = of("sender", "one")
            await on.is_state("prefill", 0, "ready")
            assert (await on.complete(model="one")).status_code == 200 and len(first.asked) == 1
            on.decoders[0].models = {"new": {}}
            assert (await on.http.get("/v1/models")).json()["data"][0]["id"] == "new"

    run(test)


def test_names_and_answers_are_read() -> None:
    listed = {"data": [{"id": "b", "aliases": ["x", "a"]}, {"id": "a", "status": {"value": "unloaded"}}, {"id": "c"}]}
    names, loaded = read_listed(json.dumps(listed).encode())
    assert names == {"b": "b", "a": "a", "c": "c", "x": "b"} and loaded == ["b", "c"]
    models = ServerModels(names, {"b": PublishedKv(raw=b"of b")})
    assert [models.find(name).raw for name in (None, "x", "x:latest", "a", "no")] == [b"of b"] * 3 + [b"", b""]
    there = replace(models, loaded=loaded)
    assert [there.find_loaded(name) for name in (None, "x", "x:latest", "c", "a", "no")] == ["b"] * 3 + [
        "c",
        None,
        None,
    ]
    assert there == models, "that one is loaded is no news of the server"
    assert "x" in models and "no" not in models and None not in models
    for body in (b"", b"[]", b"{", b'{"error": 1}', b'{"error": {"param": null}}', b"\xff", b"[" * 10_000):
        assert not is_of_several(body) and model_in(body) is None
    assert is_of_several(b'{"error": {"param": "model"}}') and model_in(b'{"model": "m", "x": [1]}') == "m"
