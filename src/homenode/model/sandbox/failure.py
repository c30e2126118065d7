"""The kinds of failure that the process of chat templates answers with."""

from __future__ import annotations

from enum import StrEnum


class Failure(StrEnum):
    """The fate of a request that has no result."""

    REFUSED = "refused"  # the template called raise_exception
    FAILED = "failed"  # anything else that was raised
    MEMORY = "memory"  # it took more memory than the process may have
    LENGTH = "length"  # it gave more characters than it may
