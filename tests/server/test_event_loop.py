"""No request keeps the event loop, however large it is: a watchdog measures the CPU time of each call of the loop, and
how long other threads keep the interpreter from it."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from homenode.engine.messages import Output, PoolingReady
from homenode.engine.request import Request, TokenLogprob
from homenode.model.tokenizer import Tokenizer
from homenode.server.apis.openai.completions.request import CompletionRequest
from tests.server.conftest import Running, Start
from tests.server.fakes import ScriptedClient

MOST_S = 0.2
KEPT_S = 0.3  # twice what a step takes at most by default
BODY = 16 * 2**20 - 1024
CONTEXT = 131072
WORDS = "The quick brown fox jumps over the lazy dog. "
SCORE = TokenLogprob(-1.0, [(token, -2.0) for token in range(20)])


class Watchdog:
    """The longest call of a loop since the last look, in CPU seconds of its thread, and what it was."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.worst, self.what = 0.0, ""

    def ran(self, handle: asyncio.Handle, seconds: float) -> None:
        if threading.get_ident() == self.thread and seconds > self.worst:
            self.worst, self.what = seconds, repr(handle)

    def look(self) -> tuple[float, str]:
        worst = self.worst, self.what
        self.worst, self.what = 0.0, ""
        return worst


class Ticks(threading.Thread):
    """Wants the interpreter a thousand times a second. `longest()`: CPU seconds that the process spent between two of
    its turns at most: work of others that keeps the interpreter, whatever else the machine does.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._worst, self._ends = 0.0, threading.Event()

    def run(self) -> None:
        before = time.process_time()
        while not self._ends.wait(0.001):
            now = time.process_time()
            self._worst, before = max(self._worst, now - before), now

    def longest(self) -> float:
        worst, self._worst = self._worst, 0.0
        return worst

    def end(self) -> None:
        self._ends.set()
        self.join()


@pytest.fixture(scope="module")
def ticks() -> Iterator[Ticks]:
    ticks = Ticks()
    ticks.start()
    yield ticks
    ticks.end()


@pytest.fixture(scope="module")
def watchdog() -> Iterator[Watchdog]:
    watchdog, run = Watchdog(), asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begin = time.thread_time()
        run(handle)
        watchdog.ran(handle, time.thread_time() - begin)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    gc.freeze()  # what the test framework has in memory is not to be walked through in the server's name
    yield watchdog
    gc.unfreeze()
    asyncio.Handle._run = run  # type: ignore[method-assign]


def letters() -> Tokenizer:
    """A byte-level vocabulary of all bytes, some words, and a chat template."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"]
    library = Library(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[("t", "h"), ("th", "e")]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    middle = {"prefix_token": "A", "suffix_token": "B", "middle_token": "C"}
    return Tokenizer(library, middle, {"default": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"})


def answered(request: Request) -> list[Output]:
    """64 tokens at a time, with their scores and those of the prompt where they are asked for; to a request with a seed
    all tokens at once, and no scores.
    """
    wanted, asked = request.params.max_tokens, request.params.prompt_logprobs is not None
    scores = [None, *[SCORE] * (len(request.prompt_ids) - 1)] if asked else None
    if request.params.seed is not None:
        return [Output(request.id, tokens=[65] * wanted, finish_reason="length")]
    scored = request.params.logprobs is not None
    outputs = [
        Output(request.id, tokens=[65] * count, logprobs=[SCORE] * count if scored else [])
        for count in (min(64, wanted - at) for at in range(0, wanted, 64))
    ] or [Output(request.id)]
    outputs[0] = msgspec.structs.replace(outputs[0], prompt_logprobs=scores)
    outputs[-1] = msgspec.structs.replace(outputs[-1], finish_reason="length")
    return outputs


@pytest.fixture(scope="module")
def watched(start: Start, watchdog: Watchdog) -> Running:
    client = ScriptedClient(answered)
    client.ready = msgspec.structs.replace(client.ready, max_model_len=CONTEXT, vocab_size=258)
    server = start(client, letters())  # type: ignore[arg-type]
    server.http.timeout = 120
    server.call(lambda: setattr(watchdog, "thread", threading.get_ident()))
    return server


WIDTH = 1024


def pooled(request: Request) -> list[Output]:
    values = array("f", range(1, WIDTH + 1)).tobytes()
    return [Output(request.id, finish_reason="stop", pooled=values)]


@pytest.fixture(scope="module")
def watched_vectors(start: Start, watchdog: Watchdog) -> Running:
    """A server that makes long vectors of texts."""
    client = ScriptedClient(pooled)
    client.ready = msgspec.structs.replace(client.ready, vocab_size=258, pooling=PoolingReady("mean", WIDTH))
    server = start(client, letters())  # type: ignore[arg-type]
    server.http.timeout = 120
    return server


def text(size: int) -> str:
    return WORDS * (size // len(WORDS))


def filled(head: str, unit: str, tail: str) -> bytes:
    """A body of the largest size with as many units as fit."""
    count = (BODY - len(head) - len(tail)) // len(unit)
    return (head + (unit * count).rstrip(",") + tail).encode()


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **fields}


IDS = [66] * (CONTEXT - 1)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CASES: dict[str, tuple[str, Callable[[], Any], int]] = {
    "a text that cannot fit": (COMPLETIONS, lambda: {"prompt": text(BODY)}, 400),
    "a text that fits": (COMPLETIONS, lambda: {"prompt": text(CONTEXT - 100), "max_tokens": 1, "echo": True}, 200),
    "texts that are short each": (COMPLETIONS, lambda: {"prompt": [text(2000)] * 400, "max_tokens": 1}, 200),
    "token ids": (COMPLETIONS, lambda: {"prompt": IDS, "max_tokens": 1, "return_token_ids": True}, 200),
    "too many token ids": (COMPLETIONS, lambda: filled('{"prompt":[', "1000,", "]}"), 400),
    "lists of token ids": (COMPLETIONS, lambda: {"prompt": [[66] * 1000] * 2048, "max_tokens": 1}, 200),
    "token ids outside the vocabulary": (COMPLETIONS, lambda: {"prompt": [66] * (CONTEXT - 2) + [999]}, 400),
    "a scored prompt": (
        COMPLETIONS,
        lambda: {"prompt": IDS[:8192], "max_tokens": 0, "echo": True, "logprobs": 20},
        200,
    ),
    "a scored prompt, streamed": (
        COMPLETIONS,
        lambda: {"prompt": IDS[:8192], "max_tokens": 0, "echo": True, "logprobs": 20, "stream": True},
        200,
    ),
    "a long scored answer": (CHAT, lambda: chat(max_tokens=2048, logprobs=True, top_logprobs=20), 200),
    "stop strings of many sequences": (
        COMPLETIONS,
        lambda: {"prompt": ["a"] * 2048, "max_tokens": 1, "stop": [f"{i:04}" * 256 for i in range(16)]},
        200,
    ),
    "biases of many sequences": (
        COMPLETIONS,
        lambda: {
            "prompt": ["a"] * 16,
            "n": 128,
            "max_tokens": 1,
            "logit_bias": {str(i): 1 for i in range(258)},
            "stop_token_ids": [7] * 128,
        },
        200,
    ),
    "many messages": (
        CHAT,
        lambda: {"messages": [{"role": "user", "content": "x" * 24}] * 4096, "max_tokens": 1, "return_token_ids": True},
        200,
    ),
    "a long message": (CHAT, lambda: chat(messages=[{"role": "user", "content": text(BODY)}]), 400),
    "many blocks": (
        "/v1/messages",
        lambda: chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * 60_000}]),
        200,
    ),
    "instructions of many lines": (
        "/v1/messages",
        lambda: chat(system="x-anthropic-billing-header: x\n" * 300_000),
        200,
    ),
    "many messages of Ollama": (
        "/api/chat",
        lambda: {
            "model": "story-teller",
            "messages": [{"role": "user", "content": "x" * 24}] * 4096,
            "stream": False,
            "options": {"num_predict": 1},
        },
        200,
    ),
    "many items": (
        "/v1/responses",
        lambda: {"input": [{"role": "user", "content": "x" * 24}] * 8192, "max_output_tokens": 1},
        400,
    ),
    "many parts of an item": (
        "/v1/responses",
        lambda: {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 4096}] * 14},
        200,
    ),
    "many tools": (
        "/v1/responses",
        lambda: {
            "input": "x",
            "tools": [{"type": "function", "name": f"f{n}", "parameters": {"type": "object"}} for n in range(2048)],
        },
        400,
    ),
    "values for the template": (CHAT, lambda: chat(chat_template_kwargs={"a": [[]] * 60_000}), 200),
    "empty lists": (COMPLETIONS, lambda: filled('{"prompt":[', "[],", "]}"), 400),
    "empty objects": (CHAT, lambda: filled('{"messages":[],"chat_template_kwargs":{"a":[', "{},", "]}}"), 400),
    "numbers with a point": (COMPLETIONS, lambda: filled('{"prompt":[', "1.0,", "]}"), 400),
    "middles of many prompts": (
        COMPLETIONS,
        lambda: {"prompt": [text(8000)] * 256, "suffix": "x", "max_tokens": 1},
        200,
    ),
    "a long value where a short one is wanted": (CHAT, lambda: chat(reasoning_effort=text(BODY)), 400),
    "escapes": (COMPLETIONS, lambda: filled('{"prompt":"', "\\u00e9", '"}'), 400),
    "tokens of a text": ("/tokenize", lambda: {"prompt": text(2**18), "return_token_strs": True}, 200),
    "tokens of a conversation": (
        "/tokenize",
        lambda: {"messages": chat(messages=[{"role": "user", "content": text(2**18)}])["messages"]},
        200,
    ),
    "an answer all at once": (COMPLETIONS, lambda: {"prompt": "a", "max_tokens": CONTEXT - 100, "seed": 1}, 200),
    "many answers of many pieces": (COMPLETIONS, lambda: {"prompt": ["a"] * 2048, "max_tokens": 256}, 200),
    "a text of as many tokens as a body holds": (
        "/detokenize",
        lambda: f'{{"tokens":[{"66," * 4_000_000}66]}}'.encode(),
        200,
    ),
    "a text of tokens": ("/detokenize", lambda: {"tokens": [66] * 2**20}, 200),
}


