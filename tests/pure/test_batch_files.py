"""Batch files: the lines, the states of a batch, and results that survive a kill."""

from __future__ import annotations

import asyncio
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.errors import UserError
from homenode.server.batches import batch_run
from homenode.server.batches.batch_folder import BatchFolder, check_folder
from homenode.server.batches.batch_lines import MOST_LINES, check_lines
from homenode.server.batches.batch_runner import BatchRunner
from homenode.server.batches.batch_store import (
    ENDS,
    TRANSITIONS,
    BatchRecord,
    BatchStatus,
    BatchStore,
    LineResult,
)
from homenode.server.batches.file_store import FileStore
from homenode.server.keys.caller import KeyHolder
from tests.examples import examples

PATHS = ("/v1/completions", "/v1/embeddings")


def line(custom_id: str = "a", url: str = PATHS[0], **more: Any) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {}, **more}).encode() + b"\n"


WRONG = {
    "no JSON": ([line(), b"{oops\n"], "line 2"),
    "no body": ([b'{"custom_id": "a", "url": "/v1/completions"}\n'], "body"),
    "twice": ([line("x"), line("x")], "'x'"),
    "an empty id": ([line("")], "custom_id"),
    "a long id": ([line("x" * 513)], "513"),
    "another method": ([line(method="GET")], "GET"),
    "an unknown url": ([line(url="/v1/nowhere")], "/v1/nowhere"),
    "another url": ([line(url=PATHS[1])], PATHS[1]),
    "nothing": ([b"\n", b"  \n"], "no request"),
}


