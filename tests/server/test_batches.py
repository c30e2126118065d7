"""Files and batches over the scripted engine: the official client sends, polls and reads."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from openai import OpenAI

from homenode.engine.messages import Output
from homenode.engine.request import Request, Urgency
from homenode.server.batches import batch_run, batch_runner
from homenode.server.batches.batch_runner import BatchRunner, Pauses
from homenode.server.http.failures import ApiError
from homenode.server.http.form import UploadedForm
from tests.server.conftest import Running, Start
from tests.server.fakes import ScriptedClient, scripted
from tests.waiting import wait_until

ENDS = ("completed", "failed", "expired", "cancelled")
TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    return start(batch_dir=str(tmp_path_factory.mktemp("batches") / "d"), batch_file_size=20_000)


def client_of(server: Running, key: str = "x") -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def lines(count: int, **body: Any) -> bytes:
    each = ({"prompt": f"{number}", "max_tokens": 3, **body} for number in range(count))
    asked = [
        {"custom_id": f"c{number}", "method": "POST", "url": TEXT, "body": body} for number, body in enumerate(each)
    ]
    return "".join(json.dumps(line) + "\n" for line in asked).encode()


def run(client: OpenAI, raw: bytes) -> Any:
    sent = client.files.create(file=("in.jsonl", raw), purpose="batch")
    batch = client.batches.create(input_file_id=sent.id, endpoint=TEXT, completion_window="24h")
    wait_until(lambda: client.batches.retrieve(batch.id).status in ENDS, 20)
    return client.batches.retrieve(batch.id)


def results(client: OpenAI, id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.files.content(id).text.splitlines()]


def test_every_line_is_answered_in_order_and_behind_everybody(server: Running) -> None:
    client, before = client_of(server), len(server.client.requests)
    batch = run(client, lines(40) + lines(1, max_tokens="many").replace(b"c0", b"bad"))
    assert batch.status == "completed" and (batch.request_counts.completed, batch.request_counts.failed) == (40, 1)
    answers = results(client, batch.output_file_id)
    assert [each["custom_id"] for each in answers] == [f"c{number}" for number in range(40)]
    assert all(each["response"]["body"]["choices"][0]["text"] == "Onc" for each in answers)
    (bad,) = results(client, batch.error_file_id)
    assert bad["custom_id"] == "bad" and "max_tokens" in bad["response"]["body"]["error"]["message"]
    asked = server.client.requests[before:]
    assert len(asked) == 40 and all(each.urgency is Urgency.BACKGROUND and each.priority == 2**31 - 1 for each in asked)
    assert batch.id in [each.id for each in client.batches.list()]


def test_the_document_tells_what_every_operation_may_answer(server: Running) -> None:
    document = server.http.get("/openapi.json").json()
    assert "409" in document["paths"]["/v1/batches/{batch_id}/cancel"]["post"]["responses"]
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert all(answer["description"] for each in operations for answer in each["responses"].values())


@pytest.mark.parametrize(
    ("raw", "word"),
    [(b"{oops\n", "line 1"), (lines(1) * 2, "c0"), (lines(1).replace(b"completions", b"nowhere"), "nowhere")],
    ids=["no JSON", "twice", "url"],
)
def test_a_file_that_is_no_batch_fails_with_its_lines(server: Running, raw: bytes, word: str) -> None:
    batch = run(client_of(server), raw)
    assert batch.status == "failed" and batch.errors and word in batch.errors.data[0].message


def test_a_stream_is_refused_line_by_line(server: Running) -> None:
    batch = run(client_of(server), lines(2, stream=True))
    assert batch.request_counts.failed == 2 and batch.output_file_id is None


def test_what_is_done_of_a_cancelled_batch_is_kept(start: Start, tmp_path: Path) -> None:
    held = ScriptedClient(hold_after=2)
    client = client_of(start(held, batch_dir=str(tmp_path / "d")))
    sent = client.files.create(file=("in.jsonl", lines(5)), purpose="batch")
    batch = client.batches.create(input_file_id=sent.id, endpoint=TEXT, completion_window="24h")
    assert held.held.wait(10)
    with pytest.raises(Exception, match="input of batch"):
        client.files.delete(sent.id)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    wait_until(lambda: client.batches.retrieve(batch.id).status == "cancelled", 10)
    assert client.files.delete(sent.id).deleted and client.batches.retrieve(batch.id).output_file_id is None


def test_a_batch_without_answers_lets_later_ones_go_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "_STUCK_S", 0.1)
    monkeypatch.setattr(batch_runner, "_PAUSE_S", 0.1)
    there = threading.Event()

    def script(request: Request) -> list[Output]:
        if request.params.seed is None or there.is_set():
            return scripted(request)
        return [Output(id=request.id, finish_reason="abort", error_kind="OverloadedError", error="it is not loaded")]

    client = client_of(start(ScriptedClient(script), batch_dir=str(tmp_path / "d")))
    sent = client.files.create(file=("in.jsonl", lines(2, seed=7)), purpose="batch")
    stuck = client.batches.create(input_file_id=sent.id, endpoint=TEXT, completion_window="24h")
    assert run(client, lines(3)).request_counts.completed == 3
    assert client.batches.retrieve(stuck.id).status == "in_progress"
    there.set()
    wait_until(lambda: client.batches.retrieve(stuck.id).status == "completed", 20)


def test_a_batch_that_gets_nowhere_is_tried_less_and_less_often() -> None:
    pauses, now, waits = Pauses(), 0.0, []
    for _ in range(8):
        waits.append(pauses.begin("a", now))
        assert (
            pauses.has("a", now + waits[-1] - 1.0) and not pauses.has("a", now + waits[-1]) and not pauses.has("b", now)
        )
        now += waits[-1]
    assert waits == sorted(waits) and waits[0] == 10.0 and waits[-1] == 300.0
    pauses.end("a")
    assert not pauses.has("a", now) and pauses.begin("a", now) == 10.0


@pytest.mark.parametrize("first", ["put off", "answered"])
def test_a_batch_that_got_on_before_it_was_stuck_waits_no_longer_than_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    class Run:
        stuck, got_on = True, first == "answered"

        def __init__(self, *given: object, **settings: object) -> None:
            pass

        async def compute(self, *given: object) -> bool:
            return False

    monkeypatch.setattr(batch_runner, "BatchRun", Run)
    folder: Any = SimpleNamespace(
        batches=SimpleNamespace(results=lambda id: {}), files=SimpleNamespace(open=lambda id: (tmp_path / "in").open())
    )
    (tmp_path / "in").touch()
    batch: Any = SimpleNamespace(id="a", input_file_id="in")
    nothing: Any = None
    runner = BatchRunner(nothing, nothing, folder)
    for _ in range(3):
        assert not asyncio.run(runner._compute(batch, (), nothing))
    assert runner._pauses.begin("a", 0.0) == (20.0 if first == "answered" else 80.0)


def test_a_list_is_told_page_by_page(server: Running) -> None:
    client = client_of(server)
    made = [client.files.create(file=(f"{n}.jsonl", lines(1)), purpose="batch").id for n in range(5)]
    assert set(made) <= {each.id for each in client.files.list(limit=2)}
    oldest_first = [each.id for each in client.files.list(limit=2, order="asc")]
    assert oldest_first == [each.id for each in client.files.list()][::-1]
    unknown = server.http.get("/v1/files", params={"after": "file-nobody"})
    assert unknown.status_code == 400 and unknown.json()["error"]["param"] == "after"


def test_files_of_one_key_are_not_anothers(start: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.ada]\nkey = "sk-ada"\n[keys.bob]\nkey = "sk-bob"\n')
    keys.chmod(0o600)
    server = start(batch_dir=str(tmp_path / "d"), api_key_file=str(keys))
    ada, bob = client_of(server, "sk-ada"), client_of(server, "sk-bob")
    batch = run(ada, lines(2))
    assert batch.status == "completed" and not list(bob.batches.list()) and not list(bob.files.list())
    for path in (f"/v1/batches/{batch.id}", f"/v1/files/{batch.output_file_id}/content"):
        assert server.http.get(path, headers={"Authorization": "Bearer sk-bob"}).status_code == 404


def test_what_is_sent_in_another_form_is_refused(server: Running) -> None:
    def send(**how: Any) -> httpx.Response:
        return server.http.post("/v1/files", **how)

    one = {"file": ("x", b"{}")}
    assert send(json={}).status_code == 415
    assert send(files=one, data={"purpose": "vision"}).json()["error"]["param"] == "purpose"
    assert send(files={"other": ("x", b"{}")}, data={"purpose": "batch"}).json()["error"]["param"] == "file"
    assert send(files={"file": ("x", b"x" * 20_001)}, data={"purpose": "batch"}).status_code == 413
    broken = {"Content-Type": "multipart/form-data; boundary=b"}
    assert send(content=b"--b\r\nno form", headers=broken).status_code == 400
    assert server.http.get("/v1/files/..%2f..%2fetc%2fpasswd/content").status_code == 404
    assert server.http.get("/v1/files", params={"limit": "0"}).status_code == 400


def test_a_form_has_few_small_fields() -> None:
    form = UploadedForm(lambda data: None, 10, "--most")
    call = form.callbacks()
    with pytest.raises(ApiError, match="longer than"):
        call["on_header_field"](b"x" * 9000, 0, 9000)
    with pytest.raises(ApiError, match="more than 16"):
        for _ in range(20):
            call["on_part_begin"]()


def test_without_a_folder_there_are_no_such_paths(start: Start) -> None:
    assert start().http.get("/v1/batches").status_code == 404
