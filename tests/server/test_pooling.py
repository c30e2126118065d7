"""Vectors and scores over HTTP: /v1/embeddings, /v1/score, /v1/rerank, /pooling and /api/embed, on a
scripted engine.
"""

from __future__ import annotations

import base64
import json
from array import array
from typing import Any

import msgspec
import pytest

from homenode.engine.messages import Output, PoolingReady
from homenode.engine.request import Request, Urgency
from homenode.model.pooling import TextForm
from homenode.model.tokenizer.surrounding_tokens import SurroundingTokens
from tests.server.conftest import Running, Start
from tests.server.fakes import BOS, EOS, MAX_MODEL_LEN, VOCAB, ByteTokenizer, ScriptedClient
from tests.waiting import wait_until

WIDTH = 4


def pooled(request: Request) -> list[Output]:
    """The first bytes of the text as a vector; a text with an X fails."""
    assert request.pools
    if ord("X") in request.prompt_ids:
        return [Output(request.id, finish_reason="error", error="no number", error_kind="NotANumberError")]
    values = array("f", [float(token) for token in (request.prompt_ids[1:] + [0] * WIDTH)[:WIDTH]])
    return [Output(request.id, finish_reason="stop", pooled=values.tobytes(), cached_tokens=1)]


def scored(request: Request) -> list[Output]:
    """The score of a pair is the number of its tokens, less 10."""
    return [Output(request.id, finish_reason="stop", pooled=array("f", [len(request.prompt_ids) - 10.0]).tobytes())]


class PairTokenizer(ByteTokenizer):
    """[BOS] a [EOS][EOS] b [EOS]"""

    surrounding = SurroundingTokens((BOS,), (EOS,), False, (EOS, EOS))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = list(text.encode())
        return [BOS, *ids, EOS] if add_special_tokens else ids


def client_of(script: Any, ready: PoolingReady) -> ScriptedClient:
    client = ScriptedClient(script)
    client.ready = msgspec.structs.replace(client.ready, pooling=ready)
    return client


