"""What the system's service manager is told, over a socket of a path and an abstract one."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from homenode.errors import PeerError
from homenode.server.http.service_manager import Alive, ServiceManager

Heard = Callable[[], list[str]]


@pytest.fixture(params=["path", "abstract"])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Heard]]:
    """The name that NOTIFY_SOCKET has, and what came there so far."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@homenode-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if name.startswith("@") else name)
        manager.setblocking(False)
        heard: list[str] = []

        def look() -> list[str]:
            while True:
                try:
                    heard.append(manager.recv(4096).decode())
                except BlockingIOError:
                    return heard

        yield name, look


def test_a_life(named: tuple[str, Heard]) -> None:
    name, heard = named
    manager = ServiceManager.of_process({"NOTIFY_SOCKET": name})
    manager.ready()
    manager.reloading()
    manager.ready()
    manager.stopping()
    manager.stopping()
    manager.ready()  # too late: it ends
    said = heard()
    assert [each.split("\n")[0] for each in said] == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]
    assert said[1].split("\n")[1].startswith("MONOTONIC_USEC=")


def fed(variables: dict[str, str], alive: Alive, seconds: float) -> None:
    async def serve() -> None:
        async with ServiceManager.of_process(variables).watched(alive):
            await asyncio.sleep(seconds)

    asyncio.run(serve())


def test_the_watchdog_is_fed_while_the_engine_answers(
    named: tuple[str, Heard], caplog: pytest.LogCaptureFixture
) -> None:
    name, heard = named
    answers: list[bool | Exception] = [True, PeerError("silent"), TimeoutError(), False]

    async def alive(timeout_s: float) -> bool:
        assert 0 < timeout_s < 0.03
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    fed({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}, alive, 0.1)
    assert heard() == ["WATCHDOG=1"] and len(answers) == 1
    assert len(caplog.records) == 1  # however long it is silent


UNWATCHED = [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}]


@pytest.mark.parametrize("variables", UNWATCHED)
def test_without_a_watchdog_nobody_is_asked(variables: dict[str, str], named: tuple[str, Heard]) -> None:
    async def alive(timeout_s: float) -> bool:
        raise AssertionError("nobody watches")

    fed({"NOTIFY_SOCKET": named[0], **variables}, alive, 0.0)
    assert named[1]() == []


@pytest.mark.parametrize("name", ["", "relative/path", "/nowhere/notify", "@" + "x" * 200])
def test_a_manager_that_is_not_there_is_told_nothing(name: str) -> None:
    manager = ServiceManager.of_process({"NOTIFY_SOCKET": name})
    manager.ready()
    manager.stopping()
