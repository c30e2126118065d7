"""Batches in a folder: the record of each, the results of its lines as they come, and the wish that it end.

One process writes records and results, the one that runs batches; any may make a batch, read it, and ask for its end.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from homenode.server.batches.batch_lines import LineError
from homenode.server.batches.private_files import make_folder, open_private, write_whole

_ID = re.compile(r"batch_[0-9a-f]{32}")
LONGEST_S: Final = 86400  # seconds that a batch may take


class BatchStatus(StrEnum):
    """How far a batch is."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


_S = BatchStatus
TRANSITIONS: Final[dict[BatchStatus, frozenset[BatchStatus]]] = {
    _S.VALIDATING: frozenset({_S.FAILED, _S.IN_PROGRESS, _S.EXPIRED, _S.CANCELLED}),
    _S.IN_PROGRESS: frozenset({_S.FINALIZING, _S.FAILED}),
    _S.FINALIZING: frozenset({_S.COMPLETED, _S.EXPIRED, _S.CANCELLED, _S.FAILED}),
    _S.FAILED: frozenset(),
    _S.COMPLETED: frozenset(),
    _S.EXPIRED: frozenset(),
    _S.CANCELLED: frozenset(),
}
ENDS: Final = frozenset(status for status, following in TRANSITIONS.items() if not following)


class LineErrors(Struct, kw_only=True):
    """The errors of a file that cannot be a batch."""

    object: Literal["list"] = "list"
    data: list[LineError]


