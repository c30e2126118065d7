"""The blocks of one model in a folder that other processes use, too: put, found, checked, given up.

For one thread, but for `names`, which any thread may look into.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from homenode.engine.kv_disk.block_format import HEADER_BYTES, BlockFormat, DamagedBlockError
from homenode.engine.kv_disk.block_index import ModelBlocks, choose_evicted, stored_size
from homenode.engine.kv_disk.block_store import ModelNote, Parts
from homenode.engine.kv_disk.folder import FolderUsage, NotABlockError, StoreFolder, read_parts
from homenode.units import format_bytes

_log = logging.getLogger(__name__)
_MOST_LINES = 6  # of damage; from then on it is counted only
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0  # after writing failed
_COUNT_AGAIN_S = 60.0
_SPARE_SHARE, _MOST_SPARE = 64, 16 << 20  # so much is made free at once where there is no room


def folder_name(identity: bytes) -> str:
    """Return what the folder of a model is called."""
    return hashlib.blake2b(identity, person=b"kv-disk-folder", digest_size=16).hexdigest()


class DiskStore:
    """Blocks of the model that `note` describes, in its folder, named `model`. `sizes`: that they may have, in bytes.
    All models of the folder together keep within `limit` bytes.

    `rejected`: blocks that were not what they should be, since the start.
    """

    def __init__(
        self,
        folder: StoreFolder,
        model: str,
        form: BlockFormat,
        sizes: Collection[int],
        limit: int,
        note: ModelNote,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._model, self._form = folder, model, form
        self._sizes = frozenset(HEADER_BYTES + size for size in sizes)  # of files
        self._limit, self._clock = limit, clock
        self._note = note
        self._models: dict[str, ModelBlocks] = {model: ModelBlocks()}
        self._generation: int | None = None  # of the usage that the index is of
        self._counted_at = 0.0
        self.total = 0
        self.rejected = 0
        self._lines = 0
        self._told_failure = self._failing = False
        self._pause, self._paused_until = _FIRST_PAUSE_S, 0.0

    @property
    def names(self) -> ModelBlocks:
        """Return what is known to be there of this model. From any thread."""
        return self._models[self._model]

    @property
    def writes(self) -> bool:
        """Return whether writing is tried: it did not fail of late."""
        return self._clock() >= self._paused_until

    @property
    def free_bytes(self) -> int:
        """Bytes that are left of the limit."""
        return max(0, self._limit - self.total)

    def start(self) -> None:
        """Look at what is there, and give up what is beyond the limit."""
        self._try(self._start)
        self._try(self._describe)

    def _start(self) -> None:
        self._folder.open_model(self._model, make=True)
        self.count_again()

    def set_rate(self, rate: float) -> None:
        """Note how many seconds computing a byte takes, where that was not known or is another one by far."""
        if self._note.rate and rate < 2 * self._note.rate and self._note.rate < 2 * rate:
            return
        self._note = msgspec.structs.replace(self._note, rate=rate)
        self.names.rate = rate
        self._try(self._describe)

    def refresh(self) -> None:
        """Look for what others have written and given up since; seldom, count anew."""
        if self._clock() - self._counted_at > _COUNT_AGAIN_S:
            self._try(self.count_again)
            return
        usage = self._folder.read_usage()
        if usage is None:
            self._try(self.count_again)
        elif usage.generation != self._generation:
            self._try(lambda: self._list(usage))
            self.total = usage.nbytes

    def count_again(self) -> None:
        """Count what lies there, and keep within the limit."""
        self._counted_at = self._clock()
        self._open_again_if_gone()
        with self._folder.locked():
            usage = self._folder.read_usage() or FolderUsage()
            self._list(usage)
            usage.nbytes = sum(blocks.size for blocks in self._models.values())
            self._make_room(usage)
            self._leave(usage)

    # Blocks

    def put(self, name: str, content: bytes | bytearray | memoryview) -> bool:
        """Write a block. Whether it can be found now, which it could not before."""
        size = HEADER_BYTES + len(content)
        if name in self.names or not self.writes or stored_size(size) > self._limit:
            return False
        return bool(self._try(lambda: self._put(name, content)))

    def _put(self, name: str, content: bytes | bytearray | memoryview) -> bool:
        header, body = self._form.encode(bytes.fromhex(name), content)
        try:
            file = self._folder.write(self._model, name, [header, body])
        except OSError:
            if not self._open_again_if_gone():
                raise
            file = self._folder.write(self._model, name, [header, body])
        nbytes, now = HEADER_BYTES + memoryview(body).nbytes, self._clock()
        try:
            with self._folder.locked():
                usage = self._usage()
                usage.nbytes += stored_size(nbytes)
                self._make_room(usage)
                file.set_use(now)
                there = not file.link(name + ".kv")
                if there:
                    usage.nbytes -= stored_size(nbytes)
                self._leave(usage)
        finally:
            file.close()
        if there and self._is_damaged(name):
            return False
        self.names.add(name, nbytes, now)
        self._tell_recovery()
        return not there

    def _is_damaged(self, name: str) -> bool:
        """Return whether what another one has put under a name is no block; it is removed then."""
        try:
            with self._folder.reading(self._model, name) as (_, size):
                if size in self._sizes:
                    return False
                self.reject(name, "its size is another one")
        except NotABlockError as error:
            self.reject(name, str(error))
        except FileNotFoundError:
            pass
        return True

    def get(self, name: str, parts: Parts) -> bool:
        """Read a block into these parts. False: there is none that could be used; what was written to them is worth
        nothing.
        """
        wanted = sum(part.nbytes for part in parts)
        try:
            with self._folder.reading(self._model, name) as (file, size):
                if size != HEADER_BYTES + wanted:
                    raise DamagedBlockError(f"its file has {size} bytes")
                header = os.pread(file, HEADER_BYTES, 0)
                self._form.check_header(header, bytes.fromhex(name), wanted)
                self._read(file, header, parts, wanted)
        except FileNotFoundError:
            self.names.drop(name)
            self._generation = None
        except (DamagedBlockError, NotABlockError) as error:
            self.reject(name, str(error))
        except OSError as error:
            self._tell_failure("read", error)
            self.names.drop(name)
        else:
            return True
        return False

    def _read(self, file: int, header: bytes, parts: Parts, wanted: int) -> None:
        if not self._form.encrypts:
            if read_parts(file, parts, HEADER_BYTES) != wanted:
                raise DamagedBlockError("it ends too early")
            self._form.check_content(header, parts)
            return
        sealed = bytearray(wanted)
        if read_parts(file, [memoryview(sealed)], HEADER_BYTES) != wanted:
            raise DamagedBlockError("it ends too early")
        self._form.fill(parts, header, sealed)

    def read_ahead(self, name: str) -> None:
        """Have the disk bring a block that is read next."""
        self._folder.read_ahead(self._model, name)

    def touch(self, names: Sequence[str], pinned_s: float | None = None) -> None:
        """Note that the blocks of a beginning are used, given from the first on. `pinned_s`: seconds for which they are
        to stay, which all processes see in the time of their use, which is to come; 0: they need not any more; None:
        nothing changes about that.
        """
        now, blocks = self._clock(), self.names.blocks
        used = now + (pinned_s or 0.0)
        if pinned_s is None:
            names = [name for name in names if name in blocks and blocks[name].used <= now]
        stale = {name for name in names if name in blocks and abs(used - blocks[name].used) > 1.0}
        for number, name in enumerate(self.names.touch(names, used)):
            if name in stale:
                self._folder.touch(self._model, name, used + number * 1e-5)

    def reject(self, name: str, why: str) -> None:
        """Remove what is under a block's name and is not the block."""
        self.rejected += 1
        self._lines += 1
        if self._lines <= _MOST_LINES:
            _log.warning("KV on disk: block %s in %s is of no use: %s; it was removed", name, self._folder.path, why)
        if self._lines == _MOST_LINES:
            _log.warning("KV on disk: further damaged blocks are counted only (homenode:kv_disk_rejected_blocks_total)")
        self._try(lambda: self._remove(name))

    def _remove(self, name: str) -> None:
        with self._folder.locked():
            usage = self._usage()
            size = self.names.drop(name)
            if self._folder.remove(self._model, name):
                usage.nbytes -= size
            self._leave(usage)

    def close(self) -> None:
        """Give the folder back."""
        self._folder.close()

    # The index

    def _usage(self) -> FolderUsage:
        """What is counted, under the lock. Where nobody has counted, it is counted now."""
        usage = self._folder.read_usage()
        if usage is None:
            usage = FolderUsage()
            self._list(usage)
            usage.nbytes = sum(blocks.size for blocks in self._models.values())
        return usage

    def _leave(self, usage: FolderUsage) -> None:
        """Leave what was counted, changed by us."""
        known = usage.generation == self._generation
        usage.generation += 1
        usage.nbytes = max(0, usage.nbytes)
        self._folder.write_usage(usage)
        self.total = usage.nbytes
        if known:
            self._generation = usage.generation

    def _list(self, usage: FolderUsage) -> None:
        """Bring the index up to what lies there, which `usage` is of."""
        there_now = {*self._folder.models(), self._model}
        for gone in self._models.keys() - there_now:
            del self._models[gone]
            self._folder.forget_model(gone)
        for model in there_now:
            if model != self._model and not self._folder.holds(model):
                self._folder.forget_model(model)  # another folder has its name by now
            blocks = self._models.setdefault(model, ModelBlocks())
            try:
                there, others = self._folder.list_blocks(model)
            except FileNotFoundError:
                self._folder.forget_model(model)
                there, others = {}, []
            if model == self._model:
                wrong = [name for name, block in there.items() if block.nbytes not in self._sizes]
                for name in (*others, *wrong):
                    self._drop_wrong(name)
                    there.pop(name, None)
            elif not blocks.rate:
                blocks.rate = _rate(self._folder.model_description(model))
            blocks.take_over(there)
        self._generation = usage.generation

    def _drop_wrong(self, name: str) -> None:
        """Under the lock, or where nothing is counted by it."""
        self.rejected += 1
        self._lines += 1
        if self._lines <= _MOST_LINES:
            _log.warning(
                "KV on disk: block %s in %s is no block as it was written; it was removed", name, self._folder.path
            )
        self._folder.remove(self._model, name)
        self._counted_at = 0.0

    def _make_room(self, usage: FolderUsage) -> None:
        """Give up blocks until all are within the limit, under the lock."""
        if usage.nbytes <= self._limit:
            return
        if usage.generation != self._generation:
            self._list(usage)
        target = self._limit - min(self._limit // _SPARE_SHARE, _MOST_SPARE)
        while usage.nbytes > target:
            victim = choose_evicted(self._models.items(), self._clock())
            if victim is None:
                usage.nbytes = 0  # nothing lies there
                return
            model, name = victim
            blocks = self._models[model]
            used = self._folder.last_use(model, name)
            if used is not None and used > blocks.blocks[name].used + 1.0:
                blocks.add(name, blocks.blocks[name].nbytes, used)  # others have used it since
                continue
            size = blocks.drop(name)
            if self._folder.remove(model, name):
                usage.nbytes -= size

    def _describe(self) -> None:
        there = _note(self._folder.model_description(self._model))
        if there is not None and there.rate and not self._note.rate:
            self._note = msgspec.structs.replace(self._note, rate=there.rate)
        self.names.rate = self._note.rate
        if there != self._note:
            self._folder.describe_model(self._model, msgspec.json.encode(self._note))

    # Failures

    def _open_again_if_gone(self) -> bool:
        """Make the folders anew where somebody has removed them. Whether that was so."""
        if self._folder.holds(self._model):
            return False
        self._folder.open_again()
        self._folder.open_model(self._model, make=True)
        self._generation = None
        return True

    def _try(self, work: Callable[[], object]) -> object:
        """Do it; where the disk fails nothing is written for a while, and that is told once."""
        try:
            return work()
        except OSError as error:
            self._tell_failure("written", error)
            self._paused_until = self._clock() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
            return None

    def _tell_failure(self, what: str, error: OSError) -> None:
        self._failing = True
        if self._told_failure:
            return
        self._told_failure = True
        text = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        _log.warning(
            "KV on disk: %s could not be %s: %s; requests go on without, and it is tried again from time to time "
            "(%s lie there)",
            self._folder.path, what, text, format_bytes(self.total),
        )  # fmt: skip

    def _tell_recovery(self) -> None:
        if self._failing:
            _log.info("KV on disk: %s can be written again", self._folder.path)
        self._failing, self._pause = False, _FIRST_PAUSE_S


def _note(text: bytes) -> ModelNote | None:
    try:
        return msgspec.json.decode(text, type=ModelNote) if text else None
    except (ValueError, RecursionError):  # msgspec.DecodeError and UnicodeDecodeError are the first
        return None


def _rate(text: bytes) -> float:
    note = _note(text)
    return note.rate if note is not None and 0 < note.rate < 1 else 0.0
