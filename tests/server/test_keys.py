"""A file of named keys at work: limits, their Retry-After, metrics by name, and changes of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from homenode.errors import UserError
from homenode.server.check_files import check_doors
from homenode.server.http.config import ServerConfig
from tests.server.conftest import Running, Start
from tests.server.fakes import ScriptedClient, scripted
from tests.waiting import wait_until

ADA, BOB = "sk-ada-0123456789", "sk-bob-0123456789"


def written(folder: Path, *tables: str) -> str:
    path = folder / "keys.toml"
    path.write_text("\n".join(tables))
    path.chmod(0o600)
    return str(path)


def table(name: str, secret: str, **limits: int) -> str:
    return "\n".join([f"[keys.{name}]", f'key = "{secret}"', *(f"{limit} = {n}" for limit, n in limits.items()), ""])


def ask(server: Running, secret: str | None, **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    return server.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2, **fields}, headers=headers)


def value(server: Running, name: str, *labels: str) -> float:
    text = server.http.get("/metrics", headers={"x-api-key": BOB}).text
    assert "0123456789" not in text
    found = [line for line in text.splitlines() if line.startswith(f"homenode:{name}{{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found if all(label in line for label in labels))


def test_requests_of_a_minute(start: Start, tmp_path: Path) -> None:
    server = start(api_key_file=written(tmp_path, table("ada", ADA, requests_per_minute=3), table("bob", BOB)))
    assert [ask(server, secret).status_code for secret in (None, "sk-eve", BOB, ADA)] == [401, 401, 200, 200]
    assert [ask(server, ADA).status_code for _ in range(4)] == [200, 200, 429, 429]
    refused = ask(server, ADA)
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    error = refused.json()["error"]
    assert error["type"] == "rate_limit_error" and error["code"] == "rate_limit_exceeded"
    assert "`ada`" in error["message"] and "requests_per_minute" in error["message"] and ADA not in refused.text
    assert server.http.get("/v1/models", headers={"x-api-key": ADA}).status_code == 200  # costs nothing
    assert [ask(server, BOB).status_code for _ in range(6)] == [200] * 6
    assert value(server, "key_requests_total", 'key="ada"') == 3
    assert value(server, "key_rejections_total", 'key="ada"', 'limit="requests_per_minute"') == 3
    assert value(server, "key_tokens_total", 'key="bob"', 'kind="generated"') == 14
    assert value(server, "key_requests_running", 'key="bob"') == 0


@pytest.mark.parametrize("secret", ["sk-0123", "ключ", "naïve à", "鍵"])
def test_a_key_may_have_any_letters(start: Start, secret: str) -> None:
    server = start(api_key=(secret,))
    for name, given in ((b"authorization", f"Bearer {secret}"), (b"x-api-key", secret)):
        for text, status in ((given, 200), (given.replace(secret[-1], "x"), 401)):
            assert server.http.get("/v1/models", headers=[(name, text.encode())]).status_code == status, (name, text)


def test_tokens_of_a_minute(start: Start, tmp_path: Path) -> None:
    server = start(api_key_file=written(tmp_path, table("ada", ADA, tokens_per_minute=20)))
    assert ask(server, ADA, prompt="x" * 40).status_code == 429  # more than a minute has
    assert ask(server, ADA, prompt="x" * 5, max_tokens=6).status_code == 200  # 6 and 6 tokens
    refused = ask(server, ADA, prompt="x" * 12)
    assert refused.status_code == 429 and "12 of its 20 tokens" in refused.json()["error"]["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert ask(server, ADA, prompt="x" * 5, max_tokens=40).status_code == 200  # an answer that has begun goes on
    assert ask(server, ADA, prompt="x").status_code == 429


def test_tokens_behind_a_stop_string_count_nowhere(start: Start, tmp_path: Path) -> None:
    """The engine may send several tokens at once."""
    client = ScriptedClient(lambda request: scripted(request, chunk=8))
    server = start(client, api_key_file=written(tmp_path, table("bob", BOB)))
    answer = ask(server, BOB, max_tokens=16, stop=["c"])
    assert answer.json()["choices"][0]["text"] == "On" and answer.json()["usage"]["completion_tokens"] == 3
    assert value(server, "key_tokens_total", 'key="bob"', 'kind="generated"') == 3
    assert value(server, "request_generation_tokens_sum") == 3 and value(server, "request_generation_tokens_count") == 1
    assert [reason for _, reason in client.aborts] == ["stop", "closed"]


def test_requests_at_once(start: Start, tmp_path: Path) -> None:
    client = ScriptedClient(hold_after=2)
    path = written(tmp_path, table("ada", ADA, concurrent_requests=1), table("bob", BOB))
    server = start(client, api_key_file=path)
    headers = {"Authorization": f"Bearer {ADA}"}
    body = {"prompt": "hi", "max_tokens": 200, "stream": True, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json=body, headers=headers) as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()  # which ends the connection when nothing holds it any more
        next(lines)
        with httpx.Client(base_url=server.url, timeout=20) as other:
            refused = other.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1}, headers=headers)
        assert refused.status_code == 429 and "concurrent_requests" in refused.json()["error"]["message"]
        server.call(client.release)
    wait_until(lambda: ask(server, ADA).status_code == 200)


def test_the_name_reaches_the_engine(start: Start, tmp_path: Path) -> None:
    client = ScriptedClient()
    server = start(client, api_key_file=written(tmp_path, table("bob", BOB)), api_key=("plain",))
    assert ask(server, BOB).status_code == 200 and ask(server, "plain").status_code == 200
    assert [request.key for request in client.requests] == ["bob", ""]


def test_a_change_is_taken_and_a_bad_one_is_not(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, table("ada", ADA))
    server = start(api_key_file=path)
    assert ask(server, ADA).status_code == 200 and ask(server, BOB).status_code == 401
    Path(path).write_text("[keys.ada]\nkey = 5\n")
    wait_until(lambda: "keys.ada.key" in caplog.text)
    assert "stays in force" in caplog.text and ask(server, ADA).status_code == 200
    written(tmp_path, table("bob", BOB))
    wait_until(lambda: ask(server, BOB).status_code == 200)
    assert ask(server, ADA).status_code == 401


def test_a_bad_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"keys\.toml"):
        check_doors(ServerConfig(api_key_file=written(tmp_path, "[keys.ada]")))
    check_doors(ServerConfig(api_key_file=written(tmp_path, table("ada", ADA))))


def test_429_is_in_the_document(start: Start, tmp_path: Path) -> None:
    server = start(api_key_file=written(tmp_path, table("bob", BOB)))
    document = server.http.get("/openapi.json", headers={"x-api-key": BOB}).json()
    assert {"401", "429"} <= document["paths"]["/v1/completions"]["post"]["responses"].keys()
    assert "429" not in start().http.get("/openapi.json").json()["paths"]["/v1/completions"]["post"]["responses"]
