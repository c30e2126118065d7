"""A server under more clients than its KV memory holds: nobody gets an error, nobody is stuck, and every answer is the
one it would get alone.

HOMENODE_SOAK_S is how long the clients ask, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.engine.live import LiveServer

pytest.importorskip("homenode._native", reason="needs the compiled core")

pytestmark = pytest.mark.alone

SECONDS = float(os.environ.get("HOMENODE_SOAK_S", "6"))
CLIENTS = 32
WORDS = (
    "the cat",
    "a big dog",
    "Tom and Sue",
    "went home",
    "was very happy",
    "in the park",
    "said",
    "one day",
    "because",
    "little red",
    "saw",
)
FLAGS = (
    "--max-model-len",
    "512",
    "--block-size",
    "32",
    "--max-num-seqs",
    str(CLIENTS),
    "--max-num-batched-tokens",
    "96",
)


@dataclass(frozen=True)
class Wanted:
    """A request and the tokens it gets when nobody else is there."""

    body: dict[str, Any]
    tokens: list[int]


def bodies(count: int) -> list[dict[str, Any]]:
    """Requests of mixed lengths; one in four draws at random, from a seed."""
    draw = random.Random(11)
    found = []
    for i in range(count):
        prompt = " ".join(draw.choice(WORDS) for _ in range(draw.choice((1, 4, 12, 40))))
        body = {
            "prompt": prompt,
            "max_tokens": draw.choice((1, 8, 40, 120, 250)),
            "ignore_eos": True,
            "return_token_ids": True,
        }
        found.append(body | ({"temperature": 1.0, "top_p": 0.9, "seed": i} if i % 4 == 3 else {"temperature": 0}))
    return found


@pytest.fixture(scope="module", params=["auto", pytest.param("int8", marks=pytest.mark.slow)])
def small_server(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    if not LiveServer.possible():
        pytest.skip("needs the built-in model or the data folder ../shared/data, and this clone has neither")
    # Less than half of what the clients' sequences take together.
    memory = {"auto": "4MiB", "int8": "2MiB"}[request.param]
    server = LiveServer(*FLAGS, "--kv-cache-dtype", request.param, "--kv-cache-memory", memory)
    yield server
    assert server.close() == 0, server.log_end()
    assert b"Traceback" not in b"".join(server.log), b"".join(server.log).decode()[-6000:]


def metric(text: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^homenode:{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE))


async def whole(http: httpx.AsyncClient, body: dict[str, Any]) -> list[int]:
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "length"
    tokens: list[int] = choice["token_ids"]
    return tokens


async def streamed(http: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None) -> list[int]:
    """The tokens of a stream, or of its first events when the client leaves it."""
    tokens: list[int] = []
    async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                tokens += event["choices"][0]["token_ids"]
                if leave_after is not None and len(tokens) >= leave_after:
                    return tokens
    return tokens


async def soak(url: str) -> tuple[int, int, str]:
    """Completions that were whole, those that were left, and the metrics once all is quiet."""
    limits = httpx.Limits(max_connections=CLIENTS + 1)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        wanted = [Wanted(body, await whole(http, body)) for body in bodies(40)]
        ends = time.monotonic() + SECONDS

        async def client(number: int) -> tuple[int, int]:
            draw, done, left = random.Random(number), 0, 0
            while time.monotonic() < ends:
                request = draw.choice(wanted)
                leave_after = draw.randrange(1, 60) if draw.random() < 0.15 else None
                if leave_after is None and draw.random() < 0.3:
                    assert await whole(http, request.body) == request.tokens
                else:
                    tokens = await streamed(http, request.body, leave_after)
                    assert tokens == request.tokens[: len(tokens)]
                    assert leave_after is not None or len(tokens) == len(request.tokens)
                done, left = done + (leave_after is None), left + (leave_after is not None)
            return done, left

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client(number)) for number in range(CLIENTS)]
        for _ in range(2000):  # what was left is aborted within a step or two
            text = (await http.get("/metrics")).text
            if not metric(text, "num_requests_running") and not metric(text, "kv_cache_usage_perc"):
                break
        return sum(t.result()[0] for t in tasks), sum(t.result()[1] for t in tasks), text


def test_answers_under_too_little_memory_are_those_given_alone(small_server: LiveServer) -> None:
    done, left, text = asyncio.run(soak(small_server.url))
    print(
        f"\n{done} completions, {left} left by their clients, {metric(text, 'num_preemptions_total'):.0f} preemptions"
    )
    assert done >= CLIENTS and left > 0
    assert metric(text, "num_preemptions_total") > 0, "the memory was too large for this test"
    assert not metric(text, "num_requests_running") and not metric(text, "num_requests_waiting")
    assert metric(text, "kv_cache_usage_perc") == 0, "blocks were not given back"
