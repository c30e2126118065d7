"""The engine's process that is started before the settings are known: taken by the front, or ended."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from homenode.engine.assignment import EngineAssignment
from homenode.engine.connection.early_start import end_early_engine, needs_engine, start_engine_early, take_early_engine
from homenode.engine.connection.engine_client import AsyncEngineClient
from tests.checkpoints import make_folder
from tests.engine.engines import config_for
from tests.engine.live import LiveServer
from tests.waiting import PATIENCE_S

# A start is as long as what it imports. Whoever adds to it looks first whether the module is needed before the port is
# open.
_MOST_MODULES_OF_FRONT = 806  # seven APIs, formats of calls, grammars and other programs' flags among them
_MOST_MODULES_OF_ENGINE = 685  # no architecture among them: the one of the model is imported when it is known
_WITHOUT = ("numpy", "rich", "torch", "homenode.simulate", "homenode.model.checkpoint.index")  # of the front


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ("serve", True),
        ("serve model --port 0", True),
        ("serve --tensor-parallel-size 2", True),
        ("serve --help", False),
        ("serve -h", False),
        ("serve model --check-config", False),
        ("serve --show-config", False),
        ("serve --data-parallel-size=2", False),
        ("serve --api-server-count 2", False),
        ("generate Hello", False),
        ("--help", False),
        ("", False),
    ],
)
def test_only_a_serve_with_one_engine_starts_it(arguments, needed):
    assert needs_engine(arguments.split()) is needed


def test_a_process_that_nobody_takes_is_ended():
    start_engine_early()
    started = take_early_engine()
    assert started is not None
    assert take_early_engine() is None  # it is taken once
    started.stream.close()
    assert started.process.wait(PATIENCE_S) == 0  # its stream has ended

    left = start_engine_early()
    assert left is not None
    end_early_engine()
    assert left.process.poll() is not None
    assert take_early_engine() is None


def test_a_process_with_another_environment_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would log at another level than the one that a flag has set meanwhile."""
    left = start_engine_early()
    assert left is not None
    monkeypatch.setenv("HOMENODE_LOG_LEVEL", "debug")
    assert take_early_engine() is None
    assert left.process.poll() is not None


def test_the_front_takes_it(tmp_path):
    start_engine_early()
    started = take_early_engine()
    assert started is not None

    async def serve() -> None:
        config = config_for(make_folder(tmp_path / "model", max_position_embeddings=4096))
        async with asyncio.timeout(PATIENCE_S), AsyncEngineClient(EngineAssignment(config), started=started) as client:
            assert client.pid == started.process.pid
            phases = [name for name, _ in client.ready.details["start_phases"]]
            assert phases[:3] == ["interpreter", "imports", "wait for settings"]
            await client.close(PATIENCE_S)  # it ends by itself, however late on a busy machine

    asyncio.run(serve())
    assert started.process.poll() == 0


_LEFT_WHILE_LOADING = """
import os, socket, threading
from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.runtime import process
from homenode.net.message_frames import FrameSocket, encode_frame

ours, theirs = socket.socketpair()
ours.sendall(encode_frame(EngineAssignment(EngineConfig())))

class LateReader(FrameSocket):
    late = False

    def receive(self):
        if self.late:
            threading.Event().wait()
        self.late = True
        return super().receive()

def build(assignment, progress, experts):
    ours.close()
    progress(1, 1)
    raise AssertionError("the front is there")

process._import_engine = lambda: None
os._exit(process._main(LateReader(theirs), [], os.getppid(), build, ()))
"""


def test_an_engine_that_its_front_left_ends_well_whichever_thread_hears_of_it_first() -> None:
    """Here it is the one that sends, as on a busy machine."""
    ended = subprocess.run([sys.executable, "-c", _LEFT_WHILE_LOADING], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("variable", ["HOMENODE_DATA_PARALLEL_SIZE", "HOMENODE_API_SERVER_COUNT"])
def test_settings_outside_of_the_arguments_leave_no_idle_process(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """No argument says that the process which was started early is one too many."""
    monkeypatch.setenv(variable, "2")
    live = LiveServer("--kv-cache-memory", "16MiB")
    try:
        assert len(live.engines()) == (2 if "PARALLEL" in variable else 1)
    finally:
        assert live.close() == 0


def test_settings_that_are_refused_leave_no_process():
    ended = subprocess.run(
        [sys.executable, "-m", "homenode", "serve", "--port", "no-port"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"HOMENODE_TEST_MARK": "early-start"},
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not [each for each in Path("/proc").glob("[0-9]*/environ") if b"early-start" in _bytes_of(each)]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _imported(text: str) -> list[str]:
    return re.findall(r"^import time:[\d |]+\|\s+(\S+)$", text, re.M)


@pytest.mark.skipif(not LiveServer.possible(), reason="there is no model to serve")
def test_what_a_front_imports_before_its_port_is_open():
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "homenode", "serve", "--port", "0"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    said = ""
    deadline = threading.Timer(PATIENCE_S, process.kill)
    deadline.start()
    try:
        for line in process.stderr:
            said += line
            if "ready http" in line:
                break
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
        deadline.cancel()
    modules = _imported(said)
    assert "ready http" in said
    assert 100 < len(modules) <= _MOST_MODULES_OF_FRONT
    assert not [name for name in modules if name.startswith(_WITHOUT)]


def test_what_an_engine_imports():
    ended = subprocess.run(
        [
            sys.executable,
            "-X",
            "importtime",
            "-c",
            "import homenode.engine.runtime.process as p; p._import_engine()",
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    modules = _imported(ended.stderr)
    assert "homenode.engine.runtime.build" in modules
    assert len(modules) <= _MOST_MODULES_OF_ENGINE
    assert not [name for name in modules if name.startswith(("rich", "torch", "click", "starlette"))]


STUBBORN = """
import os, signal, subprocess, sys
from homenode.cli import main

def import_module(name):
    try:
        os.kill(os.getpid(), SIGNAL)
        for _ in range(10**6):
            pass
    except BaseException:
        raise ImportError("of NumPy's C code, whatever it met")

main.importlib.import_module = import_module
sys.argv = ["homenode", "serve"]
main.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_an_import_makes_of_exceptions_does_not_matter_to_a_signal(number: signal.Signals) -> None:
    program = STUBBORN.replace("SIGNAL", str(number.value))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
