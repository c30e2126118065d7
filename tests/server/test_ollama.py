"""The Ollama API."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.server.fakes import BOS, EOS
from tests.server.written_answers import CALL, CALLS, LOOK, SHOWS, THINKS, Writer

HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": LOOK}]


def ask(writer: Writer, path: str = "/api/chat", **fields: Any) -> httpx.Response:
    asked = {"messages": HELLO} if path == "/api/chat" else {"prompt": "hi"}
    return writer.ask(path, {"model": "story-teller", **asked, **fields})


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    """The lines of a stream, of which the last one alone says that it is done, and why."""
    assert answer.headers["content-type"] == "application/x-ndjson", answer.text
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    assert not any("done_reason" in line for line in found[:-1])
    return found


def message_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that lines make."""
    said = [line["message"] for line in found]
    thoughts = "".join(one.get("thinking", "") for one in said)
    calls = [call["function"] for one in said for call in one.get("tool_calls", ())]
    return {"content": "".join(one["content"] for one in said), "thinking": thoughts, "calls": calls}


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "Once upon a wörld of 猫 🦊 and שלום.", f"<think>Hm, 猫?</think>\n\nLet me look.\n{CALL}", f"{CALL}\n{CALL}",
        "<think>\nonly thoughts 🦊", "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"pl", "",
    ],
)  # fmt: skip
def test_lines_make_the_whole_answer(text: str, chunk: int) -> None:
    writer = Writer(text, THINKS + CALLS, chunk)
    whole = ask(writer, tools=TOOLS, stream=False).json()
    found = lines(ask(writer, tools=TOOLS))
    assert message_of(found) == message_of([whole])
    assert (found[-1]["done_reason"], found[-1]["eval_count"]) == (whole["done_reason"], whole["eval_count"])
    assert all(line["message"]["role"] == "assistant" for line in found)


def test_calls_have_arguments_as_objects() -> None:
    said = ask(Writer(f"<think>Hm</think>{CALL}", THINKS + CALLS), tools=TOOLS, stream=False).json()["message"]
    assert (said["thinking"], said["content"]) == ("Hm", "")
    called = said["tool_calls"][0]
    assert called["function"] == {"index": 0, "name": "look", "arguments": {"place": "wörld 🦊"}} and called["id"]


def test_totals_and_times() -> None:
    writer = Writer("Once upon")
    for path in ("/api/chat", "/api/generate"):
        last = lines(ask(writer, path, options={"num_predict": 4}))[-1]
        assert last["done_reason"] == "length" and last["eval_count"] == 4
        assert last["prompt_eval_count"] == len(writer.requests[-1].prompt_ids)
        parts = [last[key] for key in ("load_duration", "prompt_eval_duration", "eval_duration", "total_duration")]
        assert all(isinstance(part, int) for part in parts) and parts[2] > 0 and sum(parts[:3]) <= parts[3]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", last["created_at"])
    assert lines(ask(writer))[-1]["done_reason"] == "stop"


def test_generate_with_the_template_and_without() -> None:
    writer = Writer("<think>a</think>b", THINKS)
    answer = ask(writer, "/api/generate", system="Be brief.", stream=False).json()
    assert (answer["response"], answer["thinking"]) == ("b", "a")
    assert writer.seen() == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    raw = ask(writer, "/api/generate", raw=True, stream=False).json()
    assert raw["response"] == "<think>a</think>b" and "thinking" not in raw
    assert bytes(writer.requests[-1].prompt_ids[1:]) == b"hi"
    streamed = lines(ask(writer, "/api/generate", raw=True))
    assert "".join(line["response"] for line in streamed) == raw["response"]


def test_the_context_of_an_answer_goes_before_the_next_prompt() -> None:
    writer = Writer("Once upon")
    for fields in ({}, {"template": "<u>{{ .Prompt }}</u>"}):
        first = ask(writer, "/api/generate", stream=False, **fields).json()["context"]
        assert first == [*writer.requests[-1].prompt_ids, *b"Once upon", EOS]
        last = lines(ask(writer, "/api/generate", prompt="go on", context=first, **fields))[-1]
        asked = writer.requests[-1].prompt_ids
        assert asked[: len(first)] == first and asked.count(BOS) == len(fields)
        assert last["context"] == [*asked, *b"Once upon", EOS]
    assert asked[len(first) :] == [*b"<u>go on</u>"]
    assert "context" not in ask(writer, "/api/generate", raw=True, stream=False).json()


