"""Numbers that tell where they come from: requests and pings of all fronts are different, and their answers find the
way back. Pure.

Front 0 is who started the engine; every front process has a number of its own, one that replaces another included.
"""

from __future__ import annotations

# a front that asks a million times a second has enough for twelve days, one that asks a thousand times for 34 years
_BITS = 40


def first_number(front: int) -> int:
    """The number before the first of this front."""
    return front << _BITS


def front_of(number: int) -> int:
    """The front that a request or a ping of this number is of."""
    return number >> _BITS