@pytest.fixture(scope="module")
def vectors(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    batches = str(tmp_path_factory.mktemp("batches") / "d")
    return start(client_of(pooled, PoolingReady("mean", WIDTH)), PairTokenizer(), batch_dir=batches)


@pytest.fixture(scope="module")
def scores(start: Start) -> Running:
    return start(client_of(scored, PoolingReady("cls", 1, ["LABEL_0"])), PairTokenizer())


def embed(server: Running, what: Any, **more: Any) -> list[Any]:
    answer = server.post("/v1/embeddings", {"input": what, **more})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["object"] == "list" and [each["index"] for each in body["data"]] == list(range(len(body["data"])))
    return [each["embedding"] for each in body["data"]]


def test_texts_of_a_batch_run_behind_everybody(vectors: Running) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": "batch"}}
    upload = {"file": ("in.jsonl", json.dumps(line).encode())}
    sent = vectors.http.post("/v1/files", data={"purpose": "batch"}, files=upload).json()
    asked = {"input_file_id": sent["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch = vectors.post("/v1/batches", asked).json()["id"]
    wait_until(lambda: vectors.http.get(f"/v1/batches/{batch}").json()["status"] == "completed", 20)
    request = vectors.client.requests[-1]
    assert request.urgency is Urgency.BACKGROUND and bytes(request.prompt_ids[1:-1]) == b"batch"


def test_the_answer_of_the_openai_api(vectors: Running) -> None:
    body = vectors.post("/v1/embeddings", {"model": "story-teller", "input": "ab", "user": "me"}).json()
    length = (97**2 + 98**2 + EOS**2) ** 0.5
    (one,) = body["data"]
    assert one["object"] == "embedding" and body["model"] == "story-teller"
    assert one["embedding"] == pytest.approx([97 / length, 98 / length, EOS / length, 0])
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


@pytest.mark.parametrize(
    ("what", "ids"),
    [
        ("a", [[BOS, 97, EOS]]),
        (["a", "bc"], [[BOS, 97, EOS], [BOS, 98, 99, EOS]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_every_form_of_input(vectors: Running, what: Any, ids: list[list[int]]) -> None:
    vectors.client.requests.clear()
    assert len(embed(vectors, what)) == len(ids)
    assert [request.prompt_ids for request in vectors.client.requests] == ids
    assert all(request.params.max_tokens == 0 for request in vectors.client.requests)


def test_forms_of_the_vector(vectors: Running) -> None:
    (packed,) = embed(vectors, "abc", encoding_format="base64")
    (whole,) = embed(vectors, "abc")
    assert array("f", base64.b64decode(packed)).tolist() == pytest.approx(whole)
    (cut,) = embed(vectors, "abc", dimensions=2)
    assert cut == pytest.approx([97 / (97**2 + 98**2) ** 0.5, 98 / (97**2 + 98**2) ** 0.5])
    assert embed(vectors, "abc", normalize=False) == [[97, 98, 99, EOS]]


def test_a_text_that_is_too_long_is_cut_only_when_asked(vectors: Running) -> None:
    text = "a" * MAX_MODEL_LEN
    refused = vectors.post("/v1/embeddings", {"input": ["b", text]})
    assert refused.status_code == 400 and "input[1]" in refused.text and "truncate_prompt_tokens" in refused.text
    vectors.client.requests.clear()
    embed(vectors, "a" * (MAX_MODEL_LEN - 2))
    embed(vectors, text, truncate_prompt_tokens=-1)
    embed(vectors, text, truncate_prompt_tokens=5)
    embed(vectors, [7] * 9, truncate_prompt_tokens=5)
    lengths = [len(request.prompt_ids) for request in vectors.client.requests]
    assert lengths == [MAX_MODEL_LEN, MAX_MODEL_LEN, 5, 5]
    assert [request.prompt_ids[-1] for request in vectors.client.requests] == [EOS, EOS, EOS, 7]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", 3]}, "input"),
        ({"input": [[1], "a"]}, "input"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": [VOCAB]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": WIDTH + 1}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": MAX_MODEL_LEN + 1}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": ["a"] * 3000}, "input"),
    ],
)
def test_errors_name_the_field(vectors: Running, fields: dict[str, Any], param: str) -> None:
    answer = vectors.post("/v1/embeddings", fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_another_model_is_not_found(vectors: Running) -> None:
    assert vectors.post("/v1/embeddings", {"model": "x", "input": "a"}).status_code == 404


def test_many_texts_are_with_the_engine_a_few_at_a_time_and_keep_their_order(vectors: Running) -> None:
    texts = [f"{number:03}" for number in range(300)]
    found = embed(vectors, texts, normalize=False)
    assert [bytes(int(value) for value in vector[:3]).decode() for vector in found] == texts


def test_one_that_fails_ends_the_others(vectors: Running) -> None:
    answer = vectors.post("/v1/embeddings", {"input": ["a", "X", "b"]})
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "not_a_number"


def test_scores_by_vectors_are_cosines(vectors: Running) -> None:
    answer = vectors.post("/v1/score", {"text_1": "ab", "text_2": ["ab", "zzzz"]}).json()
    assert [each["index"] for each in answer["data"]] == [0, 1] and answer["data"][0]["score"] == pytest.approx(1)
    assert answer["data"][1]["score"] < 1 and answer["usage"]["prompt_tokens"] == 4 + 4 + 6
    pairs = vectors.post("/score", {"text_1": ["ab", "c"], "text_2": ["ab", "c"]}).json()
    assert [each["score"] for each in pairs["data"]] == pytest.approx([1, 1])


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_the_nearest_come_first(vectors: Running, path: str) -> None:
    body = {"query": "ab", "documents": ["zzzz", {"text": "ab"}, "ac"], "top_n": 2}
    answer = vectors.post(path, body).json()
    assert [each["index"] for each in answer["results"]] == [1, 2]
    assert answer["results"][0]["document"] == {"text": "ab"}
    assert answer["results"][0]["relevance_score"] == pytest.approx(1)
    bare = vectors.post(path, body | {"return_documents": False}).json()
    assert "document" not in bare["results"][0]


def test_a_model_that_scores_reads_pairs(scores: Running) -> None:
    scores.client.requests.clear()
    answer = scores.post("/v1/score", {"text_1": "q", "text_2": ["one", "three"]}).json()
    assert next(request.prompt_ids for request in scores.client.requests) == [BOS, ord("q"), EOS, EOS, *b"one", EOS]
    assert [each["score"] for each in answer["data"]] == pytest.approx([0.1192, 0.5], abs=1e-4)
    raw = scores.post("/v1/score", {"text_1": "q", "text_2": "one", "activation": False}).json()
    assert raw["data"][0]["score"] == -2
    long = {"query": "q", "documents": ["a" * 2 * MAX_MODEL_LEN]}
    refused = scores.post("/v1/rerank", long)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "documents[0]"
    cut = scores.post("/v1/rerank", long | {"truncate_prompt_tokens": 20}).json()
    assert cut["usage"]["prompt_tokens"] == 20
    assert scores.post("/v1/embeddings", {"input": "a"}).json()["error"]["code"] == "unsupported_model"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [3]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/pooling", {"input": []}, "input"),
    ],
)
def test_errors_of_scores_name_the_field(vectors: Running, path: str, body: dict[str, Any], param: str) -> None:
    answer = vectors.post(path, body)
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith(param), answer.text


def test_pairs_that_have_too_many_tokens_together(start: Start) -> None:
    """Before they are made: each has the tokens of the query once more."""
    client = client_of(scored, PoolingReady("cls", 1, ["LABEL_0"]))
    client.ready = msgspec.structs.replace(client.ready, max_model_len=32768)
    body = {"query": "a" * 20_000, "documents": ["b"] * 300}
    answer = start(client, PairTokenizer()).post("/v1/rerank", body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "documents" and "prompt tokens" in error["message"]
    assert not client.requests


def test_pooling_gives_what_the_model_makes(vectors: Running, scores: Running) -> None:
    answer = vectors.post("/pooling", {"input": ["abc"]}).json()
    assert answer["data"] == [{"index": 0, "object": "pooling", "data": [97, 98, 99, EOS]}]
    assert scores.post("/pooling", {"input": "abc"}).json()["data"][0]["data"] == [-5]


def test_embeddings_of_ollama(vectors: Running) -> None:
    answer = vectors.post("/api/embed", {"model": "story-teller", "input": ["ab", "a" * 2 * MAX_MODEL_LEN]}).json()
    assert answer["embeddings"][0] == pytest.approx(embed(vectors, "ab")[0])
    assert answer["prompt_eval_count"] == 4 + MAX_MODEL_LEN and answer["model"] == "story-teller"
    older = vectors.post("/api/embeddings", {"model": "story-teller:latest", "prompt": "abc"}).json()
    assert older == {"embedding": [97, 98, 99, EOS]}
    refused = vectors.post("/api/embed", {"model": "story-teller", "input": "a" * 400, "truncate": False})
    assert refused.status_code == 400 and "input" in refused.json()["error"]
    assert "embedding" in vectors.post("/api/show", {"model": "story-teller"}).json()["capabilities"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"max_tokens": 3, "messages": [{"role": "user", "content": "a"}], "model": "story-teller"}),
        ("/api/generate", {"model": "story-teller", "prompt": "a"}),
        ("/api/chat", {"model": "story-teller", "messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_what_makes_vectors_does_not_generate(vectors: Running, path: str, body: dict[str, Any]) -> None:
    answer = vectors.post(path, body)
    assert answer.status_code == 400 and "embeddings" in answer.text and "does not generate" in answer.text, answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/pooling", {"input": "a"}),
        ("/api/embed", {"model": "story-teller", "input": "a"}),
    ],
)
def test_what_generates_makes_no_vectors(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 400 and "embeddings" in answer.text and "--runner pooling" in answer.text


def test_the_document_has_what_the_model_can_do(server: Running, vectors: Running, scores: Running) -> None:
    paths = [set(each.http.get("/openapi.json").json()["paths"]) for each in (server, vectors, scores)]
    assert "/v1/chat/completions" in paths[0] and not {"/v1/embeddings", "/v1/score", "/api/embed"} & paths[0]
    assert {"/v1/embeddings", "/v1/score", "/api/embed", "/pooling"} <= paths[1] and "/v1/completions" not in paths[1]
    assert "/v1/rerank" in paths[2] and "/v1/embeddings" not in paths[2]


@pytest.fixture(scope="module")
def counted(start: Start) -> Running:
    """By the files of this model six tokens of a text count, small letters, behind a prompt."""
    form = TextForm(tokens=6, prompt="Q:", lower_case=True)
    return start(client_of(pooled, PoolingReady("mean", WIDTH, text=form)), PairTokenizer())


COUNTED = [BOS, *b"q:ab", EOS]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "ABCDEF"}),
        ("/v1/embeddings", {"input": "ABCDEF", "truncate_prompt_tokens": -1}),
        ("/v1/embeddings", {"input": "ABCDEF", "truncate_prompt_tokens": 50}),
        ("/v1/embeddings", {"input": "A" + "B" * MAX_MODEL_LEN}),
        ("/v1/embeddings", {"input": [*COUNTED, 1, 2, 3]}),
        ("/pooling", {"input": "ABCDEF"}),
        ("/api/embed", {"model": "story-teller", "input": "ABCDEF"}),
        ("/api/embeddings", {"model": "story-teller", "prompt": "ABCDEF"}),
        ("/v1/score", {"text_1": "ABCDEF", "text_2": "abxyz"}),
        ("/v1/rerank", {"query": "ABCDEF", "documents": ["abxyz"]}),
    ],
)
def test_no_more_of_a_text_counts_than_the_files_say(counted: Running, path: str, body: dict[str, Any]) -> None:
    counted.client.requests.clear()
    answer = counted.post(path, body)
    assert answer.status_code == 200, answer.text
    asked = [request.prompt_ids for request in counted.client.requests]
    assert asked and all(ids in (COUNTED, [*COUNTED[:5], 98, EOS]) for ids in asked), asked


def test_fewer_tokens_may_be_asked_for_than_count(counted: Running) -> None:
    counted.client.requests.clear()
    embed(counted, "ABCDEF", truncate_prompt_tokens=4)
    assert [request.prompt_ids for request in counted.client.requests] == [[BOS, *b"q:", EOS]]


def test_a_text_that_is_to_count_whole_is_refused_where_it_would_not(counted: Running) -> None:
    body = {"model": "story-teller", "input": ["ab", "ABCDEF"], "truncate": False}
    refused = counted.post("/api/embed", body)
    assert (
        refused.status_code == 400
        and "input[1]" in refused.text
        and "maximum context length is 6 tokens" in refused.text
    )