def test_a_template_of_the_request() -> None:
    writer = Writer("<think>a</think>b", THINKS)
    template = "{{ if .System }}[{{ .System }}]{{ end }}<u>{{ .Prompt }}</u>{{ .Response }} and more"
    answer = ask(writer, "/api/generate", template=template, system="Be brief.", stream=False).json()
    assert (answer["response"], answer["thinking"]) == ("b", "a")
    assert writer.requests[-1].prompt_ids == [BOS, *b"[Be brief.]<u>hi</u>"]
    assert not writer.tokenizer.rendered


def test_options_reach_the_sampler() -> None:
    writer = Writer("Once upon a time")
    options = {
        "temperature": 0.5, "top_k": 4.0, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.2, "seed": 7,
        "stop": ["upon"],
        "num_predict": 50, "num_ctx": 4096, "presence_penalty": 0.5, "typical_p": 0.9, "mirostat": 2, "mirostat_tau": 4,
        "tfs_z": 1,
    }  # fmt: skip
    answer = ask(writer, options=options, stream=False, keep_alive=-1)
    params = writer.requests[-1].params
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 4, 0.9, 0.1)
    assert (params.repetition_penalty, params.seed, params.presence_penalty) == (1.2, 7, 0.5)
    assert (params.typical_p, params.mirostat, params.mirostat_tau, params.mirostat_eta) == (0.9, 2, 4, 0.1)
    assert answer.json()["message"]["content"] == "Once " and "x-homenode-ignored" not in answer.headers
    assert params.max_tokens == 50
    assert ask(writer, options={"num_predict": -1}).status_code == 200
    assert writer.requests[-1].params.max_tokens > 60000


def test_what_has_no_effect_is_named() -> None:
    options = {"num_ctx": 10**6, "num_gpu": 1, "use_mmap": True, "tfs_z": 0.5, "vigour": 3}
    answer = ask(Writer("x"), options=options, keep_alive=0, mood="good")
    named = set(answer.headers["x-homenode-ignored"].split(", "))
    assert named == {"num_ctx", "num_gpu", "use_mmap", "tfs_z", "vigour", "keep_alive", "mood"}


def test_a_history_of_calls() -> None:
    writer = Writer("x", CALLS + SHOWS)
    called = [
        {"function": {"name": "look", "arguments": {"place": "x"}}},
        {"function": {"name": "go", "arguments": {}}},
    ]
    past = [
        *HELLO,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": called},
        {"role": "tool", "tool_name": "go", "content": "gone"},
        {"role": "tool", "content": "snow", "images": ["iVBO"]},
    ]
    assert ask(writer, messages=past).headers["x-homenode-ignored"] == "image"
    _, assistant, first, second = writer.seen()
    assert assistant["reasoning_content"] == "hm"
    look, go = assistant["tool_calls"]
    assert look["function"] == {"name": "look", "arguments": {"place": "x"}} and look["id"] != go["id"]
    assert first == {"role": "tool", "content": "gone", "tool_call_id": go["id"], "name": "go"}
    assert second == {"role": "tool", "content": "snow\n[image]", "tool_call_id": look["id"], "name": "look"}


def test_an_answer_goes_on_from_its_beginning() -> None:
    writer = Writer(" B)")
    answer = ask(writer, messages=[*HELLO, {"role": "assistant", "content": "The best is ("}], stream=False)
    assert answer.json()["message"]["content"] == " B)"
    assert bytes(writer.requests[-1].prompt_ids[1:]).endswith(b"The best is (")


@pytest.mark.parametrize(
    ("think", "values"),
    [(True, {"enable_thinking": True}), (False, {"enable_thinking": False}), ("high", {"enable_thinking": True})],
)
def test_thoughts_are_switched(think: bool | str, values: dict[str, Any]) -> None:
    writer = Writer("x", THINKS)
    assert ask(writer, think=think).status_code == 200
    assert writer.seen()[-1]["values"] == values


def test_without_messages_the_model_is_loaded() -> None:
    writer = Writer("x")
    chat = ask(writer, messages=[]).json()
    assert (chat["done"], chat["done_reason"], chat["message"]["content"]) == (True, "load", "")
    generate = writer.ask("/api/generate", {"model": "story-teller:latest"}).json()
    assert (generate["done_reason"], generate["response"], generate["model"]) == ("load", "", "story-teller:latest")
    assert not writer.requests


def test_logprobs() -> None:
    writer = Writer("Once")
    whole = ask(writer, logprobs=True, top_logprobs=2, stream=False).json()["logprobs"]
    assert [entry["token"] for entry in whole[:4]] == ["O", "n", "c", "e"] and len(whole[0]["top_logprobs"]) == 2
    streamed = [
        entry for line in lines(ask(writer, logprobs=True, top_logprobs=2)) for entry in line.get("logprobs", ())
    ]
    assert streamed == whole
    assert "logprobs" not in ask(writer, stream=False).json()