@pytest.mark.parametrize("name", CASES)
def test_no_call_of_the_loop_takes_long_and_no_thread_keeps_the_interpreter(
    name: str, watched: Running, watchdog: Watchdog, ticks: Ticks
) -> None:
    path, body, status = CASES[name]
    content = body()
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    found = []
    while len(found) < 3 and (not found or found[-1] >= KEPT_S):  # a thread beside it may have had no CPU
        watchdog.look()
        ticks.longest()
        answer = watched.http.post(path, content=content, headers={"Content-Type": "application/json"})
        found.append(ticks.longest())
        worst, what = watchdog.look()
        watched.client.requests.clear()
        assert answer.status_code == status, answer.text[:300]
        assert 0 < worst < MOST_S, what
    assert found[-1] < KEPT_S, found


def test_a_thread_that_keeps_the_interpreter_is_seen(ticks: Ticks) -> None:
    ticks.longest()
    numbers = [5] * 4_000_000
    begin = time.process_time()
    while time.process_time() - begin < 2 * KEPT_S:
        sum(numbers * 8)  # a single call of C
    assert ticks.longest() > KEPT_S / 4


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"input": ["a"] * 1024}),
        ("/pooling", {"input": ["a"] * 1024, "normalize": True}),
        ("/api/embed", {"model": "story-teller", "input": ["a"] * 1024}),
        ("/v1/score", {"text_1": "a", "text_2": ["b"] * 1024}),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 1024}),
    ],
)
def test_no_call_takes_long_for_many_vectors(
    path: str, fields: dict[str, Any], watched: Running, watched_vectors: Running, watchdog: Watchdog
) -> None:
    others = watchdog.thread
    watched_vectors.call(lambda: setattr(watchdog, "thread", threading.get_ident()))
    try:
        watchdog.look()
        answer = watched_vectors.post(path, fields)
        worst, what = watchdog.look()
    finally:
        watchdog.thread = others
    assert answer.status_code == 200, answer.text[:300]
    assert 0 < worst < MOST_S, what


def test_the_watchdog_can_bark(watched: Running, watchdog: Watchdog) -> None:
    watchdog.look()

    def busy() -> None:
        until = time.thread_time() + 2 * MOST_S
        while time.thread_time() < until:
            pass

    watched.call(busy)
    watched.call(lambda: None)  # behind the end of the former
    assert watchdog.look()[0] > MOST_S


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_refused_request_is_kept(stream: bool, watched: Running) -> None:
    gc.collect()
    earlier = {id(each) for each in gc.get_objects() if isinstance(each, CompletionRequest)}  # other tests' requests
    gc.disable()  # what is in a cycle would be freed some time later, on whichever thread happens to collect
    try:
        for prompt, status in ((IDS, 200), ([*IDS, 66], 400), ([999], 400)):
            body = {"prompt": prompt, "max_tokens": 1, "stream": stream}
            assert watched.post(COMPLETIONS, body).status_code == status
        until = time.monotonic() + 10  # the task of the last connection may end some turns after its answer
        while left := [
            each for each in gc.get_objects() if isinstance(each, CompletionRequest) and id(each) not in earlier
        ]:
            assert time.monotonic() < until, left
            left.clear()  # this list would keep them
            watched.call(lambda: None)
    finally:
        gc.enable()
