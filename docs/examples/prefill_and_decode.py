"""Compute prompts in one server and answers in another, behind a proxy that looks like one server.

Run it: `python docs/examples/prefill_and_decode.py`.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack

import httpx
from local_server import serving

SMALL = ("--threads", "1", "--kv-cache-memory", "32MiB")
STORY = "Once upon a time there was a whale. " * 12
WAIT_S = 60.0


def answer_of(client: httpx.Client) -> str:
    body = {"model": "homenode-builtin", "prompt": STORY, "max_tokens": 24, "temperature": 0}
    answer = client.post("/v1/completions", json=body)
    answer.raise_for_status()
    return answer.json()["choices"][0]["text"]


def ways_of(proxy: httpx.Client) -> dict[str, int]:
    """How many requests the proxy sent which way: `handover`, or straight to the decode server.

    The proxy counts a request once its answer is over, which may be a moment after the client has all of it.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        found = re.findall(r'proxy_requests_total{outcome="ok",way="(\w+)"} (\S+)', proxy.get("/metrics").text)
        if found or time.monotonic() > deadline:
            return {way: int(float(count)) for way, count in found}
        time.sleep(0.05)


def wait_until_ready(proxy: httpx.Client) -> None:
    """Return once the proxy has found both servers; it also finds those that are started after it."""
    deadline = time.monotonic() + WAIT_S
    while proxy.get("/health").status_code != 200:
        if time.monotonic() > deadline:
            raise SystemExit(f"the proxy found no pair of servers within {WAIT_S:g} s: {proxy.get('/health').text}")
        time.sleep(0.05)


def main() -> None:
    with ExitStack() as stack:
        prefill = stack.enter_context(serving("--pd-role", "sender", *SMALL))
        decode = stack.enter_context(serving("--pd-role", "receiver", *SMALL))
        pair = ("--prefill", str(prefill.base_url), "--decode", str(decode.base_url))
        proxy = stack.enter_context(serving(*pair, command="proxy"))
        wait_until_ready(proxy)
        whole = answer_of(proxy)
        print("through the proxy:", repr(whole))
        print("requests by their way:", ways_of(proxy))
        print("the same as the decode server's own answer:", whole == answer_of(decode))


if __name__ == "__main__":
    main()
