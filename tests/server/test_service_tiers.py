"""Ranks that requests ask for: what the scheduler is told, what the answer says, and what a key may have."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from homenode.errors import UserError
from homenode.server.keys.key_file import KeyRows, read_key_file
from homenode.server.keys.service_tiers import (
    ALL_TIERS,
    PRIORITY_OF_TIER,
    ServiceTierError,
    rank_of,
)
from tests.server.conftest import Running, Start
from tests.server.fakes import ScriptedClient

MESSAGES = [{"role": "user", "content": "hi"}]
# By the path: a body, and where a whole answer and the first event of a stream say the tier.
APIS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "/v1/chat/completions": ({"messages": MESSAGES, "max_tokens": 2}, ("service_tier",), ("service_tier",)),
    "/v1/completions": ({"prompt": "hi", "max_tokens": 2}, ("service_tier",), ("service_tier",)),
    "/v1/responses": ({"input": "hi", "max_output_tokens": 2}, ("service_tier",), ("response", "service_tier")),
    "/v1/messages": (
        {"messages": MESSAGES, "max_tokens": 2},
        ("usage", "service_tier"),
        ("message", "usage", "service_tier"),
    ),
}
OPENAI = [path for path in APIS if path != "/v1/messages"]
# APIs that have no word for it, and one body each.
WORDLESS = {
    "/api/chat": {"model": "story-teller", "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": "story-teller", "prompt": "hi", "stream": False},
}


def found(value: Any, place: tuple[str, ...]) -> Any:
    for name in place:
        value = value[name]
    return value


def told(answer: httpx.Response, path: str) -> Any:
    """The tier that an answer says, whole or as a stream, all of whose chunks agree."""
    assert answer.status_code == 200, answer.text
    _, whole, event = APIS[path]
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return found(answer.json(), whole)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    said = set()
    for line in lines if path in ("/v1/chat/completions", "/v1/completions") else lines[:1]:
        said.add(found(json.loads(line), event))
    (tier,) = said
    return tier


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "asked", "tier"),
    [
        *((path, asked, asked) for path in OPENAI for asked in PRIORITY_OF_TIER),
        *((path, "auto", "default") for path in OPENAI),
        *(("/v1/messages", asked, "standard") for asked in ("auto", "standard_only", None)),
    ],
)
def test_a_tier_is_a_priority_and_the_answer_names_it(
    start: Start, path: str, asked: str | None, tier: str, stream: bool
) -> None:
    server = start(client := ScriptedClient())
    answer = server.post(path, {**APIS[path][0], "service_tier": asked, "stream": stream})
    assert told(answer, path) == tier
    assert "service_tier" not in answer.headers.get("x-homenode-ignored", "")
    assert client.requests[-1].priority == PRIORITY_OF_TIER.get(tier, 0)  # type: ignore[call-overload]


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("wrong", ["first-class", "scale", "Flex", "", 1, ["flex"]])
def test_an_unknown_tier_is_refused_by_name(server: Running, path: str, wrong: Any) -> None:
    answer = server.post(path, {**APIS[path][0], "service_tier": wrong})
    error = answer.json()["error"]
    assert answer.status_code == 400 and "`service_tier`" in error["message"]
    assert error["type"] == "invalid_request_error"
    if path in OPENAI:
        assert error["param"] == "service_tier"
    if isinstance(wrong, str):
        assert "give" in error["message"] and "auto" in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_answers_to_requests_that_ask_for_none_are_as_ever(server: Running, path: str) -> None:
    assert "service_tier" not in server.post(path, APIS[path][0]).text


def test_a_number_says_it_more_finely(start: Start) -> None:
    server = start(client := ScriptedClient())
    path = "/v1/completions"
    for number, tier in ((-7, "priority"), (0, "default"), (9, "flex")):
        answer = server.post(path, {**APIS[path][0], "service_tier": "auto", "priority": number})
        assert told(answer, path) == tier and client.requests[-1].priority == number
        assert told(server.post(path, {**APIS[path][0], "service_tier": tier, "priority": number}), path) == tier
    refused = server.post(path, {**APIS[path][0], "service_tier": "flex", "priority": -1})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "priority"


def limited(start: Start, folder: Path, *tiers: str) -> tuple[Running, ScriptedClient]:
    path = folder / "keys.toml"
    path.write_text(f'[keys.ada]\nkey = "sk-ada"\nservice_tiers = {json.dumps(tiers)}\n[keys.bob]\nkey = "sk-bob"\n')
    path.chmod(0o600)
    client = ScriptedClient()
    return start(client, api_key_file=str(path)), client


def ask(server: Running, key: str, path: str, **fields: Any) -> httpx.Response:
    body = APIS[path][0] if path in APIS else WORDLESS[path]
    return server.http.post(path, json={**body, **fields}, headers={"Authorization": f"Bearer sk-{key}"})


@pytest.mark.parametrize("tiers", [t for n in (1, 2, 3) for t in itertools.permutations(PRIORITY_OF_TIER, n)])
def test_a_key_has_some_tiers_and_the_first_by_itself(start: Start, tmp_path: Path, tiers: tuple[str, ...]) -> None:
    server, client = limited(start, tmp_path, *tiers)
    first = PRIORITY_OF_TIER[tiers[0]]  # type: ignore[index]
    for path in (*APIS, *WORDLESS):
        assert ask(server, "ada", path).status_code == 200
        assert client.requests[-1].priority == first
        assert ask(server, "bob", path).status_code == 200
        assert client.requests[-1].priority == 0
    for path, (tier, number) in itertools.product(OPENAI, PRIORITY_OF_TIER.items()):
        for fields in ({"service_tier": tier}, {"priority": 3 * number}):
            answer = ask(server, "ada", path, **fields)
            assert answer.status_code == (200 if tier in tiers else 400), answer.text
            if tier not in tiers:
                error = answer.json()["error"]
                assert error["param"] in fields and "`ada`" in error["message"] and f"`{tiers[0]}`" in error["message"]
    standard = ask(server, "ada", "/v1/messages", service_tier="standard_only")
    assert standard.status_code == (400 if tiers == ("priority",) else 200)
    if standard.status_code == 200:
        assert client.requests[-1].priority == (0 if "default" in tiers else 1)


@pytest.mark.parametrize("wrong", ['"flex"', "[]", '["flex", "flex"]', '["auto"]', "[1]", "3", "[[1]]"])
def test_files_of_keys_with_wrong_tiers_are_refused(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f'[keys.ada]\nkey = "sk-ada"\nservice_tiers = {wrong}\n')
    with pytest.raises(UserError, match=r"keys.ada.service_tiers is not a list .*flex.*default.*priority"):
        read_key_file(str(path), KeyRows())


def test_no_rank_is_out_of_reach_of_its_tiers() -> None:
    """Whatever is asked for, what is given is of a tier that the key has."""
    some = [t for n in (1, 2, 3) for t in itertools.permutations(ALL_TIERS, n)]
    for tiers, asked, number in itertools.product(
        some, (None, "auto", "default", "flex", "priority", "standard"), (None, -9, -1, 0, 1, 9)
    ):
        try:
            rank = rank_of(asked, number, tiers)  # type: ignore[arg-type]
        except ServiceTierError as error:
            assert error.param == ("service_tier" if number is None else error.param)
            continue
        assert rank.tier in tiers
        assert (rank.priority > 0) - (rank.priority < 0) == PRIORITY_OF_TIER[rank.tier]
        if asked in ALL_TIERS:
            assert rank.tier == asked
        assert asked != "standard" or rank.tier != "priority"
