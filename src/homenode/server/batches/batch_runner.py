"""The runner of batches: it takes the oldest that has not ended, checks its file, runs it and writes its output."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
from starlette.types import ASGIApp

from homenode.errors import UserError
from homenode.server.batches.batch_folder import BatchFolder
from homenode.server.batches.batch_lines import LineError, LineOffset, check_lines
from homenode.server.batches.batch_run import BatchRun, end_of, line_result
from homenode.server.batches.batch_store import BatchRecord, BatchStatus, LineErrors, LineResult, RequestCounts
from homenode.server.keys.caller import KeyHolder
from homenode.server.keys.keyring import Keyring
from homenode.server.models.model_table import ModelsByName

_LOG = logging.getLogger("homenode.batches")
_IDLE_S = 0.3  # between two looks for a batch to run
_ALONE_S = 10.0  # after which the machine counts as the batches' own, when nobody else asked
_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 300.0  # of a batch that gets no answers
_BESIDE = 4  # lines under way while others ask
_SHARE = 2  # of the sequences that the engine runs at once, the part that is left to others


class RunsBatches(Protocol):
    """The state of a server that runs batches."""

    models: ModelsByName
    keys: Keyring
    lost: str | None
    last_awaited: float

    @property
    def draining(self) -> bool: ...


class Pauses:
    """The batches that got nowhere, and when each is tried again: later each time, so that others are run meanwhile."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}  # by id: when it is tried again, and its pause

    def begin(self, id: str, now: float) -> float:
        """A batch got nowhere. Returns for how long it is left."""
        _, before = self._until.get(id, (0.0, 0.0))
        pause_s = min(_LONGEST_PAUSE_S, max(_PAUSE_S, 2.0 * before))
        self._until[id] = now + pause_s, pause_s
        return pause_s

    def end(self, id: str) -> None:
        """A batch got on."""
        self._until.pop(id, None)

    def has(self, id: str, now: float) -> bool:
        """Return whether a batch is left for now."""
        return id in self._until and now < self._until[id][0]


