"""A load of streaming clients for a server with the OpenAI API: what each answer's tokens took to come. Light: one thread, no HTTP library."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any


class LoadFailed(Exception):
    """An answer was no success; the message says what came."""


@dataclass(frozen=True)
class Load:
    """`clients` of which each has one request under way until all `requests` are done: `prompt` random token ids in, `answer` tokens out."""

    clients: int
    requests: int
    prompt: int = 256
    answer: int = 128
    vocabulary: int = 100_000
    seed: int = 1


@dataclass(frozen=True)
class Answer:
    """Times in seconds of one clock: when it was asked for, when each piece of it came; `tokens` as the server counted them."""

    asked: float
    came: tuple[float, ...]
    tokens: int


@dataclass(frozen=True)
class Served:
    """What a load came to. `ttft_ms`, `itl_ms`: medians over the answers and over the gaps between their pieces; `tpot_ms`: the median over the
    answers of the time from the first piece to the last for each further token.
    """

    tok_s: float
    ttft_ms: float
    itl_ms: float
    tpot_ms: float


def served(answers: Sequence[Answer]) -> Served:
    """The figures of a load whose answers all have at least two pieces. ValueError otherwise."""
    if not answers or any(len(answer.came) < 2 or answer.tokens < 2 for answer in answers):
        raise ValueError("an answer came in less than two pieces: there is nothing to measure between tokens")
    seconds = max(answer.came[-1] for answer in answers) - min(answer.asked for answer in answers)
    return Served(
        tok_s=sum(answer.tokens for answer in answers) / seconds,
        ttft_ms=1e3 * median(answer.came[0] - answer.asked for answer in answers),
        itl_ms=1e3 * median(later - sooner for answer in answers for sooner, later in pairwise(answer.came)),
        tpot_ms=1e3 * median((answer.came[-1] - answer.came[0]) / (answer.tokens - 1) for answer in answers),
    )


async def run_load(port: int, load: Load, fields: dict[str, Any]) -> list[Answer]:
    """Put the load on the server at this port of the loopback interface; `fields` go into every request. Raises LoadFailed."""
    chance = random.Random(load.seed)
    prompts = [[chance.randrange(1000, load.vocabulary) for _ in range(load.prompt)] for _ in range(load.requests)]
    bodies = [json.dumps({**fields, "prompt": prompt, "max_tokens": load.answer}).encode() for prompt in prompts]
    answers: list[Answer] = []

    async def client() -> None:
        while bodies:
            answers.append(await _ask(port, bodies.pop()))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(load.clients):
                group.create_task(client())
    except ExceptionGroup as failed:
        raise LoadFailed(str(failed.exceptions[0])) from failed
    if wrong := {answer.tokens for answer in answers} - {load.answer}:
        raise LoadFailed(f"answers of {sorted(wrong)} tokens came where {load.answer} were asked for")
    return answers


async def _ask(port: int, body: bytes) -> Answer:
    """One request on a connection of its own."""
    asked = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        status = await reader.readline()
        if status.split()[1:2] != [b"200"]:
            rest = await reader.read()
            raise LoadFailed(f"{status.decode(errors='replace').strip()}: {rest.decode(errors='replace')[-400:]}")
        lines = [(time.perf_counter(), line) async for line in reader if line.startswith(b"data:")]
    finally:
        writer.close()
    return answer_of(asked, lines)


def answer_of(asked: float, lines: Sequence[tuple[float, bytes]]) -> Answer:
    """From the events of a stream and when they came. A piece is an event with a choice that goes on; the tokens are those of `usage`.

    Raises LoadFailed when the stream tells no usage or ends without [DONE].
    """
    came, tokens, done = [], None, False
    for when, line in lines:
        data = line[5:].strip()
        if data == b"[DONE]":
            done = True
            continue
        event = json.loads(data)
        if any("text" in choice for choice in event.get("choices", [])):
            came.append(when)
        if usage := event.get("usage"):
            tokens = int(usage["completion_tokens"])
    if tokens is None or not done:
        raise LoadFailed("the stream ended without [DONE]" if not done else "the stream told no usage")
    return Answer(asked, tuple(came[:tokens]), tokens)
