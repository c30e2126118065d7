"""Schemas by chance, asked of a live server: every finished answer fits, none hangs, and refusals name the place.

A few of them run with the tests; 1,000 that are kept and 500 that are hard take an hour or two and are slow. The model
is that of $HOMENODE_SCHEMAS_MODEL where that is set.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.live import LiveServer
from tests.random_schemas import SchemaMaker, names_in

jsonschema = pytest.importorskip("jsonschema_rs")  # comes with schemathesis

pytestmark = pytest.mark.skipif(not LiveServer.possible(), reason="there is no model to serve")
LONGEST_S = 240.0  # of an answer, others beside it, on a busy machine
FIELD = "response_format.json_schema.schema"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    model = os.environ.get("HOMENODE_SCHEMAS_MODEL")
    length = ("--max-model-len", "1024") if model else ()
    live = LiveServer("--kv-cache-memory", "64MiB", *length, model=Path(model) if model else None)
    yield live
    live.close()


def outcome(client: httpx.Client, url: str, schema: Any, seed: int, *, hard: bool) -> str:
    """What came of it: `fits`, `cut`, `refused`, or what is wrong."""
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}
    body = {"prompt": "Fill in the form: ", "max_tokens": 64 if hard else 300, "response_format": form}
    body |= {"temperature": (0.0, 0.8, 1.3)[seed % 3], "seed": seed}
    begin = time.monotonic()
    answer = client.post(f"{url}/v1/completions", json=body, timeout=2 * LONGEST_S)
    if (took := time.monotonic() - begin) > LONGEST_S:
        return f"it took {took:.0f} s"
    if answer.status_code == 400:
        told = answer.json()["error"]["message"]
        places = {json.dumps(name, ensure_ascii=False)[1:-1] for name in names_in(schema)} | names_in(schema)
        named = FIELD in told and any(name in told for name in (("zeppelin",) if hard else places))
        return "refused" if named else f"no place in {told!r}"
    if answer.status_code != 200:
        return f"status {answer.status_code}: {answer.text[:200]}"
    choice = answer.json()["choices"][0]
    try:
        value = json.loads(choice["text"])
    except ValueError:
        return "cut" if choice["finish_reason"] == "length" else f"no JSON: {choice['text'][-200:]!r}"
    return "fits" if is_valid(schema, value) else f"does not fit: {choice['text'][:300]!r}"


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema, validate_formats=True).is_valid(value))


def outcomes(server: LiveServer, first: int, count: int, *, hard: bool) -> Counter[str]:
    """By what came of schemas `first` and following; what is wrong is told with its number."""

    def ask(number: int) -> str:
        maker = SchemaMaker(random.Random(f"{'hard' if hard else 'kept'} {number}"))
        schema = maker.hard() if hard else maker.kept()
        found = outcome(client, server.url, schema, number, hard=hard)
        return found if found in ("fits", "cut", "refused") else f"{number}: {found} of {json.dumps(schema)[:1500]}"

    with httpx.Client() as client, ThreadPoolExecutor(4) as pool:
        return Counter(pool.map(ask, range(first, first + count)))


def wrong(found: Counter[str]) -> list[str]:
    return [what for what in found if what not in ("fits", "cut", "refused")]


@pytest.mark.parametrize("hard", [False, True], ids=["kept", "hard"])
def test_a_few_schemas_by_chance(server: LiveServer, hard: bool) -> None:
    found = outcomes(server, 0, 12, hard=hard)
    assert not wrong(found), wrong(found)
    assert found["fits"] >= (0 if hard else 9)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(("hard", "count"), [(False, 1000), (True, 500)], ids=["kept", "hard"])
def test_many_schemas_by_chance(server: LiveServer, hard: bool, count: int) -> None:
    found = outcomes(server, 0, count, hard=hard)
    print({what: number for what, number in found.items() if what in ("fits", "cut", "refused")})
    assert not wrong(found), "\n".join(wrong(found))
    assert hard or found["fits"] >= 0.9 * count
