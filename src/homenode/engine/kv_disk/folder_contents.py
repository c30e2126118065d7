"""What lies in a folder of KV blocks, for people: listed, verified, pruned and removed while servers use it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from homenode.engine.kv_disk.block_format import HEADER_BYTES, BlockFormat, DamagedBlockError
from homenode.engine.kv_disk.block_index import ModelBlocks, choose_evicted
from homenode.engine.kv_disk.block_store import ModelNote
from homenode.engine.kv_disk.disk_store import folder_name
from homenode.engine.kv_disk.folder import FolderUsage, NotABlockError, StoreFolder
from homenode.errors import HostError, UserError


@dataclass(frozen=True)
class ModelContents:
    """The blocks of one model. `folder`: the name of its folder; `note`: None where nobody has left one that can be
    read. Times are in seconds since 1970; None without blocks.
    """

    folder: str
    note: ModelNote | None
    blocks: ModelBlocks = field(default_factory=ModelBlocks)

    @property
    def name(self) -> str:
        """The model as it was called in public."""
        return self.note.model if self.note is not None else "unknown"

    @property
    def oldest_use(self) -> float | None:
        """The time of the use that lies back longest."""
        return min((block.used for block in self.blocks.blocks.values()), default=None)

    @property
    def last_use(self) -> float | None:
        """The time of the last use of any."""
        return max((block.used for block in self.blocks.blocks.values()), default=None)


@dataclass(frozen=True)
class Verification:
    """The result of reading all blocks of a model: how many are as they were written, the names of those that are not,
    each with why, and `unread`: how many could not be judged, as they are encrypted with another key or none was given.
    """

    model: ModelContents
    right: int
    damaged: dict[str, str]
    unread: int = 0


class FolderContents:
    """A folder that is there. UserError where it is none."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        if not Path(path).is_dir():
            raise UserError(f"{path} is no folder; give that of --kv-disk", param="folder")
        try:
            self._folder = StoreFolder(Path(path))
        except OSError as error:
            raise HostError(f"{path} cannot be read: {error.strerror}") from error
        self._clock = clock

    def models(self) -> list[ModelContents]:
        """All models, the one that takes most first."""
        found = []
        for name in self._folder.models():
            there, _ = self._folder.list_blocks(name)
            blocks = ModelBlocks()
            blocks.take_over(there)
            note = _note(self._folder.model_description(name))
            blocks.rate = 0.0 if note is None else note.rate
            found.append(ModelContents(name, note, blocks))
        return sorted(found, key=lambda each: -each.blocks.size)

    def choose(self, wanted: str | None) -> list[ModelContents]:
        """The models that a word means: a name, or the beginning of a folder's; None: all. UserError for none."""
        models = self.models()
        if wanted is None:
            return models
        found = [each for each in models if each.name == wanted or each.folder.startswith(wanted)]
        if not found:
            names = ", ".join(dict.fromkeys(each.name for each in models)) or "none"
            raise UserError(f"{wanted}: no such model lies in {self._folder.path}; there: {names}", param="model")
        return found

    def verify(self, model: ModelContents, key: bytes | None, *, remove: bool = False) -> Verification:
        """Read every block of a model. `remove`: those that are damaged."""
        note = model.note
        if note is None or folder_name(bytes.fromhex(note.identity)) != model.folder:
            return Verification(model, 0, {}, len(model.blocks.blocks))
        form, damaged, right, unread = BlockFormat(bytes.fromhex(note.identity), key), dict[str, str](), 0, 0
        for name in model.blocks.blocks:
            try:
                why = self._damage(model.folder, name, form, note.encrypted)
            except FileNotFoundError:  # given up meanwhile
                continue
            if why is None:
                right += 1
            elif note.encrypted and key is None:
                unread += 1
            else:
                damaged[name] = why
        if remove and damaged:
            self._remove([(model, list(damaged))])
        return Verification(model, right, damaged, unread)

    def _damage(self, folder: str, name: str, form: BlockFormat, encrypted: bool) -> str | None:
        """Return why a block is not what was written; None: it is."""
        try:
            with self._folder.reading(folder, name) as (file, size):
                header, content = os.pread(file, HEADER_BYTES, 0), bytearray()
                while piece := os.pread(file, 1 << 20, HEADER_BYTES + len(content)):
                    content += piece
                if encrypted and not form.encrypts:
                    return "it is encrypted, and no key was given"
                form.check_header(header, bytes.fromhex(name), size - HEADER_BYTES)
                if form.encrypts:
                    form.decrypt(header, bytes(content))
                else:
                    form.check_content(header, [content])
        except (DamagedBlockError, NotABlockError) as error:
            return str(error)
        return None

    def prune(self, size: int | None, older_than_s: float | None) -> int:
        """Give up blocks that were not used for so long, and then those that would be given up next, until all take at
        most `size` bytes. Bytes that are free again.
        """
        models = self.models()
        chosen: dict[str, list[str]] = {model.folder: [] for model in models}
        by_folder = {model.folder: model.blocks for model in models}
        now = self._clock()
        if older_than_s is not None:
            for model in models:
                old = [name for name, block in model.blocks.blocks.items() if block.used < now - older_than_s]
                chosen[model.folder] += old
                for name in old:
                    model.blocks.drop(name)
        left = sum(blocks.size for blocks in by_folder.values())
        while size is not None and left > size and (victim := choose_evicted(by_folder.items(), now)) is not None:
            folder, name = victim
            left -= by_folder[folder].drop(name)
            chosen[folder].append(name)
        return self._remove([(model, chosen[model.folder]) for model in models])

    def remove(self, models: Sequence[ModelContents]) -> int:
        """Remove all blocks of these models. Bytes that are free again."""
        freed = self._remove([(model, list(model.blocks.blocks)) for model in models])
        for model in models:
            self._folder.remove_model(model.folder)
        return freed

    def _remove(self, chosen: Sequence[tuple[ModelContents, Sequence[str]]]) -> int:
        sizes = {
            (model.folder, name): block.size for model in self.models() for name, block in model.blocks.blocks.items()
        }
        freed = sum(
            sizes.get((model.folder, name), 0)
            for model, names in chosen
            for name in names
            if self._folder.remove(model.folder, name)
        )
        with self._folder.locked():
            usage = self._folder.read_usage() or FolderUsage()
            usage.nbytes = sum(model.blocks.size for model in self.models())
            usage.generation += 1
            self._folder.write_usage(usage)
        return freed


def _note(text: bytes) -> ModelNote | None:
    try:
        return msgspec.json.decode(text, type=ModelNote) if text else None
    except (ValueError, RecursionError):
        return None


def damaged_lines(found: Sequence[Verification]) -> Iterator[str]:
    """Say of each damaged block why."""
    for each in found:
        for name, why in each.damaged.items():
            yield f"{each.model.name}: block {name}: {why}"
