"""What the system's service manager is told, over a socket of a path and an abstract one."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homenode.engine.messages import EngineState, EngineStats, ReplicaStats
from homenode.errors import PeerError
from homenode.server.fronts.coordinator import Coordinator
from homenode.server.http.service_manager import Alive, ServiceManager
from homenode.server.run import engines_alive

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


def test_a_fault_of_one_look_ends_no_feeding(named: tuple[str, Heard], caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Exception | bool] = [ValueError("odd"), KeyError("odder"), True]

    async def alive(timeout_s: float) -> bool:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    fed({"NOTIFY_SOCKET": named[0], "WATCHDOG_USEC": "30000"}, alive, 0.1)
    assert "WATCHDOG=1" in named[1]() and len(caplog.records) == 1 and caplog.records[0].exc_info


@pytest.mark.parametrize(
    ("states", "asked"),
    [((), True), (("restarting", "gone"), False), (("restarting", "silent"), True), (("ready",), True)],
)
def test_engines_that_are_restarted_are_not_asked(states: tuple[EngineState, ...], asked: bool) -> None:
    class Silent:
        engines = tuple(ReplicaStats(n, None, state, 0, 0, EngineStats()) for n, state in enumerate(states))

        async def heartbeat(self, timeout: float) -> float:
            raise PeerError("no engine answered")

    state: Any = SimpleNamespace(models=[SimpleNamespace(client=Silent())])
    if asked:
        with pytest.raises(PeerError):
            asyncio.run(engines_alive(state, 1.0))
    else:
        assert asyncio.run(engines_alive(state, 1.0))


@pytest.mark.parametrize(("ups", "lives"), [((False, False), True), ((True, False), False), ((True,), False)])
def test_a_coordinator_lives_while_its_engines_are_restarted(ups: tuple[bool, ...], lives: bool) -> None:
    async def heartbeat(timeout: float) -> float:
        raise PeerError("no answer")

    client = SimpleNamespace(heartbeat=heartbeat)
    made: Any = SimpleNamespace(supervisors=[SimpleNamespace(up=up, client=client) for up in ups])
    if lives:
        assert asyncio.run(Coordinator.is_alive(made, 1.0))
    else:
        with pytest.raises(PeerError):
            asyncio.run(Coordinator.is_alive(made, 1.0))


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
