"""Slots of the state memory: what recurrent layers keep of sequences, and snapshots of it for the prefix cache.

A state has all tokens so far in it: unlike KV blocks it can neither be cut back nor shared, and every step overwrites
it in place. So a running sequence owns a slot, and what others can go on from is a snapshot in a slot of its own, which
is taken when the state stands exactly at the end of a KV block, and found under the hash of that block. A step that
computes drafted tokens leaves a checkpoint behind each token that may turn out to be the last one that counts; the
sequence goes on in the slot of the right one. A slot is in exactly one of three places:

    owned     it is a running sequence's, a step in flight writes a snapshot or a checkpoint to it, a store fills it, or
              a store still reads what was a snapshot
    snapshot  it can be found; given up least recently used first, and when the KV block at its end is given up
    free      nothing in it is worth keeping

A snapshot that a store reads is not given up meanwhile. Workers copy, compute and keep states in the order of steps, so
one that a sequence begins with may be given up to another sequence at once; but stores write when they like, and get no
slot that is still to be copied.

Besides the snapshots that are likely to be of use there are spare ones early in a prompt, where its tokens are a power
of two of blocks: another prompt that parts from it finds a state after more than half of what both have in common. They
take free slots only, and are the first to be given up until somebody has gone on from them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from homenode.errors import InternalError
from homenode.units import format_count


@dataclass(eq=False, slots=True)
class SlotAllocation:
    """The slots that one stay of a sequence has of the state memory. Positions are those of `BlockAllocation`: a state
    at position p has the tokens before p in it.
    """

    slot: int = -1
    source: int = -1  # the slot of a snapshot that is copied to `slot` before the first step; -1: nothing is
    copying: bool = False  # the step that copies it is not done
    origin: bytes | None = None  # the digest that its state is found under at the start; None: it begins with nothing
    snapshot_at: int = 0  # the newest position up to which a later stay need not compute again
    uncovered: int = 0  # positions that are computed again, as their KV was found, but no state after them
    wanted: list[tuple[int, bytes]] = field(default_factory=list)  # snapshots to come: position and digest, ascending
    spare: frozenset[bytes] = frozenset()  # digests of the spare ones among them
    writing: list[tuple[int, int]] = field(default_factory=list)  # position and slot of snapshots in steps in flight
    coming: list[bytes] = field(default_factory=list)  # digests of those of a prompt
    # Slots of checkpoints in the step in flight, and the position that the first is at; the others follow it.
    checkpoints: list[int] = field(default_factory=list)
    first_checkpoint: int = 0
    answer_digest: bytes | None = None  # of its newest snapshot of the answer, which the next one takes the place of

    @property
    def slots(self) -> list[int]:
        """Slots that it owns."""
        return [self.slot, *self.checkpoints, *(slot for _, slot in self.writing)]


class StatePool:
    """Slots 0 .. num_slots - 1. `interval`: positions between two snapshots of one sequence, a multiple of the block
    size; 0: no snapshots are taken. `reserved`: free slots that are left to checkpoints of drafted tokens: snapshots
    take none of them, sequences and stores only where no snapshot can be given up.
    """

    def __init__(self, num_slots: int, interval: int, block_size: int, reserved: int = 0) -> None:
        self.num_slots = num_slots
        self.reserved = reserved
        self.interval = interval
        self._block_size = block_size
        self.hits = 0  # stays that began with a snapshot
        self.uncovered = 0  # positions that were computed again, as their KV was there, but no state
        self.free = list(range(num_slots - 1, -1, -1))
        self.snapshots: OrderedDict[bytes, int] = OrderedDict()  # slots by digest, the least recently used first
        self.coming: Counter[bytes] = Counter()  # digests of the snapshots that running sequences want
        self._read: Counter[int] = Counter()  # slots that stores read, and how many
        self._left: set[int] = set()  # of those the ones that are no snapshots any more
        self._filled: set[int] = set()  # slots that stores fill
        self._copied: Counter[int] = Counter()  # slots that steps in flight copy, or the next one, and how often

    @property
    def num_available(self) -> int:
        """Slots that can be handed out now: free ones and those of snapshots."""
        return len(self.free) + len(self.snapshots) - len(self._read) + len(self._left)

    @property
    def num_owned(self) -> int:
        """Slots of running sequences, and of snapshots that are being written."""
        return self.num_slots - self.num_available

    @property
    def num_snapshots(self) -> int:
        """Snapshots that can be found."""
        return len(self.snapshots)

    def find(self, digests: Sequence[bytes]) -> int:
        """The most of the first of these blocks after which there is a snapshot."""
        return next((count for count in range(len(digests), 0, -1) if digests[count - 1] in self.snapshots), 0)

    def awaits(self, digests: Sequence[bytes]) -> bool:
        """Return whether a running sequence is about to take a snapshot after one of these blocks."""
        return bool(self.coming) and any(digest in self.coming for digest in digests)

    def begin(self, stay: SlotAllocation) -> None:
        """Give a stay its slot. InternalError when there is none: ask `num_available` first."""
        if stay.origin is not None:
            self.snapshots.move_to_end(stay.origin)
            stay.source = self.snapshots[stay.origin]
            self.hits += 1
        slot = self._take_surely((stay.source,))
        if slot is None:
            slot = self._take()
        if slot is None:
            raise InternalError("a slot of the state memory is wanted, and all are in use")
        stay.slot = slot
        if stay.source == slot:  # no other could be had: the stay goes on where the snapshot was
            stay.source = -1
        elif stay.source >= 0:
            stay.copying = True
            self._copied[stay.source] += 1
        self.uncovered += stay.uncovered
        self.coming.update(digest for _, digest in stay.wanted)

    def end_copying(self, stay: SlotAllocation) -> None:
        """A step of a stay is done: whatever it began with was copied."""
        if stay.copying:
            stay.copying = False
            self._copied[stay.source] -= 1
            if not self._copied[stay.source]:
                del self._copied[stay.source]

    def write(self, stay: SlotAllocation, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """Slots for the snapshots in the step that computes positions start .. end - 1 of a prompt, and the position
        after which each is taken, ascending.
        """
        passed = [wanted for wanted in stay.wanted if wanted[0] <= end]
        del stay.wanted[: len(passed)]
        copies: list[tuple[int, int]] = []
        needed = sum(digest not in stay.spare for _, digest in passed)  # slots, of which spare ones take none
        for at, digest in passed:
            spare = digest in stay.spare
            lacks = spare and len(self.free) - self.reserved <= needed
            slot = self._write(stay, at) if at > start and not lacks else -1
            needed -= not spare
            if slot < 0:
                self._end_waits([digest])
            else:
                stay.coming.append(digest)
                copies.append((slot, at - 1))
        return tuple(copies)

    def write_answer(self, stay: SlotAllocation, end: int) -> tuple[tuple[int, int], ...]:
        """The same for the step that computes position end - 1 of an answer: at the end of every block."""
        slot = self._write(stay, end) if self.interval and end % self._block_size == 0 else -1
        return ((slot, end - 1),) if slot >= 0 else ()

    def num_checkpoints(self, end: int, most: int) -> int:
        """Count the drafted positions from `end` on, at most `most`, that a step may compute of an answer: there is a
        free slot for each, and a snapshot, at the end of a block, is taken of what is certain.
        """
        if self.interval:
            most = min(most, max(0, -end % self._block_size - 1))
        return min(most, len(self.free))

    def checkpoint(self, stay: SlotAllocation, first: int, count: int) -> tuple[tuple[int, int], ...]:
        """Slots for the states at positions `first` .. first + count - 1, and the position after which each is
        copied. Ask `num_checkpoints` first.
        """
        stay.first_checkpoint = first
        stay.checkpoints = [self.free.pop() for _ in range(count)]
        return tuple((slot, at) for at, slot in enumerate(stay.checkpoints, first - 1))

    def roll_back(self, stay: SlotAllocation, position: int) -> None:
        """Go on with the state at `position`, up to which the step counts that took checkpoints."""
        index = position - stay.first_checkpoint
        if 0 <= index < len(stay.checkpoints):
            stay.slot, stay.checkpoints[index] = stay.checkpoints[index], stay.slot
        self.free += stay.checkpoints
        stay.checkpoints = []

    def publish(self, stay: SlotAllocation, digests: Sequence[bytes], prompt: int, findable: Collection[bytes]) -> None:
        """The steps that computed all of these blocks are done: let the snapshots at their ends be found, of which the
        KV can be (`findable`). Up to position `prompt` they are of a prompt.
        """
        while stay.writing and stay.writing[0][0] <= len(digests) * self._block_size:
            at, slot = stay.writing.pop(0)
            digest = digests[at // self._block_size - 1]
            if digest in stay.coming:
                stay.coming.remove(digest)
                self._end_waits([digest])
            if digest in self.snapshots or digest not in findable:
                self.free.append(slot)
                continue
            self.snapshots[digest] = slot
            if digest in stay.spare:
                self.snapshots.move_to_end(digest, last=False)
            stay.snapshot_at = at
            if at > prompt:
                if stay.answer_digest is not None:
                    self.forget(stay.answer_digest)
                stay.answer_digest = digest if at % self.interval else None

    def release(self, stay: SlotAllocation) -> None:
        """A stay is over, and no step in flight contains it."""
        self.end_copying(stay)
        self.free += stay.slots
        self._end_waits([*stay.coming, *(digest for _, digest in stay.wanted)])
        stay.writing, stay.checkpoints, stay.coming, stay.wanted = [], [], [], []

    def forget(self, digest: bytes) -> None:
        """The KV block of this digest was given up, and with it goes the snapshot at its end, if there is one."""
        if (slot := self.snapshots.pop(digest, None)) is not None:
            self._free(slot)

    def forget_all(self) -> None:
        """No snapshot can be found any more."""
        for slot in self.snapshots.values():
            self._free(slot)
        self.snapshots.clear()

    # Stores

    def begin_reading(self, digest: bytes) -> int:
        """Return the slot of a snapshot, which stays as it is until `end_reading`."""
        slot = self.snapshots[digest]
        self._read[slot] += 1
        return slot

    def end_reading(self, slot: int) -> None:
        """A store reads it no more."""
        self._read[slot] -= 1
        if not self._read[slot]:
            del self._read[slot]
            if slot in self._left:
                self._left.remove(slot)
                self.free.append(slot)

    @property
    def can_fill(self) -> bool:
        """There is a slot that a store may write to."""
        busy = self._read.keys() | self._copied.keys()
        return any(s not in self._copied for s in self.free) or any(s not in busy for s in self.snapshots.values())

    def begin_filling(self) -> int | None:
        """A slot that a store may write to at once; None: there is none, as `can_fill` tells."""
        slot = self._take_surely(self._copied)
        if slot is not None:
            self._filled.add(slot)
        return slot

    def end_filling(self, slot: int, digest: bytes | None = None) -> None:
        """A store does not write to it any more. `digest`: of the KV block at whose end its state is, which can be
        found; None: nothing in it is of use.
        """
        self._filled.remove(slot)
        if digest is None or digest in self.snapshots:
            self.free.append(slot)
        else:
            self.snapshots[digest] = slot

    def _free(self, slot: int) -> None:
        if slot in self._read:
            self._left.add(slot)
        else:
            self.free.append(slot)

    def audit(self, stays: Iterable[SlotAllocation], findable: Collection[bytes]) -> None:
        """Check every slot against the stays that there are. InternalError names the first in the wrong place."""
        stays = list(stays)
        places = Counter(slot for stay in stays for slot in stay.slots)
        places.update(self.free)
        places.update(self.snapshots.values())
        places.update(self._left)
        places.update(self._filled)
        for slot in range(self.num_slots):
            if places[slot] != 1:
                where = f"{format_count(places[slot], 'place')} of owned, free and snapshots"
                raise InternalError(f"slot {slot} of the state memory is in {where}", slot=slot)
        if self._copied != Counter(stay.source for stay in stays if stay.copying):
            raise InternalError("slots of the state memory are kept from stores for other sequences than there are")
        if any(digest not in findable for digest in self.snapshots):
            raise InternalError("a snapshot of a state can be found, and the KV block at its end cannot")

    def _write(self, stay: SlotAllocation, at: int) -> int:
        slot = self._take(self.reserved)
        if slot is None:
            return -1
        stay.writing.append((at, slot))
        return slot

    def _take_surely(self, kept: Collection[int]) -> int | None:
        """A slot, none of `kept`, for whoever needs one: a reserved one only where no snapshot can be given up."""
        slot = self._take(self.reserved, kept)
        return self._take(0, kept) if slot is None else slot

    def _take(self, left: int = 0, kept: Collection[int] = ()) -> int | None:
        """A slot, none of `kept`: a free one, if more than `left` are, or that of the least recently used snapshot."""
        if len(self.free) > left:
            for index in range(len(self.free) - 1, -1, -1):
                if self.free[index] not in kept:
                    return self.free.pop(index)
        given_up = (d for d, slot in self.snapshots.items() if slot not in self._read and slot not in kept)
        digest = next(given_up, None)
        return None if digest is None else self.snapshots.pop(digest)

    def _end_waits(self, digests: Iterable[bytes]) -> None:
        """Snapshots that a running sequence wanted are there, or do not come."""
        for digest in digests:
            self.coming[digest] -= 1
            if not self.coming[digest]:
                del self.coming[digest]
