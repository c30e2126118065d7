"""Bind an answer to a JSON schema: even a toy model writes JSON that fits, for it may draw nothing else.

Run it: `python docs/examples/structured_output.py`.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
from local_server import serving

SCHEMA = {
    "type": "object",
    "properties": {
        "machine": {"type": "string", "enum": ["laptop", "server", "cluster"]},
        "nodes": {"type": "integer", "minimum": 1, "maximum": 8},
        "local": {"type": "boolean"},
    },
    "required": ["machine", "nodes", "local"],
}


def ask(client: httpx.Client, question: str, form: dict[str, Any]) -> str:
    """The answer to a question, of which `form` says what it has to look like."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 64, "temperature": 0, **form}
    answer = client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


def main() -> None:
    as_json = {"response_format": {"type": "json_schema", "json_schema": {"name": "machine", "schema": SCHEMA}}}
    with serving() as client:
        text = ask(client, "Describe a machine.", as_json)
        print("json:   ", text)
        machine = json.loads(text)
        print("fields: ", ", ".join(f"{name} is {value!r}" for name, value in machine.items()))
        print("choice: ", ask(client, "Is NUMA a kind of memory access?", {"guided_choice": ["yes", "no"]}))
        print("pattern:", ask(client, "When was it?", {"guided_regex": r"(19|20)[0-9]{2}-[01][0-9]"}))

        wrong = {"response_format": {"type": "json_schema", "json_schema": {"name": "m", "schema": {"type": "mood"}}}}
        refused = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "?"}], **wrong})
        print(f"refused: {refused.status_code}: {refused.json()['error']['message']}")


if __name__ == "__main__":
    main()
