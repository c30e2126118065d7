"""Loading experts that engines keep in common: claiming one's own share, filling it, waiting for the others, and
reading theirs in place.

A share is filled by the process that has claimed it, in one word of the header. When that process is gone before it was
done, the next one with the number begins the share anew; a share that is ready is never written again. So whoever is
started again reads nothing that is in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from homenode.compute.ops import SharedPlacement, SharingBackend, Weight
from homenode.errors import HostError, InternalError, PeerError, UserError
from homenode.host.refusals import reason_of
from homenode.model.weights.expert_header import (
    HEADER_BYTES,
    HEADER_WORDS,
    STATE_FAILED,
    STATE_FILLING,
    STATE_NONE,
    STATE_READY,
    ShareState,
    state_of,
    state_word,
)
from homenode.model.weights.expert_share import ExpertShare
from homenode.model.weights.expert_table import ExpertTable
from homenode.model.weights.expert_wait import ShareWait

_POLL_S, _TELL_S = 0.02, 0.5
_DIFFERS = {
    "magic": "it is not memory for experts, or another version of homenode made it",
    "members": "another number of engines (--data-parallel-size)",
    "model": "another model, or its files have changed since the first engine has read them",
    "part": "another part of the model (--tensor-parallel-size, --pipeline-parallel-size, --layer-split, "
    "--expert-placement)",
    "formats": "matrices kept in other formats (--quantize, --dtype)",
    "packing": "another version of homenode packs matrices in another way",
}


class SharedExperts:
    """The memory that members share, for the time of one load. Entering it claims this member's share unless it is
    ready; leaving it by an exception says to the others that it has failed.

    Raises UserError, naming what differs, when others keep another model there or in another way, and HostError when
    the machine refuses.
    """

    def __init__(
        self, backend: SharingBackend, share: ExpertShare, table: ExpertTable, identity: dict[str, int]
    ) -> None:
        if not 0 <= share.member < share.members:
            raise InternalError(f"member {share.member} of {share.members} that keep experts in common")
        self._backend, self._share, self._table = backend, share, table
        _grow(share.fd, HEADER_BYTES)
        self._words = backend.shared_words(share.fd, HEADER_WORDS)
        self._agree(identity)
        self._check_size()
        _grow(share.fd, table.size)
        self._memory = backend.shared_weights(share.fd, table.size)
        self._extent = table.share(share.member)
        self._me = _process(os.getpid()) or ShareState(pid=os.getpid())
        self._claimed = False
        self.shared_bytes = 0  # of others' matrices that were attached

    def __enter__(self) -> SharedExperts:
        if self._extent is None:
            self._set(STATE_READY)
            return self
        before = self._claim()
        self._memory.own(self._table.runs[self._share.member])
        if self._claimed:
            try:
                self._memory.open(*self._extent)
                if before.state != STATE_NONE:
                    self._memory.clear(*self._extent)
                self._memory.take_huge()
            except BaseException:
                self._set(STATE_FAILED)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._claimed:
            self._set(STATE_FAILED)

    @property
    def is_first(self) -> bool:
        """Return whether this member does what one of them does for all."""
        return self._share.member == 0

    def is_read(self, name: str) -> bool:
        """Return whether this member reads a matrix from the model: its own share's that is not ready, and all that
        nobody shares.
        """
        matrix = self._table.matrices.get(name)
        return matrix is None or (self._claimed and matrix.owner == self._share.member)

    def place(self, name: str) -> SharedPlacement | None:
        """Return where in shared memory a matrix goes; None for one that is not shared."""
        matrix = self._table.matrices.get(name)
        return None if matrix is None else SharedPlacement(self._memory, matrix.offset)

    def clear(self, name: str) -> None:
        """Take away what may have been written of a matrix: it will be read again, to where zeros are."""
        if (matrix := self._table.matrices.get(name)) is not None:
            self._memory.clear(*matrix.pages)

    def complete(self, tell: Callable[[], None]) -> dict[str, Weight]:
        """This member's share is filled: let the others have it, wait for theirs, and give all matrices that were not
        read here.

        `tell` is called now and then while waiting. PeerError when another member fails, is gone and does not come
        back, or takes too long.
        """
        self._memory.close()
        unread = [m for m in self._table.matrices.values() if not self.is_read(m.name)]
        if self._claimed:
            self._claimed = False
            self._set(STATE_READY)
        self._wait(tell)
        for extent in filter(None, map(self._table.share, range(self._share.members))):
            self._memory.enter(*extent)
        found = {}
        for m in unread:
            own = m.owner == self._share.member
            found[m.name] = self._backend.attached_weight(
                SharedPlacement(self._memory, m.offset), m.target, m.rows, m.columns, own=own
            )
            self.shared_bytes += 0 if own else m.size
        return found

    def _agree(self, identity: dict[str, int]) -> None:
        """Write what the memory is of, where nobody has yet; everybody's words are to be the same."""
        for word, (name, value) in enumerate(identity.items()):
            seen = self._words.exchange(word, 0, value)
            if seen not in (0, value):
                raise UserError(
                    f"engine {self._share.member} cannot keep its experts in the same memory as the others: "
                    f"{_DIFFERS[name]}; give all engines the "
                    "same settings, and start all of them again when the model has changed"
                )

    def _check_size(self) -> None:
        """Check the size: who has written a state has made the memory large before."""
        used = any(self._words.load(state_word(member)) for member in range(self._share.members))
        if used and os.fstat(self._share.fd).st_size < self._table.size:
            raise UserError(
                "the memory that engines keep experts in is damaged: it says that there are some, and has no room for "
                "them"
            )

    def _claim(self) -> ShareState:
        """Take this member's share to fill it, unless it is ready; who fills it already is waited for. What was said of
        it before.
        """
        until = time.monotonic() + self._share.timeout_s
        while True:
            before = self._state(self._share.member)
            if before.state == STATE_READY:
                return before
            if before.state != STATE_FILLING or not is_alive(before):
                mine = ShareState(STATE_FILLING, self._me.pid, self._me.birth)
                if self._words.exchange(state_word(self._share.member), before.word, mine.word) == before.word:
                    self._claimed = True
                    return before
            if time.monotonic() > until:
                raise PeerError(
                    f"process {before.pid} has the share of the experts of engine {self._share.member} and does not end"
                )
            time.sleep(_POLL_S)

    def _wait(self, tell: Callable[[], None]) -> None:
        share = self._share
        others = [m for m in range(share.members) if m != share.member and self._table.share(m)]
        waiting = ShareWait(others, share.timeout_s, time.monotonic())
        told = time.monotonic()
        while True:
            waiting.look({m: self._state(m) for m in waiting.missing}, is_alive, time.monotonic())
            if not waiting.missing:
                return
            if time.monotonic() - told > _TELL_S:
                tell()
                told = time.monotonic()
            time.sleep(_POLL_S)

    def _state(self, member: int) -> ShareState:
        return state_of(self._words.load(state_word(member)))

    def _set(self, state: int) -> None:
        self._words.store(state_word(self._share.member), ShareState(state, self._me.pid, self._me.birth).word)


def is_alive(state: ShareState) -> bool:
    """Return whether the process that wrote this still runs."""
    seen = _process(state.pid)
    return seen is not None and state.is_of(seen.pid, seen.birth)


def _process(pid: int) -> ShareState | None:
    """A process and when it began, as proc_pid_stat(5) has it; None for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else ShareState(pid=pid, birth=int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def _grow(fd: int, size: int) -> None:
    """Make the memory at least so large. Several members may do so at once; nobody makes it smaller."""
    try:
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
    except OSError as error:
        try:
            if os.fstat(fd).st_size >= size:  # another member was faster, and has sealed its size
                return
        except OSError:
            pass
        raise HostError(f"memory for experts of {size} bytes: {reason_of(error)}", errno=error.errno) from error
