"""A table of several models behind one application: each answers with its own engine, tokenizer, chat template and
vocabulary, counts for itself, and fails for itself.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import httpx
import msgspec
import pytest

from homenode.chat.template_messages import text_of
from homenode.engine.messages import EngineReady, Output, PoolingReady
from homenode.engine.request import AdapterChoice, Request
from homenode.errors import UserError
from homenode.model.tokenizer.fill_in_middle import FillInMiddleTokens
from homenode.model.tokenizer.surrounding_tokens import SurroundingTokens
from homenode.server.app import create_app
from homenode.server.core.state import ServerState
from homenode.server.http.config import ServedModelConfig, ServerConfig
from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import AskedModel, ModelParts
from tests.server.fakes import EOS, VOCAB, ByteStream, ByteTokenizer, ScriptedClient

SHIFT = 10  # the token of a byte in the other vocabulary is so much higher
SHIFTED_BOS, SHIFTED_EOS, MIDDLE = 0, 1, 2
NAMES = {SHIFTED_BOS: "<begin>", SHIFTED_EOS: "<finish>", MIDDLE: "<middle>"}
SHIFTED_VOCAB = 256 + SHIFT
WIDTH = 4
TELLER_SAYS, SHIFTED_SAYS = "told by bytes 🦊", "told by shifted bytes 🦊"


class ShiftedStream(ByteStream):
    def push(self, ids: Iterable[int]) -> str:
        return super().push([token for token in ids if token >= SHIFT])


class ShiftedTokenizer(ByteTokenizer):
    """Other ids for the same bytes, other names of special tokens, and another chat template."""

    vocab_size = SHIFTED_VOCAB
    bos_token_id, eos_token_id = SHIFTED_BOS, SHIFTED_EOS
    special_token_ids = tuple(NAMES)
    surrounding = SurroundingTokens((SHIFTED_BOS,))
    fill_in_middle = FillInMiddleTokens(MIDDLE, MIDDLE, MIDDLE, None, None, (SHIFTED_EOS,))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*([SHIFTED_BOS] if add_special_tokens else ()), *(byte + SHIFT for byte in text.encode())]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        shown = [token for token in ids if token >= SHIFT or not skip_special_tokens]
        return b"".join(self.token_bytes(token) for token in shown).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token - SHIFT]) if token >= SHIFT else NAMES.get(token, "").encode()

    def special_tokens_in(self, texts: Sequence[str]) -> dict[int, str]:
        return {token: name for token, name in NAMES.items() if any(name in text for text in texts)}

    def stream(
        self, context: Sequence[int] = (), skip_special_tokens: bool = True, shown: Collection[int] = ()
    ) -> ByteStream:
        return ShiftedStream(self, skip_special_tokens)

    def render_chat(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        return "".join(f"[{message['role']}] {text_of(message['content'])}\n" for message in messages)

    def info(self) -> dict[str, Any]:
        return {"bos_token": NAMES[SHIFTED_BOS], "vocab_size": SHIFTED_VOCAB}


def saying(tokens: Sequence[int], end: int) -> Callable[[Request], list[Output]]:
    """A script that gives every request these tokens."""
    return lambda request: [Output(request.id, tokens=[*tokens, end], finish_reason="stop", stop_token=end)]


def pooled(request: Request) -> list[Output]:
    values = array("f", [float(token) for token in request.prompt_ids[1 : 1 + WIDTH]])
    return [Output(request.id, finish_reason="stop", pooled=values.tobytes())]


class Table:
    """Three models: `teller` (also called `alias`), `shifted`, and `vectors`, which makes vectors."""

    def __init__(self) -> None:
        self.teller = ScriptedClient(saying(TELLER_SAYS.encode(), EOS))
        self.shifted = ScriptedClient(saying(ShiftedTokenizer().encode(SHIFTED_SAYS, False), SHIFTED_EOS))
        self.shifted.ready = EngineReady("/models/other", 512, SHIFTED_VOCAB, 100, 32, 2048, 128, chunked_prefill=True)
        self.vectors = ScriptedClient(pooled)
        self.vectors.ready = msgspec.structs.replace(self.vectors.ready, pooling=PoolingReady("mean", WIDTH))
        self.state = ServerState(
            [
                ModelParts(self.teller, ByteTokenizer(), ServedModelConfig(served_model_name=("teller", "alias"))),
                ModelParts(self.shifted, ShiftedTokenizer(), ServedModelConfig(served_model_name=("shifted",))),
                ModelParts(self.vectors, ByteTokenizer(), ServedModelConfig(served_model_name=("vectors",))),
            ],
            ServerConfig(port=0),
        )
        self.app = create_app(self.state)
        self.ended: list[str] = []
        self.state.watch_engines(self.ended.append)

    def ask(self, path: str, body: Any = None) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
                return await asking.request("GET" if body is None else "POST", path, json=body)

        return asyncio.run(run())

    def metric(self, name: str, **labels: str) -> float:
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = self.ask("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(f"{name}{{") and all(each in line for each in wanted)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.fixture
def table() -> Table:
    return Table()


SAID = [{"role": "user", "content": "hi"}]
# From each API its path, its body without the model, where its text is, and where its error says what is wrong.
APIS: dict[str, tuple[str, dict[str, Any], Callable[[Any], str], Callable[[Any], str]]] = {
    "completions": (
        "/v1/completions",
        {"prompt": "hi", "max_tokens": 64},
        lambda answer: answer["choices"][0]["text"],
        lambda answer: answer["error"]["message"],
    ),
    "chat": (
        "/v1/chat/completions",
        {"messages": SAID},
        lambda answer: answer["choices"][0]["message"]["content"],
        lambda answer: answer["error"]["message"],
    ),
    "responses": (
        "/v1/responses",
        {"input": "hi"},
        lambda answer: answer["output"][0]["content"][0]["text"],
        lambda answer: answer["error"]["message"],
    ),
    "messages": (
        "/v1/messages",
        {"messages": SAID, "max_tokens": 64},
        lambda answer: answer["content"][0]["text"],
        lambda answer: answer["error"]["message"],
    ),
    "ollama chat": (
        "/api/chat",
        {"messages": SAID, "stream": False},
        lambda answer: answer["message"]["content"],
        lambda answer: answer["error"],
    ),
    "ollama generate": (
        "/api/generate",
        {"prompt": "hi", "stream": False},
        lambda answer: answer["response"],
        lambda answer: answer["error"],
    ),
}


@pytest.mark.parametrize("api", APIS)
def test_each_api_answers_with_what_is_the_models_own(table: Table, api: str) -> None:
    path, body, text_at, error_at = APIS[api]
    for name, client, tokenizer, says, turn in (
        ("teller", table.teller, ByteTokenizer(), TELLER_SAYS, "<user>hi</>"),
        ("alias", table.teller, ByteTokenizer(), TELLER_SAYS, "<user>hi</>"),
        ("shifted", table.shifted, ShiftedTokenizer(), SHIFTED_SAYS, "[user] hi"),
    ):
        before = len(client.requests)
        answer = table.ask(path, {**body, "model": name})
        assert (answer.status_code, answer.json()["model"]) == (200, name), answer.text
        assert text_at(answer.json()) == says
        assert len(client.requests) == before + 1
        prompt = tokenizer.decode(client.requests[-1].prompt_ids)
        assert ("hi" if api == "completions" else turn) in prompt
    refused = table.ask(path, {**body, "model": "nobody"})
    assert refused.status_code == 404
    for known in ("nobody", "teller", "alias", "shifted", "vectors"):
        assert f"`{known}`" in error_at(refused.json())


def test_who_names_no_model_gets_the_first(table: Table) -> None:
    answer = table.ask("/v1/completions", {"prompt": "hi"})
    assert answer.json()["model"] == "teller" and len(table.teller.requests) == 1


def test_text_and_token_ids_are_of_the_models_vocabulary(table: Table) -> None:
    assert table.ask("/tokenize", {"model": "teller", "prompt": "a"}).json()["tokens"] == [256, ord("a")]
    assert table.ask("/tokenize", {"model": "shifted", "prompt": "a"}).json()["tokens"] == [0, ord("a") + SHIFT]
    assert table.ask("/detokenize", {"model": "shifted", "tokens": [ord("a") + SHIFT]}).json() == {"prompt": "a"}
    assert table.ask("/tokenizer_info?model=shifted").json()["bos_token"] == "<begin>"
    assert table.ask("/tokenizer_info").json()["bos_token"] == "<s>"
    assert table.ask("/tokenizer_info?model=nobody").status_code == 404
    for name, status in (("teller", 400), ("shifted", 200)):  # the last token of the larger vocabulary
        body = {"model": name, "prompt": "hi", "logit_bias": {str(SHIFTED_VOCAB - 1): 1}}
        assert table.ask("/v1/completions", body).status_code == status
        assert table.ask("/infill", {"model": name, "input_prefix": "a", "input_suffix": "b"}).status_code == status
    counted = {
        name: table.ask("/v1/messages/count_tokens", {"model": name, "messages": SAID})
        for name in ("teller", "shifted")
    }
    assert counted["teller"].json() != counted["shifted"].json()


def test_grammars_are_over_the_models_vocabulary(table: Table) -> None:
    body = {"prompt": "hi", "structured_outputs": {"grammar": 'start: "a" <middle>'}}
    assert table.ask("/v1/completions", {"model": "shifted", **body}).status_code == 200
    assert "<middle>" in str(table.shifted.requests[-1].params.grammar)
    refused = table.ask("/v1/completions", {"model": "teller", **body})
    assert refused.status_code == 400 and "<middle>" in refused.text and not table.teller.requests


def test_a_model_that_makes_vectors_stands_beside_those_that_write(table: Table) -> None:
    for path in ("/v1/embeddings", "/pooling", "/api/embed"):
        assert table.ask(path, {"model": "vectors", "input": "abcd"}).status_code == 200, path
        assert table.ask(path, {"model": "teller", "input": "abcd"}).status_code == 400, path
    assert table.ask("/v1/score", {"model": "vectors", "text_1": "abcd", "text_2": "abcd"}).status_code == 200
    assert table.ask("/v1/completions", {"model": "vectors", "prompt": "hi"}).status_code == 400
    assert not table.teller.requests


def test_every_list_has_all_names(table: Table) -> None:
    names = ["teller", "alias", "shifted", "vectors"]
    listed = table.ask("/v1/models").json()
    assert [each["id"] for each in listed["data"]] == names
    assert [each["root"] for each in listed["data"]] == ["teller", "teller", "shifted", "vectors"]
    assert (listed["first_id"], listed["last_id"]) == ("teller", "vectors")
    assert table.ask("/v1/models/shifted").json()["max_model_len"] == 512
    for path in ("/api/tags", "/api/ps"):
        assert [each["name"] for each in table.ask(path).json()["models"]] == [f"{name}:latest" for name in names]
    assert "insert" in table.ask("/api/show", {"model": "shifted:latest"}).json()["capabilities"]
    assert table.ask("/api/show", {"model": "vectors"}).json()["capabilities"] == ["embedding"]


def test_the_document_takes_what_any_model_takes(table: Table) -> None:
    document = table.ask("/openapi.json").json()
    completion = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert completion["model"]["anyOf"][0]["enum"] == ["teller", "alias", "shifted", "vectors"]
    assert completion["stop_token_ids"]["anyOf"][0]["items"]["maximum"] == SHIFTED_VOCAB - 1 > VOCAB - 1
    assert {"/v1/completions", "/v1/embeddings", "/infill"} <= document["paths"].keys()


def test_each_model_counts_for_itself(table: Table) -> None:
    table.shifted.statistics = msgspec.structs.replace(table.shifted.statistics, num_running=7)
    for name in ("teller", "alias", "shifted"):
        table.ask("/v1/completions", {"model": name, "prompt": "hi"})
    success = "homenode:request_success_total"
    for name, count, running in (("teller", 2, 2), ("shifted", 1, 7), ("vectors", 0, 2)):
        assert table.metric(success, model_name=name, finished_reason="stop") == count
        assert table.metric("homenode:e2e_request_latency_seconds_count", model_name=name) == count
        assert table.metric("homenode:num_requests_running", model_name=name) == running
    text = table.ask("/metrics").text
    assert text.count("# TYPE homenode:num_requests_running ") == 1
    table.state.refused("draining")  # before anybody could read which model was asked for
    assert table.metric("homenode:admission_rejections_total", model_name="", reason="draining") == 1


def test_a_model_that_is_lost_leaves_the_others_alone(table: Table) -> None:
    table.shifted.die()
    for path, body, _, error_at in APIS.values():
        refused = table.ask(path, {**body, "model": "shifted"})
        assert refused.status_code == 503 and "`shifted`" in error_at(refused.json()), path
        assert table.ask(path, {**body, "model": "teller"}).status_code == 200, path
    health = table.ask("/health")
    assert health.status_code == 200
    assert {each["model"]: each["status"] for each in health.json()["models"]} == {
        "teller": "ok",
        "shifted": "engine_lost",
        "vectors": "ok",
    }
    assert not table.ended
    table.vectors.die()
    assert not table.ended
    table.teller.die()
    assert table.ended == ["killed"]
    assert table.ask("/health").status_code == 503


def test_a_request_under_way_ends_with_the_engine_of_its_model_alone(table: Table) -> None:
    async def run() -> tuple[httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(table.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
            waiting = [
                asyncio.ensure_future(asking.post("/v1/completions", json={"model": name, "prompt": "hi"}))
                for name in ("teller", "shifted")
            ]
            while not (table.teller.held.is_set() and table.shifted.held.is_set()):
                await asyncio.sleep(0.001)
            table.shifted.die()
            lost = await waiting[1]
            table.teller.release()
            return await waiting[0], lost

    table.teller.hold_after = table.shifted.hold_after = 0
    answered, lost = asyncio.run(run())
    assert answered.json()["choices"][0]["text"] == TELLER_SAYS
    assert lost.status_code == 503


def test_what_the_server_ends_is_ended_with_every_engine(table: Table) -> None:
    first, second = (table.state.models.find(name).model for name in ("teller", "shifted"))
    first.active.add(1)
    second.active.add(2)
    asyncio.run(table.state.abort_all())
    assert (table.teller.aborts, table.shifted.aborts) == ([(1, "abort")], [(2, "abort")])


def test_a_model_is_found_with_the_name_to_answer_under(table: Table) -> None:
    models = table.state.models
    own = models.find("teller").model
    assert models.find("teller:latest", ":latest") == AskedModel(own, "teller:latest")
    assert models.find(None) == AskedModel(models.first, models.first.name)
    with pytest.raises(ApiError, match="`model` is `teller:latest`"):
        models.find("teller:latest")


def test_a_name_of_a_model_with_an_adapter_reaches_the_engine(table: Table) -> None:
    """It is a name of the model in all lists; every request for it has the adapter, and no other."""
    client, choice = ScriptedClient(), AdapterChoice(1, "d1")
    client.ready = msgspec.structs.replace(client.ready, adapters={"tuned": choice})
    state = ServerState(
        [ModelParts(client, ByteTokenizer(), ServedModelConfig(served_model_name=("teller",)))], ServerConfig(port=0)
    )
    table.app = create_app(state)
    for name in ("tuned", "teller"):
        for path, body, *_ in (APIS[api] for api in ("completions", "chat")):
            assert table.ask(path, body | {"model": name}).json()["model"] == name
    assert [request.adapter for request in client.requests] == [choice, choice, None, None]
    assert state.models.find("tuned:latest", ":latest").adapter == choice
    assert {model["id"] for model in table.ask("/v1/models").json()["data"]} == {"teller", "tuned"}


def test_two_models_of_one_name_are_refused() -> None:
    named = ServedModelConfig(served_model_name=("teller", "shared"))
    other = ServedModelConfig(served_model_name=("other", "shared"))
    parts = [ModelParts(ScriptedClient(), ByteTokenizer(), config) for config in (named, other)]
    with pytest.raises(UserError, match="two models are called 'shared'"):
        ServerState(parts, ServerConfig(port=0))