class RequestCounts(Struct):
    """Requests of a batch: all, those that were answered, and those that have an error in place of an answer."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchRecord(Struct, kw_only=True):
    """A batch, as it is told and kept. `key`: the name of the API key that it belongs to. `status`: one of
    `BatchStatus`; clients also see `cancelling`, while it is to end. Times are Unix seconds.
    """

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: LineErrors | None = None
    input_file_id: str
    completion_window: str = "24h"
    status: str = BatchStatus.VALIDATING.value
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None
    key: str = ""

    @property
    def ended(self) -> bool:
        """Return whether nothing more happens to it."""
        return BatchStatus(self.status) in ENDS

    def enter(self, status: BatchStatus) -> None:
        """Go on to another status, now. Raises ValueError for one that does not follow."""
        if status not in TRANSITIONS[BatchStatus(self.status)]:
            raise ValueError(f"a batch that is {self.status} does not become {status.value}")
        self.status = status.value
        setattr(self, f"{status.value}_at", int(time.time()))


class LineResult(Struct, kw_only=True):
    """What came of a line. `line`: its number among those that are not empty, from 0 on. `good`: it was answered."""

    line: int
    good: bool
    result: dict[str, Any]


class BatchStore:
    """The batches below a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError where the folder cannot be made."""
        self._folder = folder
        make_folder(folder)
        self._progress: dict[
            str, tuple[int, RequestCounts]
        ] = {}  # of each batch, bytes of its results that are counted
        self._counting = threading.Lock()  # around that

    def create(self, endpoint: str, input_file_id: str, metadata: dict[str, str] | None, key: str) -> BatchRecord:
        """A new batch, which is to be run."""
        now = int(time.time())
        batch = BatchRecord(
            id=f"batch_{secrets.token_hex(16)}",
            endpoint=endpoint,
            input_file_id=input_file_id,
            created_at=now,
            expires_at=now + LONGEST_S,
            metadata=metadata,
            key=key,
        )
        self.save(batch)
        return batch

    def save(self, batch: BatchRecord) -> None:
        """Keep a batch as it is now."""
        write_whole(self._path(batch.id, "json"), msgspec.json.encode(batch))

    def find(self, id: str, key: str) -> BatchRecord | None:
        """The batch of this id that belongs to this key, with what is counted of it."""
        batch = self._read(self._path(id, "json")) if _ID.fullmatch(id) else None
        return self.as_told(batch) if batch is not None and batch.key == key else None

    def all_of(self, key: str) -> list[BatchRecord]:
        """All batches of a key, the newest first."""
        return [self.as_told(batch) for batch in reversed(self._all()) if batch.key == key]

    def unfinished(self) -> list[BatchRecord]:
        """Those that are to be run, the oldest first."""
        return [batch for batch in self._all() if not batch.ended]

    def as_told(self, batch: BatchRecord) -> BatchRecord:
        """Put into a batch what its record does not say: how many lines are done, and that it is to end."""
        if not batch.ended:
            done = self._counted(batch.id)
            batch.request_counts.completed, batch.request_counts.failed = done.completed, done.failed
            if (asked := self.cancel_asked_at(batch.id)) is not None:
                batch.status, batch.cancelling_at = "cancelling", asked
        return batch

    def ask_cancel(self, id: str) -> None:
        """Ask for the end of a batch."""
        os.close(open_private(self._path(id, "cancel")))

    def cancel_asked_at(self, id: str) -> int | None:
        """Return when the end of a batch was asked for; None: it was not."""
        try:
            return int(self._path(id, "cancel").stat().st_mtime)
        except OSError:
            return None

    # Results

    def append(self, id: str, result: LineResult) -> None:
        """Keep what came of a line. It is there after the process was killed."""
        descriptor = open_private(self._path(id, "results"), append=True)
        try:
            raw = memoryview(msgspec.json.encode(result) + b"\n")
            while raw:  # a disk that is nearly full takes a part, and says so with the next one only
                raw = raw[os.write(descriptor, raw) :]
        finally:
            os.close(descriptor)

    def results(self, id: str) -> dict[int, LineResult]:
        """What came of the lines so far, by their numbers. A line that was cut when it was written is none."""
        found: dict[int, LineResult] = {}
        try:
            raw = self._path(id, "results").read_bytes()
        except OSError:
            return found
        for line in raw.split(b"\n"):
            try:
                result = msgspec.json.decode(line, type=LineResult)
            except msgspec.DecodeError:
                continue
            found.setdefault(result.line, result)
        return found

    def repair(self, id: str) -> None:
        """End a result that was cut, so that the next one has a line of its own."""
        path = self._path(id, "results")
        if path.exists() and path.read_bytes()[-1:] not in (b"", b"\n"):
            descriptor = open_private(path, append=True)
            try:
                os.write(descriptor, b"\n")
            finally:
                os.close(descriptor)

    def drop_results(self, id: str) -> None:
        """Remove what only a batch under way needs."""
        for kind in ("results", "cancel"):
            self._path(id, kind).unlink(missing_ok=True)
        self._progress.pop(id, None)

    def _counted(self, id: str) -> RequestCounts:
        """Count the results that came since this was asked last. From any thread."""
        with self._counting:
            return self._counted_anew(id)

    def _counted_anew(self, id: str) -> RequestCounts:
        at, counts = self._progress.get(id, (0, RequestCounts()))
        try:
            with self._path(id, "results").open("rb") as file:
                file.seek(at)
                new = file.read()
        except OSError:
            return counts
        whole = new[: new.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                good = msgspec.json.decode(line, type=_Good).good
            except msgspec.DecodeError:
                continue
            counts.completed += good
            counts.failed += not good
        self._progress[id] = (at + len(whole), counts)
        return counts

    def _all(self) -> list[BatchRecord]:
        found = (self._read(path) for path in self._folder.glob("batch_*.json"))
        return sorted((batch for batch in found if batch is not None), key=lambda each: (each.created_at, each.id))

    def _path(self, id: str, kind: str) -> Path:
        return self._folder / f"{id}.{kind}"

    @staticmethod
    def _read(path: Path) -> BatchRecord | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=BatchRecord)
        except (OSError, msgspec.DecodeError):
            return None


class _Good(Struct):
    """The part of a `LineResult` that is counted."""

    good: bool
