"""/tokenize, /detokenize and /tokenizer_info."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

from homenode.model.tokenizer.literal_text import HiddenNames
from tests.server.conftest import Running, Start
from tests.server.fakes import BOS, MAX_MODEL_LEN, VOCAB, ByteTokenizer


def test_text_and_back(server: Running) -> None:
    answer = server.post("/tokenize", {"prompt": "hö", "model": "story-teller"}).json()
    assert answer == {"count": 4, "max_model_len": MAX_MODEL_LEN, "tokens": [BOS, *"hö".encode()], "token_strs": None}
    plain = server.post("/tokenize", {"prompt": "hi", "add_special_tokens": False, "return_token_strs": True}).json()
    assert plain["tokens"] == [104, 105] and plain["token_strs"] == ["h", "i"]
    assert server.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "<s>hö"}
    assert server.post("/detokenize", {"tokens": answer["tokens"], "skip_special_tokens": True}).json() == {
        "prompt": "hö"
    }
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


def test_a_text_by_the_name_that_llama_cpp_has_for_it(server: Running) -> None:
    assert server.post("/tokenize", {"content": "hi"}).json()["tokens"] == [104, 105]
    assert server.post("/tokenize", {"content": "hi", "add_special": True}).json()["tokens"] == [BOS, 104, 105]
    assert server.post("/tokenize", {"content": ""}).json()["tokens"] == []
    assert server.post("/tokenize", {"content": "hi", "prompt": "hi"}).status_code == 400


def test_conversations(server: Running) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = server.post("/tokenize", {"messages": messages}).json()["tokens"]
    assert bytes(tokens).decode() == "<user>hi</><assistant>"
    closed = server.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()["tokens"]
    assert bytes(closed).decode() == "<user>hi</>"


def test_a_text_longer_than_the_context_can_still_be_counted(server: Running) -> None:
    assert server.post("/tokenize", {"prompt": "x" * 20_000}).json()["count"] == 20_001
    assert server.post("/tokenize", {"messages": [{"role": "user", "content": "x" * 20_000}]}).json()["count"] > 20_000


def test_refusals(server: Running) -> None:
    assert server.post("/tokenize", {}).status_code == 400
    assert server.post("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "hi"}]}).status_code == 400
    assert server.post("/tokenize", {"prompt": "x", "model": "nope"}).status_code == 404
    assert server.post("/detokenize", {"tokens": [VOCAB]}).json()["error"]["param"] == "tokens"


def test_info(server: Running, start: Start) -> None:
    info = server.http.get("/tokenizer_info").json()
    assert (
        info["bos_token"] == "<s>"
        and info["eos_token"] == "</s>"
        and info["chat_template"]
        and info["max_model_len"] == MAX_MODEL_LEN
    )
    assert start(tokenizer=ByteTokenizer(template=False)).http.get("/tokenizer_info").json()["chat_template"] is None


class EndlessTokenizer(ByteTokenizer):
    """Never comes to the end of a text. `left`: nobody waits for it any more."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.left = threading.Event(), threading.Event()

    def encode_pieces(
        self, text: str, add_special_tokens: bool = True, hidden: HiddenNames | None = None
    ) -> Iterator[list[int]]:
        try:
            while True:
                self.begun.set()
                yield [0]
        finally:
            self.left.set()


def test_nobody_works_on_the_text_of_a_client_that_left(start: Start) -> None:
    tokenizer = EndlessTokenizer()
    server = start(tokenizer=tokenizer)
    host, port = server.http.base_url.host, server.http.base_url.port
    body = json.dumps({"prompt": "x" * 200_000}).encode()
    head = (
        f"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, port or 80)) as client:
        client.sendall(head.encode() + body)
        assert tokenizer.begun.wait(10)
    assert tokenizer.left.wait(10)


def test_tools_are_looked_at_beside_a_text_as_well(server: Running) -> None:
    for given in ({"prompt": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}):
        answer = server.post("/tokenize", {**given, "tools": [{"type": "custom"}]})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "tools[0].custom"
