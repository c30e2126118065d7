"""The run of one file of requests: its lines are asked for side by side, and what comes of each is kept at once."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.types import ASGIApp

from homenode.server.batches.batch_folder import BatchFolder
from homenode.server.batches.batch_lines import BatchLine, LineOffset, read_line
from homenode.server.batches.batch_store import BatchRecord, BatchStatus, LineResult
from homenode.server.batches.inside_request import InsideAnswer, ask_inside
from homenode.server.keys.caller import KeyHolder

_LOOK_S = 0.2  # between two looks at whether the run is to end
_LATER = (429, 503)  # statuses of requests that are to come again
_LEAST_WAIT_S, _MOST_WAIT_S = 0.2, 5.0
_STUCK_S = 10.0  # without an answer, while all lines under way were told to come again


class BatchRun:
    """Computes lines of a file of requests."""

    def __init__(
        self,
        app: ASGIApp,
        who: KeyHolder,
        keep: Callable[[LineResult], object],
        *,
        at_once: Callable[[], int],
        ends: Callable[[], bool] = lambda: False,
    ) -> None:
        """`who`: for whom the lines are asked. `keep`: takes each result, as it comes. `at_once`: lines that may be
        under way now. `ends`: whether nothing more is to be computed. `got_on`: a line was answered.
        """
        self._app, self._who, self._keep = app, who, keep
        self._at_once, self._ends = at_once, ends
        self._put_off = 0  # lines that wait, as they were told to come again
        self._answered = time.monotonic()  # when a line was answered last, or the run began
        self.stuck = self.got_on = False

    async def compute(self, file: int, places: Sequence[LineOffset], done: Collection[int]) -> bool:
        """Ask for all lines of the file with this descriptor but those that are `done`. False: it ended before, which
        is because it is `stuck` where no line is answered, as where a model cannot be loaded.
        """
        left = iter([number for number in range(len(places)) if number not in done])
        tasks: set[asyncio.Task[None]] = set()
        try:
            while not self._ends():
                tasks |= set(self._begin(left, places, file, self._at_once() - len(tasks)))
                if not tasks:
                    return True
                waits_s = time.monotonic() - self._answered
                self.stuck = self._put_off == len(tasks) and waits_s > _STUCK_S
                if self.stuck:
                    return False
                ended, tasks = await asyncio.wait(tasks, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()  # what could not be kept ends the run
            return False
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self, left: Iterator[int], places: Sequence[LineOffset], file: int, most: int
    ) -> Iterator[asyncio.Task[None]]:
        for _ in range(most):
            if (number := next(left, None)) is None:
                return
            place = places[number]
            yield asyncio.create_task(self._ask(number, place.custom_id, os.pread(file, place.size, place.begin)))

    async def _ask(self, number: int, custom_id: str, raw: bytes) -> None:
        try:
            answer = await self._answer(read_line(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # It was one when the file was checked: what is nested deeply depends on how deep the stack is already.
            told = {"message": str(error)[:500], "type": "invalid_request_error", "param": None, "code": "invalid_json"}
            answer = InsideAnswer(400, msgspec.json.encode({"error": told}))
        try:
            body = msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            body = answer.body.decode(errors="replace")
        response = {"status_code": answer.status, "request_id": answer.request_id, "body": body}
        result = line_result(custom_id, response=response)
        self._answered, self.got_on = time.monotonic(), True
        good = answer.status == 200
        self._keep(LineResult(line=number, good=good, result=result))

    async def _answer(self, line: BatchLine) -> InsideAnswer:
        """The answer to a line; where the server is full, once it is not."""
        if line.body.get("stream"):
            text = "`stream` is true; an answer of a batch file comes whole, leave it out"
            error = {"message": text, "type": "invalid_request_error", "param": "stream", "code": "invalid_value"}
            return InsideAnswer(400, msgspec.json.encode({"error": error}))
        body = msgspec.json.encode(line.body)
        while True:
            answer = await ask_inside(self._app, line.url, body, self._who)
            if answer.status not in _LATER:
                return answer
            wanted = _LEAST_WAIT_S if answer.retry_after_s is None else answer.retry_after_s
            self._put_off += 1
            try:
                await asyncio.sleep(min(_MOST_WAIT_S, max(_LEAST_WAIT_S, wanted)))
            finally:
                self._put_off -= 1


def end_of(folder: BatchFolder, batch: BatchRecord) -> BatchStatus | None:
    """How a batch ends before all of it is done; None: it goes on."""
    if folder.batches.cancel_asked_at(batch.id) is not None:
        return BatchStatus.CANCELLED
    return BatchStatus.EXPIRED if time.time() > batch.expires_at else None


def line_result(
    custom_id: str, *, response: Mapping[str, Any] | None = None, error: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A line of an output file or an error file."""
    return {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
