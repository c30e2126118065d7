"""The words at the beginning of memory in which engines keep experts in common. Pure.

Words of 64 bits, all zero in new memory. Each of the first says what the memory is of, as a digest; whoever comes first writes it, once, and
everybody compares it. Nobody reads a size or an offset from there: those come from the table that each member computes for itself
(`expert_table`). Behind them each member has two, which it alone writes: the state of its share and the process that fills it, and when that
process began, as the kernel counts: a number of a process alone may be another's by now.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

WORD_BYTES = 8
HEADER_WORDS = 8192
HEADER_BYTES = HEADER_WORDS * WORD_BYTES
MAGIC = int.from_bytes(b"hnExpts1", sys.byteorder)

# Which word says what, and what two members that differ in it should hear.
IDENTITY = ("magic", "members", "model", "part", "formats", "packing")
_FIRST_STATE = 16
MOST_MEMBERS = (HEADER_WORDS - _FIRST_STATE) // 2

STATE_NONE, STATE_FILLING, STATE_READY, STATE_FAILED = range(4)
_PID_BITS = 32


@dataclass(frozen=True, slots=True)
class ShareState:
    """Of one member's share. `state`: one of STATE_*, or what nobody of ours has written. `pid`: who fills it, has filled it or has failed to."""

    state: int
    pid: int

    @property
    def word(self) -> int:
        """As it stands in the header."""
        return self.state << _PID_BITS | self.pid


def state_of(word: int) -> ShareState:
    """What a state word says."""
    return ShareState(word >> _PID_BITS, word & ((1 << _PID_BITS) - 1))


def state_word(member: int) -> int:
    """The number of the word with the state of a member's share."""
    return _FIRST_STATE + 2 * member


def birth_word(member: int) -> int:
    """The number of the word that says when the process of the state began, in the kernel's ticks since it booted."""
    return state_word(member) + 1