@pytest.mark.parametrize(("lines", "word"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_with_a_file_is_named(lines: list[bytes], word: str) -> None:
    _, errors = check_lines(lines, PATHS[0], PATHS)
    assert len(errors) == 1 and word in errors[0].message


def test_errors_of_a_file_are_bounded() -> None:
    assert len(check_lines([b"{\n"] * 1000, None, PATHS)[1]) == 20
    places, errors = check_lines((line(str(i)) for i in range(MOST_LINES + 10)), None, PATHS)
    assert len(places) == MOST_LINES + 1 and errors[-1].code == "too_many_requests"


@given(st.lists(st.sampled_from([b"\n", b" \n", line("é"), line("b" * 300)]), max_size=20))
@settings(max_examples=examples(50))
def test_a_place_is_where_the_line_is(lines: list[bytes]) -> None:
    whole = b"".join(lines)
    places, _ = check_lines(lines, None, PATHS)
    found = [whole[place.begin : place.begin + place.size] for place in places]
    assert found == [each for each in lines if each.strip()]


def test_every_status_leads_to_an_end_and_an_end_to_nothing() -> None:
    for status in BatchStatus:
        reached, left = {status}, [status]
        while left:
            new = TRANSITIONS[left.pop()] - reached
            reached |= new
            left += new
        assert reached & ENDS and (status not in ENDS or reached == {status})


def test_a_status_that_does_not_follow_is_a_fault(tmp_path: Path) -> None:
    batch = BatchStore(tmp_path / "b").create(PATHS[0], "file", None, "")
    for before, after in pairwise([BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.COMPLETED]):
        batch.enter(before)
        assert getattr(batch, f"{before.value}_at")
        with pytest.raises(ValueError, match="does not become"):
            batch.enter(BatchStatus.VALIDATING)
        assert after in TRANSITIONS[before]


@given(st.integers(0, 400))
@settings(max_examples=examples(30))
def test_results_cut_anywhere_are_those_that_were_whole(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    store = BatchStore(tmp_path_factory.mktemp("cut") / "b")
    batch = store.create(PATHS[0], "file", None, "")
    for number in range(5):
        store.append(batch.id, LineResult(line=number, good=number != 2, result={"n": number}))
    path = next((tmp_path_factory.getbasetemp()).rglob(f"{batch.id}.results"))
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    store.repair(batch.id)
    store.append(batch.id, LineResult(line=9, good=True, result={}))
    found = store.results(batch.id)
    assert {*range(kept), 9} <= found.keys() <= {*range(kept + 1), 9}
    counts = store.as_told(batch).request_counts
    assert counts.completed + counts.failed == len(found)


def test_files_are_the_owners_alone_and_of_one_key(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files")
    with store.write("batch", "in.jsonl", "ada") as (file, told):
        file.write(b"abc")
    assert store.find(told.id, "ada") == told and told.bytes == 3
    assert store.find(told.id, "bob") is None and store.all_of("bob") == []
    assert store.find("../../etc/passwd", "ada") is None
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("*"))
    with pytest.raises(RuntimeError), store.write("batch", "x", "ada"):
        raise RuntimeError
    assert len(list((tmp_path / "files").iterdir())) == 2


def test_a_line_that_cannot_be_read_any_more_has_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How deeply a line may be nested depends on how deep the stack is already."""

    def too_deep(raw: bytes) -> None:
        raise RecursionError("too deep")

    source = tmp_path / "in.jsonl"
    source.write_bytes(line("x"))
    places, _ = check_lines([line("x")], None, PATHS)
    monkeypatch.setattr(batch_run, "read_line", too_deep)
    kept: list[LineResult] = []

    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("nobody is asked")

    run = batch_run.BatchRun(app, KeyHolder(), kept.append, at_once=lambda: 2)
    with source.open("rb") as file:
        assert asyncio.run(run.compute(file.fileno(), places, ()))
    (result,) = kept
    assert not result.good and result.result["custom_id"] == "x" and result.result["response"]["status_code"] == 400


def test_one_process_runs_batches(tmp_path: Path) -> None:
    first, second = BatchFolder(str(tmp_path / "d")), BatchFolder(str(tmp_path / "d"))
    assert first.take_lock() and not second.take_lock() and first.take_lock()
    first.release_lock()
    assert second.take_lock()
    second.release_lock()


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, word in ((tmp_path / "file", "no folder"), (tmp_path / "a" / "b", "make it first")):
        with pytest.raises(UserError, match=word):
            check_folder(str(path))


def test_a_result_of_which_the_disk_takes_a_part_at_a_time_is_kept_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write = BatchStore(tmp_path / "d"), os.write
    batch = store.create("/v1/completions", "file-1", None, "")
    monkeypatch.setattr(os, "write", lambda descriptor, raw: write(descriptor, raw[:7]))
    for number in range(3):
        store.append(batch.id, LineResult(line=number, good=True, result={"custom_id": f"c{number}"}))
    assert [each.result["custom_id"] for each in store.results(batch.id).values()] == ["c0", "c1", "c2"]


def test_a_batch_at_which_the_server_fails_has_failed_and_the_next_one_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BatchFolder(str(tmp_path / "d"))
    bad, good = (folder.batches.create("/v1/completions", f"file-{n}", None, "") for n in range(2))
    order: list[str] = []

    async def go_on(runner: BatchRunner, batch: BatchRecord) -> None:
        order.append(batch.id)
        if batch.id == bad.id:
            raise ZeroDivisionError("a fault of the server")
        batch.enter(BatchStatus.FAILED)
        folder.batches.save(batch)

    monkeypatch.setattr(BatchRunner, "_go_on", go_on)
    monkeypatch.setattr(
        folder.batches, "_all", lambda all=folder.batches._all: sorted(all(), key=lambda b: b.id != bad.id)
    )
    runner = BatchRunner(None, None, folder)  # type: ignore[arg-type]
    assert [asyncio.run(runner._next()) for _ in range(3)] == [True, True, False] and order == [bad.id, good.id]
    failed = folder.batches.find(bad.id, "")
    assert failed is not None and failed.status == "failed" and failed.errors is not None
    assert failed.errors.data[0].code == "internal_error"
