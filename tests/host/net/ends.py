"""Two ends of TLS in memory, whose bytes a test may record and change on their way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from homenode.net import make_keys as making
from homenode.net.keys import KeyFolder
from homenode.net.make_keys import make_keys
from homenode.net.tls import TlsEnd, TlsError

PROTOCOL = "homenode-test/1"


def ends(
    caller: KeyFolder, called: KeyFolder, protocols: tuple[str, str] = (PROTOCOL, PROTOCOL)
) -> tuple[TlsEnd, TlsEnd]:
    return (
        TlsEnd(caller, protocols[0], "worker", connects=True, peer="the called"),
        TlsEnd(called, protocols[1], "engine", connects=False, peer="the caller"),
    )


def greet(
    caller: TlsEnd, called: TlsEnd, changed: Callable[[bytes], bytes] = lambda data: data
) -> tuple[TlsError | None, TlsError | None]:
    """Let both greet, with what the caller says `changed`, until nothing more is said: what went wrong at each."""
    failures: list[TlsError | None] = [None, None]
    for _ in range(8):
        said = _step(caller, failures, 0)
        if data := changed(said) if said else b"":
            called.feed(data)
        if answer := _step(called, failures, 1):
            caller.feed(answer)
    return failures[0], failures[1]


def _step(end: TlsEnd, failures: list[TlsError | None], at: int) -> bytes:
    if failures[at] is None and not end.greeted:
        try:
            end.greet()
        except TlsError as error:
            failures[at] = error
    return end.take_wire()


def keys_of_days_ago(folder: Path, hosts: list[str], days: int, ago: int, patch: pytest.MonkeyPatch) -> None:
    """As made so many days ago (or from now, where it is negative)."""

    class Earlier(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) - timedelta(days=ago)

    with patch.context() as patched:
        patched.setattr(making, "datetime", Earlier)
        make_keys(folder, hosts, days)
