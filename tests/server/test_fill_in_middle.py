"""The middle of a text: `suffix` of completions, and /infill as editors call it."""

from __future__ import annotations

import json

import msgspec
import pytest

from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.model.tokenizer.fill_in_middle import FillInMiddleTokens, fill_in_middle_tokens
from tests.server.conftest import Running, Start
from tests.server.fakes import BOS, MAX_MODEL_LEN, ByteTokenizer, ScriptedClient

PREFIX, SUFFIX, MIDDLE, REPOSITORY, FILE = 1, 2, 3, 4, 5


class MiddleTokenizer(ByteTokenizer):
    fill_in_middle = FillInMiddleTokens(PREFIX, SUFFIX, MIDDLE, REPOSITORY, FILE, (1, 2, 3, 4, 5))


def said(text: str) -> ScriptedClient:
    def script(request: Request) -> list[Output]:
        tokens = list(text.encode())[: request.params.max_tokens]
        parts = [Output(id=request.id, tokens=[token]) for token in tokens[:-1]]
        return [*parts, Output(id=request.id, tokens=tokens[-1:], finish_reason="length")]

    return ScriptedClient(script)


@pytest.fixture(scope="module")
def editor(start: Start) -> Running:
    return start(said("  a\n    b\n\n    c\nd\n"), MiddleTokenizer())


def laid_out(before: str, after: str, begun: str = "") -> list[int]:
    return [BOS, PREFIX, *before.encode(), SUFFIX, *after.encode(), MIDDLE, *begun.encode()]


def test_many_prompts_with_a_long_suffix_are_refused_before_each_has_it(start: Start) -> None:
    client = said("")
    client.ready = msgspec.structs.replace(client.ready, max_model_len=32768)
    answer = start(client, MiddleTokenizer()).complete(prompt=["a"] * 300, suffix="b" * 20_000)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "prompt" and "prompt tokens" in error["message"]
    assert not client.requests


def test_the_prompt_whose_middle_does_not_fit_is_named(editor: Running) -> None:
    answer = editor.complete(prompt=["a", "b" * MAX_MODEL_LEN], suffix="c")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt[1]"


def test_a_suffix_is_laid_out_with_the_models_own_tokens(editor: Running) -> None:
    answer = editor.complete(prompt="def f", suffix="return", return_token_ids=True, max_tokens=3)
    assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == "  a"
    assert editor.client.requests[-1].prompt_ids == laid_out("def f", "return")
    assert set(editor.client.requests[-1].params.stop_token_ids) >= {PREFIX, SUFFIX, MIDDLE, REPOSITORY, FILE}
    assert editor.complete(prompt=[100, 101], suffix="x").status_code == 200
    assert editor.client.requests[-1].prompt_ids == laid_out("de", "x")
    refused = editor.complete(suffix="x", echo=True)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "echo"
    assert editor.complete(suffix="").status_code == 200


def test_ollama_asks_for_a_middle_too(editor: Running) -> None:
    body = {
        "model": "story-teller",
        "prompt": "def f",
        "suffix": "return",
        "stream": False,
        "options": {"num_predict": 3},
    }
    answer = editor.post("/api/generate", {**body, "system": "Be short."})
    assert answer.json()["response"] == "  a" and answer.headers["x-homenode-ignored"] == "system"
    assert editor.client.requests[-1].prompt_ids == laid_out("def f", "return")
    assert set(editor.client.requests[-1].params.stop_token_ids) >= {PREFIX, SUFFIX, MIDDLE}
    assert "insert" in editor.post("/api/show", {"model": "story-teller"}).json()["capabilities"]


def test_a_model_without_the_tokens_is_told_by_name(server: Running) -> None:
    for answer in (server.complete(suffix="x"), server.post("/infill", {"input_prefix": "a"})):
        assert answer.status_code == 400 and "fill in the middle" in answer.json()["error"]["message"]


def test_infill(editor: Running) -> None:
    body = {"input_prefix": "ab", "input_suffix": "cd", "prompt": "  ", "n_predict": 30}
    answer = editor.post("/infill", body).json()
    assert answer["content"] == "  a\n    b\n\n    c\nd\n" and answer["stop_type"] == "limit" and answer["stop"]
    assert answer["tokens_predicted"] == 19 and answer["timings"]["predicted_n"] == 19 and not answer["truncated"]
    assert editor.client.requests[-1].prompt_ids == laid_out("ab", "cd", "  ")
    extra = [{"filename": "x.py", "text": "one", "time": 5}, {"filename": "y.py", "text": "two"}]
    editor.post("/infill", {**body, "input_extra": extra})
    context = [REPOSITORY, *b"project\n", FILE, *b"x.py\none\n", FILE, *b"y.py\ntwo\n", FILE, *b"filename\n"]
    assert editor.client.requests[-1].prompt_ids == [BOS, *context, *laid_out("ab", "cd", "  ")[1:]]
    picked = editor.post("/infill", {**body, "response_fields": ["content", "timings/predicted_n", "none"]}).json()
    assert picked == {"content": answer["content"], "timings/predicted_n": 19}
    assert editor.post("/infill", {**body, "n_predict": 0, "response_fields": [""]}).json() == {}
    assert editor.post("/infill", {**body, "n_predict": 0}).json()["content"] == ""


def test_lines_that_are_indented_too_little_end_the_middle(editor: Running) -> None:
    answer = editor.post("/infill", {"input_prefix": "a", "n_indent": 4, "n_predict": 30}).json()
    assert answer["content"] == "  a\n    b\n\n    c" and answer["stop_type"] == "limit"


@pytest.mark.parametrize("n_indent", [0, 4])
def test_streams_of_infill_are_the_whole_answer(editor: Running, n_indent: int) -> None:
    body = {"input_prefix": "a", "n_indent": n_indent, "n_predict": 30}
    whole = editor.post("/infill", body).json()
    lines = editor.post("/infill", {**body, "stream": True}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]


def test_what_does_not_fit_is_cut(editor: Running) -> None:
    answer = editor.post("/infill", {"input_prefix": "a" * 500 + "b", "input_suffix": "c" + "d" * 500, "n_predict": 4})
    prompt = editor.client.requests[-1].prompt_ids
    assert answer.status_code == 200 and answer.json()["truncated"] and len(prompt) < 256
    assert prompt[prompt.index(SUFFIX) - 1] == ord("b") and prompt[prompt.index(SUFFIX) + 1] == ord("c")


def test_tokens_are_those_that_files_name_or_of_a_known_family() -> None:
    ids = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3, "<|file_sep|>": 4, "A": 7, "B": 8, "C": 9}
    named = {"prefix_token": "A", "suffix_token": "B", "middle_token": "C"}
    known = fill_in_middle_tokens({}, ids.get)
    assert known is not None and known[:5] == (1, 2, 3, None, 4)
    told = fill_in_middle_tokens(named, ids.get)
    assert told is not None and told[:3] == (7, 8, 9)
    assert fill_in_middle_tokens({}, {"<|fim_prefix|>": 1}.get) is None
