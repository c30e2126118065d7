"""The words at the beginning of memory in which engines keep experts in common. Pure.

Words of 64 bits, all zero in new memory. Each of the first says what the memory is of, as a digest; whoever comes first
writes it, once, and everybody compares it. Nobody reads a size or an offset from there: those come from the table that
each member computes for itself (`expert_table`). Behind them stands a word for each member: what has become of its
share, and by which process.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

WORD_BYTES = 8
HEADER_WORDS = 8192
HEADER_BYTES = HEADER_WORDS * WORD_BYTES
MAGIC = int.from_bytes(b"hnExpts1", sys.byteorder)

# What the first words say, in their order.
IDENTITY = ("magic", "members", "model", "part", "formats", "packing")
_FIRST_STATE = 16
MOST_MEMBERS = HEADER_WORDS - _FIRST_STATE

STATE_NONE, STATE_FILLING, STATE_READY, STATE_FAILED = range(4)
_PID_BITS, _BIRTH_BITS = 22, 40  # no kernel gives a process a number above 2^22; 2^40 ticks are centuries


@dataclass(frozen=True, slots=True)
class ShareState:
    """State of one member's share. `state`: one of STATE_*. `pid`: who fills it, has filled it or has failed to.
    `birth`: when that process began, as the kernel counts: its number alone may be another's by now.
    """

    state: int = STATE_NONE
    pid: int = 0
    birth: int = 0

    @property
    def word(self) -> int:
        """Return the state as it stands in the header: one word, so that nobody sees half of it."""
        return (
            self.state << _PID_BITS + _BIRTH_BITS
            | _low(self.pid, _PID_BITS) << _BIRTH_BITS
            | _low(self.birth, _BIRTH_BITS)
        )

    def is_of(self, pid: int, birth: int) -> bool:
        """Return whether this process wrote it."""
        return (self.pid, self.birth) == (_low(pid, _PID_BITS), _low(birth, _BIRTH_BITS))


def state_of(word: int) -> ShareState:
    """Return what a state word says. There is none that says nothing."""
    return ShareState(
        word >> _PID_BITS + _BIRTH_BITS & 3, _low(word >> _BIRTH_BITS, _PID_BITS), _low(word, _BIRTH_BITS)
    )


def state_word(member: int) -> int:
    """The number of the word with the state of a member's share."""
    return _FIRST_STATE + member


def _low(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)
