"""Let a model call tools: it asks for a call, this program makes it, and the model goes on with the result.

Run it: `python docs/examples/tools_loop.py`.

A toy does not choose tools well, so the first turn asks for a call (`tool_choice`); with a model that was trained for
it, leave that out, and the loop is the same.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
from local_server import serving

TURNS = 4  # the most rounds of calls; a loop without an end is a fault of many agents


def add(a: int, b: int) -> int:
    return a + b


TOOLS = {"add": add}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
OFFERED = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
        },
    }
]


def next_message(client: httpx.Client, messages: list[dict[str, Any]], choice: str) -> dict[str, Any]:
    """The model's next message: text, or calls of tools."""
    body = {"messages": messages, "tools": OFFERED, "tool_choice": choice, "temperature": 0, "max_tokens": 64}
    answer = client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]


def result_of(call: dict[str, Any]) -> str:
    """The result of a call, or what is wrong with it: a model can mend a call that it is told about."""
    function = call["function"]
    try:
        return json.dumps(TOOLS[function["name"]](**json.loads(function["arguments"])))
    except (KeyError, TypeError, ValueError) as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is three plus four?"}]
    with serving() as client:
        for turn in range(TURNS):
            message = next_message(client, messages, "required" if turn == 0 else "auto")
            messages.append(message)
            if not message.get("tool_calls"):
                break
            for call in message["tool_calls"]:
                result = result_of(call)
                print(f"call:   {call['function']['name']}({call['function']['arguments']}) = {result}")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        print("answer:", messages[-1]["content"])
        print("turns: ", [message["role"] for message in messages])


if __name__ == "__main__":
    main()
