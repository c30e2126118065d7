"""Prompts of /v1/completions as rows of embeddings: off unless asked for, bounded, refused by name."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import httpx
import numpy as np
import pytest

from homenode.compute.ops import NO_TOKEN, FloatArray
from homenode.server.core.prompt_forms import prompt_rows
from tests.server.written_answers import Writer

COLUMNS = 4
ROWS = np.arange(3 * COLUMNS, dtype=np.float32).reshape(3, COLUMNS)


def sent(rows: FloatArray) -> str:
    """The rows as base64 of a safetensors file."""
    data = rows.astype("<f4").tobytes()
    head = json.dumps({"rows": {"dtype": "F32", "shape": rows.shape, "data_offsets": [0, len(data)]}}).encode()
    return base64.b64encode(struct.pack("<Q", len(head)) + head + data).decode()


def writer(columns: int = COLUMNS, **settings: Any) -> Writer:
    made = Writer("so it was", **settings)
    made.row_columns = columns
    return made


def complete(asked: Writer, **fields: Any) -> httpx.Response:
    return asked.ask("/v1/completions", {"max_tokens": 4, **fields})


def test_rows_reach_the_engine_and_are_answered_before_texts() -> None:
    asked = writer()
    answer = complete(asked, prompt_embeds=[sent(ROWS), sent(ROWS[:1])], prompt="hi", n=2)
    assert answer.status_code == 200, answer.text
    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(6))
    first, again, second, _, text, _ = asked.requests
    assert first.prompt_ids == [NO_TOKEN] * 3 and second.prompt_ids == [NO_TOKEN] and not text.rows
    (placed,) = first.rows
    assert placed.first == 0 and np.array_equal(np.frombuffer(placed.rows.data, "<f4").reshape(3, COLUMNS), ROWS)
    assert again.rows == first.rows and second.rows[0].rows.digests == placed.rows.digests[:32]
    assert answer.json()["usage"]["prompt_tokens"] == 3 + 1 + len(text.prompt_ids)


def test_one_batch_of_rows_is_rows() -> None:
    asked = writer()
    assert complete(asked, prompt_embeds=sent(ROWS[None])).status_code == 200
    assert asked.requests[0].prompt_ids == [NO_TOKEN] * 3


@pytest.mark.parametrize(
    ("fields", "param", "what"),
    [
        ({"prompt_embeds": "no base64!"}, "prompt_embeds", "no base64"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds", "neither a safetensors file"),
        ({"prompt_embeds": []}, "prompt_embeds", "length"),
        ({"prompt_embeds": [sent(ROWS), sent(ROWS[:, 1:])]}, "prompt_embeds[1]", "shape [3, 3]; wanted [tokens, 4]"),
        ({"prompt_embeds": sent(ROWS[:0])}, "prompt_embeds", "shape [0, 4]"),
        ({"prompt_embeds": sent(ROWS.reshape(2, 2, 3)[:, :, :1])}, "prompt_embeds", "shape [2, 2, 1]"),
        ({"prompt_embeds": sent(ROWS * np.array([[1], [np.inf], [1]], np.float32))}, "prompt_embeds", "row 1"),
        ({"prompt_embeds": sent(np.full((2, COLUMNS), np.nan, np.float32))}, "prompt_embeds", "row 0"),
        ({"prompt_embeds": sent(np.zeros((65536, COLUMNS), np.float32))}, "prompt_embeds", "maximum context length"),
        ({"prompt_embeds": sent(ROWS), "echo": True}, "echo", "does not go with `prompt_embeds`"),
        ({"prompt_embeds": sent(ROWS), "suffix": "x"}, "suffix", "does not go with"),
        ({"prompt_embeds": sent(ROWS), "prompt_logprobs": 1}, "prompt_logprobs", "does not go with"),
        ({"prompt_embeds": sent(ROWS), "return_token_ids": True}, "return_token_ids", "does not go with"),
        ({}, "prompt", "missing"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str, what: str) -> None:
    answer = complete(writer(), **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and what in error["message"], answer.text


def test_rows_are_off_unless_the_server_takes_them() -> None:
    answer = complete(writer(columns=0), prompt_embeds=sent(ROWS))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "prompt_embeds", "unsupported_parameter")
    assert "--enable-prompt-embeds" in error["message"]


def test_rows_of_a_request_are_bounded_over_all_its_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_rows, "_MOST_BYTES", 2 * ROWS.nbytes)
    assert complete(writer(), prompt_embeds=[sent(ROWS)] * 2).status_code == 200
    for fields, param in (({"prompt_embeds": [sent(ROWS)] * 3}, "prompt_embeds"), ({"n": 3}, "n")):
        answer = complete(writer(), **{"prompt_embeds": sent(ROWS), **fields})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param
