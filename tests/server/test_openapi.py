"""The document describes the server: its paths are the routes, and schemathesis finds no answer that contradicts it."""

from __future__ import annotations

import re
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from homenode.engine.messages import Output, PoolingReady
from homenode.engine.request import Request
from homenode.sampling import SETTINGS, setting_type
from homenode.server.apis.openai.chat.request import ChatRequest
from homenode.server.apis.openai.completions.request import CompletionRequest
from homenode.server.apis.openai.openapi import below_pattern
from homenode.server.app import APIS
from homenode.transfer.wire.message import Published
from tests.examples import MANY
from tests.server.conftest import Running, Start
from tests.server.fakes import MAX_MODEL_LEN, VOCAB, ScriptedClient, scripted
from tests.server.test_fill_in_middle import MiddleTokenizer
from tests.server.test_kv_transfer import RECEIVER, SENDER, client_of
from tests.server.test_pooling import WIDTH, PairTokenizer, scored


def brief(request: Request) -> list[Output]:
    """An engine that never says more than eight tokens."""
    params = msgspec.structs.replace(request.params, max_tokens=min(request.params.max_tokens, 8))
    return scripted(msgspec.structs.replace(request, params=params))


def fuzz(url: str, *options: str, phases: str = "coverage,fuzzing") -> subprocess.CompletedProcess[str]:
    """schemathesis over the whole document, with a fixed seed and few examples."""
    program = "from schemathesis.cli import schemathesis; schemathesis()"
    arguments = [
        "run",
        f"{url}/openapi.json",
        "--max-examples",
        "5",
        "--phases",
        phases,
        "--seed",
        "1",
        "--no-color",
    ]
    return subprocess.run(
        [sys.executable, "-c", program, *arguments, *options], capture_output=True, text=True, timeout=280
    )


def locked(start: Start) -> Running:
    client = ScriptedClient(brief)
    client.ready = msgspec.structs.replace(client.ready, max_model_len=131072)  # no text that is generated is too long
    return start(client, MiddleTokenizer(), api_key=("secret",))


# Their bodies are those of /v1/chat/completions, /v1/responses and /v1/messages, where each field is given each kind
# of value.
OF_OTHERS = ("/apply-template", "/v1/responses/input_tokens", "/v1/messages/count_tokens")


@pytest.mark.long
def test_schemathesis_finds_nothing(start: Start) -> None:
    server = locked(start)
    # Whether the text of a host can be read is nothing that a schema says.
    others = ["/plan", *(() if MANY else OF_OTHERS)]
    excluded = [word for path in others for word in ("--exclude-path", path)]
    result = fuzz(server.url, "--header", "Authorization: Bearer secret", *excluded)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    paths = server.http.get("/openapi.json", headers={"Authorization": "Bearer secret"}).json()["paths"]
    operations = sum(len(methods) for methods in paths.values()) - 1  # the document is read, and not tested
    assert f"Tested: {operations - len(others)}" in result.stdout, result.stdout[-1500:]


def test_schemathesis_finds_nothing_by_chance_in_bodies_of_other_paths(start: Start) -> None:
    paths = [word for path in OF_OTHERS for word in ("--include-path", path)]
    result = fuzz(locked(start).url, "--header", "Authorization: Bearer secret", *paths, phases="fuzzing")
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert f"Tested: {len(OF_OTHERS)}" in result.stdout, result.stdout[-1500:]


