"""Serve the built-in model and ask it: once for the whole answer, once word by word as the words come.

Run it: `python docs/examples/serve_and_ask.py`.
"""

from __future__ import annotations

import json

import httpx
from local_server import serving

MESSAGES = [{"role": "user", "content": "What is NUMA?"}]


def ask(client: httpx.Client) -> str:
    """The whole answer, in one piece."""
    answer = client.post("/v1/chat/completions", json={"messages": MESSAGES, "temperature": 0})
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


def ask_and_print_words(client: httpx.Client) -> int:
    """Print the answer as it comes, and return how many pieces it came in."""
    body = {"messages": MESSAGES, "temperature": 0, "stream": True}
    pieces = 0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():  # server-sent events: `data: {...}`, and `data: [DONE]` at the end
            if line.startswith("data: {"):
                delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                print(delta.get("content") or "", end="", flush=True)
                pieces += 1
    print()
    return pieces


def main() -> None:
    with serving() as client:
        print("model: ", client.get("/v1/models").json()["data"][0]["id"])
        print("answer:", ask(client))
        print("stream: ", end="")
        pieces = ask_and_print_words(client)
        print(f"that came in {pieces} pieces")


if __name__ == "__main__":
    main()