class BatchRunner:
    """Runs the batches of a folder, one after another, where no other process does."""

    def __init__(self, state: RunsBatches, app: ASGIApp, folder: BatchFolder) -> None:
        self._state, self._app, self._folder = state, app, folder
        self._pauses = Pauses()

    async def run(self) -> None:
        """Run what is there and what comes, until the server ends."""
        try:
            while not self._stopped():
                if not self._folder.take_lock() or not await self._next():
                    await asyncio.sleep(_IDLE_S)
        finally:
            self._folder.release_lock()

    async def _next(self) -> bool:
        """Go on with the oldest batch that is not paused. False: there is none, or it could not be kept and is tried
        again.
        """
        for batch in await asyncio.to_thread(self._folder.batches.unfinished):
            if self._pauses.has(batch.id, time.monotonic()) and end_of(self._folder, batch) is None:
                continue
            try:
                await self._go_on(batch)
            except OSError as error:
                _LOG.error("batch %s cannot go on: %s; it is tried again", batch.id, error)
                return False
            except Exception:  # of one batch: those of others go on
                _LOG.exception("batch %s failed", batch.id)
                text = "the server failed at this batch; its log tells more"
                batch.errors = LineErrors(data=[LineError(code="internal_error", message=text)])
                if not batch.ended:
                    batch.enter(BatchStatus.FAILED)
                self._folder.batches.save(batch)
            if batch.ended:
                self._pauses.end(batch.id)
            return True
        return False

    async def _go_on(self, batch: BatchRecord) -> None:
        store = self._folder.batches
        places, errors = await asyncio.to_thread(self._looked_through, batch)
        if batch.status == BatchStatus.VALIDATING:
            early = end_of(self._folder, batch)
            batch.errors = LineErrors(data=errors) if errors else None
            batch.request_counts = RequestCounts(total=len(places))
            batch.enter(early or (BatchStatus.FAILED if errors else BatchStatus.IN_PROGRESS))
            store.save(batch)
        if batch.status == BatchStatus.IN_PROGRESS:
            await asyncio.to_thread(store.repair, batch.id)
            _LOG.info("batch %s: %d requests to %s", batch.id, len(places), batch.endpoint)
            if errors or (who := self._holder(batch)) is None:
                text = "its input file was changed or removed, or its API key is gone"
                batch.errors = LineErrors(data=errors or [LineError(code="batch_abandoned", message=text)])
                batch.enter(BatchStatus.FAILED)
                store.save(batch)
                return
            if not await self._compute(batch, places, who):
                return
            batch.enter(BatchStatus.FINALIZING)
            store.save(batch)
        if batch.status == BatchStatus.FINALIZING:
            await asyncio.to_thread(self._finish, batch, places)

    async def _compute(self, batch: BatchRecord, places: Sequence[LineOffset], who: KeyHolder) -> bool:
        """Ask for the lines that have no result yet. False: it goes on later, after the next start if the server
        ends.
        """
        store = self._folder.batches
        done = frozenset(await asyncio.to_thread(store.results, batch.id))  # without what is in them

        def keep(result: LineResult) -> None:
            store.append(batch.id, result)

        def ends() -> bool:
            return self._stopped() or end_of(self._folder, batch) is not None

        run = BatchRun(self._app, who, keep, at_once=self._at_once, ends=ends)
        with self._folder.files.open(batch.input_file_id) as file:
            await run.compute(file.fileno(), places, done)
        if run.got_on:
            self._pauses.end(batch.id)
        if run.stuck:
            pause_s = self._pauses.begin(batch.id, time.monotonic())
            _LOG.warning("batch %s gets no answers; it is tried again in %g s, and others go on", batch.id, pause_s)
            return False
        return not self._stopped()

    def _looked_through(self, batch: BatchRecord) -> tuple[list[LineOffset], list[LineError]]:
        if self._folder.files.find(batch.input_file_id, batch.key) is None:
            return [], [LineError(code="file_gone", message=f"the file {batch.input_file_id} is gone")]
        with self._folder.files.open(batch.input_file_id) as file:
            return check_lines(file, batch.endpoint, self._folder.paths)

    def _holder(self, batch: BatchRecord) -> KeyHolder | None:
        who = self._state.keys.named(batch.key)
        return None if who is None else who.in_background()

    def _finish(self, batch: BatchRecord, places: Sequence[LineOffset]) -> None:
        """Write what came of the lines, in their order, and end the batch."""
        results = self._folder.batches.results(batch.id)
        lacking = [number for number in range(len(places)) if number not in results]
        ending = (end_of(self._folder, batch) or BatchStatus.EXPIRED) if lacking else BatchStatus.COMPLETED
        good = [each.result for _, each in sorted(results.items()) if each.good]
        bad = {number: each.result for number, each in results.items() if not each.good}
        if ending == BatchStatus.EXPIRED:
            told = {"code": "batch_expired", "message": "the batch was over before this request was computed"}
            bad |= {number: line_result(places[number].custom_id, error=told) for number in lacking}
        batch.output_file_id = self._write(batch, "output", good)
        batch.error_file_id = self._write(batch, "errors", [bad[number] for number in sorted(bad)])
        batch.request_counts = RequestCounts(len(places), len(good), len(bad))
        batch.enter(ending)
        self._folder.batches.save(batch)
        self._folder.batches.drop_results(batch.id)
        _LOG.info("batch %s: %s, %d answered, %d with errors", batch.id, batch.status, len(good), len(bad))

    def _write(self, batch: BatchRecord, kind: str, lines: Iterable[object]) -> str | None:
        lines = list(lines)
        if not lines:
            return None
        with self._folder.files.write("batch_output", f"{batch.id}_{kind}.jsonl", batch.key) as (file, told):
            for line in lines:
                file.write(msgspec.json.encode(line) + b"\n")
        return told.id

    def _at_once(self) -> int:
        """Lines that may be under way: few while others ask, so that their steps stay short."""
        largest = max((model.ready.max_num_seqs for model in self._state.models), default=_BESIDE)
        most = max(1, largest // _SHARE)
        alone = time.monotonic() - self._state.last_awaited > _ALONE_S
        return most if alone else min(most, _BESIDE)

    def _stopped(self) -> bool:
        return self._state.draining or self._state.lost is not None


def begin_batches(state: RunsBatches, app: ASGIApp, folder: BatchFolder) -> asyncio.Task[None]:
    """Begin to run the batches of a folder; the task, which ends where the server drains."""
    task = asyncio.ensure_future(BatchRunner(state, app, folder).run())
    task.add_done_callback(_tell_failure)
    return task


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        reason = error.message if isinstance(error, UserError) else repr(error)
        _LOG.error("batches are run no longer: %s", reason)