def test_bodies_of_other_paths_are_those_of_other_paths(server: Running) -> None:
    """Whatever field one of `OF_OTHERS` has, another path has."""
    document = server.http.get("/openapi.json").json()

    def fields(path: str) -> set[str]:
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return set(document["components"]["schemas"][body["$ref"].rsplit("/", 1)[-1]]["properties"])

    asked = [fields(path) for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages")]
    for path, whole in zip(OF_OTHERS, asked, strict=True):
        assert fields(path) and fields(path) <= whole, path


def numbering(labels: list[str]) -> ScriptedClient:
    """A model that makes vectors, or scores where it has labels."""
    client = ScriptedClient(scored if labels else zeros)
    ready = PoolingReady("cls", 1 if labels else WIDTH, labels)
    client.ready = msgspec.structs.replace(client.ready, pooling=ready, max_model_len=131072)
    return client


@pytest.mark.parametrize("labels", [[], ["LABEL_0"]], ids=["vectors", "scores"])
def test_schemathesis_finds_nothing_where_texts_become_numbers(start: Start, labels: list[str]) -> None:
    # /score, /rerank and /v2/rerank are other names.
    paths = "embed|v1/score|v1/rerank|pooling"
    result = fuzz(start(numbering(labels), PairTokenizer()).url, "--include-path-regex", paths)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert f"Tested: {3 if labels else 6}" in result.stdout, result.stdout[-1500:]


def zeros(request: Request) -> list[Output]:
    """An engine whose vectors are all the same."""
    return [Output(request.id, finish_reason="stop", pooled=array("f", [0.0] * WIDTH).tobytes())]


@pytest.mark.parametrize("document", [SENDER, RECEIVER], ids=["sender", "receiver"])
def test_schemathesis_finds_nothing_where_kv_is_handed_over(start: Start, document: Published) -> None:
    client = client_of(document, script=brief)
    client.ready = msgspec.structs.replace(client.ready, max_model_len=32768)
    server = start(client)
    # With what excludes what for KV as well, the schemas of requests are more than schemathesis can draw from at
    # random.
    generating = ("completions", 2) if MANY else ("v1/completions", 1)  # the same words exclude each other in both
    for (paths, operations), phases in ((("kv_transfer", 2), "coverage,fuzzing"), (generating, "coverage")):
        result = fuzz(server.url, "--include-path-regex", paths, phases=phases)
        assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
        assert f"Tested: {operations}" in result.stdout


def test_schemathesis_finds_nothing_where_files_are_kept(start: Start, tmp_path: Path) -> None:
    server = start(ScriptedClient(brief), batch_dir=str(tmp_path / "batches"))
    # Which files there are is nothing that a schema says.
    known = ("--exclude-checks", "positive_data_acceptance")
    result = fuzz(server.url, "--include-path-regex", "files|batches", *known)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert "Tested: 9" in result.stdout, result.stdout[-1500:]
    document = server.http.get("/openapi.json").json()
    form = document["paths"]["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["purpose", "file"]
    asked = document["components"]["schemas"]["CreateBatchRequest"]["properties"]["endpoint"]["enum"]
    assert "/v1/completions" in asked and "/v1/files" not in asked


def test_the_document_and_the_routes_agree(server: Running) -> None:
    document = server.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for operation in (each for api in APIS for each in api.operations):
        path = operation.path.replace("{model}", "story-teller")
        answer = server.http.request(operation.method, path, json={} if operation.method == "post" else None)
        # This server has no part in handing KV over, and keeps no response of that name.
        nothing = operation.path.startswith("/kv_transfer") or "{response_id}" in path
        refused = 403 in operation.failures and operation.path != "/reset_prefix_cache"  # which some keys may not
        takes_none = operation.method == "get" or operation.body is None
        expected = 404 if nothing else 403 if refused else 200 if takes_none else 400
        assert answer.status_code == expected, path
        if operation.path not in document["paths"]:
            # This model has no tokens for /infill and for labels, and makes no vectors.
            assert operation.path == "/infill" or re.search(
                "embed|score|rerank|pooling|systemone|decisions", operation.path
            )
            continue
        assert str(answer.status_code) in document["paths"][operation.path][operation.method]["responses"]


def references(schema: object) -> Iterator[str]:
    """Every place that a part of a document refers to."""
    if isinstance(schema, dict):
        if isinstance(place := schema.get("$ref"), str):
            yield place
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from references(part)


@pytest.mark.parametrize("kind", ["with batch files", "for vectors", "for scores", "sender"])
def test_every_reference_leads_to_a_schema(start: Start, tmp_path: Path, kind: str) -> None:
    if kind == "sender":
        server = start(client_of(SENDER, script=brief))
    elif kind == "with batch files":
        server = start(batch_dir=str(tmp_path / "batches"))
    else:
        server = start(numbering(["LABEL_0"] if kind == "for scores" else []), PairTokenizer())
    document = server.http.get("/openapi.json").json()
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    named = set(references(document))
    assert len(named) > 20 and named <= schemas, named - schemas


def test_the_limits_are_those_of_the_model(server: Running) -> None:
    schemas = server.http.get("/openapi.json").json()["components"]["schemas"]
    ids = schemas["CompletionRequest"]["properties"]["prompt"]["anyOf"][1]
    assert ids["items"]["maximum"] == VOCAB - 1 and ids["maxItems"] == MAX_MODEL_LEN - 1
    assert "additionalProperties" not in schemas["ChatRequest"]
    for name, nothing in (("ChatRequest", 400), ("CompletionRequest", 200)):  # whether no token may be asked for
        path, said = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
        if nothing == 200:
            path, said = "/v1/completions", {"prompt": "a"}
        assert server.http.post(path, json={**said, "max_tokens": 0}).status_code == nothing
        number = schemas[name]["properties"]["max_tokens"]["anyOf"][0]
        assert number["minimum"] == -1 and (number.get("not") == {"const": 0}) == (nothing == 400)
    assert schemas["ChatRequest"]["properties"]["model"]["anyOf"][0]["enum"] == ["story-teller"]


@pytest.mark.parametrize("limit", [1, 2, 9, 10, 11, 100, 258, 512, 2048, 32000, 151936])
def test_a_pattern_for_numbers_below_a_limit(limit: int) -> None:
    pattern = re.compile(below_pattern(limit))
    around = {
        0,
        1,
        9,
        10,
        11,
        99,
        100,
        limit // 2,
        limit - 1,
        limit,
        limit + 1,
        limit * 10,
        *range(max(0, limit - 120), limit + 120),
    }
    for number in around:
        assert bool(pattern.search(str(number))) == (number < limit), number
    assert not pattern.search("00") and not pattern.search("1x") and not pattern.search("")


@pytest.mark.parametrize("body", [CompletionRequest, ChatRequest])
def test_every_setting_of_the_table_is_a_field_with_its_range_and_text(body: type) -> None:
    fields = msgspec.json.schema_components([body])[1][body.__name__]["properties"]
    for name, setting in SETTINGS.items():
        number, null = fields[name]["anyOf"]
        low, high = setting.api_range
        assert null == {"type": "null"} and fields[name]["default"] is None
        assert number["type"] == ("integer" if setting_type(name) is int else "number")
        assert (number["minimum"], number["maximum"], number["description"]) == (low, high, setting.doc)