def test_models() -> None:
    writer = Writer("x", THINKS, served_model_name=("story-teller", "s:7b"))
    facts = {"format": "gguf", "parameters": 134_515_008, "bytes": 91_000_000, "storage": "Q4_1", "modified": 1.7e9,
             "layers": 30, "hidden_size": 576, "heads": 9, "kv_heads": 3, "intermediate_size": 1536}  # fmt: skip
    writer.details.update(architecture="llama", model=facts)
    first, second = writer.ask("/api/tags", method="GET").json()["models"]
    assert (first["name"], second["name"]) == ("story-teller:latest", "s:7b")
    assert first["size"] == 91_000_000 and re.fullmatch("[0-9a-f]{64}", first["digest"])
    assert first["modified_at"].startswith("2023-11-14T22:13:20")
    assert first["details"] == {
        "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"], "parameter_size": "134.5M",
        "quantization_level": "Q4_1",
    }  # fmt: skip
    running = writer.ask("/api/ps", method="GET").json()["models"][0]
    assert running["context_length"] == 65536 and running["digest"] == first["digest"]
    for key in ("model", "name"):
        shown = writer.ask("/api/show", {key: "story-teller"}).json()
        assert shown["model_info"]["llama.context_length"] == 65536 and shown["template"] == THINKS
        assert shown["model_info"]["general.architecture"] == "llama"
        assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert writer.ask("/api/show", {}).status_code == 400
    assert re.fullmatch(r"\d+\.\d+\.\d+", writer.ask("/api/version", method="GET").json()["version"])
    assert writer.ask("/api/tags", method="HEAD").status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "status", "words"),
    [
        ("/api/chat", {"model": "nobody"}, 404, "not found: `model` is `nobody`"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["iVBO"]}]}, 400, "images"),
        ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]}, 400, "role"),
        ("/api/chat", {"think": True}, 400, "does not support thinking"),
        ("/api/chat", {"tools": [TOOLS[0], {"function": {"name": "look"}}]}, 400, "two unlike functions"),
        ("/api/chat", {"tools": [{"type": "function"}]}, 400, "function"),
        ("/api/chat", {"options": {"top_p": "much"}}, 400, "options.top_p"),
        ("/api/chat", {"top_logprobs": 3}, 400, "logprobs"),
        ("/api/generate", {"suffix": "b"}, 400, "insert"),
        ("/api/generate", {"template": "{{ define }}"}, 400, "`template`: `define` is not supported"),
        ("/api/generate", {"template": "{{ .Prompt }}", "raw": True}, 400, "`raw` does not go with `template`"),
        ("/api/generate", {"system": "x", "raw": True}, 400, "`raw` does not go with"),
        ("/api/generate", {"context": [1, 2], "raw": True}, 400, "context"),
        ("/api/generate", {"context": [1, 300]}, 400, "`context[1]` is token id 300"),
        ("/api/generate", {"prompt": "x" * 70000, "truncate": False}, 400, "tokens"),
        ("/api/pull", {}, 403, "model"),
        ("/api/embed", {"input": "x"}, 400, "embeddings"),
        ("/api/blobs/sha256:0", {}, 404, "/api/blobs"),
    ],
)
def test_errors_have_their_shape(path: str, fields: dict[str, Any], status: int, words: str) -> None:
    answer = ask(Writer("x"), path, **fields)
    assert answer.status_code == status and words in answer.json()["error"], answer.text


def test_a_body_need_not_be_sent_as_json_but_by_a_browser() -> None:
    body = json.dumps({"model": "story-teller", "messages": []}).encode()
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert Writer("x").ask("/api/chat", body, **form).status_code == 200
    assert Writer("x").ask("/api/chat", body, **form, origin="http://elsewhere").status_code == 415
    assert Writer("x").ask("/v1/chat/completions", body, **form).status_code == 415


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_format_binds_the_answer(path: str) -> None:
    writer = Writer("{}")
    schema = {"type": "object", "properties": {"place": {"enum": ["Bern"]}}, "required": ["place"]}
    for fields in ({}, {"raw": True}) if path == "/api/generate" else ({},):
        assert ask(writer, path, format=schema, **fields).status_code == 200
        assert "Bern" in (writer.requests[-1].params.grammar or "")
        assert ask(writer, path, format="json", **fields).status_code == 200 and writer.requests[-1].params.grammar
        assert ask(writer, path, format="", **fields).status_code == 200
        assert writer.requests[-1].params.grammar is None
    wrong = ask(writer, path, format={"type": "strange"})
    assert wrong.status_code == 400 and "`format.type`" in wrong.json()["error"]
