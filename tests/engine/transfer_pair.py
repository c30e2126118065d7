"""A sender and a receiver as users start them, and requests that go through both, as the proxy sends them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from homenode.engine.api.local import LocalEngine
from tests.engine import engines
from tests.engine.live import BUILTIN, LiveServer
from tests.paths import STORIES
from tests.waiting import PATIENCE_S

MODES = {"push": [], "pull-eager": ["--pd-pull-mode"], "pull-delay": ["--pd-pull-mode", "--pd-delay-pull"]}


class Live:
    """A server with a client of its own."""

    def __init__(self, *flags: str, model: Path | None = None) -> None:
        self.server = LiveServer("--threads", "1", *flags, model=model)
        self.http = httpx.Client(base_url=self.server.url, timeout=PATIENCE_S, limits=httpx.Limits(max_connections=64))

    def published(self) -> dict[str, Any]:
        document: dict[str, Any] = self.http.get("/kv_transfer").json()
        return document

    def complete(self, prompt: Sequence[int], max_tokens: int = 24, **fields: Any) -> httpx.Response:
        body = {
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **fields,
        }
        return self.http.post("/v1/completions", json=body)

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"homenode:kv_transfer_{name}{{"))

    def close(self) -> int:
        self.http.close()
        return self.server.close()


class Pair:
    """`with Pair(mode) as pair:`; both end in order, unless the test has ended one."""

    def __init__(
        self,
        mode: str,
        channel: str = "shm",
        *,
        both: Sequence[str] = (),
        sender: Sequence[str] = (),
        receiver: Sequence[str] = (),
        model: Path | None = None,
    ) -> None:
        flags = ["--transfer-channel", channel, *MODES[mode], *both]
        self._name, self._numbers = secrets.token_hex(4), itertools.count()
        with ThreadPoolExecutor(2) as pool:
            starts = [
                pool.submit(Live, "--pd-role", role, *flags, *own, model=model)
                for role, own in (("sender", sender), ("receiver", receiver))
            ]
            self.sender, self.receiver = (start.result() for start in starts)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.codes = [self.sender.close(), self.receiver.close()]

    def ticket(self) -> str:
        return f"{self._name}-{next(self._numbers)}"

    def prefill(self, prompt: Sequence[int], ticket: str) -> httpx.Response:
        params = {"do_remote_decode": True, "ticket": ticket, "peer": self.receiver.published()}
        return self.sender.complete(prompt, kv_transfer_params=params)

    def answer(self, prompt: Sequence[int]) -> list[int]:
        """The tokens of a prompt that goes through both."""
        ticket = self.ticket()
        computed = self.prefill(prompt, ticket)
        assert computed.status_code == 200, computed.text
        assert computed.json()["kv_transfer_params"]["tokens"] == len(prompt) - 1
        return tokens_of(
            self.receiver.complete(prompt, kv_transfer_params={"do_remote_prefill": True, "ticket": ticket})
        )

    def nothing_pinned(self) -> bool:
        return self.sender.metric("pinned_pages") == 0 == self.receiver.metric("pinned_pages")


def tokens_of(answer: httpx.Response) -> list[int]:
    """The tokens of a good answer."""
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


def one_engine_says(
    prompts: Sequence[list[int]], max_tokens: int = 24, model: Path | None = None, **settings: Any
) -> list[list[int]]:
    """Greedy tokens of `model`, else of the one that servers of tests serve, from one engine in this process."""
    served = BUILTIN.parent if BUILTIN.is_file() else STORIES
    engine = LocalEngine(engines.config_for(model or served, threads=1, **settings))
    try:
        found = engines.run_all(engine, prompts, [engines.greedy(max_tokens)] * len(prompts))
    finally:
        engine.close()
    return [engines.tokens_of(outputs) for outputs in found]


def prompts(count: int) -> list[list[int]]:
    """Prompts of many lengths, whole pages and partial ones; every third shares its beginning with the one before."""
    made: list[list[int]] = []
    for i in range(count):
        length = (2, 33, 64, 65, 100, 129, 200, 31, 128, 3)[i % 10]
        own = [5 + (i * 31 + 7 * k) % 300 for k in range(length)]
        made.append(made[-1] + own[:40] if i % 3 == 2 else own)
    return made
