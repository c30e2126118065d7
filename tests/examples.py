"""How many examples a test over random input has: a fifth in a usual run, and a quarter of random lives, all where
HOMENODE_FUZZ_EXAMPLES asks for many, as `make test-all` does.
"""

from __future__ import annotations

import os

ASKED = int(os.environ.get("HOMENODE_FUZZ_EXAMPLES", "0"))
MANY = ASKED >= 1000


def examples(count: int) -> int:
    return count if MANY else min(count, max(12, count // 5))


def seeds(count: int) -> range:
    """Of the random lives that a test has been held to, those of this run."""
    return range(count if MANY else min(count, max(3, count // 4)))


def lives(usual: int, share: int = 1) -> range:
    """Random lives that cost little: so many in a usual run, one for each `share` of those that are asked for."""
    return range(max(usual, ASKED // share))
