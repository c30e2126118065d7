"""/openapi.json of the proxy: of a real server's document, what the proxy has."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from homenode.server.proxy.config import ProxyConfig
from homenode.server.proxy.health import ProxyHealth
from homenode.server.proxy.overview import ProxyOverview
from homenode.server.proxy.run import bind, serve
from tests.server.conftest import Running, Start
from tests.server.proxy.scripted import Asked, Behaviour, Connection, Scripted, prefiller, run, stage
from tests.server.test_openapi import fuzz, references


def telling(document: Any) -> Scripted:
    """A decode server that has this document."""

    async def tells(server: Scripted, asked: Asked, connection: Connection) -> None:
        connection.answer(200, document if asked.path == "/openapi.json" else {})

    behaviour: Behaviour = tells
    return Scripted("receiver", behaviour)


def test_the_document_is_that_of_the_proxy(server: Running) -> None:
    told = server.http.get("/openapi.json").json()

    async def test() -> None:
        async with stage([prefiller()], [telling(told)], root_path="/below") as on:
            document = (await on.http.get("/openapi.json")).json()
            assert document["servers"] == [{"url": "/below"}]
            schemas = document["components"]["schemas"]
            assert set(references(document)) <= {f"#/components/schemas/{name}" for name in schemas}
            assert len(document["paths"]) > 25 and "/kv_transfer" in told["paths"]
            for path, operations in document["paths"].items():
                for method in operations:
                    words = {"content": b"{}"} if method == "post" else {}
                    answer = await on.http.request(method, path.replace("{model}", "a"), **words)
                    assert answer.status_code < 500 and answer.status_code not in (404, 405), (method, path)
            for path in told["paths"].keys() - document["paths"].keys():
                assert (await on.http.get(path)).status_code == 404, path
            for path, kind in (("/health", ProxyHealth), ("/overview", ProxyOverview)):
                content = document["paths"][path]["get"]["responses"]["200"]["content"]
                assert content["application/json"]["schema"]["$ref"].endswith(f".{kind.__name__}")
                msgspec.json.decode((await on.http.get(path)).content, type=kind)
            body = schemas["ChatRequest"]["properties"]
            assert body["kv_transfer_params"] == {"type": "null"} and "messages" in body
            counted = document["paths"]["/v1/messages/count_tokens"]["post"]["requestBody"]["content"]
            counted = schemas[counted["application/json"]["schema"]["$ref"].rpartition("/")[2]]["properties"]
            assert counted["kv_transfer_params"] != {"type": "null"}, "nothing is handed over, it is passed on as it is"
            assert {"502", "503", "504"} <= document["paths"]["/v1/chat/completions"]["post"]["responses"].keys()

            for path, failures in (("/load", set()), ("/readyz", {"503"}), ("/health", {"503"}), ("/", {"502", "503"})):
                told_of = document["paths"][path]["get"]["responses"].keys()
                assert told_of & {"502", "503"} == failures, path

    run(test)


@pytest.mark.parametrize("of_server", [(), ("secret",)], ids=["open server", "server with a key"])
@pytest.mark.parametrize(
    "of_proxy", [{}, {"api_key": ("front",)}, {"upstream_api_key": "secret"}], ids=["neither", "asks", "brings"]
)
def test_who_has_to_bring_a_key(start: Start, of_server: tuple[str, ...], of_proxy: dict[str, Any]) -> None:
    """The key that the document asks for is the one without which a request is refused."""
    server = start(api_key=of_server)
    told = server.http.get("/openapi.json", headers={"x-api-key": "secret"}).json()

    async def test() -> None:
        async with stage([], [telling(told)], **of_proxy) as on:
            headers = {"x-api-key": "front"} if "api_key" in of_proxy else {}
            document = (await on.http.get("/openapi.json", headers=headers)).json()
            asks = "api_key" in of_proxy
            passes = bool(of_server) and not of_proxy
            wanted = {"/overview": asks, "/health": False, "/livez": False, "/v1/models": asks or passes}
            for path, is_wanted in wanted.items():
                operation = document["paths"][path]["get"]
                assert ("security" in operation) == is_wanted, path
                if not passes:  # the scripted server asks for no key
                    assert ((await on.http.get(path)).status_code == 401) == is_wanted, path
                    assert ("401" in operation["responses"]) == is_wanted, path
            assert ("securitySchemes" in document["components"]) == (asks or passes)

    run(test)


@pytest.mark.parametrize("document", [b"<html>", [], {}, {"paths": 3, "components": {}}, {"paths": {"/health": []}}])
def test_what_is_no_document_is_said(document: Any) -> None:
    async def test() -> None:
        async with stage([], [telling(document)]) as on:
            answer = await on.http.get("/openapi.json")
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, "decoder_failed")

    run(test)


def test_schemathesis_finds_nothing_in_what_is_asked_of_a_decode_server(server: Running) -> None:
    """No path has the server taken for broken, which would be a 503."""

    async def test() -> None:
        config = ProxyConfig(prefill=(), decode=(server.url,), port=0, poll_interval=0.1)
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(config, listener=bind(config), on_listening=listening.set_result))
        paths = r"responses/\{|v1/models|health|overview|livez|load|version|tokenizer_info"
        result = await asyncio.to_thread(fuzz, await listening, "--include-path-regex", paths)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
        assert "Tested: 13" in result.stdout, result.stdout[-1500:]

    run(test)
